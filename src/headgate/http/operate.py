"""Streams, consumers, sources and tokens: to make, change, list and drop them; messages to be had again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ..database import statements
from ..errors import NotOverHttp
from ..settings import CONSUMER, LENGTHS, STREAM, changeable, http_field
from . import responses
from .request import USE_THE_DATABASE, Made, Request, call, consumer_path, given, listing, look, milliseconds, path


def settings(names: Iterable[str], values: Sequence[Any], clear: Sequence[str] = ()) -> dict[str, Any]:
    """Settings as the server takes them: lengths of time in milliseconds, and null to clear one."""
    found = {
        http_field(name): _setting(name, value) for name, value in zip(names, values, strict=True) if value is not None
    }
    return found | {http_field(name): None for name in clear}


def _setting(name: str, value: Any) -> Any:
    if name in LENGTHS:
        return milliseconds(value)
    if name == "backoff":
        return Raw(value.encode())
    if name == "push":
        push = msgspec.json.decode(value)
        if (timeout := push.pop("timeout", None)) is not None:
            push["timeout_ms"] = round(timeout * 1000)
        return push
    return value


# streams


@call(statements.CREATE_STREAM)
def _create_stream(name: str, *values: Any) -> Made:
    *chosen, exist_ok = values
    body = {"name": name, **settings(STREAM, chosen), "if_not_exists": exist_ok}
    return Request("POST", path("streams"), body=body, is_safe=exist_ok)


@call(statements.ALTER_STREAM)
def _alter_stream(name: str, *values: Any) -> Made:
    *changed, clear = values
    return Request("PATCH", path("streams", name), body=settings(changeable(STREAM), changed, clear), is_safe=True)


@call(statements.SET_LANES)
def _set_lanes(name: str, lanes: int) -> Made:
    return Request("PATCH", path("streams", name), body={"lanes": lanes})


@call(statements.DROP_STREAM)
def _drop_stream(name: str) -> Made:
    return Request("DELETE", path("streams", name))


@call(statements.STREAM_SETTINGS)
def _stream_settings(name: str) -> Made:
    return look(path("streams", name, "settings"), responses.counts("lanes", "max_message_bytes"))


@call(statements.STREAMS)
def _streams(name: str | None, _: str | None) -> Made:
    return look(path("streams") if name is None else path("streams", name), responses.STREAMS)


@call(statements.ARCHIVES)
def _archives(stream: str) -> Made:
    return look(path("streams", stream, "archives"), responses.ARCHIVES)


@call(statements.DROP_ARCHIVE)
def _drop_archive(stream: str, name: str) -> Made:
    return Request("DELETE", path("streams", stream, "archives", name))


# consumers


@call(statements.CREATE_CONSUMER)
def _create_consumer(stream: str, name: str, *values: Any) -> Made:
    *chosen, exist_ok = values
    body = {"name": name, **settings(CONSUMER, chosen), "if_not_exists": exist_ok}
    return Request("POST", path("streams", stream, "consumers"), body=body, is_safe=exist_ok)


@call(statements.ALTER_CONSUMER)
def _alter_consumer(stream: str, name: str, *values: Any) -> Made:
    *changed, clear = values
    body = settings(changeable(CONSUMER), changed, clear)
    return Request("PATCH", consumer_path(stream, name), body=body, is_safe=True)


@call(statements.CONSUMER_SETTINGS)
def _consumer_settings(stream: str, name: str) -> Made:
    return look(consumer_path(stream, name, "settings"), responses.consumer_settings)


@call(statements.CONSUMERS)
def _consumers(stream: str, _: str, name: str | None, __: str | None) -> Made:
    if name is None:
        return look(path("streams", stream, "consumers"), responses.consumers)
    return look(consumer_path(stream, name), responses.consumers)


@call(statements.DROP_CONSUMER)
def _drop_consumer(stream: str, name: str) -> Made:
    return Request("DELETE", consumer_path(stream, name))


@call(statements.PAUSE)
def _pause(stream: str, name: str) -> Made:
    return Request("POST", consumer_path(stream, name, "pause"), is_safe=True)


@call(statements.RESUME)
def _resume(stream: str, name: str) -> Made:
    return Request("POST", consumer_path(stream, name, "resume"), is_safe=True)


@call(statements.SEEK)
def _seek(stream: str, name: str, target: str) -> Made:
    return Request("POST", consumer_path(stream, name, "seek"), body={"to": target})


@call(statements.CHANNELS)
def _channels(stream: str, name: str, sort: str, limit: int, after: str | None, channel: str | None) -> Made:
    if channel is not None:
        return look(_channel_path(stream, name, channel), responses.channels, missing="channel_not_found")
    query = listing(limit, sort=sort, after=after)
    return look(consumer_path(stream, name, "channels"), responses.channels, query=query)


@call(statements.SET_CHANNEL)
def _set_channel(stream: str, name: str, channel: str | None, *values: Any) -> Made:
    *limits, clear = values
    body = settings(("max_concurrency", "release_interval"), limits, clear)
    return Request("PUT", _channel_path(stream, name, channel), body=body, is_safe=True)


def _channel_path(stream: str, consumer: str, channel: str | None) -> str:
    if not channel:
        raise NotOverHttp("the channel without a name has no path over HTTP", hint=USE_THE_DATABASE)
    return consumer_path(stream, consumer, "channels", channel)


@call(statements.WORKERS)
def _workers(stream: str, _: str, consumer: str, __: str) -> Made:
    return look(consumer_path(stream, consumer, "workers"), responses.WORKERS)


@call(statements.JOIN)
def _join(stream: str, consumer: str, worker: str) -> Made:
    body = {"worker": worker}
    return Request(
        "POST", consumer_path(stream, consumer, "workers"), responses.counts("lanes"), body=body, is_safe=True
    )


@call(statements.HEARTBEAT)
def _heartbeat(stream: str, consumer: str, worker: str) -> Made:
    there = consumer_path(stream, consumer, "workers", worker, "heartbeat")
    return Request("POST", there, responses.counts("lanes"), is_safe=True)


@call(statements.BEAT)
def _beat(stream: str, consumer: str, worker: str, *_: str) -> Made:
    there = consumer_path(stream, consumer, "workers", worker, "heartbeat")
    return Request("POST", there, lambda data, next: [(data["lanes"], data["lease_time_ms"] / 1000)], is_safe=True)


@call(statements.LEAVE)
def _leave(stream: str, consumer: str, worker: str) -> Made:
    return Request(
        "DELETE", consumer_path(stream, consumer, "workers", worker), responses.counts("freed"), is_safe=True
    )


# messages again


def _chosen(there: str, method: str, *counted: str, seqs: Any, **more: Any) -> Made:
    """A call about these seqs, or about what `more` says. Without any there is nothing to ask for."""
    if seqs is not None and not seqs:
        return [tuple(None if name in ("more", "next_seq") else 0 for name in counted)]
    body = given(seqs=None if seqs is None else [int(seq) for seq in seqs], **more)
    return Request(method, there, responses.counts(*counted), body=body)


@call(statements.REDRIVE)
def _redrive(stream: str, consumer: str, seqs: Any, filter: Any, limit: int | None, all: bool) -> Made:
    there = consumer_path(stream, consumer, "dead", "redrive")
    return _chosen(there, "POST", "redriven", seqs=seqs, filter=filter, limit=limit, all=all)


@call(statements.PURGE_DEAD)
def _purge_dead(stream: str, consumer: str, seqs: Any, filter: Any, limit: int | None, all: bool) -> Made:
    there = consumer_path(stream, consumer, "dead")
    return _chosen(there, "DELETE", "purged", seqs=seqs, filter=filter, limit=limit, all=all)


@call(statements.RETRY_NOW)
def _retry_now(stream: str, consumer: str, seqs: Any, all: bool) -> Made:
    return _chosen(consumer_path(stream, consumer, "retry"), "POST", "retried", seqs=seqs, all=all)


@call(statements.REPLAY)
def _replay(
    stream: str, consumer: str, seqs: Any, from_seq: Any, to_seq: Any, from_time: Any, to_time: Any, filter: Any
) -> Made:
    there = consumer_path(stream, consumer, "replay")
    return _chosen(
        there, "POST", "replayed", "not_found", "passed_over", "next_seq",
        seqs=seqs, from_seq=from_seq, to_seq=to_seq, from_time=from_time, to_time=to_time, filter=filter,
    )  # fmt: skip


@call(statements.DISCARD)
def _discard(
    stream: str, consumer: str, seqs: Any, filter: Any, channel: str | None, older: str | None, all: bool, go_on: Any
) -> Made:
    there = consumer_path(stream, consumer, "discard")
    return _chosen(
        there, "POST", "discarded", "held", "more",
        seqs=seqs, filter=filter, channel=channel, older_than_ms=milliseconds(older), all=all, go_on=go_on,
    )  # fmt: skip


# sources and tokens


@call(statements.CREATE_SOURCE)
def _create_source(name: str, stream: str, kind: str, scheme: str, secret: Any, more: str, exist_ok: bool) -> Made:
    body = {"name": name, "stream": stream, "kind": kind, "scheme": scheme, "if_not_exists": exist_ok, **_source(more)}
    return Request("POST", path("sources"), body=body | given(secret=secret or None), is_safe=exist_ok)


@call(statements.ALTER_SOURCE)
def _alter_source(name: str, stream: str | None, scheme: str | None, secret: Any, more: str | None) -> Made:
    body = given(stream=stream, scheme=scheme) | _source(more or "{}")
    if secret is not None:
        body["secret"] = secret or None
    return Request("PATCH", path("sources", name), body=body, is_safe=True)


def _source(settings: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(settings)
    if "tolerance" in found:
        tolerance = found.pop("tolerance")
        found["tolerance_ms"] = None if tolerance is None else round(tolerance * 1000)
    return found


@call(statements.SOURCES)
def _sources(name: str | None, _: str | None) -> Made:
    return look(path("sources") if name is None else path("sources", name), responses.sources)


@call(statements.DROP_SOURCE)
def _drop_source(name: str) -> Made:
    return Request("DELETE", path("sources", name))


@call(statements.DOCTOR)
def _doctor(patience: str) -> Made:
    query = {"patience_ms": milliseconds(patience)}
    return look(path("doctor"), responses.FINDINGS, query=query)


@call(statements.TOKENS)
def _tokens() -> Made:
    return look(path("tokens"), responses.TOKENS)


@call(statements.REVOKE_TOKEN)
def _revoke_token(id: str) -> Made:
    return Request("DELETE", path("tokens", id), lambda data, next: [(True,)], missing=("token_not_found", ((False,),)))


@call(statements.AUDIT_LOG)
def _audit_log(limit: int, before: int | None) -> Made:
    return look(path("audit"), responses.AUDIT, query=listing(limit, before=before))


def create_token(body: Mapping[str, Any]) -> Request:
    """Makes a token: unlike the statement, which stores one, the server draws it."""
    return Request("POST", path("tokens"), responses.counts("id", "token"), body=body)
