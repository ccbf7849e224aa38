"""Operators: sessions that maintain, move, alter; each method is a call that a preset may give a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..presets.preset import STREAM, Preset, channel_of, named
from ..record import Event
from .session import TortureSession

CANCEL = """
select pg_cancel_backend(a.pid) from pg_stat_activity a
 where a.datname = current_database() and a.state = 'active' and a.pid <> pg_backend_pid()
   and a.application_name ~ '^(sender|worker|operator|maintainer)[0-9]'
 order by random() limit 1
"""
# Closed segments of which nothing is left but a few parked messages.
TO_BE_KEPT = """
select from headgate.segment g cross join lateral headgate.rest_of(g) r where g.state = 'closed'
 group by g.stream, g.id
having not bool_or(r.unread) and sum(r.in_flight) = 0 and sum(r.parked) between 1 and max(g.messages) / 5 limit 1
"""
ONE_LAYOUT = "select from headgate.layout y group by y.stream having count(*) = 1"
VACUUM = "vacuum (freeze, truncate false) headgate.delivery"


THIN = """
select (headgate.thin_public(s.id, 0, 'second', make_interval(secs => %(age)s), 2000)).gone
  from (select id from headgate.stream where name = %(stream)s for no key update skip locked) s
"""
GO_BACK_BY = "select headgate.seek(%s, %s, (clock_timestamp() - make_interval(secs => %s))::text)"
DISCARD = """
select discarded, held, more
  from headgate.discard(%s, %s, seqs => %s, filter => %s, channel => %s,
                        older_than => make_interval(secs => %s::float8), open => %s)
"""
USE_UP = """
select count(nextval(('headgate.seq_' || s.id)::regclass))
  from headgate.stream s, headgate.make_room(%(stream)s, %(n)s), generate_series(1, %(n)s)
 where s.name = %(stream)s
"""


REWRITING = """
create or replace function headgate.pages_enough(p_live bigint) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$ select 0::bigint $$
"""


class OperatorSession(TortureSession):
    """Maintains, seeks, alters: whatever the preset has weights for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open = self.preset.operators_open

    def step(self) -> None:
        kinds = list(self.preset.weights)
        kind = self.random.choices(kinds, [self.preset.weights[k] for k in kinds])[0]
        getattr(self, kind)(self.random.choice(self.preset.consumers).name)
        if self.transaction is None:
            self.rest(0.1)

    def maintain(self, consumer: str) -> None:
        self.call(
            "maintain", "select task, subject, done from headgate.maintain()", [], lambda rows: [tuple(r) for r in rows]
        )

    def tick(self, consumer: str) -> None:
        self.call("tick", "select headgate.tick(%s)", [STREAM], first)

    def vacuum(self, consumer: str) -> None:
        """As autovacuum does now and then: it forgets who has locked a row before."""
        if self.transaction is None:
            self.history.call(self.name, "vacuum", lambda: self.db.execute(VACUUM).statusmessage)

    def close(self, consumer: str) -> None:
        """The part of maintenance that ends and closes segments and removes none."""
        self.call(
            "close", "select task, done from headgate.prepare_storage()", [], lambda rows: [tuple(r) for r in rows]
        )

    def thin(self, consumer: str) -> None:
        """As maintenance does, but of ticks that are much younger: see thin_ticks() in ticks/thin_ticks.sql."""
        if self.transaction is None:
            age = self.random.choice((0.05, 0.5))
            self.call("thin", THIN, {"stream": STREAM, "age": age}, len, age=age)

    def rewrite(self, consumer: str) -> None:
        """Small tables, as maintenance does once they are bloated; where a preset has this they always look so."""
        if self.transaction is None:
            self.call("rewrite", "select name, pages from headgate.rewrite_small()", [], len)

    def use_up(self, consumer: str) -> None:
        """So many seqs, as a large send does that is rolled back: whoever is open now is late from then on."""
        self.call("use_up", USE_UP, {"stream": STREAM, "n": 11000}, first)

    def compact(self, consumer: str) -> None:
        self.compact_once()

    def compact_once(self) -> Event:
        return self.call("compact", "select headgate.compact(%s)", [STREAM], first)

    def compact_surely(self) -> None:
        """Again, if somebody used the segments just then."""
        for _ in range(8):
            event = self.compact_once()
            if event.answer or event.problem:
                return

    def compact_late(self, consumer: str) -> None:
        """In a transaction that has seen nothing of what others did since it began."""
        if self.transaction is None and self.has_to_keep():
            self.in_transaction(
                lambda: self.tick(""),
                lambda: self.beside(lambda: self.go_back(consumer)),
                self.compact_surely,
                isolation="repeatable read",
            )

    def has_to_keep(self) -> bool:
        """Whether compaction has something to remove, and something to keep of it; helps that to come about."""
        for _ in range(40):
            if self.db.execute(TO_BE_KEPT).fetchall():
                return True
            self.close("")
            self.rest(0.06)
        return False

    def beside(self, step: Callable[[], None]) -> None:
        """By another session, while the transaction of this one is open."""
        mine = self.db, self.transaction
        with self.connect() as self.db:
            self.transaction = None
            step()
        self.db, self.transaction = mine

    def cancel(self, consumer: str) -> None:
        """Whatever somebody is just doing: it must leave nothing half done."""
        self.call("cancel", CANCEL, [], lambda rows: len(rows))

    def set_lanes(self, consumer: str) -> None:
        n = self.random.choice((1, 2, 3, 5))
        self.call("set_lanes", "select headgate.set_lanes(%s, %s)", [STREAM, n], first, lanes=n)

    def seek(self, consumer: str) -> None:
        target = self.random.choice(("beginning", "beginning", "beginning", "end", "seq", "time"))
        if target == "time" and self.knows_time:
            age = self.random.choice((0.05, 0.5, 2.0))
            self.call("seek", GO_BACK_BY, [STREAM, consumer, age], first, consumer=consumer, target=target, age=age)
            return
        if target in ("seq", "time"):
            target = str(self.random.choice(self.known()))
        self.of_consumer("seek", consumer, [target], target=target)

    @property
    def knows_time(self) -> bool:
        """Whether the database's clock goes as ours does."""
        return "jump" not in self.preset.faults

    def go_back(self, consumer: str) -> None:
        self.of_consumer("seek", consumer, ["beginning"], target="beginning")

    def go_back_slowly(self, consumer: str) -> None:
        """In a transaction that stays open while another session compacts."""
        if self.transaction is None and self.has_to_keep():
            self.in_transaction(
                lambda: self.go_back(consumer),
                lambda: self.beside(self.compact_surely),
                isolation="read committed",
            )

    def go_back_elsewhere(self, consumer: str) -> None:
        """After compaction has kept something, and its lanes were left for others."""
        if self.transaction is None and self.has_to_keep():
            self.compact_surely()
            self.set_lanes(consumer)
            for _ in range(40):
                self.maintain(consumer)
                self.compact(consumer)
                if self.db.execute(ONE_LAYOUT).fetchall():
                    break
            self.go_back(consumer)

    def recreate(self, consumer: str) -> None:
        """Dropped, and created again from the beginning, in one statement: for everybody else it is a seek."""
        text, values = named({"ack_wait": 1.0} | self.preset.consumer(consumer).settings)
        self.call(
            "seek",
            f"select headgate.drop_consumer(%s, %s), headgate.create_consumer(%s, %s, {text})",
            [STREAM, consumer, STREAM, consumer, *values],
            first,
            consumer=consumer,
            target="beginning",
            recreated=True,
        )

    def recreate_stream(self, consumer: str) -> None:
        """Dropped with everything, and made again. It needs the stream's tables for itself, so it is alone."""
        if self.transaction is None:
            self.call("recreate_stream", *recreation(self.preset), len)

    def alter_filter(self, consumer: str) -> None:
        """Widened, or as it was."""
        token = self.preset.consumer(consumer).filter
        if token is None:
            return
        tokens = [token, *(self.preset.widened if self.random.random() < 0.5 else ())]
        query = "select headgate.alter_consumer(%s, %s, filter => %s)"
        filters = [f"{t}.>" for t in tokens]
        self.call("alter_consumer", query, [STREAM, consumer, filters], first, consumer=consumer, filter=filters)

    def retry_now(self, consumer: str) -> None:
        seqs = self.some_seqs()
        self.of_consumer("retry_now", consumer, [seqs, seqs is None], seqs=seqs)

    def replay(self, consumer: str) -> None:
        """Some again, by their seqs or those of a range: whether they are done, in flight, parked or unread."""
        known = self.known()
        draw = self.random.random()
        if draw < 0.1:
            since = "from_time => clock_timestamp() - make_interval(secs => %s)"
            self.replay_these(consumer, since, [self.random.choice((0.02, 0.2))], None, given=None)
        elif draw < 0.5:
            seqs = sorted(self.random.sample(known, min(len(known), 5)))
            self.replay_these(consumer, "seqs => %s", [seqs], seqs, given=len(seqs))
        else:
            first = self.random.choice(known)
            last = first + self.random.randrange(20)
            self.replay_these(
                consumer, "from_seq => %s, to_seq => %s", [first, last], list(range(first, last + 1)), given=None
            )

    def replay_these(
        self, consumer: str, text: str, values: list[Any], seqs: list[int] | None, *, given: int | None
    ) -> None:
        """`given`: how many messages it would be, if all of them are replayed."""
        query = f"select replayed from headgate.replay(%s, %s, {text})"
        self.call("replay", query, [STREAM, consumer, *values], first, consumer=consumer, seqs=seqs, given=given)

    def discard(self, consumer: str) -> None:
        """Some that are known, or all of some keys or of a channel, perhaps of a certain age, wherever they are."""
        known = self.known()
        seqs = sorted(self.random.sample(known, min(len(known), self.random.choice((1, 5, 20)))))
        keys = self.known_keys()
        age = self.random.choice((None, None, 0.05, 0.5)) if self.knows_time else None
        if keys and self.random.random() < 0.4:
            self.discard_these(consumer, None, self.random.sample(keys, min(len(keys), 2)), age=age)
        elif keys and self.preset.lane_by == "channel" and self.random.random() < 0.2:
            self.discard_these(consumer, None, channel=channel_of(self.random.choice(keys)), age=age)
        else:
            self.discard_these(consumer, seqs)

    def discard_these(
        self,
        consumer: str,
        seqs: list[int] | None,
        keys: list[str] | None = None,
        *,
        channel: str | None = None,
        age: float | None = None,
    ) -> None:
        """The answer is a number when it was all, and a list when others had some in flight, or there is more."""
        open = None if self.transaction is not None or self.random.random() < 0.5 else False
        self.call(
            "discard",
            DISCARD,
            [STREAM, consumer, seqs, keys, channel, age, open],
            lambda rows: rows[0][0] if tuple(rows[0][1:]) == (0, None) else list(rows[0]),
            consumer=consumer,
            seqs=seqs,
            keys=keys,
            channel=channel,
            age=age,
        )

    def some_seqs(self) -> list[int] | None:
        """A few that are known; or none are named, which means all that are parked."""
        known = self.known()
        return None if self.random.random() < 0.1 else sorted(self.random.sample(known, min(len(known), 5)))

    def redrive(self, consumer: str) -> None:
        most = self.random.choice((None, None, 1, 3))
        seqs = sorted(self.random.sample(self.known(), 1)) if self.random.random() < 0.2 else None
        query = 'select headgate.redrive(%s, %s, seqs => %s, max => %s, "all" => %s)'
        values = [STREAM, consumer, seqs, most, most is None and seqs is None]
        self.call("redrive", query, values, first, consumer=consumer, max=most)

    def purge_dead(self, consumer: str) -> None:
        self.of_consumer("purge_dead", consumer, [None, None, None, True])

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
        if self.random.random() < 0.3:  # back to those of the consumer
            query = "select headgate.set_channel(%s, %s, %s, clear => '{max_concurrency,release_interval}')"
            self.call("set_channel", query, [STREAM, consumer, channel], first, consumer=consumer, channel=channel)
            return
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

    def known_keys(self) -> list[str]:
        """Keys that have been used, as far as the history has come."""
        sends = [e for e in self.history.events[-400:] if e.kind == "send"]
        return sorted({m.key for e in sends for m in e.asked["messages"] if m.key})


class MaintainerSession(OperatorSession):
    """What a server does all the time, as it should be done: each call on its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open, self.longest_rest = 0.0, 0.05

    def step(self) -> None:
        if self.random.random() < 0.7 or self.preset.stream.get("retain", "forever") == "forever":
            self.maintain("")
        else:
            self.compact("")


def recreation(preset: Preset) -> tuple[str, list[Any]]:
    """One statement: what it selects is called from left to right."""
    text, values = named(preset.stream)
    calls, all_values = ["headgate.drop_stream(%s)", f"headgate.create_stream(%s, {text})"], [STREAM, STREAM, *values]
    for plan in preset.consumers:
        text, values = named({"ack_wait": 1.0} | plan.settings)
        calls.append(f"headgate.create_consumer(%s, %s, {text})")
        all_values += [STREAM, plan.name, *values]
    return "select " + ", ".join(calls), all_values


def first(rows: list[Any]) -> Any:
    return rows[0][0]
