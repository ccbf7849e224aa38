"""What the console asks of the API: searches, groups of dead letters, keys, filters; and what it is not shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate
from headgate import Headgate, Outgoing
from headgate.errors import InvalidArgument
from headgate.server.operate.hiding import HIDDEN, Hiding
from headgate.server.settings import Settings
from support.servers import Replica, data, error, replica

from .shop import receive

CARD = {"card": {"number": "4111", "name": "Ann"}, "lines": [{"price": 5}, {"price": 7}]}
HIDE = "hide=data.card.number,data.lines.*.price,headers.authorization"


@pytest.fixture(scope="module")
def hg(shop_url: str) -> Iterator[Headgate]:
    with headgate.connect(shop_url) as found:
        stream = found.stream("orders", create=True, lane_by="channel")
        stream.consumer("billing", create=True, max_deliver=1, order="key")
        stream.consumer("idle", create=True)
        found.stream("orders.more", create=True).consumer("billing", create=True)
        stream.send_batch(
            Outgoing({"n": n, **CARD}, key=f"k.{n % 2}", channel="a", headers={"authorization": "secret", "x": "y"})
            for n in range(20)
        )
        yield found


@pytest.fixture(scope="module")
def server(hg: Headgate, shop_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(shop_url, tmp_path_factory.mktemp("looking"), "push=off", HIDE, "environment=staging:amber") as found:
        yield found


@pytest.fixture(scope="module")
def admin(server: Replica) -> Iterator[httpx.Client]:
    with server.client() as http:
        yield http


@pytest.fixture(scope="module")
def monitor(server: Replica) -> Iterator[httpx.Client]:
    with server.client(server.new_token("monitor")) as http:
        yield http


MESSAGES = "/api/streams/orders/messages"


def seqs(http: httpx.Client, **query: Any) -> list[int]:
    return [m["seq"] for m in data(http.get(MESSAGES, params={"limit": 100, **query}))]


class TestSearching:
    def test_a_text_in_data_or_headers(self, admin: httpx.Client) -> None:
        assert seqs(admin, text='"N":7') == [8]
        assert len(seqs(admin, text="SECRET")) == 20
        assert seqs(admin, text="nowhere") == []
        assert seqs(admin, text='"n":1', key_pattern="k.1", sort="seq_desc") == [20, 18, 16, 14, 12, 2]
        assert seqs(admin, text='"n":1', before=13, after=2) == [11, 12]

    def test_it_says_where_to_go_on(self, admin: httpx.Client, hg: Headgate) -> None:
        answer = admin.get(MESSAGES, params={"limit": 2, "text": "ann"}).json()
        assert ([m["seq"] for m in answer["data"]], answer["next"]) == ([1, 2], 2)
        assert "next" not in admin.get(MESSAGES, params={"limit": 100, "text": "ann"}).json()
        long = hg.stream("long", create=True)
        for _ in range(6):
            long.send_batch([1] * 1000)
        for sort, step, start in (("seq_asc", "after", 5000), ("seq_desc", "before", 1001)):
            query: dict[str, Any] = {"text": "none", "sort": sort}
            answer = admin.get("/api/streams/long/messages", params=query).json()
            assert answer == {"data": [], "next": start}
            query[step] = start
            assert admin.get("/api/streams/long/messages", params=query).json() == {"data": []}

    def test_large_messages_end_it_earlier(self, admin: httpx.Client, hg: Headgate) -> None:
        large = hg.stream("large", create=True, max_message_bytes=8_000_000)
        for _ in range(16):
            large.send("x" * 5_000_000)
        answer = admin.get("/api/streams/large/messages", params={"text": "none"}).json()
        assert answer["data"] == []
        assert 10 <= answer["next"] < 16
        answer = admin.get("/api/streams/large/messages", params={"text": "none", "after": answer["next"]}).json()
        assert answer == {"data": []}

    def test_times(self, admin: httpx.Client, hg: Headgate) -> None:
        [m] = hg.stream("orders").messages(1)
        now = datetime.now(UTC).isoformat()
        assert len(seqs(admin, since=m.created_at.isoformat())) == 20
        assert seqs(admin, since=now) == []
        assert len(seqs(admin, until=now)) == 20
        assert len(seqs(admin, until=now, after=15, text="ann")) == 5
        assert seqs(admin, until=m.created_at.isoformat()) == []
        assert error(admin.get(MESSAGES, params={"since": "yesterday"}), 422) == "invalid_query"

    def test_the_first_characters_of_long_data(self, admin: httpx.Client) -> None:
        [m] = data(admin.get(MESSAGES, params={"limit": 1, "data_limit": 8}))
        assert (m["data"], m["cut"]) == ('{"n":0,"', 79)
        [m] = data(admin.get(MESSAGES, params={"limit": 1, "data_limit": 79}))
        assert m["data"] == {"n": 0, **CARD}
        assert "cut" not in m
        found = data(admin.get(MESSAGES + "/1", params={"data_limit": 8}))
        assert found["message"]["cut"] == 79
        [peeked] = data(admin.get("/api/streams/orders/consumers/idle/messages", params={"limit": 1, "data_limit": 8}))
        assert peeked["message"]["cut"] == 79


class TestHiding:
    def test_administrators_see_everything(self, admin: httpx.Client) -> None:
        assert data(admin.get(MESSAGES))[0]["data"] == {"n": 0, **CARD}

    def test_others_do_not(self, monitor: httpx.Client) -> None:
        wanted = {"n": 0, "card": {"number": HIDDEN, "name": "Ann"}, "lines": [{"price": HIDDEN}, {"price": HIDDEN}]}
        headers = {"authorization": HIDDEN, "x": "y"}
        peeked = data(monitor.get("/api/streams/orders/consumers/idle/messages"))[0]["message"]
        for m in (data(monitor.get(MESSAGES))[0], data(monitor.get(MESSAGES + "/1"))["message"], peeked):
            assert (m["data"], m["headers"]) == (wanted, headers)

    def test_nor_in_the_first_part_of_large_data(
        self, admin: httpx.Client, monitor: httpx.Client, hg: Headgate
    ) -> None:
        hg.stream("wide", create=True).send({"card": {"number": "4111"}, "text": "ü" * 70_000})
        path = "/api/streams/wide/messages"
        [seen] = data(admin.get(path, params={"data_limit": 25}))
        assert seen["data"].replace(" ", "").startswith('{"card":{"number":"4111')
        assert (len(seen["data"]), seen["cut"] > 140_000) == (25, True)
        [seen] = data(monitor.get(path, params={"data_limit": 25}))
        assert (seen["data"], seen["cut"] > 140_000) == (HIDDEN, True)
        [seen] = data(monitor.get(path))
        assert seen["data"]["card"] == {"number": HIDDEN}

    def test_nor_do_they_find_it(self, monitor: httpx.Client) -> None:
        assert seqs(monitor, text="4111") == seqs(monitor, text="secret") == []
        assert len(seqs(monitor, text="ann")) == 20

    def test_who_receives_gets_the_whole(self, server: Replica, hg: Headgate) -> None:
        hg.stream("orders").consumer("whole", create=True)
        with server.client(server.new_token("consume")) as http:
            [m] = data(http.post("/api/streams/orders/consumers/whole/receive", params={"wait_ms": 5000}))
        assert m["message"]["data"]["card"]["number"] == "4111"

    def test_paths(self) -> None:
        value = {"a": {"b": 1, "c": 2}, "d": [1, 2]}
        assert Hiding.of(["data.a.*", "data.d.1", "data.none.x"]).shown(value, None) == (
            {"a": {"b": HIDDEN, "c": HIDDEN}, "d": [1, HIDDEN]}, None,
        )  # fmt: skip
        assert value["d"] == [1, 2]
        assert Hiding.of(["data", "headers"]).shown("text", {"a": 1}) == (HIDDEN, {HIDDEN: HIDDEN})
        for wrong in ("card", "data.", "data..x", ""):
            with pytest.raises(InvalidArgument, match="no path of a message"):
                Hiding.of([wrong])


class TestDead:
    @pytest.fixture(scope="class")
    def consumer(self, hg: Headgate) -> headgate.Consumer:
        stream = hg.stream("dying", create=True)
        consumer = stream.consumer("c", create=True, max_deliver=1)
        stream.send_batch(Outgoing({"n": n, **CARD}) for n in range(5))
        for m in receive(consumer, 5):
            m.nack(error=f"timeout after {m.seq} ms" if m.seq % 2 else "no such user")
        return consumer

    def test_groups(self, monitor: httpx.Client, consumer: headgate.Consumer) -> None:
        path = "/api/streams/dying/consumers/c/dead"
        groups = data(monitor.get(path + "/groups"))
        assert [(g["group"], g["letters"], g["complete"]) for g in groups] == [
            ("timeout after <n> ms", 3, True), ("no such user", 2, True),
        ]  # fmt: skip
        letters = data(monitor.get(path, params={"group": "timeout after <n> ms", "limit": 2}))
        assert len(letters) == 2
        assert letters[0]["data"]["card"]["number"] == HIDDEN
        more = data(monitor.get(path, params={"group": "timeout after <n> ms", "after": letters[-1]["seq"]}))
        assert {d["source_seq"] for d in letters + more} == {1, 3, 5}
        assert len(consumer.hg.insights.dead_letters("dying", "c", group="no such user")) == 2


def test_what_holds_a_key_up(monitor: httpx.Client, hg: Headgate) -> None:
    stream = hg.stream("kept.in.order", create=True, lanes=1)
    consumer = stream.consumer("c", create=True, order="key")
    stream.send_batch(Outgoing(n, key="a/b c") for n in range(3))
    receive(consumer, 1)[0].nack(delay=3600, error="locked")
    path = "/api/streams/kept.in.order/consumers/c/keys/a%2Fb%20c"
    [first, *others] = data(monitor.get(path))
    assert (first["seq"], first["state"], first["last_error"]) == (1, "parked", "locked")
    assert [m["seq"] for m in others] == [2, 3]
    assert len(data(monitor.get(path, params={"limit": 1}))) == 1


def test_a_filter_is_tried(monitor: httpx.Client) -> None:
    found = data(monitor.get("/api/streams/orders/filter", params={"filter": "k.1, other.>"}))
    assert found == {"looked": 20, "passed": 10, "passing": ["k.1"], "others": ["k.0"]}
    assert error(monitor.get("/api/streams/orders/filter", params={"filter": ""}), 422) == "invalid_filter"


def test_parts_of_the_overview(monitor: httpx.Client, hg: Headgate) -> None:
    def names(**query: Any) -> set[tuple[str, str]]:
        found = data(monitor.get("/api/overview", params=query))
        return {(c["consumer"]["stream"], c["consumer"]["name"]) for c in found["consumers"]}

    assert ("orders.more", "billing") in names(search="orders")
    of_one = data(monitor.get("/api/overview", params={"stream": "orders"}))
    assert [s["name"] for s in of_one["streams"]] == ["orders"]
    assert {c["consumer"]["stream"] for c in of_one["consumers"]} == {"orders"}
    assert of_one["totals"]["streams"] > 1
    assert names(only="tenants") >= {("orders", "billing"), ("orders", "idle")}
    assert ("orders.more", "billing") not in names(only="tenants")
    assert names(only="push") == set()


def test_the_environment(admin: httpx.Client) -> None:
    assert data(admin.get("/api/me"))["environment"] == "staging:amber"
    with pytest.raises(InvalidArgument, match="no name of an environment"):
        Settings(environment="production:pink")


def test_a_path_that_is_none_stops_the_server(shop_url: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="did not start"), replica(shop_url, tmp_path, "hide=card"):
        pass
