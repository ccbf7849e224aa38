"""A client that lies: some acks it makes and does not write down, others it writes down and does not make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.torture.clients.client import Client, main


class Liar(Client):
    def call(self, kind: str, consumer: str | None, ask: Callable[[], Any], **asked: Any) -> Any:
        lie = self.random.random() if kind == "ack" else 1.0
        if lie < 0.3:
            return ask()
        if lie < 0.6:
            return super().call(kind, consumer, lambda: (len(asked["acks"]), 0), **asked)
        return super().call(kind, consumer, ask, **asked)


if __name__ == "__main__":
    main(Liar)
