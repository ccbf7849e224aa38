"""Push consumers: each message is posted, signed, and settled by what the endpoint answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from headgate.postgres.cluster import Cluster
from headgate.webhooks import new_secret
from support.calls import Db, facts, value
from support.databases import new_database
from support.receivers import SECRET, Post, Receiver, Reply, receiver
from support.servers import Replica, data, drop_stream, error, replica
from support.waiting import wait_until

PRIVATE = "push_private=on"


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    """One database for the module: each test has a stream of its own."""
    with new_database(cluster) as url:
        yield url


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(url, tmp_path_factory.mktemp("server"), PRIVATE) as found:
        yield found


@pytest.fixture(scope="module")
def admin(server: Replica) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture
def stream(admin: httpx.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.partition("[")[0].removeprefix("test_")[:45]
    data(admin.post("/api/streams", json={"name": name, "lanes": 2}))
    yield name
    drop_stream(admin, name)


def consumer(admin: httpx.Client, stream: str, push: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    body = {"name": "c", "push": push, **more}
    return dict(data(admin.post(f"/api/streams/{stream}/consumers", json=body)))


def send(admin: httpx.Client, stream: str, *datas: Any, key: str | None = None) -> list[int]:
    messages = [{"data": d, "key": key} for d in datas]
    return list(data(admin.post(f"/api/streams/{stream}/messages", json={"messages": messages}))["seqs"])


def show(admin: httpx.Client, stream: str) -> dict[str, Any]:
    return dict(data(admin.get(f"/api/streams/{stream}/consumers/c")))


def is_done(admin: httpx.Client, stream: str) -> bool:
    return bool(show(admin, stream)["lag"] == 0)


class TestPosts:
    def test_the_message_and_its_signature(self, admin: httpx.Client, stream: str) -> None:
        with receiver() as there:
            consumer(admin, stream, there.push(headers={"X-Api-Key": "letmein"}), max_deliver=3)
            body = {"messages": [{"data": {"n": 1}, "key": "k", "headers": {"trace": "t"}}, {"data": "text"}]}
            seqs = data(admin.post(f"/api/streams/{stream}/messages", json=body))["seqs"]
            wait_until(lambda: is_done(admin, stream))
            posts = sorted(there.posts, key=lambda p: p.json["seq"])
        assert [p.json["seq"] for p in posts] == seqs
        for p in posts:
            Webhook(SECRET).verify(p.body, p.headers)  # somebody else's implementation
            assert p.headers["content-type"] == "application/json"
            assert p.headers["x-api-key"] == "letmein"
            assert p.path == "/hook"
        first = posts[0].json
        created = first.pop("created_at")
        assert abs(datetime.now(UTC) - datetime.fromisoformat(created)) < timedelta(minutes=1)
        assert first == {
            "stream": stream, "consumer": "c", "seq": seqs[0], "key": "k", "channel": None, "headers": {"trace": "t"},
            "attempt": 1, "data": {"n": 1},
        }  # fmt: skip
        assert posts[1].data == "text"
        assert posts[0].headers["webhook-id"] != posts[1].headers["webhook-id"]

    def test_the_id_stays_through_attempts(self, admin: httpx.Client, stream: str) -> None:
        with receiver(lambda p: 500 if p.json["attempt"] < 3 else 200) as there:
            consumer(admin, stream, there.push(), backoff=0.01)
            send(admin, stream, "x")
            wait_until(lambda: is_done(admin, stream))
        assert [p.json["attempt"] for p in there.posts] == [1, 2, 3]
        assert len({p.headers["webhook-id"] for p in there.posts}) == 1
        for p in there.posts:
            Webhook(SECRET).verify(p.body, p.headers)

    def test_a_secret_is_changed_without_a_gap(self, admin: httpx.Client, stream: str) -> None:
        new = new_secret()
        with receiver() as there:
            consumer(admin, stream, there.push())
            path = f"/api/streams/{stream}/consumers/c"
            data(admin.patch(path, json={"push": {"secret": [new, SECRET]}}))
            send(admin, stream, "x")
            wait_until(lambda: is_done(admin, stream))
            [p] = there.posts
            Webhook(SECRET).verify(p.body, p.headers)
            Webhook(new).verify(p.body, p.headers)

    def test_concurrency(self, admin: httpx.Client, stream: str) -> None:
        def reply(post: Post) -> Reply:
            time.sleep(0.05)
            return 200

        with receiver(reply) as there:
            consumer(admin, stream, there.push(concurrency=3))
            send(admin, stream, *range(15))
            wait_until(lambda: is_done(admin, stream))
        assert sorted(there.datas) == list(range(15))
        assert 2 <= there.most_at_once <= 3

    def test_figures(self, admin: httpx.Client, stream: str) -> None:
        with receiver(lambda p: 200 if p.data == "good" else 400) as there:
            consumer(admin, stream, there.push(), max_deliver=1)
            send(admin, stream, "good", "bad")
            wait_until(lambda: is_done(admin, stream))
        text = admin.get("/metrics").text
        labels = f'stream="{stream}",consumer="c"'
        assert f'headgate_push_total{{{labels},result="done"}} 1' in text
        assert f'headgate_push_total{{{labels},result="failed"}} 1' in text
        assert f"headgate_push_seconds_count{{{labels}}} 2" in text


class TestFailures:
    @pytest.mark.parametrize("status", [400, 404, 500, 503, 302])
    def test_it_comes_again_then_is_dead(self, admin: httpx.Client, stream: str, status: int) -> None:
        elsewhere: list[Receiver] = []

        def reply(post: Post) -> Reply:
            return (status, {"Location": elsewhere[0].url}) if status == 302 else status

        with receiver() as other, receiver(reply) as there:
            elsewhere.append(other)
            consumer(admin, stream, there.push(), max_deliver=2, backoff=0.01)
            send(admin, stream, "x")
            wait_until(lambda: show(admin, stream)["dead"] == 1)
            [dead] = data(admin.get(f"/api/streams/{stream}/consumers/c/dead"))
        assert (dead["attempts"], dead["last_error"], dead["data"]) == (2, f"HTTP {status}", "x")
        assert len(there.posts) == 2
        assert other.posts == [], "redirects are not followed"

    def test_no_answer_in_time(self, admin: httpx.Client, stream: str) -> None:
        def reply(post: Post) -> Reply:
            if post.json["attempt"] == 1:
                time.sleep(1)
            return 200

        with receiver(reply) as there:
            consumer(admin, stream, there.push(timeout_ms=200), backoff=0.01)
            send(admin, stream, "x")
            wait_until(lambda: is_done(admin, stream))
        assert [p.json["attempt"] for p in there.posts] == [1, 2]

    def test_nobody_listens(self, admin: httpx.Client, stream: str, url: str) -> None:
        with receiver() as there:
            gone = there.push()
        consumer(admin, stream, gone, max_deliver=1)
        send(admin, stream, "x")
        wait_until(lambda: show(admin, stream)["dead"] == 1)
        [dead] = data(admin.get(f"/api/streams/{stream}/consumers/c/dead"))
        assert "connection failed" in dead["last_error"]

    def test_a_post_longer_than_the_deadline_is_sent_once(self, admin: httpx.Client, stream: str) -> None:
        def reply(post: Post) -> Reply:
            time.sleep(1.5)
            return 200

        with receiver(reply) as there:
            consumer(admin, stream, there.push(), ack_wait_ms=400)
            send(admin, stream, "x")
            wait_until(lambda: is_done(admin, stream))
        assert len(there.posts) == 1

    def test_410_pauses_and_nothing_is_lost(self, admin: httpx.Client, stream: str) -> None:
        answers = [410]
        with receiver(lambda p: answers[0]) as there:
            consumer(admin, stream, there.push(concurrency=1), max_deliver=1)
            send(admin, stream, "a", "b")
            wait_until(lambda: show(admin, stream)["paused"])
            found = show(admin, stream)
            assert "410" in found["push"]["note"]
            assert (found["dead"], found["lag"]) == (0, 2)
            before = len(there.posts)
            answers[0] = 200
            data(admin.post(f"/api/streams/{stream}/consumers/c/resume"))
            wait_until(lambda: is_done(admin, stream))
        assert [p.json["attempt"] for p in there.posts] == [1] * len(there.posts), "no attempt was counted"
        assert sorted(p.data for p in there.posts[before:]) == ["a", "b"]
        assert show(admin, stream)["push"]["note"] is None

    @pytest.mark.parametrize("form", ["seconds", "date"])
    def test_retry_after(self, admin: httpx.Client, stream: str, form: str) -> None:
        """The message waits, and so does the endpoint, although other messages are there."""

        def reply(post: Post) -> Reply:
            if len(there.posts) > 1:
                return 200
            date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
            return 429 if form == "seconds" else 503, {"Retry-After": "1" if form == "seconds" else date}

        with receiver(reply) as there:
            consumer(admin, stream, there.push(concurrency=1), backoff=0)
            send(admin, stream, "a", "b", "c")
            wait_until(lambda: is_done(admin, stream))
        times = [p.at for p in there.posts]
        assert times[1] - times[0] >= 0.9
        assert len(there.posts) == 4

    def test_an_endpoint_in_trouble_is_spared(self, admin: httpx.Client, stream: str) -> None:
        """It does not use up the attempts of every message."""
        with receiver(lambda p: 500) as there:
            consumer(admin, stream, there.push(concurrency=2), max_deliver=1)
            send(admin, stream, *range(50))
            wait_until(lambda: show(admin, stream)["dead"] >= 5)
            time.sleep(0.3)  # in which fifty would have gone, many times over
            assert show(admin, stream)["dead"] <= 10
        data(admin.patch(f"/api/streams/{stream}/consumers/c", json={"push": None}))

    def test_order_is_kept_through_failures(self, admin: httpx.Client, stream: str) -> None:
        tries: Counter[tuple[str, int]] = Counter()
        done: dict[str, list[int]] = {}

        def reply(post: Post) -> Reply:
            key, n = post.json["key"], post.data
            tries[key, n] += 1
            if n % 3 == 1 and tries[key, n] < 3:
                return 500 if n % 2 else 400
            done.setdefault(key, []).append(n)
            return 200

        with receiver(reply) as there:
            consumer(admin, stream, there.push(concurrency=6), order="key", backoff=0.02)
            for n in range(12):
                for key in "abc":
                    send(admin, stream, n, key=key)
            wait_until(lambda: is_done(admin, stream))
        assert done == {key: list(range(12)) for key in "abc"}


class TestSettings:
    def test_secrets_are_not_shown(self, admin: httpx.Client, stream: str, url: str) -> None:
        with receiver() as there:
            made = consumer(admin, stream, there.push(headers={"X-Api-Key": "letmein"}))
            assert made["push"] == {
                "url": there.url, "secret": ["…" + SECRET[-4:]], "concurrency": 8, "timeout_ms": 15000,
                "headers": ["X-Api-Key"], "note": None, "last_error": None,
            }  # fmt: skip
            path = f"/api/streams/{stream}/consumers"
            for text in (
                admin.get(path).text, admin.get(f"{path}/c").text, admin.get("/api/audit").text,
                admin.patch(f"{path}/c", json={"push": {"concurrency": 2}}).text,
                admin.patch(f"{path}/c", json={"push": {"secret": [SECRET, "whsec_x" + SECRET]}}).text,
                admin.patch(f"{path}/c", json={"push": {"headers": {"x": "letmein\n"}}}).text,
            ):  # fmt: skip
                assert SECRET not in text
                assert SECRET[6:20] not in text
                assert "letmein" not in text

    def test_change_and_stop(self, admin: httpx.Client, stream: str) -> None:
        path = f"/api/streams/{stream}/consumers/c"
        with receiver() as one, receiver() as two:
            consumer(admin, stream, None)
            send(admin, stream, 1)
            assert error(admin.patch(path, json={"push": {"concurrency": 2}}), 422) == "invalid_argument"
            data(admin.patch(path, json={"push": one.push()}))
            wait_until(lambda: one.datas == [1])
            data(admin.patch(path, json={"push": {"url": two.url}}))
            send(admin, stream, 2)
            wait_until(lambda: two.datas == [2])
            wait_until(lambda: is_done(admin, stream))
            assert data(admin.patch(path, json={"push": None}))["push"] is None
            send(admin, stream, 3)
            [got] = data(admin.get(f"{path}/receive", params={"wait_ms": 5000}))
            assert got["message"]["data"] == 3
        assert (one.datas, two.datas) == ([1], [2])

    @pytest.mark.parametrize(
        "push",
        [
            {"secret": SECRET},
            {"url": "http://example.com"},
            {"url": "ftp://example.com/", "secret": SECRET},
            {"url": "http://user:password@example.com/", "secret": SECRET},
            {"url": "http://example.com/#part", "secret": SECRET},
            {"url": "http://exa mple.com/", "secret": SECRET},
            {"url": "http:///path", "secret": SECRET},
            {"url": "http://[::1", "secret": SECRET},
            {"url": "http://example.com/", "secret": "whsec_dG9vIHNob3J0"},
            {"url": "http://example.com/", "secret": "whsec_!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"},
            {"url": "http://example.com/", "secret": SECRET, "concurrency": 0},
            {"url": "http://example.com/", "secret": SECRET, "timeout_ms": 10},
            {"url": "http://example.com/", "secret": SECRET, "headers": {"Host": "other"}},
            {"url": "http://example.com/", "secret": SECRET, "headers": {"webhook-id": "x"}},
            {"url": "http://example.com/", "secret": SECRET, "headers": {"x y": "z"}},
            {"url": "http://example.com/", "secret": SECRET, "allow": True},
        ],
    )  # fmt: skip
    def test_what_is_not_possible(self, admin: httpx.Client, server: Replica, push: dict[str, Any], url: str) -> None:
        data(admin.post("/api/streams", json={"name": "odd", "if_not_exists": True}))
        answer = admin.post("/api/streams/odd/consumers", json={"name": "c", "push": push})
        assert answer.status_code == 422, answer.text
        assert SECRET not in answer.text
        assert data(admin.get("/api/streams/odd/consumers")) == [], "all or nothing"

    def test_leased_consumers_do_not_push(self, admin: httpx.Client, stream: str) -> None:
        body = {"name": "c", "leased": True, "push": {"url": "http://example.com", "secret": SECRET}}
        assert error(admin.post(f"/api/streams/{stream}/consumers", json=body), 422) == "invalid_argument"


def test_a_change_made_elsewhere_is_noticed(admin: httpx.Client, stream: str, url: str) -> None:
    import headgate

    with receiver() as there, headgate.connect(url) as hg:
        orders = hg.stream(stream)
        orders.consumer("c", create=True, push={"url": there.url, "secret": SECRET, "timeout": 2.5})
        orders.send({"n": 1})
        wait_until(lambda: there.datas == [{"n": 1}])
        found = hg.insights.consumer(stream, "c")
        assert found.push is not None
        assert (found.push["timeout"], found.push["secret"]) == (2.5, ["…" + SECRET[-4:]])
        orders.consumer("c").alter(clear=["push"])
        assert hg.insights.consumer(stream, "c").push is None


@pytest.fixture
def db(url: str) -> Iterator[Db]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as found:
        yield found


def test_nothing_is_kept_of_what_was_dropped(admin: httpx.Client, db: Db) -> None:
    data(admin.post("/api/streams", json={"name": "brief"}))
    consumer(admin, "brief", {"url": "http://example.com/", "secret": SECRET})
    assert facts(db, "brief", "c")["push"]["url"] == "http://example.com/"
    drop_stream(admin, "brief")
    assert value(db, "select count(*) from headgate.push where url = 'http://example.com/'") == 0
