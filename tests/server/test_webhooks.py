"""Webhook sources: a signed request becomes a message, once, and is answered when it is on disk."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg
import pytest
from standardwebhooks.webhooks import Webhook

from headgate.postgres.cluster import Cluster
from headgate.webhooks import new_secret
from support.calls import column, value
from support.databases import new_database
from support.servers import Replica, data, drop_stream, error, replica

WHSEC = new_secret()
SECRET = "a secret of many words"
BODY = b'{"id": "evt_1", "customer": {"id": 17, "tags": ["a", "b"]}, "a.b": "dotted"}'

Headers = dict[str, str]


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url:
        yield url


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(url, tmp_path_factory.mktemp("server"), "push=off") as found:
        yield found


@pytest.fixture(scope="module")
def admin(server: Replica) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def sender(server: Replica) -> Iterator[httpx.Client]:
    """Without a token."""
    with httpx.Client(base_url=server.url) as found:
        yield found


@pytest.fixture
def name(admin: httpx.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """A stream and, to be made, a source of the same name."""
    name = request.node.name.translate(str.maketrans("[]", "--"))[:45].removeprefix("test_")
    data(admin.post("/api/streams", json={"name": name}))
    yield name
    drop_stream(admin, name)


def make(admin: httpx.Client, name: str, **settings: Any) -> dict[str, Any]:
    return dict(data(admin.post("/api/sources", json={"name": name, "stream": name, **settings})))


def post(sender: httpx.Client, name: str, body: bytes, headers: Headers, kind: str = "application/json") -> Any:
    return sender.post(f"/api/webhooks/{name}", content=body, headers={"Content-Type": kind, **headers})


def stored(admin: httpx.Client, stream: str) -> list[dict[str, Any]]:
    return list(data(admin.get(f"/api/streams/{stream}/messages", params={"limit": 100})))


def standard(body: bytes = BODY, id: str = "d1", at: float | None = None, secret: str = WHSEC) -> Headers:
    """Signed by somebody else's implementation."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return {
        "webhook-id": id, "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": Webhook(secret).sign(id, moment, body.decode()),
    }  # fmt: skip


def hexed(body: bytes, secret: str = SECRET, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), body, algorithm).hexdigest()


def github(body: bytes = BODY, id: str = "d1", secret: str = SECRET) -> Headers:
    return {"X-Hub-Signature-256": f"sha256={hexed(body, secret)}", "X-GitHub-Delivery": id, "X-GitHub-Event": "push"}


def stripe(body: bytes = BODY, at: float | None = None, secret: str = SECRET) -> Headers:
    t = str(int(time.time() if at is None else at))
    signature = hexed(t.encode() + b"." + body, secret)
    return {"Stripe-Signature": f"t={t},v1={'0' * 64},v1={signature},v0=x"}


class TestSchemes:
    def test_standard(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, secret=WHSEC)
        first = data(post(sender, name, BODY, standard()))
        assert data(post(sender, name, BODY, standard())) == first, "the same delivery, sent again"
        second = data(post(sender, name, BODY, standard(id="d2")))
        assert [m["seq"] for m in stored(admin, name)] == [first["seq"], second["seq"]]
        [m, _] = stored(admin, name)
        assert (m["data"], m["headers"], m["key"]) == (json.loads(BODY), {"source": name}, None)
        for bad in (
            {}, standard(secret=new_secret()), standard(body=b"{}"), standard(at=time.time() - 400),
            standard(at=time.time() + 400), {**standard(), "webhook-id": "d3"},
            {**standard(), "webhook-timestamp": "1"}, {**standard(), "webhook-timestamp": "x"},
            {**standard(), "webhook-signature": "v1,"},
            {**standard(), "webhook-signature": "v2," + standard()["webhook-signature"][3:]},
        ):  # fmt: skip
            assert error(post(sender, name, BODY, bad), 401) == "bad_signature"
        assert len(stored(admin, name)) == 2

    def test_two_secrets(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        new = new_secret()
        make(admin, name, secret=[new, WHSEC])
        data(post(sender, name, BODY, standard()))
        data(post(sender, name, BODY, standard(id="d2", secret=new)))
        data(admin.patch(f"/api/sources/{name}", json={"secret": new}))
        assert error(post(sender, name, BODY, standard(id="d3")), 401) == "bad_signature"
        assert len(stored(admin, name)) == 2

    def test_github(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, scheme="github", secret=SECRET, key="customer.id")
        for _ in range(2):
            data(post(sender, name, BODY, github()))
        [m] = stored(admin, name)
        assert m["headers"] == {"source": name, "x-github-event": "push"}
        assert m["key"] == "17"
        for bad in ({}, github(secret="another secret"), github(body=b"[]"), {"X-Hub-Signature-256": hexed(BODY)}):
            assert error(post(sender, name, BODY, bad), 401) == "bad_signature"

    def test_stripe(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, scheme="stripe", secret=SECRET)
        for _ in range(2):
            data(post(sender, name, BODY, stripe()))
        assert len(stored(admin, name)) == 1, "by the id in the body"
        other = b'{"id": "evt_2"}'
        data(post(sender, name, other, stripe(other)))
        assert len(stored(admin, name)) == 2
        replayed = stripe(at=time.time() - 301)
        for bad in ({}, stripe(secret="another secret"), stripe(b"{}"), replayed, {"Stripe-Signature": "v1=x"}):
            assert error(post(sender, name, BODY, bad), 401) == "bad_signature"

    @pytest.mark.parametrize("algorithm", ["sha256", "sha1", "sha512"])
    @pytest.mark.parametrize("encoding", ["hex", "base64"])
    def test_hmac(self, admin: httpx.Client, sender: httpx.Client, name: str, algorithm: str, encoding: str) -> None:
        signature = {"header": "X-Sign", "algorithm": algorithm, "encoding": encoding, "prefix": "h="}
        make(admin, name, scheme="hmac", secret=SECRET, signature=signature, id="header:X-Delivery")
        digest = hmac.new(SECRET.encode(), BODY, algorithm).digest()
        text = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
        for _ in range(2):
            data(post(sender, name, BODY, {"X-Sign": "h=" + text, "X-Delivery": "1"}))
        assert len(stored(admin, name)) == 1
        wrong = hashlib.new(algorithm, BODY).hexdigest()
        for bad in ({}, {"X-Sign": text}, {"X-Sign": "h=" + wrong}, {"X-Sign": "h="}, {"X-Sign": "h=é"}):
            encoded = {k: v.encode("latin-1") for k, v in bad.items()}
            assert error(post(sender, name, BODY, encoded), 401) == "bad_signature"  # type: ignore[arg-type]

    def test_none(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, scheme="none")
        for _ in range(2):
            data(post(sender, name, BODY, {}))
        assert len(stored(admin, name)) == 2, "nothing says that it is the same"


class TestMessages:
    @pytest.mark.parametrize(
        ("where", "key"),
        [
            ("customer.id", "17"), ("$.customer.id", "17"), ("/customer/id", "17"), ("customer.tags.1", "b"),
            ("/a.b", "dotted"), ("header:X-Shop", "shop 1"), ("customer", None), ("customer.tags.9", None),
            ("no.such", None), ("header:X-None", None),
        ],
    )  # fmt: skip
    def test_key(self, admin: httpx.Client, sender: httpx.Client, where: str, key: str | None) -> None:
        data(admin.post("/api/streams", json={"name": "keys", "if_not_exists": True}))
        make(admin, "keys", scheme="none", key=where)
        seq = data(post(sender, "keys", BODY, {"X-Shop": "shop 1"}))["seq"]
        data(admin.delete("/api/sources/keys"))
        assert data(admin.get(f"/api/streams/keys/messages/{seq}"))["message"]["key"] == key

    def test_channel(self, admin: httpx.Client, sender: httpx.Client) -> None:
        data(admin.post("/api/streams", json={"name": "tenants", "lane_by": "channel"}))
        data(admin.post("/api/streams/tenants/consumers", json={"name": "c"}))
        make(admin, "tenants", scheme="none", channel="customer.id")
        data(post(sender, "tenants", BODY, {}))
        [got] = data(admin.get("/api/streams/tenants/consumers/c/receive", params={"wait_ms": 5000}))
        assert got["message"]["channel"] == "17"

    def test_headers(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, scheme="none", headers=["X-Kind", "X-Absent", "Content-Type"])
        data(post(sender, name, BODY, {"X-Kind": "big", "X-Other": "no"}))
        [m] = stored(admin, name)
        assert m["headers"] == {"source": name, "x-kind": "big"}
        assert m["data"] == json.loads(BODY)

    @pytest.mark.parametrize(
        ("body", "kind", "found", "headers"),
        [
            (b"a=1&b=2", "application/x-www-form-urlencoded", "a=1&b=2", {"content-type": "text/plain"}),
            (b"{nothing", "text/xml", "{nothing", {"content-type": "text/xml"}),
            (b"\xff\x00", "application/octet-stream", "/wA=", {"content-encoding": "base64"}),
            (b"a\x00b", "text/plain", "YQBi", {"content-encoding": "base64"}),
            (b'"text"', "application/json", "text", {}),
            (b"17", "application/json", 17, {"content-type": "application/json"}),
            (b"", "text/plain", "", {"content-type": "text/plain"}),
        ],
    )  # fmt: skip
    def test_other_bodies(
        self, admin: httpx.Client, sender: httpx.Client, body: bytes, kind: str, found: Any, headers: Headers
    ) -> None:
        data(admin.post("/api/streams", json={"name": "any", "if_not_exists": True}))
        make(admin, "any", scheme="none", body="any", if_not_exists=True)
        seq = data(post(sender, "any", body, {}, kind))["seq"]
        m = data(admin.get(f"/api/streams/any/messages/{seq}"))["message"]
        assert (m["data"], m["headers"]) == (found, {"source": "any", **headers})

    def test_what_is_not_taken(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, scheme="none", key="k")
        assert error(post(sender, name, b"no json", {}), 422) == "not_json"
        assert error(post(sender, name, b"[" * 100_000, {}), 422) == "not_json"
        assert error(post(sender, name, b'{"k": "' + b"x" * 3000 + b'"}', {}), 422) == "invalid_body"
        assert error(post(sender, name, b'{"k": "\\u0000"}', {}), 422) == "invalid_text"
        assert error(post(sender, name, b" " * (5 * 1024 * 1024), {}), 413) == "body_too_large"
        assert error(post(sender, "no-such-source", BODY, {}), 404) == "source_not_found"
        assert error(sender.get(f"/api/webhooks/{name}"), 405) == "method_not_allowed"
        assert stored(admin, name) == []

    def test_a_long_delivery_id(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        make(admin, name, scheme="none", id="header:X-Id")
        for _ in range(2):
            data(post(sender, name, BODY, {"X-Id": "x" * 5000}))
        assert len(stored(admin, name)) == 1

    def test_ids_of_two_sources_are_apart(self, admin: httpx.Client, sender: httpx.Client, name: str) -> None:
        for source in ("left", "right"):
            data(admin.post("/api/sources", json={"name": source, "stream": name, "scheme": "none", "id": "id"}))
            data(post(sender, source, BODY, {}))
        assert len(stored(admin, name)) == 2


class TestSources:
    def test_make_show_change_remove(self, admin: httpx.Client, name: str) -> None:
        made = make(admin, name, secret=WHSEC, key="customer.id", tolerance_ms=60_000)
        assert made["secret"] == ["…" + WHSEC[-4:]]
        assert (made["scheme"], made["key"], made["tolerance_ms"], made["kind"]) == (
            "standard", "customer.id", 60_000, "webhook",
        )  # fmt: skip
        path = f"/api/sources/{name}"
        assert data(admin.get(path)) == made
        assert made in data(admin.get("/api/sources"))
        changed = data(admin.patch(path, json={"key": None, "rate_limit": 5}))
        assert (changed["key"], changed["rate_limit"], changed["tolerance_ms"]) == (None, 5, 60_000)
        unsigned = data(admin.patch(path, json={"scheme": "none", "secret": None}))
        assert (unsigned["scheme"], unsigned["secret"]) == ("none", [])
        again = admin.post("/api/sources", json={"name": name, "stream": name, "scheme": "none"})
        assert error(again, 409) == "source_exists"
        data(admin.delete(path))
        for answer in (admin.get(path), admin.delete(path), admin.patch(path, json={})):
            assert error(answer, 404) == "source_not_found"

    def test_secrets_are_not_shown(self, admin: httpx.Client, url: str, name: str) -> None:
        make(admin, name, scheme="github", secret=SECRET)
        path = f"/api/sources/{name}"
        for text in (
            admin.get(path).text, admin.get("/api/sources").text, admin.get("/api/audit").text,
            admin.patch(path, json={"secret": [SECRET, "short"]}).text,
            admin.patch(path, json={"scheme": "standard"}).text,
            admin.patch(path, json={"scheme": "hmac", "secret": SECRET}).text,
        ):  # fmt: skip
            assert SECRET not in text
            assert SECRET[:8] not in text
        with psycopg.connect(url) as db:
            assert SECRET not in str(column(db, "select to_jsonb(s) from headgate.sources s"))

    @pytest.mark.parametrize(
        "settings",
        [
            {}, {"secret": "not whsec"}, {"secret": "whsec_####"}, {"scheme": "none", "secret": SECRET},
            {"scheme": "github"}, {"scheme": "hmac", "secret": SECRET}, {"scheme": "other", "secret": SECRET},
            {"scheme": "github", "secret": SECRET, "signature": {"header": "X"}}, {"scheme": "none", "key": ""},
            {"scheme": "hmac", "secret": SECRET, "signature": {"header": "X", "algorithm": "md5"}},
            {"scheme": "none", "channel": "x"}, {"scheme": "none", "headers": ["a b"]}, {"scheme": "none", "body": "x"},
            {"scheme": "none", "rate_limit": 0}, {"scheme": "none", "tolerance_ms": 1}, {"scheme": "none", "x": 1},
            {"kind": "postgres", "scheme": "none"}, {"kind": "kafka", "scheme": "none"},
        ],
    )  # fmt: skip
    def test_what_is_not_possible(self, admin: httpx.Client, settings: dict[str, Any]) -> None:
        data(admin.post("/api/streams", json={"name": "odd", "if_not_exists": True}))
        answer = admin.post("/api/sources", json={"name": "odd", "stream": "odd", **settings})
        assert answer.status_code == 422, answer.text
        assert error(admin.get("/api/sources/odd"), 404)

    def test_no_such_stream(self, admin: httpx.Client) -> None:
        answer = admin.post("/api/sources", json={"name": "x", "stream": "nowhere", "scheme": "none"})
        assert error(answer, 404) == "stream_not_found"

    def test_it_goes_with_its_stream(self, admin: httpx.Client, sender: httpx.Client) -> None:
        data(admin.post("/api/streams", json={"name": "brief"}))
        make(admin, "brief", scheme="none")
        drop_stream(admin, "brief")
        assert error(admin.get("/api/sources/brief"), 404) == "source_not_found"
        assert error(post(sender, "brief", BODY, {}), 404) == "source_not_found"

    def test_who_may(self, server: Replica, name: str) -> None:
        body = {"name": name, "stream": name, "scheme": "none"}
        for token in (server.new_token("produce", "monitor"), server.new_token("admin", streams=[name])):
            with server.client(token) as client:
                assert client.post("/api/sources", json=body).status_code == 403
        with server.client(server.new_token("monitor")) as client:
            assert client.get("/api/sources").status_code == 200


def test_rate_of_a_source(admin: httpx.Client, sender: httpx.Client, name: str) -> None:
    make(admin, name, scheme="github", secret=SECRET, rate_limit=2)
    for _ in range(10):  # who cannot sign uses up nothing
        assert error(post(sender, name, BODY, {}), 401)
    answers = [post(sender, name, BODY, github(id=str(n))) for n in range(10)]
    refused = [a for a in answers if a.status_code == 429]
    assert 5 <= len(refused) <= 8
    assert refused[0].headers["retry-after"] == "1"
    assert len(stored(admin, name)) == 10 - len(refused)


def test_rate_of_an_address(cluster: Cluster, url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    options = ("push=off", "webhook_rate_limit=5")
    with replica(url, tmp_path_factory.mktemp("limited"), *options) as server:
        with httpx.Client(base_url=server.url) as anybody:
            codes = [post(anybody, "nowhere", b"{}", {}).status_code for _ in range(20)]
    assert codes[:5] == [404] * 5
    assert codes.count(429) >= 10


def test_it_is_on_disk_before_the_answer(admin: httpx.Client, sender: httpx.Client, name: str, url: str) -> None:
    make(admin, name, scheme="none")
    with psycopg.connect(url) as db:
        for _ in range(20):
            seq = data(post(sender, name, BODY, {}))["seq"]
            assert value(db, f'select count(*) from headgate."log_{name}" where seq = %s', seq) == 1
            db.rollback()
