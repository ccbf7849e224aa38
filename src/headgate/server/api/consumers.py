"""Consumers: make, list, look at, change, drop, pause, move; their messages and channels."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self, cast
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Struct, UnsetType

from ...database import statements
from ...settings import CONSUMER, changeable
from ...types import ConsumerInfo, Push
from ..http.errors import Problem
from ..http.routing import Call, Routes
from ..push.addresses import Refused
from .fields import (
    Body,
    Limit,
    Nothing,
    PushUrl,
    Response,
    Secret,
    Secrets,
    Seq,
    Text,
    change_body,
    changes,
    fields_of,
    milliseconds,
    new_body,
    settings_of,
)

routes = Routes()


class PushSettings(Body):
    """Where to post messages to. Secrets are written `whsec_` and 24 to 64 bytes in base64; several sign with each.

    A new one needs a secret; one that is there may be left to its own.
    """

    url: PushUrl
    secret: Secret | Secrets | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=100, le=300_000)] | UnsetType = UNSET
    headers: dict[str, Text] | UnsetType | None = UNSET


class PushChange(Body):
    """What to change of it. A consumer that does not push yet needs a url and a secret."""

    url: PushUrl | UnsetType = UNSET
    secret: Secret | Secrets | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=100, le=300_000)] | UnsetType = UNSET
    headers: dict[str, Text] | UnsetType | None = UNSET


NewConsumer = new_body(
    "NewConsumer",
    "A consumer to make. Settings that are left out, or null, have their defaults; an existing one may have others.",
    CONSUMER,
    push=PushSettings,
)


ConsumerChange = change_body(
    "ConsumerChange",
    "Settings of a consumer to change. null puts a setting back to none; what is left out stays.",
    changeable(CONSUMER),
    push=PushChange,
)


class PushTo(Struct):
    """Where a consumer pushes to. Secrets are shown by their ends, headers by their names."""

    url: str
    secret: list[str]
    concurrency: int
    timeout_ms: int
    headers: list[str]
    note: str | None
    last_error: str | None = None


class Consumer(fields_of(ConsumerInfo, push=PushTo | None), Response):  # type: ignore[misc]
    """A consumer and how far it is. In a list of many, `unread`, `floor`, `oldest_unacked` and `dead` may be what
    maintenance saw at `sampled_at`; null: they are of now."""

    @classmethod
    def of(cls, info: ConsumerInfo, /, **instead: Any) -> Self:
        """The response for what insights know."""
        p = info.push
        push = p and PushTo(
            p["url"],
            p["secret"],
            p["concurrency"],
            round(p["timeout"] * 1000),
            p["headers"] or [],
            p["note"],
            p.get("last_error"),
        )
        return super().of(info, push=push, **instead)


class ConsumerSettings(Struct):
    """What a worker needs to know of its consumer. `slot_modulus`: of lanes by key or channel, how many leases share
    them."""

    order: str
    ack_wait_ms: int
    backoff: Any
    leased: bool
    lease_time_ms: int
    slot_modulus: int | None
    max_waiting: int | None


class ToSeek(Body):
    """Where to go: beginning, end, a seq, or a time."""

    to: Seq | Text


class SeekQuery(Body):
    """Where to go: beginning, end, a seq, or a time."""

    to: Text


class SeekPreview(Struct):
    """Where a seek would go, how many messages would come again, and how many unread ones would be passed over.

    Without `exact` these are estimates.
    """

    seq: int
    again: int
    passed_over: int
    exact: bool


class KeyQuery(Body):
    """How many messages."""

    limit: Limit = 10


class Waiting(Struct):
    """A message of a key that the consumer is not done with. State `more`: it was looked up to here, and no further."""

    seq: int
    created_at: datetime | None
    state: str
    attempt: int | None
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


CONSUMERS_PATH = "/api/streams/{stream}/consumers"
CONSUMER_PATH = CONSUMERS_PATH + "/{consumer}"


@routes.route("POST", CONSUMERS_PATH, scope="admin", body=NewConsumer, response=Consumer, status=201)
async def create_consumer(call: Call) -> Consumer:
    """Makes a consumer."""
    new = call.body
    settings = {**settings_of(new, CONSUMER), "push": _push(call, new.push)}
    stream = call.server.stream(call.stream)
    made = await stream.consumer(new.name, create=True, exist_ok=new.if_not_exists, **settings)
    call.server.altered(call.stream, new.name)
    return Consumer.of(await made.info())


def _push(call: Call, given: PushSettings | PushChange | None) -> Push | None:
    """The settings as the SDK takes them. What this server would never post to is refused before it is stored."""
    if given is None:
        return None
    found = {n: getattr(given, n) for n in given.__struct_fields__ if getattr(given, n) is not UNSET}
    if "timeout_ms" in found:
        found["timeout"] = found.pop("timeout_ms") / 1000
    if "url" in found:
        try:
            call.server.pushing.guard.check_literal(urlsplit(found["url"]).hostname or "")
        except (Refused, ValueError):
            raise Problem(
                422, "invalid_argument", "this server does not post to that address",
                "give a public host; `headgate up --push-allow` lets others be used",
            ) from None  # fmt: skip
    return cast(Push, found)


@routes.route("GET", CONSUMERS_PATH, scope="monitor", response=list[Consumer])
async def list_consumers(call: Call) -> list[Consumer]:
    """The consumers of a stream."""
    return [Consumer.of(c) for c in await call.server.hg.insights.consumers(call.stream)]


@routes.route("GET", CONSUMER_PATH, scope="monitor", response=Consumer)
async def get_consumer(call: Call) -> Consumer:
    """One consumer."""
    return Consumer.of(await call.server.hg.insights.consumer(call.stream, call.consumer))


@routes.route("GET", CONSUMER_PATH + "/settings", scope="any", response=ConsumerSettings)
async def get_consumer_settings(call: Call) -> ConsumerSettings:
    """What a worker needs to know of its consumer."""
    c = await call.server.consumer(call.stream, call.consumer)
    return ConsumerSettings(
        c.order,
        milliseconds(c.ack_wait),
        c.backoff,
        c.leased,
        milliseconds(c.lease_time),
        c.slot_modulus,
        c.max_waiting,
    )


@routes.route("PATCH", CONSUMER_PATH, scope="admin", body=ConsumerChange, response=Consumer)
async def change_consumer(call: Call) -> Consumer:
    """Changes settings of a consumer."""
    consumer = await call.server.consumer(call.stream, call.consumer)
    given = changes(call.body)
    if "push" in given:
        given["push"] = _push(call, call.body.push)
    await consumer.alter(**given)
    call.server.altered(call.stream, call.consumer)
    return Consumer.of(await consumer.info())


@routes.route("DELETE", CONSUMER_PATH, scope="admin", response=Nothing)
async def drop_consumer(call: Call) -> Nothing:
    """Removes a consumer and its progress. Its dead letters stay."""
    await (await call.server.consumer(call.stream, call.consumer)).drop()
    call.server.altered(call.stream, call.consumer)
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/pause", scope="admin", response=Nothing)
async def pause_consumer(call: Call) -> Nothing:
    """Receives nothing until it is resumed."""
    await (await call.server.consumer(call.stream, call.consumer)).pause()
    call.server.pushing.changed()
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/resume", scope="admin", response=Nothing)
async def resume_consumer(call: Call) -> Nothing:
    """Receives again."""
    await (await call.server.consumer(call.stream, call.consumer)).resume()
    call.server.polling.may_have_work(call.stream, call.consumer)
    call.server.pushing.changed()
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/seek", scope="admin", body=ToSeek, response=Nothing)
async def seek_consumer(call: Call) -> Nothing:
    """Moves a consumer to the beginning, the end, a seq or a time."""
    await (await call.server.consumer(call.stream, call.consumer)).seek(call.body.to)
    call.server.polling.may_have_work(call.stream, call.consumer)
    return Nothing()


@routes.route("GET", CONSUMER_PATH + "/seek", scope="monitor", query=SeekQuery, response=SeekPreview)
async def preview_seek(call: Call) -> SeekPreview:
    """What a seek would do, without doing it."""
    where = (call.stream, call.consumer, call.query.to)
    [row] = await call.server.hg.run(statements.SEEK_PREVIEW, where)
    return SeekPreview(*row)


@routes.route("GET", CONSUMER_PATH + "/keys/{key}", scope="monitor", query=KeyQuery, response=list[Waiting])
async def list_waiting_of_key(call: Call) -> list[Waiting]:
    """The messages of a key that the consumer is not done with, oldest first: the first one holds the others up."""
    where = (call.stream, call.consumer, call.path["key"], call.query.limit)
    return [Waiting(*row) for row in await call.server.hg.run(statements.WAITING_OF_KEY, where)]
