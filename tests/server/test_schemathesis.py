"""Random requests made from the server's own description: no 5xx, and every answer is as described."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headgate.postgres.cluster import Cluster
from headgate.server.api.routes import ROUTES
from headgate.server.http.routing import Route
from support.databases import new_database
from support.servers import Replica, data, replica

EXAMPLES = int(os.environ.get("HEADGATE_TEST_EXAMPLES", "20"))  # of each route
MANY_EXAMPLES = 250
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

# what each operation is tried with, besides random values: names that exist
NAMES = {"stream": "s", "consumer": "c", "channel": "x", "seq": "1", "source": "in"}


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with new_database(cluster) as url, replica(url, tmp_path_factory.mktemp("server")) as found:
        with found.client() as admin:
            data(admin.post("/api/streams", json={"name": "s", "lane_by": "channel"}))
            data(admin.post("/api/streams/s/consumers", json={"name": "c", "max_deliver": 2}))
            data(admin.post("/api/sources", json={"name": "in", "stream": "s", "scheme": "none", "key": "k"}))
            data(admin.post("/api/streams/s/messages", json={"messages": [{"data": 1}]}))
        yield found


@pytest.fixture(scope="module")
def api(server: Replica) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json").json())


@pytest.mark.parametrize("route", ROUTES.all, ids=lambda r: r.name)
def test_random_requests(api: schemathesis.BaseSchema, server: Replica, route: Route) -> None:
    try_route(api, server, route, EXAMPLES, is_same_each_time=True)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES.all, ids=lambda r: r.name)
def test_thousands_of_random_requests(api: schemathesis.BaseSchema, server: Replica, route: Route) -> None:
    """Other ones each time: a failure prints the request as a curl line."""
    try_route(api, server, route, MANY_EXAMPLES, is_same_each_time=False)


def try_route(
    api: schemathesis.BaseSchema, server: Replica, route: Route, examples: int, *, is_same_each_time: bool
) -> None:
    operation = api[route.path][route.method]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=is_same_each_time,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def try_it(case: schemathesis.Case) -> None:
        if route.method != "DELETE" or route.path.endswith("/dead"):
            for name, value in case.path_parameters.items():
                if name in NAMES and len(value) % 2:  # every other one
                    case.path_parameters[name] = NAMES[name]
        if "wait_ms" in (case.query or {}):
            case.query["wait_ms"] = 0
        answer = case.call(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"})
        case.validate_response(answer, checks=CHECKS)

    try_it()
