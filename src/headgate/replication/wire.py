"""The frames of streaming replication: what comes in and the answers to it. No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL counts microseconds from here
_MICROSECOND = timedelta(microseconds=1)
_DATA = struct.Struct(">cQQq")  # 'w', where the WAL of it starts, where the server's ends, when it was sent
_KEEPALIVE = struct.Struct(">cQq?")
_STATUS = struct.Struct(">cQQQq?")


class ProtocolError(Exception):
    """Bytes that are not what the protocol has."""


@dataclass(frozen=True, slots=True)
class Data:
    """A message of the output plugin."""

    lsn: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server lives. Everything that ended before `end` was sent already."""

    end: int
    wants_answer: bool


def read_frame(frame: bytes) -> Data | Keepalive:
    """A frame of the server's."""
    try:
        if frame[:1] == b"w":
            return Data(_DATA.unpack_from(frame)[1], frame[_DATA.size :])
        if frame[:1] == b"k":
            _, end, _, wants_answer = _KEEPALIVE.unpack(frame)
            return Keepalive(end, wants_answer)
    except struct.error as error:
        raise ProtocolError(f"a frame is cut short: {error}") from None
    raise ProtocolError(f"a frame of an unknown kind: {frame[:1]!r}")


def write_status(flushed: int, now: datetime, *, wants_answer: bool = False) -> bytes:
    """Tells the server up to where everything is kept here: it may forget its WAL up to there."""
    return _STATUS.pack(b"r", flushed, flushed, flushed, (now - _EPOCH) // _MICROSECOND, wants_answer)


def moment(microseconds: int) -> datetime:
    """A time of the protocol's."""
    return _EPOCH + timedelta(microseconds=microseconds)


def lsn_text(lsn: int) -> str:
    """A place in the WAL, as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """The place in the WAL that is written so."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
