"""Operators: sessions that maintain, move, alter; each method is a call that a preset may give a weight."""

from __future__ import annotations

from typing import Any

from .presets import STREAM, named
from .sessions import Session

CANCEL = """
select pg_cancel_backend(a.pid) from pg_stat_activity a
 where a.datname = current_database() and a.state = 'active' and a.pid <> pg_backend_pid()
   and a.application_name ~ '^(sender|worker|operator|maintainer)[0-9]'
 order by random() limit 1
"""


class Operator(Session):
    """Maintains, seeks, alters: whatever the preset has weights for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open = self.preset.operators_open

    def step(self) -> None:
        cue = self.pool.take_cue() if self.transaction is None else None
        if cue is not None:
            getattr(self, cue[0])(cue[1])
            return
        kinds = list(self.preset.weights)
        kind = self.random.choices(kinds, [self.preset.weights[k] for k in kinds])[0]
        getattr(self, kind)(self.random.choice(self.preset.consumers).name)
        if self.transaction is None:
            self.pool.cued.wait(self.random.random() * 0.1)

    def maintain(self, consumer: str) -> None:
        self.call(
            "maintain", "select task, subject, done from headgate.maintain()", [], lambda rows: [tuple(r) for r in rows]
        )

    def tick(self, consumer: str) -> None:
        self.call("tick", "select headgate.tick(%s)", [STREAM], first)

    def compact(self, consumer: str) -> None:
        self.call("compact", "select headgate.compact(%s)", [STREAM], first)

    def compact_late(self, consumer: str) -> None:
        """In a transaction that has seen nothing of what others did since it began."""
        if self.transaction is None:
            self.in_transaction(
                lambda: self.tick(""),
                lambda: self.pool.cue("replay", consumer),
                lambda: self.compact(""),
                isolation="repeatable read",
            )

    def cancel(self, consumer: str) -> None:
        """Whatever somebody is just doing: it must leave nothing half done."""
        self.call("cancel", CANCEL, [], lambda rows: len(rows))

    def set_lanes(self, consumer: str) -> None:
        n = self.random.choice((1, 2, 3, 5))
        self.call("set_lanes", "select headgate.set_lanes(%s, %s)", [STREAM, n], first, lanes=n)

    def seek(self, consumer: str) -> None:
        target = self.random.choice(("beginning", "beginning", "beginning", "end", "seq"))
        if target == "seq":
            target = str(self.random.choice(self.known()))
        self.of_consumer("seek", consumer, [target], target=target)

    def replay(self, consumer: str) -> None:
        self.of_consumer("seek", consumer, ["beginning"], target="beginning")

    def replay_slowly(self, consumer: str) -> None:
        """In a transaction that stays open while another operator compacts."""
        if self.transaction is None:
            self.in_transaction(
                lambda: self.replay(consumer),
                lambda: self.pool.cue("compact", consumer),
                isolation="read committed",
            )

    def retry_now(self, consumer: str) -> None:
        self.of_consumer("retry_now", consumer)

    def discard(self, consumer: str) -> None:
        seqs = sorted(self.random.sample(self.known(), 1))
        self.of_consumer("discard", consumer, [seqs], seqs=seqs)

    def redrive(self, consumer: str) -> None:
        self.of_consumer("redrive", consumer)

    def purge_dead(self, consumer: str) -> None:
        self.of_consumer("purge_dead", consumer)

    def pause(self, consumer: str) -> None:
        """For a moment only: a consumer that stays paused tests nothing."""
        self.of_consumer("pause", consumer)
        if self.transaction is None:
            self.rest(0.1)
        if self.transaction is None or not self.steps[-1].problem:
            self.of_consumer("resume", consumer)

    def alter_consumer(self, consumer: str) -> None:
        changes: dict[str, Any] = {
            "ack_wait": self.preset.consumer(consumer).ack_wait + self.random.choice((0.0, 0.1, 0.4)),
        }
        if self.preset.consumer(consumer).settings.get("max_ack_pending"):
            changes["max_ack_pending"] = self.random.randint(4, 20)
        if self.preset.consumer(consumer).settings.get("max_concurrency"):
            changes["max_concurrency"] = self.random.randint(1, 4)
        text, values = named(changes)
        self.call(
            "alter_consumer",
            f"select headgate.alter_consumer(%s, %s, {text})",
            [STREAM, consumer, *values],
            first,
            consumer=consumer,
            changes=changes,
        )

    def alter_stream(self, consumer: str) -> None:
        age = self.random.choice(("100 ms", "200 ms", "500 ms"))
        self.call(
            "alter_stream", "select headgate.alter_stream(%s, segment_age => %s)", [STREAM, age], first, segment_age=age
        )

    def set_channel(self, consumer: str) -> None:
        channel, most = f"t{self.random.randrange(3)}", self.random.randint(1, 3)
        pace = self.random.choice((None, 0.005, 0.05))
        self.call(
            "set_channel",
            "select headgate.set_channel(%s, %s, %s, %s, make_interval(secs => %s))",
            [STREAM, consumer, channel, most, pace],
            first,
            consumer=consumer,
            channel=channel,
            max_concurrency=most,
            release_interval=pace,
        )

    def of_consumer(self, kind: str, consumer: str, values: list[Any] | None = None, **asked: Any) -> None:
        marks = ", %s" * len(values or [])
        self.call(
            kind,
            f"select headgate.{kind}(%s, %s{marks})",
            [STREAM, consumer, *(values or [])],
            first,
            consumer=consumer,
            **asked,
        )

    def known(self) -> list[int]:
        """Seqs that have been sent, as far as the history has come."""
        sends = [e for e in self.history.events[-400:] if e.kind == "send" and e.answer]
        return [seq for e in sends for seq in e.answer] or [1]


class Maintainer(Operator):
    """What a server does all the time, as it should be done: each call on its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open, self.longest_rest = 0.0, 0.05

    def step(self) -> None:
        if self.random.random() < 0.7 or self.preset.stream.get("retain", "forever") == "forever":
            self.maintain("")
        else:
            self.compact("")


def first(rows: list[Any]) -> Any:
    return rows[0][0]
