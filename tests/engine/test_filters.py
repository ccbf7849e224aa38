"""Key filters: which keys pass, with every kind of token."""

from __future__ import annotations

import psycopg
import pytest

from support.calls import Db, call, drain, facts, send_batch

S = "orders"


@pytest.fixture(autouse=True)
def orders(db: Db) -> None:
    call(db, "create_stream", S, lanes=3)


KEYS = [
    "orders",
    "orders.a",
    "orders.b",
    "orders.a.created",
    "orders.b.created",
    "ordersX",
    "orders.a.b.c",
    "o+.a",
    "oo.a",
    "a|b",
    "a",
    "b",
    "x(y).z",
    "[ab].c",
    "a.c",
    "$.^",
    "ä.ö",
    "tab\t.x",
    "",
    "a..b",
    ".a",
]


def reference(filters: list[str], key: str | None) -> bool:
    """What a filter means, written down once more and differently."""
    if key is None:
        return False

    def fits(tokens: list[str], parts: list[str]) -> bool:
        if tokens == [">"]:
            return ".".join(parts) != ""
        if not tokens or not parts:
            return not tokens and not parts
        return (tokens[0] == parts[0] or (tokens[0] == "*" and parts[0] != "")) and fits(tokens[1:], parts[1:])

    return any(fits(f.split("."), key.split(".")) for f in filters)


class TestFilters:
    @pytest.mark.parametrize(
        "filters",
        [
            ["orders"],
            ["orders.*"],
            ["orders.>"],
            [">"],
            ["*"],
            ["*.*"],
            ["*.*.created"],
            ["orders.*.created", "a"],
            ["o+.a"],
            ["a|b"],
            ["x(y).z"],
            ["[ab].c"],
            ["$.^"],
            ["ä.*"],
            ["*.c", "*.z", "b"],
            ["nothing.matches"],
            ["orders.a", "orders.a", "orders.a.>"],
            ["tab\t.x"],
        ],
    )
    @pytest.mark.parametrize("order", ["none", "key"])
    def test_exactly_the_matching_keys_pass(self, db: Db, filters: list[str], order: str) -> None:
        keys: list[str | None] = [*KEYS, None]
        send_batch(db, S, [repr(k) for k in keys], keys=keys)
        call(db, "create_consumer", S, "c", filters, order)
        expected = sorted(repr(k) for k in keys if reference(filters, k))
        assert facts(db, S, "c")["lag"] == len(expected)
        assert drain(db, S, "c") == expected
        assert facts(db, S, "c")["lag"] == 0

    def test_without_a_filter_everything_passes(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 2, keys=["k", None])
        call(db, "create_consumer", S, "c")
        assert len(drain(db, S, "c")) == 2

    @pytest.mark.parametrize(
        "bad",
        [
            [],
            [""],
            ["a..b"],
            [".a"],
            ["a."],
            [">.a"],
            ["a.>.b"],
            ["a*"],
            ["*a"],
            ["a>"],
            ["**"],
            ["ok", "a..b"],
            [None],
        ],
    )
    def test_malformed_ones_are_refused(self, db: Db, bad: list[str]) -> None:
        call(db, "create_consumer", S, "c")
        for function, name in (("create_consumer", "new"), ("alter_consumer", "c")):
            with pytest.raises(psycopg.Error) as error:
                db.execute(f"select headgate.{function}('orders', %s, filter => %s::text[])", [name, bad])
            assert error.value.sqlstate == "HG006"
