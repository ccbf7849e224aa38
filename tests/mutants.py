"""Faults planted in the engine's SQL, one at a time, each with a preset of `headgate torture` that should find it."""

from __future__ import annotations

from typing import NamedTuple

from headgate import schema


class Mutant(NamedTuple):
    name: str
    old: str
    new: str
    presets: tuple[str, ...]

    def sql(self) -> str:
        """The whole schema with this fault in it."""
        return schema.install_sql().replace(self.old, self.new)


MUTANTS = (
    # what is in flight
    Mutant(
        "what has departed is still in flight",
        "  if gone <> '{}' then d := headgate.part_of(",
        "  if false then d := headgate.part_of(",
        ("plain",),
    ),
    Mutant(
        "a part departs without a lock",
        "x.id = p_delivery for key share skip locked;",
        "x.id = p_delivery;",
        ("plain", "channels"),
    ),
    Mutant(
        "a single message departs without a lock",
        "and cardinality(x.seqs) > 1 for key share skip locked;",
        "and cardinality(x.seqs) > 1;",
        ("plain", "channels"),
    ),
    Mutant(
        "an extension moves nothing",
        "update headgate.delivery x set deadline = greatest(x.deadline, clock_timestamp() + by)",
        "update headgate.delivery x set deadline = x.deadline",
        ("plain",),
    ),
    Mutant(
        "acks of a receive are forgotten",
        "      select s.stale into got from headgate.settle(c, acks) s;\n",
        "      got := 0;\n",
        ("plain",),
    ),
    Mutant(
        "an ack counts what has departed",
        "    acked := acked - headgate.forget_departed_of(c, whole);",
        "    acked := acked;",
        ("plain",),
    ),
    Mutant(
        "a delivery is deleted whoever holds it",
        "y.xmax = '0'::xid\n                   and (p.seqs is null or y.seqs = p.seqs) limit 1 for update skip locked",
        "(p.seqs is null or y.seqs && p.seqs) limit 1",
        ("plain",),
    ),
    # spans and ticks
    Mutant(
        "a span begins with what was read",
        "and pg_visible_in_snapshot(m.xid, at_to) and not pg_visible_in_snapshot(m.xid, at_from)",
        "and pg_visible_in_snapshot(m.xid, at_to)",
        ("plain", "many-lanes"),
    ),
    Mutant(
        "a span goes beyond its tick",
        "and pg_visible_in_snapshot(m.xid, at_to) and not pg_visible_in_snapshot(m.xid, at_from)",
        "and not pg_visible_in_snapshot(m.xid, at_from)",
        ("plain", "many-lanes"),
    ),
    Mutant("late messages are passed over", "    l.late := below;\n", "    l.late := null;\n", ("plain", "misuse")),
    Mutant(
        "one's own transaction looks ended",
        "  if own < pg_snapshot_xmax(snap) then",
        "  if false then",
        ("misuse", "plain"),
    ),
    Mutant(
        "two claim one lane",
        "       order by k.turn limit 1 for no key update skip locked;\n    elsif",
        "       order by k.turn limit 1;\n    elsif",
        ("plain",),
    ),
    # order
    Mutant(
        "keys in flight are free",
        "    flying := headgate.keys_in_flight(c.id, l.lane);",
        "    flying := '{}';",
        ("plain", "filters"),
    ),
    Mutant("keys in flight are unparked", "k <> all(flying));", "true);", ("plain", "channels")),
    Mutant(
        "what is parked blocks nobody",
        "           any_parked and (select p.seq",
        "           false and (select p.seq",
        ("plain", "channels"),
    ),
    Mutant(
        "a nack leaves what comes behind",
        "asked := headgate.with_later(headgate.in_flight_of(d), p_seqs);",
        "asked := p_seqs;",
        ("plain", "keys"),
    ),
    Mutant(
        "a key has two deliveries",
        "and {left in flight} > 0 order by d.id limit 1) is not null then 0 else",
        "and {left in flight} > 0 order by d.id limit 1) is not null then 2147483647 else",
        ("keys",),
    ),
    # waking
    Mutant(
        "nobody is told that a key is free",
        "  if exists (select from headgate.parked p where p.consumer = c.id and p.lane = p_lane) then\n"
        "    insert into headgate.wake",
        "  if false then\n    insert into headgate.wake",
        ("plain",),
    ),
    Mutant(
        "a lane that is held is not woken",
        "      if few is null and cardinality(held) < cardinality(known) then",
        "      if false then",
        ("channels", "keys", "many-channels"),
    ),
    Mutant(
        "a discovered lane begins with its last word",
        "order by d.to_base, d.at limit 1) x",
        "order by d.to_base desc, d.at desc limit 1) x",
        ("many-keys", "many-channels"),
    ),
    Mutant(
        "a full lane is not woken",
        "   where c.ordered or c.max_concurrency is not null\n",
        "   where false\n",
        ("capped", "limits"),
    ),
    # moving
    Mutant(
        "a seek forgets nothing that is parked",
        "  delete from headgate.parked p where p.consumer = c.id;\n  delete from headgate.wake w",
        "  delete from headgate.wake w",
        ("seeks", "seeks-keys"),
    ),
    Mutant(
        "a seek overlooks what is in flight",
        "      perform from headgate.delivery d where d.consumer = c.id order by d.lane, d.id for update;\n",
        "",
        ("seeks", "seeks-keys"),
    ),
    # storage
    Mutant(
        "a segment goes whoever needs it",
        "    if p_how in ('done', 'compacted') and exists (",
        "    if false and exists (",
        ("storage", "compaction", "storage-lanes"),
    ),
    Mutant(
        "what is parked is not kept",
        "    if p_how = 'compacted' then\n      perform headgate.keep_unfinished(g);\n",
        "    if p_how = 'compacted' then\n",
        ("storage", "compaction"),
    ),
    # limits, time, versions
    Mutant(
        "one more than max_concurrency",
        "else coalesce(k.max_concurrency, c.max_concurrency) - coalesce((",
        "else 1 + coalesce(k.max_concurrency, c.max_concurrency) - coalesce((",
        ("capped",),
    ),
    Mutant(
        "a delay is half as long",
        "coalesce(r.deliver_at > t0, false) as delayed",
        "coalesce(r.deliver_at > t0 + interval '0.3 seconds', false) as delayed",
        ("filters", "delays"),
    ),
    Mutant(
        "a failed message comes at once",
        "clock_timestamp() + coalesce(p_delay, headgate.backoff_delay(c.backoff, coalesce(u.a, 1)))",
        "clock_timestamp()",
        ("plain",),
    ),
    Mutant(
        "older versions come back",
        "  p_seqs := headgate.without_removed(c, d, headgate.still_newest(c, d, p_seqs));",
        "  p_seqs := headgate.without_removed(c, d, p_seqs);",
        ("upsert", "upsert-dead"),
    ),
)
