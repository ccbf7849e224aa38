"""What people who look are shown of messages' data: not what is hidden, and not more than they ask for."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from ...types import DeadLetter, PeekedMessage, StoredMessage
from ..http.call import Call
from ..operate.hiding import HIDDEN, Hiding
from .answers_messages import Dead, Peeked, Stored

_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True)
class Eyes:
    """How a caller sees messages: `hiding` takes out what is not for it, `limit` is how many characters it wants."""

    hiding: Hiding
    limit: int | None

    @classmethod
    def of(cls, call: Call) -> Eyes:
        """Of who calls. Administrators see everything."""
        hiding = Hiding() if "admin" in call.caller.scopes else call.server.hiding
        return cls(hiding, getattr(call.query, "data_limit", None))

    def stored(self, m: StoredMessage) -> Stored:
        """A message of a stream."""
        data, headers, cut = self._look(m.data, m.headers)
        return Stored(m.seq, m.key, data, headers, m.deliver_at, m.created_at, cut)

    def beginning(
        self, seq: int, key: str | None, text: str, headers: dict[str, Any] | None, deliver_at: Any, at: Any, size: int
    ) -> Stored:
        """A message of whose data only the first part is known. What is hidden cannot be found in a part: all is."""
        hides = any(path[0] == "data" for path in self.hiding.paths)
        _, headers = self.hiding.shown(None, headers)
        return Stored(seq, key, HIDDEN if hides else text, headers, deliver_at, at, size)

    def peeked(self, m: PeekedMessage) -> Peeked:
        """A message of a consumer."""
        data, headers, cut = self._look(m.data, m.headers)
        stored = Stored(m.seq, m.key, data, headers, None, m.created_at, cut)
        return Peeked(stored, m.state, m.attempt, m.visible_at, m.worker, m.reason, m.last_error)

    def dead(self, d: DeadLetter) -> Dead:
        """A dead letter."""
        data, headers, cut = self._look(d.data, d.headers)
        return Dead(d.seq, d.key, data, headers, d.failed_at, d.attempts, d.last_error, d.source_seq, cut)

    def text(self, m: StoredMessage) -> str:
        """What is seen of it as text, to search in: what is hidden cannot be guessed so."""
        data, headers = self.hiding.shown(m.data, m.headers)
        return _text(data) if headers is None else f"{_text(data)}\n{_text(headers)}"

    def _look(self, data: Any, headers: dict[str, Any] | None) -> tuple[Any, dict[str, Any] | None, int | None]:
        data, headers = self.hiding.shown(data, headers)
        if self.limit is None:
            return shown(data), headers, None
        text = _text(data)
        if len(text) <= self.limit:
            return shown(data), headers, None
        return text[: self.limit], headers, len(text)


def shown(data: Any) -> Any:
    """Data that the SDK has decoded, as JSON shows it. Bytes are base64."""
    if isinstance(data, (bytes, bytearray)):
        return base64.b64encode(data).decode("ascii")
    if isinstance(data, str):
        return data
    try:
        return msgspec.Raw(_encode(data))
    except (ValueError, OverflowError, RecursionError):  # half a surrogate pair: who sends with SQL can write anything
        return json.dumps(data)


def _text(data: Any) -> str:
    """The same as text."""
    found = shown(data)
    return found if isinstance(found, str) else bytes(found).decode()
