"""The settings of streams and consumers, one row each: SDK, HTTP, command line and docs read them here.

A row is a field of a TypedDict, so that type checkers know it as an argument of `hg.stream()`, `stream.alter()`,
`stream.consumer()` and `consumer.alter()`. A new setting is a row here, a migration, its SQL (create, alter and view)
and its field in `headgate.types`.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal, NamedTuple, TypedDict, get_args

Order = Literal["none", "key"]
LaneBy = Literal["hash", "key", "channel"]
Retain = Literal["forever", "until_acked", "until_archived"]
Backoff = float | int | list[float] | dict[str, float]

Length = float | timedelta  # of time; a float is in seconds
BIGINT = 63  # bits, beside the sign


class Push(TypedDict, total=False):
    """Where and how a consumer pushes. A new one needs `url` and `secret`; with several secrets all of them sign."""

    url: str
    secret: str | list[str]  # whsec_ and 24 to 64 bytes in base64
    concurrency: int  # requests at once, of each server
    timeout: float  # seconds
    headers: dict[str, str] | None  # sent along


class Setting(NamedTuple):
    """What is known of a setting besides its name and its type in Python."""

    kind: Literal["count", "bytes", "length", "choice", "flag", "filter", "backoff", "position", "push"]
    help: str
    default: str | None = None  # as SQL writes it; None: no limit, or as `help` says
    is_clearable: bool = False  # can be put back to none
    fixed: str | None = None  # it is settled when the stream or consumer is made: what to do instead
    choices: tuple[str, ...] = ()
    least: int = 1  # of counts and bytes
    bits: int = 31  # that counts and bytes may have
    opposite: str | None = None  # of a flag: the option that says no


class StreamChanges(TypedDict, total=False):
    """The settings of a stream that can be changed."""

    retain: Annotated[
        Retain | None, Setting("choice", "How long messages are kept.", "forever", choices=get_args(Retain))
    ]
    retain_up_to: Annotated[Length | None, Setting("length", "Remove what is older.", is_clearable=True)]
    retain_at_least: Annotated[
        Length | None, Setting("length", "Never remove what is younger, to make room.", is_clearable=True)
    ]
    max_storage: Annotated[
        int | None, Setting("bytes", "Remove the oldest above so many bytes.", is_clearable=True, bits=BIGINT)
    ]
    process_unmodified: Annotated[
        bool | None,
        Setting(
            "flag",
            "With --one-message-per-key: whether a message that equals the last one of its key counts.",
            "false",
            opposite="ignore-unmodified",
        ),
    ]
    dedup_window: Annotated[
        Length | None, Setting("length", "How long the ids of messages are remembered.", "5 minutes")
    ]
    max_message_bytes: Annotated[int | None, Setting("bytes", "The largest message: its data and headers.", "16777216")]
    segment_rows: Annotated[
        int | None,
        Setting("count", "Close a segment at so many messages; at more, past 100 segments.", "1000000", bits=BIGINT),
    ]
    segment_bytes: Annotated[
        int | None, Setting("bytes", "Close a segment at so many bytes.", "1073741824", bits=BIGINT)
    ]
    segment_age: Annotated[Length | None, Setting("length", "Close a segment at this age.", is_clearable=True)]
    compact_every: Annotated[Length | None, Setting("length", "How often segments are compacted.", "30 minutes")]


class StreamOptions(StreamChanges, total=False):
    """The settings of a new stream."""

    lanes: Annotated[
        int | None,
        Setting(
            "count",
            "How many lanes keys are spread over. Default: 16.",
            "16",
            fixed="`headgate stream set-lanes` does it",
        ),
    ]
    lane_by: Annotated[
        LaneBy | None,
        Setting(
            "choice",
            "What shares a lane: keys of the same hash, one key, or one channel. Default: hash.",
            "hash",
            fixed="make another stream with it: `headgate stream add NAME --lane-by channel`",
            choices=get_args(LaneBy),
        ),
    ]
    one_message_per_key: Annotated[
        bool | None,
        Setting(
            "flag",
            "Keep only the latest message of a key.",
            "false",
            fixed="make another stream with it: `headgate stream add NAME --one-message-per-key`",
        ),
    ]


class ConsumerChanges(TypedDict, total=False):
    """The settings of a consumer that can be changed."""

    filter: Annotated[
        str | list[str] | None,
        Setting("filter", "Keys to keep, such as `orders.*.created` or `orders.>`.", is_clearable=True),
    ]
    ack_wait: Annotated[
        Length | None, Setting("length", "How long a worker may take for a message. Default: 30s.", "30 seconds")
    ]
    max_deliver: Annotated[
        int | None, Setting("count", "Make it a dead letter after so many attempts.", is_clearable=True)
    ]
    max_ack_pending: Annotated[
        int | None, Setting("count", "So many messages in flight, over all workers.", is_clearable=True)
    ]
    backoff: Annotated[
        Backoff | None,
        Setting(
            "backoff",
            "How long a failed message waits: 30s, or 1s,10s,1m; seconds, a list of them, or an object, as JSON.",
            is_clearable=True,
        ),
    ]
    max_concurrency: Annotated[
        int | None,
        Setting("count", "So many messages of a channel or key in flight.", is_clearable=True, least=0),
    ]
    release_interval: Annotated[
        Length | None, Setting("length", "One message of a channel or key in this time.", is_clearable=True)
    ]
    lease_time: Annotated[
        Length | None, Setting("length", "How often a worker with leases must be seen.", "10 seconds")
    ]
    max_waiting: Annotated[
        int | None, Setting("count", "So many long polls may wait at one HTTP server.", is_clearable=True)
    ]
    push: Annotated[Push | None, Setting("push", "Have the HTTP server post each message there.", is_clearable=True)]


class ConsumerOptions(ConsumerChanges, total=False):
    """The settings of a new consumer."""

    order: Annotated[
        Order | None,
        Setting(
            "choice",
            "key: hand out a message only once the earlier ones of its key are done. Default: none.",
            "none",
            fixed="make another consumer with it: `headgate consumer add STREAM NAME --order key`",
            choices=get_args(Order),
        ),
    ]
    start: Annotated[
        str | int | datetime | None,
        Setting(
            "position",
            "beginning, end, a seq, or a time such as 2026-01-31T12:00Z (local without a zone). Default: beginning.",
            "beginning",
            fixed="`headgate consumer seek` moves a consumer",
        ),
    ]
    leased: Annotated[
        bool | None,
        Setting(
            "flag",
            "Give each lane to one worker at a time.",
            "false",
            fixed="make another consumer with it: `headgate consumer add STREAM NAME --leased`",
        ),
    ]


Settings = dict[str, Setting]


def _rows(options: type, changes: type) -> Settings:
    """The rows of a table, those of new ones alone first."""
    types = options.__annotations__
    found = {name: get_args(types[name])[1] for name in types}
    return {n: found[n] for n in found if n not in changes.__annotations__} | {
        n: found[n] for n in changes.__annotations__
    }


STREAM = _rows(StreamOptions, StreamChanges)
CONSUMER = _rows(ConsumerOptions, ConsumerChanges)


def changeable(settings: Settings) -> Settings:
    """Those that can be changed."""
    return {name: row for name, row in settings.items() if row.fixed is None}


def clearable(settings: Settings) -> list[str]:
    """The names of those that can be put back to none."""
    return [name for name, row in settings.items() if row.is_clearable]


# of both, and what else is a length of time over HTTP, where its field ends in _ms
LENGTHS = {name for name, row in {**STREAM, **CONSUMER}.items() if row.kind == "length"}


def http_field(name: str) -> str:
    """The name of a setting over HTTP, where lengths of time are milliseconds."""
    return f"{name}_ms" if name in LENGTHS else name
