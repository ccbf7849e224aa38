"""Hints in the caller's language. The engine says them in SQL's words, the SDK in Python's; each front end in its own.

A hint is put into another language phrase by phrase, from one table; arguments by rule. `did_you_mean` names what a
misspelt name may have stood for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

Language = Literal["python", "http", "cli"]


ZONE = "pass a datetime with a zone: datetime.now(timezone.utc), or .astimezone() for local time; in text, write +00:00"


class _Phrase(NamedTuple):
    sql: str
    python: str
    http: str
    cli: str


_TABLE = (
    _Phrase(
        "create it with headgate.create_stream(name), or look at the view headgate.streams",
        "create it with hg.stream(name, create=True); hg.streams() lists those that there are",
        "create it with POST /api/streams; GET /api/streams lists those that there are",
        "`headgate stream list` shows the streams, `headgate stream add` makes one",
    ),
    _Phrase(
        "list the streams: select name from headgate.streams",
        "list the streams: hg.streams()",
        "list the streams: GET /api/streams",
        "list the streams: `headgate stream list`",
    ),
    _Phrase(
        "create it with headgate.create_consumer(stream, name), or look at the view headgate.consumers",
        "create it with stream.consumer(name, create=True); stream.consumers() lists those that there are",
        "create it with POST /api/streams/{stream}/consumers; GET lists those that there are",
        "`headgate consumer list` shows the consumers, `headgate consumer add` makes one",
    ),
    _Phrase(
        "create it with headgate.create_source(name, stream), or look at the view headgate.sources",
        "create it with hg.sources.create(name, stream); hg.sources.all() lists those that there are",
        "create it with POST /api/sources; GET /api/sources lists those that there are",
        "`headgate source list` shows the sources, `headgate source add` makes one",
    ),
    _Phrase(
        "headgate.postgres_sources() lists those that there are",
        "hg.sources.all_postgres() lists those that there are",
        "GET /api/sources lists those that there are",
        "`headgate source list` shows the sources",
    ),
    _Phrase(
        "the view headgate.archives lists them",
        "stream.archives() lists them",
        "GET /api/streams/{stream}/archives lists them",
        "`headgate stream archives` lists them",
    ),
    _Phrase(
        "the view headgate.segments says who holds what",
        "stream.segments() says who holds what",
        "`headgate stream segments` says who holds what",
        "`headgate stream segments` says who holds what",
    ),
    _Phrase(
        "or say if_not_exists => true",
        "or leave exist_ok=False out",
        'or say "if_not_exists": true',
        "or say --if-not-exists",
    ),
    _Phrase(
        "headgate.alter_stream(name, max_message_bytes => …)",
        "stream.alter(max_message_bytes=…)",
        'PATCH /api/streams/{stream} {"max_message_bytes": …}',
        "`headgate stream edit --max-message-bytes`",
    ),
    _Phrase("headgate.alter_stream(…)", "stream.alter(…)", "PATCH /api/streams/{stream}", "`headgate stream edit`"),
    _Phrase(
        "headgate.set_lanes(…)",
        "stream.set_lanes(…)",
        "`headgate stream set-lanes`",
        "`headgate stream set-lanes`",
    ),
    _Phrase(
        "headgate.alter_consumer(…)",
        "consumer.alter(…)",
        "PATCH /api/streams/{stream}/consumers/{consumer}",
        "`headgate consumer edit`",
    ),
    _Phrase(
        "call headgate.maintain() once, outside a transaction",
        "call hg.maintain() once",
        "run `headgate maintain` once, or wait for the server to do it",
        "run `headgate maintain` once",
    ),
    _Phrase(
        "call headgate.join_workers(stream, consumer, worker) first, and headgate.heartbeat(…) three times in the "
        "lease_time",
        "use consumer.worker(), or call consumer.join() first, and consumer.heartbeat() three times in the lease_time",
        "POST …/consumers/{consumer}/workers first, and …/heartbeat three times in the lease_time",
        "a leased consumer hands messages to its workers alone; look at them with `headgate peek`",
    ),
    _Phrase(
        "give one as headgate.mark() or headgate.next_mark() returned it",
        "give one as it was returned",
        "give one as it was returned",
        "give one as it was returned",
    ),
    _Phrase(
        "the mark to read up to comes from headgate.next_mark(stream, start)",
        "the mark to read up to comes after the one to start from",
        "the mark to read up to comes after the one to start from",
        "the mark to read up to comes after the one to start from",
    ),
    _Phrase(
        "calls headgate.make_room() before it",
        "sends smaller batches",
        "sends smaller batches",
        "sends smaller batches",
    ),
    _Phrase(
        "call it in a transaction of its own that starts with: begin isolation level read committed",
        "call it outside a transaction, or in one that starts with: begin isolation level read committed",
        "the server's role in the database needs default_transaction_isolation = 'read committed'",
        "this role needs default_transaction_isolation = 'read committed'",
    ),
    _Phrase(
        "filter or max (limit in Python and over HTTP)",
        "filter or limit",
        "filter or limit",
        "a filter or --limit",
    ),
    _Phrase(
        '("all" => true in SQL, all=True in Python, {"all": true} over HTTP, --all)',
        "(all=True)",
        '({"all": true})',
        "(--all)",
    ),
    _Phrase('("all" => true in SQL, {"all": true} over HTTP)', "(all=True)", '({"all": true})', "(--all)"),
    _Phrase(
        "older_than (over HTTP older_than_ms), or, by name, all",
        "older_than, or, by name, all=True",
        'older_than, or, by name, {"all": true}',
        "--older-than, or, by name, --all",
    ),
    _Phrase(
        "and go on with after => the position of the last row",
        "and go on with after=, the `next` of the page before",
        "and go on with after=, the `next` of the page before",
        "and go on with --after, the `next` of the page before",
    ),
    _Phrase("such as '7 days'", "such as timedelta(days=7)", "in milliseconds", "such as 7d"),
    _Phrase("or null for", "or None for", "or null for", "or leave it out, or --clear it, for"),
    _Phrase(
        "(or null for the whole array)", "(or None for all)", "(or null for all)", "(or nothing for all)"
    ),
    _Phrase(
        "or {\"first\": 1, \"factor\": 2, \"max\": 300, \"jitter\": 0.2}",
        "or {\"first\": 1, \"factor\": 2, \"max\": 300, \"jitter\": 0.2}",
        "or {\"first\": 1, \"factor\": 2, \"max\": 300, \"jitter\": 0.2}",
        "or '{\"first\": 1, \"factor\": 2, \"max\": 300, \"jitter\": 0.2}'",
    ),
    _Phrase("", "run `headgate migrate`, or headgate.connect(url, migrate=True), or apply headgate.install_sql()",
            "have `headgate migrate` run", "run `headgate migrate`"),
    _Phrase("", "run `headgate migrate`, or headgate.connect(url, migrate=True)",
            "have `headgate migrate` run", "run `headgate migrate`"),
    _Phrase("", "pass messages as they were received, or their ack_id",
            "use the ack_id that receive returned, as it is",
            "use the ack_id that `headgate receive` printed, as it is"),
    _Phrase("", "give seconds as a number, or a timedelta", "give a number of milliseconds",
            "write 30s, 500ms, 5m or 7d"),
    _Phrase("", "pass a str such as 'orders.>', or a list of them", "give a list of texts such as \"orders.>\"",
            "write for example 'orders.>'"),
    _Phrase("", "pass a datetime, or a str such as", "give a text such as", "write for example"),
    _Phrase("", "connect to the database for this: headgate.connect('postgresql://…')",
            "this needs the database itself", "give --database postgresql://…, or a --context that has a database"),
    _Phrase("", ZONE, "write the time with its zone: 2026-01-31T12:00:00Z, or +01:00 at its end",
            "write the time with its zone: 2026-01-31T12:00Z, or +01:00 at its end"),
    _Phrase("", "pass a list of int", "give a list of whole numbers", "give whole numbers"),
    _Phrase("", "pass a dict", "give an object of names and values", "write an object, such as '{\"trace\": \"abc\"}'"),
)  # fmt: skip

# Settings whose names front ends write in their own way: in JSON lengths of time are milliseconds, in a shell options.
_LENGTHS = (
    "retain_up_to", "retain_at_least", "segment_age", "compact_every", "dedup_window", "ack_wait", "release_interval",
    "lease_time", "older_than",
)  # fmt: skip
_SETTINGS = (
    *_LENGTHS, "max_storage", "max_message_bytes", "segment_rows", "segment_bytes", "lane_by", "max_deliver",
    "max_ack_pending", "max_concurrency", "max_waiting", "rate_limit", "from_seq", "to_seq", "from_time", "to_time",
)  # fmt: skip

_OBJECT = re.compile(r'\{("[a-z_]+": \w+)\}')  # with one member: JSON for an argument
_OBJECTS = re.compile(r"(\{[^}]*\})")  # with several: the same in all languages
_OF_JSON = re.compile(r'"([a-z_]+)": (?=[\w"…])')
_ARGUMENT = re.compile(
    r"""(?<![\w"])"?(?P<name>[a-z_]+)"?(?:\ =>\ |=)(?P<value>true|false|null|True|False|None|\d+|'[^']*'|"[^"]*"|…)""",
    re.VERBOSE,
)
_PLAIN = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_JSON = {True: "true", False: "false", None: "null"}


def translate(hint: str, language: Language) -> str:
    """A hint of the engine, of the SDK or of an HTTP server, in another language."""
    if language != "http" and "over HTTP" not in hint:
        hint = _without_json(hint)
    for phrase in _TABLE:
        for known in (phrase.sql, phrase.python, "" if language == "http" else phrase.http):
            if known:
                hint = hint.replace(known, getattr(phrase, language))
    hint = _ARGUMENT.sub(_WRITERS[language], hint)
    if language == "http":
        return re.sub(rf"\b({'|'.join(_LENGTHS)})\b(?!_ms)", r"\1_ms", hint)
    if language == "cli":
        return re.sub(
            rf"(?<!-)\b({'|'.join(_SETTINGS)})\b(?! can be cleared)", lambda m: "--" + m[1].replace("_", "-"), hint
        )
    return hint


def _without_json(hint: str) -> str:
    """What a server says, with its fields as arguments."""
    hint = re.sub(rf"\b({'|'.join(_LENGTHS)})_ms\b", r"\1", _OBJECT.sub(r"\1", hint))
    parts = _OBJECTS.split(hint)
    return "".join(part if i % 2 else _OF_JSON.sub(r"\1 => ", part) for i, part in enumerate(parts))


def _python(found: re.Match[str]) -> str:
    value = found["value"]
    text = f'"{value[1:-1]}"' if value[0] in "'\"" else str(_PLAIN.get(value, value))
    return f"{found['name']}={text}"


def _http(found: re.Match[str]) -> str:
    value = found["value"]
    text = f'"{value[1:-1]}"' if value[0] in "'\"" else _JSON[_PLAIN[value]] if value in _PLAIN else value
    return f'"{found["name"]}": {text}'


def _cli(found: re.Match[str]) -> str:
    option, value = "--" + found["name"].replace("_", "-"), found["value"].strip("'\"")
    return option if _PLAIN.get(value) is True else f"{option} {value}"


_WRITERS: dict[Language, Callable[[re.Match[str]], str]] = {"python": _python, "http": _http, "cli": _cli}


# Names that are close to a misspelt one

_MOST_COMPARED = 500


def similar(name: str, names: Iterable[str]) -> list[str]:
    """The names that may have been meant, the closest first; none when it is one of them."""
    import difflib  # here: who spells names right does without

    lengths = range(len(name) - 3, len(name) + 4)
    near = [n for n in names if len(n) in lengths or n.startswith(name)]
    if name in near:
        return []
    folded = {n.casefold(): n for n in near[:_MOST_COMPARED]}
    return [folded[n] for n in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.7)]


def did_you_mean(names: Sequence[str]) -> str:
    """What goes before a hint."""
    if not names:
        return ""
    *some, last = names
    return f"did you mean {', '.join(some)}{' or ' if some else ''}{last}? "
