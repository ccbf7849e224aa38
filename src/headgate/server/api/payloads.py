"""What people who look are shown of messages' data: not what is hidden, and not more than they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...types import DeadLetter, PeekedMessage, StoredMessage
from ..http.routing import Call
from ..operate.hiding import HIDDEN, Hiding
from .fields import as_json_value


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

    def text(self, m: StoredMessage) -> str:
        """What is seen of it as text, to search in: what is hidden cannot be guessed so."""
        data, headers = self.hiding.shown(m.data, m.headers)
        return _text(data) if headers is None else f"{_text(data)}\n{_text(headers)}"

    def look_at_part(self, text: str, headers: dict[str, Any] | None, size: int) -> dict[str, Any]:
        """The same where only the first part of the data is known. What is hidden cannot be found in it: all is."""
        hides = any(path[0] == "data" for path in self.hiding.paths)
        _, headers = self.hiding.shown(None, headers)
        return {"data": HIDDEN if hides else text, "headers": headers, "cut": size}

    def look(self, m: StoredMessage | PeekedMessage | DeadLetter) -> dict[str, Any]:
        """What is shown of a message, as fields of its response. `cut`: how long the data is, if it is not whole."""
        data, headers = self.hiding.shown(m.data, m.headers)
        if self.limit is not None and len(text := _text(data)) > self.limit:
            return {"data": text[: self.limit], "headers": headers, "cut": len(text)}
        return {"data": as_json_value(data), "headers": headers}


def _text(data: Any) -> str:
    """The same as text."""
    found = as_json_value(data)
    return found if isinstance(found, str) else bytes(found).decode()
