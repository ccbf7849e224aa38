"""As much of PromQL as our alerts use, and when alerts fire: held against promtool where that is installed.

Series are given as `History`: for each moment, what was scraped. Evaluated as Prometheus does it: an instant looks five
minutes back unless the series has ended, `rate` and its like extrapolate to the ends of their window.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Labels = frozenset[tuple[str, str]]
Series = tuple[str, Labels]
Scrape = dict[Series, float]
History = list[tuple[float, Scrape]]  # seconds, in order
Vector = dict[Labels, float]

LOOK_BACK = 300.0
UNITS = {"s": 1, "m": 60, "h": 3600}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a / b if b else float("nan"),
}  # fmt: skip
AGGREGATE: dict[str, Callable[[list[float]], float]] = {
    "max": max, "min": min, "sum": sum, "count": lambda v: float(len(v)),
}  # fmt: skip
TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e\d+)?)(?![\w:])|(?P<range>\[\d+[smh]\])|(?P<word>[a-zA-Z_:][\w:]*)"
    r'|(?P<text>"[^"]*")|(?P<sign>=~|!~|==|!=|>=|<=|[-+*/<>=(){},]))'
)


def seconds(text: str) -> float:
    """Of 15m."""
    return float(text[:-1]) * UNITS[text[-1]]


@dataclass(frozen=True)
class Moment:
    """Where an expression is evaluated."""

    history: History
    at: float

    def instant(self, matches: Callable[[Series], bool]) -> Vector:
        """The newest value of each series that has not ended."""
        past = [s for t, s in self.history if self.at - LOOK_BACK < t <= self.at]
        return {series[1]: v for series, v in past[-1].items() if matches(series)} if past else {}

    def window(self, matches: Callable[[Series], bool], length: float) -> dict[Labels, list[tuple[float, float]]]:
        """All values of each series in the time before."""
        found: dict[Labels, list[tuple[float, float]]] = {}
        for t, scrape in self.history:
            if self.at - length <= t <= self.at:
                for series, v in scrape.items():
                    if matches(series):
                        found.setdefault(series[1], []).append((t, v))
        return found


Node = Callable[[Moment], Any]


def compile_query(text: str) -> Node:
    """A query, to be called with a moment: a Vector, or a float."""
    parser = _Parser(list(_tokens(text)))
    node = parser.either()
    assert not parser.left, f"{text}: {parser.left} is not understood"
    return node


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        assert found is not None, f"not understood: {text[at:]}"
        yield str(found.lastgroup), found[found.lastgroup or 0]
        at = found.end()


class _Parser:
    """By descent: or, and/unless, comparisons, + -, * /, the rest."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.left = tokens

    def takes(self, *texts: str) -> str | None:
        if self.left and self.left[0][1] in texts:
            return self.left.pop(0)[1]
        return None

    def needs(self, text: str) -> None:
        assert self.takes(text), f"{text} is missing before {self.left}"

    def either(self) -> Node:
        node = self.both()
        while self.takes("or"):
            node = _or(node, self.both())
        return node

    def both(self) -> Node:
        node = self.compared()
        while word := self.takes("and", "unless"):
            node = _filtered(node, self.compared(), word == "and")
        return node

    def compared(self) -> Node:
        node = self.added()
        while sign := self.takes(*COMPARE):
            node = _binary(node, self.added(), COMPARE[sign], is_filter=True)
        return node

    def added(self) -> Node:
        node = self.multiplied()
        while sign := self.takes("+", "-"):
            node = _binary(node, self.multiplied(), ARITHMETIC[sign], is_filter=False)
        return node

    def multiplied(self) -> Node:
        node = self.single()
        while sign := self.takes("*", "/"):
            node = _binary(node, self.single(), ARITHMETIC[sign], is_filter=False)
        return node

    def single(self) -> Node:
        kind, text = self.left.pop(0)
        if text == "(":
            node = self.either()
            self.needs(")")
            return node
        if kind == "number":
            return lambda _: float(text)
        assert kind == "word", f"{text} is not understood"
        if text in AGGREGATE:
            by = self.names() if self.takes("by") else []
            self.needs("(")
            node = self.either()
            self.needs(")")
            return _aggregated(node, by, AGGREGATE[text])
        if text in FUNCTIONS:
            self.needs("(")
            node = self.selector(self.left.pop(0)[1], FUNCTIONS[text])
            self.needs(")")
            return node
        return self.selector(text, None)

    def names(self) -> list[str]:
        self.needs("(")
        found = [self.left.pop(0)[1]]
        while self.takes(","):
            found.append(self.left.pop(0)[1])
        self.needs(")")
        return found

    def selector(self, name: str, function: Callable[..., float | None] | None) -> Node:
        conditions: list[tuple[str, str, str]] = []
        if self.takes("{"):
            while not self.takes("}"):
                label, sign, text = (self.left.pop(0)[1] for _ in range(3))
                conditions.append((label, sign, text[1:-1]))
                self.takes(",")

        def matches(series: Series) -> bool:
            labels = dict(series[1])
            return series[0] == name and all(
                (labels.get(label, "") == text) == (sign == "=")
                if sign in ("=", "!=")
                else (re.fullmatch(text, labels.get(label, "")) is not None) == (sign == "=~")
                for label, sign, text in conditions
            )

        if function is None:
            return lambda moment: moment.instant(matches)
        length = seconds(self.left.pop(0)[1][1:-1])

        def ranged(moment: Moment) -> Vector:
            found = {labels: function(v, moment.at, length) for labels, v in moment.window(matches, length).items()}
            return {labels: v for labels, v in found.items() if v is not None}

        return ranged


def _extrapolated(is_counter: bool, is_rate: bool) -> Callable[..., float | None]:
    def change(samples: list[tuple[float, float]], at: float, length: float) -> float | None:
        if len(samples) < 2:
            return None
        (first_at, first), (last_at, last) = samples[0], samples[-1]
        result = last - first
        if is_counter:
            result += sum(a for (_, a), (_, b) in pairwise(samples) if b < a)
        lasted = last_at - first_at
        to_start, to_end = first_at - (at - length), at - last_at
        if is_counter and result > 0 and first >= 0:
            to_start = min(to_start, lasted * first / result)
        between = lasted / (len(samples) - 1)
        whole = lasted
        for gap in (to_start, to_end):
            whole += gap if gap < between * 1.1 else between / 2
        return result * whole / lasted / (length if is_rate else 1)

    return change


def _slope(samples: list[tuple[float, float]], at: float, length: float) -> float | None:
    if len(samples) < 2:
        return None
    middle_t = sum(t for t, _ in samples) / len(samples)
    middle_v = sum(v for _, v in samples) / len(samples)
    spread = sum((t - middle_t) ** 2 for t, _ in samples)
    return sum((t - middle_t) * (v - middle_v) for t, v in samples) / spread


FUNCTIONS: dict[str, Callable[..., float | None]] = {
    "rate": _extrapolated(is_counter=True, is_rate=True),
    "increase": _extrapolated(is_counter=True, is_rate=False),
    "delta": _extrapolated(is_counter=False, is_rate=False),
    "deriv": _slope,
}


def _or(a: Node, b: Node) -> Node:
    return lambda moment: {**b(moment), **a(moment)}


def _filtered(a: Node, b: Node, is_and: bool) -> Node:
    def node(moment: Moment) -> Vector:
        other = b(moment)
        return {labels: v for labels, v in a(moment).items() if (labels in other) == is_and}

    return node


def _binary(a: Node, b: Node, compute: Callable[[float, float], Any], *, is_filter: bool) -> Node:
    def node(moment: Moment) -> Any:
        left, right = a(moment), b(moment)
        if isinstance(left, float) and isinstance(right, float):
            return float(compute(left, right))
        if isinstance(left, float):
            pairs = {labels: (left, v, v) for labels, v in right.items()}
        elif isinstance(right, float):
            pairs = {labels: (v, right, v) for labels, v in left.items()}
        else:
            pairs = {labels: (v, right[labels], v) for labels, v in left.items() if labels in right}
        if is_filter:
            return {labels: kept for labels, (x, y, kept) in pairs.items() if compute(x, y)}
        return {labels: compute(x, y) for labels, (x, y, _) in pairs.items()}

    return node


def _aggregated(node: Node, by: list[str], compute: Callable[[list[float]], float]) -> Node:
    def aggregate(moment: Moment) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, v in node(moment).items():
            groups.setdefault(frozenset((k, x) for k, x in labels if k in by), []).append(v)
        return {labels: compute(values) for labels, values in groups.items()}

    return aggregate


def firing(rules: list[dict[str, Any]], history: History, every: float = 60.0) -> dict[float, set[tuple[str, Labels]]]:
    """At each evaluation, the alerts that fire, by name, each with the labels of its series."""
    compiled = [(r["alert"], compile_query(r["expr"]), seconds(r.get("for", "0s"))) for r in rules]
    since: dict[tuple[str, Labels], float] = {}
    found: dict[float, set[tuple[str, Labels]]] = {}
    at = history[0][0]
    while at <= history[-1][0]:
        fires: set[tuple[str, Labels]] = set()
        active: dict[tuple[str, Labels], float] = {}
        for name, node, wait in compiled:
            for labels in node(Moment(history, at)):
                active[name, labels] = since.get((name, labels), at)
                if at - active[name, labels] >= wait:
                    fires.add((name, labels))
        since = active
        found[at] = fires
        at += every
    return found
