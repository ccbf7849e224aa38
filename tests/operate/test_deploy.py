"""What is in deploy/: it cannot be run here, so it is linted, and held against what the program has."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from headgate.cli import app
from headgate.postgres.cluster import Cluster
from headgate.server.api.routes import ROUTES
from headgate.server.run import LAST_REQUESTS
from headgate.server.settings import PORT
from support.exposition import busy_server, families

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "systemd" / "headgate.service").read_text()
MANIFESTS = [d for f in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for d in yaml.safe_load_all(f.read_text())]
BY_KIND = {d["kind"]: d for d in MANIFESTS}
KUBERNETES = ("1.30", "1.33")
SERVERS = {name: s for name, s in COMPOSE["services"].items() if name != "db"}


@pytest.fixture(scope="module")
def samples(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """The names that a query can use."""
    with busy_server(cluster, tmp_path_factory.mktemp("server")) as text:
        found = families(text)
        yield {*found, *(s.name for metric in found.values() for s in metric.samples)}


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\bheadgate_\w+", re.sub(r'"[^"]*"', '""', query)))


def test_every_query_of_the_dashboard_has_its_metric(samples: set[str]) -> None:
    board = json.loads((DEPLOY / "grafana" / "headgate.json").read_text())
    queries = [t["expr"] for p in board["panels"] for t in p.get("targets", ())]
    queries += [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    assert len(queries) > 20
    for query in queries:
        assert metrics_in(query), query
        assert metrics_in(query) <= samples, query
        assert query.count("(") == query.count(")")
    ids = [p["id"] for p in board["panels"]]
    assert len(ids) == len(set(ids))
    places = [tuple(p["gridPos"].values()) for p in board["panels"]]
    assert len(places) == len(set(places))
    known = {f"${v['name']}" for v in board["templating"]["list"]} | {"$__rate_interval"}
    assert {v for q in queries for v in re.findall(r"\$\w+", q)} <= known
    used = {name for q in queries for name in metrics_in(q)}
    for wanted in ("lag", "oldest_seconds", "in_flight", "parked", "dead", "delivered_rate"):
        assert f"headgate_consumer_{wanted}" in used


def test_every_alert_has_its_metric(samples: set[str]) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "headgate.rules.yaml").read_text())
    alerts = [r for g in rules["groups"] for r in g["rules"]]
    assert len({a["alert"] for a in alerts}) == len(alerts) > 5
    for alert in alerts:
        assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
        assert metrics_in(alert["expr"]) <= samples, alert["alert"]
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", alert.get("for", "1m"))


def test_what_to_do_about_every_alert_is_documented() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "headgate.rules.yaml").read_text())
    documented = (ROOT / "docs" / "monitoring.md").read_text()
    assert [r["alert"] for g in rules["groups"] for r in g["rules"] if f"`{r['alert']}`" not in documented] == []


def variables(text: str) -> set[str]:
    return set(re.findall(r"\bHEADGATE_[A-Z_]+", text))


def test_every_variable_is_one_that_the_program_reads() -> None:
    read = {v for f in (ROOT / "src").rglob("*.py") for v in variables(f.read_text())}
    given = {v for f in DEPLOY.rglob("*") if f.is_file() for v in variables(f.read_text())}
    assert {"HEADGATE_DATABASE_URL", "HEADGATE_FIRST_TOKEN", "HEADGATE_LOG_FORMAT"} <= given
    assert given <= read


def up(arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `headgate up` understands of its arguments and environment."""
    for name, value in environment.items():
        if name.startswith("HEADGATE_"):
            monkeypatch.setenv(name, value)
    assert arguments[0] == "up"
    with click.Context(app) as parent, app.load().commands["up"].make_context("up", arguments[1:], parent) as context:
        return context.params


def test_every_option_of_up_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in app.load().commands["up"].params:
        if option.name not in ("database", "context", "as_json"):
            assert option.envvar == f"HEADGATE_{str(option.name).upper()}"
    found = up(["up"], {"HEADGATE_FIRST_TOKEN": "false", "HEADGATE_ACCESS_LOG": "1", "HEADGATE_PORT": "1"}, monkeypatch)
    assert (found["first_token"], found["access_log"], found["port"]) == (False, True, 1)


def test_dockerfile(monkeypatch: pytest.MonkeyPatch) -> None:
    linter = Path(sys.executable).parent / "hadolint"
    if linter.exists():  # it is not made for every platform
        done = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "")
    stages = DOCKERFILE.split("\nFROM ")[1:]
    assert len(stages) == 2
    last = stages[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE), "not as root"
    assert "HEALTHCHECK" in last
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    extras = re.search(r'"\.\[([a-z,]+)\]"', DOCKERFILE)
    assert extras
    project = (ROOT / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert f"\n{extra} = [" in project
    entry, command = (json.loads(re.search(rf"^{w} (.+)$", last, re.MULTILINE)[1]) for w in ("ENTRYPOINT", "CMD"))  # type: ignore[index]
    assert entry == ["headgate"]
    environment = dict(re.findall(r"\b([A-Z_]+)=(\S+)", last.partition("USER")[0]))
    found = up(command, environment, monkeypatch)
    assert (found["host"], found["port"], found["log_format"]) == ("0.0.0.0", PORT, "json")
    assert f"EXPOSE {PORT}" in last
    check = json.loads(last.partition("CMD ")[2].partition("\n")[0])
    compile(check[2], "health check", "exec")


def test_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SERVERS) == 2
    taken = set()
    for name, server in SERVERS.items():
        assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
        assert server["depends_on"] == {"db": {"condition": "service_healthy"}}
        address, outside, inside = server["ports"][0].split(":")
        assert (address, inside) == ("127.0.0.1", str(PORT)), "open to the world only by choice"
        taken.add(outside)
        assert int(server["stop_grace_period"].rstrip("s")) > LAST_REQUESTS
        environment = {k: re.sub(r"\$\{\w+:-(\w+)\}", r"\1", v) for k, v in server["environment"].items()}
        assert up(["up"], environment, monkeypatch)["first_token"] is (name == "headgate-1")
        for volume in server.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]
    assert len(taken) == 2
    db = COMPOSE["services"]["db"]
    assert re.fullmatch(r"postgres:\d+", db["image"])
    assert "pg_isready" in db["healthcheck"]["test"][1]
    assert "PASSWORD:?" in db["environment"]["POSTGRES_PASSWORD"], "there is no default password"


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_valid(version: str) -> None:
    assert set(BY_KIND) == {"Deployment", "Service", "PodDisruptionBudget", "ServiceAccount", "Secret"}
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**BY_KIND["Service"], "spek": 1}, version, strict=True)


def test_manifests_fit_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = BY_KIND["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["minAvailable"] < spec["replicas"]
    assert pod["terminationGracePeriodSeconds"] > LAST_REQUESTS
    paths = {r.path for r in ROUTES.all}
    probes = {k: container[k]["httpGet"] for k in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {p["path"] for p in probes.values()} <= paths
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert probes["livenessProbe"]["path"] == "/healthz", "a database that is away is no reason to restart servers"
    assert {p["port"] for p in probes.values()} == {"http"}
    assert container["ports"] == [{"name": "http", "containerPort": PORT}]
    environment = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    assert up(container["args"], environment, monkeypatch)["first_token"] is False
    kept = BY_KIND["Secret"]["stringData"]
    for e in container["env"]:
        if "valueFrom" in e:
            assert e["valueFrom"]["secretKeyRef"]["key"] in kept
            assert e["valueFrom"]["secretKeyRef"]["name"] == BY_KIND["Secret"]["metadata"]["name"]
    assert "HEADGATE_DATABASE_URL" not in environment
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert user
    assert [pod["securityContext"][k] for k in ("runAsUser", "runAsGroup")] == [int(n) for n in user.groups()]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_systemd_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT)
    service = unit["Service"]
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "headgate"
    environment = dict(re.findall(r"\b(HEADGATE_\w+)=(\S+)", UNIT.replace("…", "")))
    assert up(arguments, {k: v for k, v in environment.items() if "LOG" in k}, monkeypatch)["log_format"] == "json"
    assert int(service["TimeoutStopSec"]) > LAST_REQUESTS
    assert service["User"] != "root"
    if shutil.which("systemd-analyze"):
        copy = tmp_path / "headgate.service"
        copy.write_text(UNIT.replace(program, "/bin/true"))  # it looks whether the program is there
        done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_documentation_names_every_file() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for file in DEPLOY.rglob("*"):
        if file.is_file() and file.suffix != ".dockerignore":
            assert str(file.relative_to(ROOT)) in page, file.name
    options = {o for p in app.load().commands["up"].params for o in p.opts + p.secondary_opts}
    assert set(re.findall(r"`(--[a-z-]+)", page)) <= options
