"""What is sent is what is received: every kind of data, exactly; and arrays as PostgreSQL reads them."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headgate
from headgate.database.columns import array_literal
from headgate.database.encoding import decode, encode, error_text, interval
from headgate.postgres.cluster import Cluster
from support.clients import running
from support.databases import new_database
from support.waiting import wait_until

EXAMPLES: list[Any] = [
    {}, {"a": 1}, {"a": {"b": [1, 2.5, None, True, "x"]}}, {"": ""}, {"nul": "a\x00b"},
    [], [1], [[], {}], ["[1]"],
    "", " ", "text", "1", "true", "null", "{}", "[1, 2]", '{"a": 1}', "{broken", "[", '"quoted"', " {}", "\n[1]",
    "\ufeff{}",
    "back\\slash", 'quo"te', "a,b", "{a,b}", "NULL", "tab\tnew\nline\r", "\x01\x1f\x7f",
    "ümläut", "日本語", "😀", "\u2028", "%s %(x)s :p0 ::text $1",
    b"", b"\x00", b"\x00\xff\xfe{}", bytes(range(256)), b"text",
    0, -1, 2**63, -(2**70), 1.5, -0.0, 1e300, 5e-324, True, False, None,
]  # fmt: skip


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url:
        yield url


@pytest.fixture(scope="module")
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as db:
        yield db


@pytest.fixture
def consumer(url: str) -> Iterator[headgate.Consumer]:
    with headgate.connect(url) as hg:
        stream = hg.stream("s", create=True, lanes=1)
        yield stream.consumer("c", create=True)
        stream.drop()


def same(a: Any, b: Any) -> bool:
    """Equal and of the same types all the way down: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return type(a) is type(b) and repr(a) == repr(b) and a == b


def test_every_kind_of_data_through_the_database(consumer: headgate.Consumer) -> None:
    stream = consumer.hg.stream("s")
    stream.send_batch([headgate.Outgoing(data) for data in EXAMPLES])
    for data in EXAMPLES:
        stream.send(data)
    found = consumer.receive(1000, wait=5)
    assert len(found) == 2 * len(EXAMPLES)
    for message, data in zip(found, EXAMPLES * 2, strict=True):
        assert same(message.data, data), (data, message)
        assert "\x00" not in message.text
    for peeked, data in zip(consumer.peek(1000), EXAMPLES * 2, strict=True):
        assert same(peeked.data, data)


def test_what_becomes_something_simpler() -> None:
    """JSON has no tuples; a buffer is bytes; an enum's member is its text."""

    class Colour(StrEnum):
        RED = "red"

    assert decode(*encode((1, "a"), None)) == [1, "a"]
    assert decode(*encode({"a": (1,)}, None)) == {"a": [1]}
    assert decode(*encode(bytearray(b"\x00"), None)) == b"\x00"
    assert decode(*encode(memoryview(b"\x00"), None)) == b"\x00"
    assert decode(*encode(Colour.RED, None)) == "red"


def test_usual_data_needs_no_header() -> None:
    for data in ({"a": 1}, [1], "text", ""):
        assert encode(data, None)[1] is None
        assert encode(data, {"mine": 1})[1] == {"mine": 1}


def test_headers_of_the_caller_are_not_changed() -> None:
    headers = {"mine": 1}
    for data in (b"x", "{", 1):
        assert encode(data, headers)[1] != headers
    assert headers == {"mine": 1}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", "[1,]", "{'a': 1}"])
def test_text_that_only_looks_like_json(text: str) -> None:
    """Who sends with SQL can send anything; reading it must not fail."""
    assert decode(text, None) == text
    assert decode(text, {"content-type": "application/json"}) == text


def test_base64_that_is_none() -> None:
    assert decode("***", {"content-encoding": "base64"}) == "***"


@pytest.mark.parametrize("data", [{1, 2}, object(), {"a": object()}, [b"x"], float("nan"), [float("inf")], 1j])
def test_what_cannot_be_sent(consumer: headgate.Consumer, data: Any) -> None:
    with pytest.raises(headgate.errors.DataNotSerializable, match="hint: send a dict"):
        consumer.hg.stream("s").send(data)


def test_what_is_nested_too_deeply(consumer: headgate.Consumer) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(headgate.errors.DataNotSerializable):
        consumer.hg.stream("s").send(deep)


@pytest.mark.parametrize("text", ["a\x00b", "half \ud800 of a pair", "\udfff"], ids=["NUL", "high", "low"])
def test_text_that_postgresql_cannot_store(consumer: headgate.Consumer, text: str) -> None:
    """In data, keys, ids and names, alone or among others. Bytes can carry it."""
    stream = consumer.hg.stream("s")
    calls = [
        lambda: stream.send(text),
        lambda: stream.send_batch(["fine", text]),
        lambda: stream.send("x", key=text),
        lambda: stream.send_batch([("fine", "x"), (text, "x"), (None, "x")]),
        lambda: stream.send("x", id=text),
        lambda: stream.send("x", headers={"a": text}),
        lambda: consumer.hg.stream(text),
        lambda: stream.consumer(text),
        lambda: stream.consumer("x", create=True, filter=text),
        lambda: consumer.ack([text]),
    ]
    if "\x00" not in text:  # JSON writes NUL as \u0000, which is plain text here
        calls.append(lambda: stream.send({"a": text}))
    for call in calls:
        with pytest.raises(headgate.errors.InvalidText, match="hint: "):
            call()
    stream.send(text.encode("utf-8", "surrogatepass"))
    assert [m.data for m in consumer.receive(10, wait=5)] == [text.encode("utf-8", "surrogatepass")]


def test_nul_within_json_is_kept(consumer: headgate.Consumer) -> None:
    consumer.hg.stream("s").send({"a": "\x00"})
    assert [m.data for m in consumer.receive(10, wait=5)] == [{"a": "\x00"}]


# --- properties

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
TRICKY = st.text(st.sampled_from("{}[]\",\\ \n\t'%:$NULnul1a"))
WITHOUT_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(WITHOUT_DEADLINE, max_examples=300)
@given(data=JSON | TEXT | TRICKY | st.binary(), headers=st.none() | st.dictionaries(st.sampled_from("abc"), JSON))
def test_decode_is_the_inverse_of_encode(data: Any, headers: dict[str, Any] | None) -> None:
    text, carried = encode(data, headers)
    assert isinstance(text, str)
    assert same(decode(text, json.loads(json.dumps(carried))), data)
    assert (carried or {}).items() >= (headers or {}).items()


ODD_JSON = st.sampled_from(
    ["[NaN]", "[-Infinity]", "[1e999]", '["\\ud800"]', '["\\ude00"]', "[01]", "[1.]", "[1,]", '{"a": 1, "a": 2}',
     "[1]\x00", "[1\x0b]",
     '["a\nb"]', "[-0, -0.0, 1E+2, 0.1e-7]", "[18446744073709551616]", "[" * 100_000, "{}}", "[1] [2]", "\ufeff[1]"]
)  # fmt: skip
FRAGMENTS = st.lists(
    st.sampled_from(['{"a":', "}", "[", "]", ",", "1", "-2.5e3", "null", '"x"', '"\\u00e9"', " ", "\n", "NaN"])
)


def number(text: str) -> float | Decimal:
    """What no float holds is not infinite."""
    return Decimal(text) if math.isinf(float(text)) else float(text)


@given(text=st.builds(json.dumps, JSON) | ODD_JSON | FRAGMENTS.map("".join))
def test_json_is_read_as_the_standard_library_reads_it(text: str) -> None:
    """And what it cannot read is text."""
    try:
        expected = json.loads(text, parse_float=number) if text[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        expected = text
    found = decode(text, None)
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


@given(data=st.dictionaries(TEXT, JSON) | st.lists(JSON))
def test_json_is_written_as_the_standard_library_writes_it(data: Any) -> None:
    assert encode(data, None)[0] == json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def test_data_within_itself() -> None:
    data: list[Any] = []
    data.append({"again": data})
    with pytest.raises(headgate.errors.DataNotSerializable):
        encode(data, None)


@settings(WITHOUT_DEADLINE, max_examples=300)
@given(texts=st.lists(TEXT | TRICKY | st.none(), max_size=8))
def test_array_literals_as_postgresql_reads_them(texts: list[str | None], db: psycopg.Connection[Any]) -> None:
    assert db.execute("select %s::text[]", [array_literal(texts)]).fetchone() == (texts,)


@given(texts=st.lists(st.text(st.sampled_from("a\x00")), min_size=1).filter(lambda ts: any("\x00" in t for t in ts)))
def test_array_literals_never_take_a_nul(texts: list[str]) -> None:
    """It joins the elements with NUL for speed: one among them must not pass for a border."""
    for given_texts in (texts, [*texts, None]):
        with pytest.raises(headgate.errors.InvalidText):
            array_literal(given_texts)


@settings(WITHOUT_DEADLINE, max_examples=200)
@given(text=st.text())
def test_error_texts_can_be_stored(text: str, db: psycopg.Connection[Any]) -> None:
    kept = error_text(text)
    assert db.execute("select %s::text", [kept]).fetchone() == (kept,)


@settings(WITHOUT_DEADLINE, max_examples=100)
@given(seconds=st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9))
def test_intervals_as_postgresql_reads_them(seconds: float, db: psycopg.Connection[Any]) -> None:
    row = db.execute("select extract(epoch from %s::interval)::float8", [interval(seconds)]).fetchone()
    assert row is not None
    assert row[0] == pytest.approx(seconds, abs=1e-5)


def test_intervals() -> None:
    assert interval(None) is None
    assert interval(timedelta(minutes=1)) == "60.000000 seconds"
    for wrong in (float("nan"), float("inf"), 1e10, True, "10 s", [1]):
        with pytest.raises(headgate.errors.InvalidArgument, match="hint: give seconds"):
            interval(wrong)  # type: ignore[arg-type]


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    article: UUID
    price: Decimal


class Order(msgspec.Struct, rename="camel"):
    order_id: int
    placed_at: datetime
    lines: list[Line]
    colour: Colour = Colour.RED


class Model:
    """What pydantic's models have, which is not installed here."""

    def __init__(self, n: int) -> None:
        self.n = n

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate_json(cls, text: str) -> Model:
        return cls.model_validate(json.loads(text))

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value.get("n"), int):
            raise ValueError("n is no int")
        return cls(value["n"])


ARTICLE = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
ORDER = Order(7, NOON, [Line(ARTICLE, Decimal("1.10"))])
WRITTEN = {
    "orderId": 7, "placedAt": "2026-01-31T12:00:00Z", "colour": "red",
    "lines": [{"article": str(ARTICLE), "price": "1.10"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (NOON, "2026-01-31T12:00:00Z"), (NOON.date(), "2026-01-31"), (ARTICLE, str(ARTICLE)),
        (Decimal("1.10"), "1.10"), (Colour.RED, "red"), (timedelta(seconds=90), "PT90S"),
        (ORDER, WRITTEN), ([ORDER], [WRITTEN]), ({"order": ORDER}, {"order": WRITTEN}),
        (Line(ARTICLE, Decimal(2)), {"article": str(ARTICLE), "price": "2"}), ([Model(3)], [{"n": 3}]),
        ({ARTICLE: {Colour.RED: 1}, 5: NOON.date()}, {str(ARTICLE): {"red": 1}, "5": "2026-01-31"}),
    ],
)  # fmt: skip
def test_objects(consumer: headgate.Consumer, data: Any, read: Any) -> None:
    stream = consumer.hg.stream("s")
    stream.send(data)
    stream.send_batch([headgate.Outgoing(data), (None, data)])
    assert [m.data for m in consumer.receive(10, wait=5)] == [read] * 3


def test_an_encoder_for_the_rest(url: str, consumer: headgate.Consumer) -> None:
    def encoder(value: Any) -> Any:
        if isinstance(value, complex):
            return [value.real, value.imag]
        if isinstance(value, frozenset):
            return sorted(value)
        raise TypeError(f"no {type(value).__name__} here")

    with headgate.connect(url, encoder=encoder) as hg:
        stream = hg.stream("s")
        stream.send({"z": 1 + 2j, "at": NOON, "of": Line(ARTICLE, Decimal(1))})
        stream.send_batch([frozenset({2, 1})])
        with pytest.raises(headgate.errors.DataNotSerializable, match="no object here"):
            stream.send({"a": object()})
        with pytest.raises(headgate.errors.DataNotSerializable, match=r"hint: .*encoder"):
            consumer.hg.stream("s").send(1j)
    line = {"article": str(ARTICLE), "price": "1"}
    assert [m.data for m in consumer.receive(10, wait=5)] == [
        {"z": [1, 2], "at": "2026-01-31T12:00:00Z", "of": line},
        [1, 2],
    ]


class TestTyped:
    def test_what_was_sent_is_what_is_received(self, consumer: headgate.Consumer) -> None:
        stream = consumer.hg.stream("s")
        kinds: list[tuple[Any, Any]] = [
            (Order, ORDER), (Line, ORDER.lines[0]), (datetime, NOON), (UUID, ARTICLE), (Decimal, Decimal("1.10")),
            (Colour, Colour.RED), (list[int], [1, 2]), (dict[str, float], {"a": 1.5}), (str, "{text}"), (bytes, b"[1]"),
            (int, 5), (str, "5"),
        ]  # fmt: skip
        for type, data in kinds:
            stream.send(data)
            [m] = stream.consumer("c", type=type).receive(wait=5)
            assert same(m.data, data), (type, data)
            m.ack()
        stream.send(Model(4))
        [m] = stream.consumer("c", type=Model).receive(wait=5)
        assert m.data.n == 4

    def test_what_does_not_decode_is_told_of_and_not_lost(self, consumer: headgate.Consumer) -> None:
        stream = consumer.hg.stream("s")
        typed = stream.consumer("c", type=Order)
        for wrong in ({"orderId": "seven"}, [1], "text", 5, b"{}", {}):
            stream.send(wrong)
            [m] = typed.receive(wait=5)
            with pytest.raises(headgate.errors.DataInvalid, match=r"is not of the type Order: [\s\S]*hint: `m.text`"):
                _ = m.data
            assert m.text
            assert typed.info().in_flight == 1
            assert m.ack()
        stream.send({})
        [m] = stream.consumer("c", type=Model).receive(wait=5)
        with pytest.raises(headgate.errors.DataInvalid, match="n is no int"):
            _ = m.data

    def test_workers(self, consumer: headgate.Consumer) -> None:
        """A handler gets objects; what is none fails its attempts, with the reason, and becomes a dead letter."""
        stream = consumer.hg.stream("s")
        consumer.alter(max_deliver=2, backoff=0)
        seen: list[Order] = []
        worker = stream.consumer("c", type=Order).worker(lambda m: seen.append(m.data))
        stream.send_batch([(None, ORDER), (None, {"orderId": "seven"}), (None, ORDER)])
        with running(worker):
            wait_until(lambda: consumer.info().lag == 0)
        assert seen == [ORDER, ORDER]
        [dead] = consumer.dead_letters()
        assert (dead.data, dead.attempts) == ({"orderId": "seven"}, 2)
        assert "DataInvalid: the message is not of the type Order" in str(dead.last_error)

    def test_no_type(self, consumer: headgate.Consumer) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="hint: use a dataclass"):
            consumer.hg.stream("s").consumer("c", type=dict[int, "nothing"])  # type: ignore[name-defined]  # noqa: F821


async def test_typed_async(url: str, consumer: headgate.Consumer) -> None:
    async with await headgate.connect_async(url) as hg:
        await (await hg.stream("s")).send(ORDER)
        [m] = await (await (await hg.stream("s")).consumer("c", type=Order)).receive(wait=5)
        assert m.data == ORDER


def test_a_content_encoding_of_the_callers_stays(consumer: headgate.Consumer) -> None:
    packed = gzip.compress(b"text")
    consumer.hg.stream("s").send(packed, headers={"content-encoding": "gzip"})
    [m] = consumer.receive(wait=5)
    assert m.headers
    assert m.headers["content-encoding"] == "gzip"
    assert m.data == packed
