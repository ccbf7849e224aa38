"""What parent and processes say to each other, and processes to their siblings."""

from __future__ import annotations

import struct

import msgspec

from ..operate.metrics import Figures

_LENGTH = struct.Struct("=I")


class Message(msgspec.Struct, tag=True, array_like=True):
    """Something that is said."""


# A process to its parent


class Listening(Message):
    """It answers requests, if only with 503: the database may be away."""


class Ready(Message):
    """The database is there."""

    database: str
    token_file: str | None


class Leaving(Message):
    """It was asked to end, by somebody else: nothing more is to be handed to it."""


class Failed(Message):
    """It cannot start."""

    message: str
    hint: str | None


class Counted(Message):
    """All that it has counted so far."""

    figures: Figures


class Ask(Message):
    """What have all the others counted?"""

    number: int


# The parent to a process


class Count(Message):
    """Say what you have counted."""


class Sum(Message):
    """What the others have counted, those that have ended among them."""

    number: int
    figures: list[Figures]


# A process to its siblings: datagrams, which may be lost


class Published(Message):
    """Messages were committed."""

    stream: str
    last: int
    count: int


class MayHaveWork(Message):
    """Something may have become available for a consumer."""

    stream: str
    consumer: str
    count: int


class Altered(Message):
    """A consumer's settings were changed."""

    stream: str
    consumer: str


class Revoked(Message):
    """A token was changed or removed."""

    id: str


class SourceChanged(Message):
    """A source of webhooks was changed or removed."""

    name: str


Upward = Listening | Ready | Leaving | Failed | Counted | Ask
Downward = Count | Sum
Sideways = Published | MayHaveWork | Altered | Revoked | SourceChanged

_encode = msgspec.msgpack.Encoder().encode
upward = msgspec.msgpack.Decoder(Upward).decode
downward = msgspec.msgpack.Decoder(Downward).decode
sideways = msgspec.msgpack.Decoder(Sideways).decode


def datagram(message: Sideways) -> bytes:
    """The message by itself."""
    return _encode(message)


def frame(message: Upward | Downward) -> bytes:
    """The message with its length, for a stream of them."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Takes a stream of messages apart again."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole by now."""
        self._left += data
        found = []
        while len(self._left) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._left)[0]
            if len(self._left) < end:
                break
            found.append(bytes(self._left[_LENGTH.size : end]))
            del self._left[:end]
        return found
