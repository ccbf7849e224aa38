"""Faults planted in the engine's SQL, one at a time, each with a preset of `headgate torture` that should find it."""

from __future__ import annotations

import re
from typing import NamedTuple

from headgate.database import schema


class Mutant(NamedTuple):
    name: str
    old: str
    new: str
    presets: tuple[str, ...]  # of histories that find it; none: histories alone do not
    more: tuple[tuple[str, str], ...] = ()  # other places, where something else would mend it

    def sql(self) -> str:
        """The whole schema with this fault in it."""
        return self.plant(schema.install_sql())

    def functions(self) -> str:
        """The functions with this fault in them, to be put in place of those that a database has."""
        return self.plant(schema.functions_script())

    def plant(self, script: str) -> str:
        for old, new in ((self.old, self.new), *self.more):
            script = _pattern(old).sub(lambda _, new=new: new, script)  # type: ignore[misc]
        return script

    def places(self, script: str) -> list[int]:
        """How often each text that it replaces stands there."""
        return [len(_pattern(old).findall(script)) for old in (self.old, *(old for old, _ in self.more))]


def _pattern(text: str) -> re.Pattern[str]:
    """The text, wherever its lines are broken."""
    return re.compile(r"\s+".join(re.escape(word).replace(r"\(", r"\(\s*") for word in text.split()))


MUTANTS = (
    # what is discarded
    Mutant(
        "discarded messages are not passed over",
        "       and (not l.discards\n",
        "       and (true\n",
        ("discards", "discards-keys"),
    ),
    Mutant(
        "a lane with discards is read like others",
        "  if r.is_plain and l.late is null and not l.discards then",
        "  if r.is_plain and l.late is null then",
        ("discards",),
        (("k.late is not null or k.discards or coalesce(", "k.late is not null or coalesce("),),
    ),
    Mutant(
        "a named lane with discards is read like others",
        "or k.has_delayed or k.late is not null or k.discards",
        "or k.has_delayed or k.late is not null",
        ("discards-keys", "discards-channels"),
    ),
    Mutant(
        "what was given to a worker is discarded twice",
        "    d := headgate.take_out(c, a.lane, a.delivery, a.seqs, p_until);",
        "    select * into d from headgate.delivery x\n"
        "     where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery;\n"
        "    d.seqs := a.seqs;",
        ("discards",),
    ),
    Mutant(
        "discarded messages go to the next layout",
        " and %s\n     order by m.lane, m.seq limit $2 $q$, p_stream, headgate.not_discarded_sql('($1)')) using k, n;",
        " and %s\n     order by m.lane, m.seq limit $2 $q$, p_stream, 'true') using k, n;",
        (),
    ),
    Mutant(
        "an ack of the first message settles its whole batch",
        "                 = array_to_string(acks, ' ');",
        "                 <> '';",
        ("plain", "many-lanes"),
    ),
    # lanes that are claimed together
    Mutant(
        "several lanes are claimed where something was discarded",
        "             and k.pos >= k.to_hi and k.late is null and not k.discards and k.gate is null\n",
        "             and k.pos >= k.to_hi and k.late is null and k.gate is null\n",
        (),  # histories hardly ever discard what is ahead of a reader that is up to date; test_discard.py does
    ),
    Mutant(
        "several lanes are claimed without a look at late transactions",
        "        where t.stream = newest.stream and t.id >= oldest and",
        "        where t.stream = newest.stream and false and",
        ("many-lanes", "plain", "snapshots"),
    ),
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
        "an extension moves nothing",
        "update headgate.delivery x set deadline = greatest(x.deadline, clock_timestamp() + p_by)",
        "update headgate.delivery x set deadline = x.deadline",
        ("plain",),
        (
            ("then true else x.is_watched end, deadline = until", "then true else x.is_watched end"),
            ("           p_deadline, d.delivered_at, d.worker", "           d.deadline, d.delivered_at, d.worker"),
            ("x set deadline = clock_timestamp() + p_by", "x set deadline = x.deadline"),
        ),
    ),
    Mutant(
        "a message that is extended alone is in flight twice",
        "  mine bigint[] := headgate.insert_departed_patiently(d, p_seqs);\n",
        "  mine bigint[] := p_seqs;\n",
        ("plain",),
    ),
    Mutant(
        "an ack of the whole forgets what was extended alone",
        "    d := headgate.with_own(c, d, p_lane, p_delivery, p_seqs, p_until);\n    late",
        "    late",
        ("plain", "channels"),
    ),
    Mutant(
        "a late ack counts and does nothing",
        "delete from headgate.parked p where p.ctid = any(places) returning p.lane, p.seq, p.key)",
        "select p.lane, p.seq, p.key from headgate.parked p where p.ctid = any(places))",
        ("plain",),
    ),
    Mutant(
        "what expires now leaves those behind it",
        "headgate.take_out_all(c, p_lane, p_delivery, p_seqs, p_until, c.ordered)",
        "headgate.take_out_all(c, p_lane, p_delivery, p_seqs, p_until, false)",
        (),
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
        ("vacuum",),
    ),
    Mutant(
        "a delivery is deleted whoever holds it",
        "y.xmax = '0'::xid and y.is_split is null\n                   and (g.is_whole or "
        "string_to_array(g.prefix || array_to_string(y.seqs, ' ' || g.prefix), ' ') = g.ids)\n"
        "                 limit 1 for update skip locked",
        "(g.is_whole or string_to_array(g.prefix || array_to_string(y.seqs, ' ' || g.prefix), ' ') && g.ids) limit 1",
        ("plain",),
    ),
    # spans and ticks
    Mutant(
        "a span begins with what was read",
        "and pg_visible_in_snapshot(xid, r.to_snap) and not pg_visible_in_snapshot(xid, r.from_snap)",
        "and pg_visible_in_snapshot(xid, r.to_snap)",
        ("plain", "many-lanes"),
    ),
    Mutant(
        "a span goes beyond its tick",
        "and pg_visible_in_snapshot(xid, r.to_snap) and not pg_visible_in_snapshot(xid, r.from_snap)",
        "and not pg_visible_in_snapshot(xid, r.from_snap)",
        ("plain", "many-lanes"),
    ),
    Mutant(
        "late messages are passed over",
        "    l.late := below;\n    l.pos := lower(below) - 1;\n",
        "",
        ("plain", "misuse"),
    ),
    Mutant(
        "one's own transaction looks ended",
        "  if own < pg_snapshot_xmax(snap) then",
        "  if false then",
        ("misuse", "plain"),
    ),
    Mutant(
        "two claim one lane",
        "       order by k.served_at limit 1 for no key update skip locked;\n      -- point",
        "       order by k.served_at limit 1;\n      -- point",
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
        "if p_later and p_seqs is not null and asked <> '{}' then",
        "if false then",
        ("plain", "keys"),
    ),
    Mutant(
        "a key has two deliveries",
        "and {left_in_flight} > 0 order by d.id limit 1) is not null then 0 else",
        "and {left_in_flight} > 0 order by d.id limit 1) is not null then 2147483647 else",
        ("keys",),
    ),
    # waking
    Mutant(
        "a failed message does not wake its lane",
        "  if d.lane >= 144115188075855872 then insert into headgate.wake (consumer, lane) values (c.id, d.lane); "
        "end if;\nend $$;",
        "end $$;",
        ("keys", "channels"),
    ),
    Mutant(
        "a lane that is held is not woken",
        "      if few is null and cardinality(held) < cardinality(known) then",
        "      if false then",
        ("many-keys", "many-channels"),
    ),
    Mutant(
        "a discovered lane begins where the gatherer is",
        "          select v.*, case when v.to_base is null then\n"
        "                   -- what was discovered before begins further back, and reads on from there\n"
        "                   (select x.lane from headgate.discovered x\n"
        "                     where x.consumer = c.id and x.lane = v.lane limit 1) is null\n",
        "          select v.*, case when v.to_base is null then true\n",
        ("many-keys", "many-channels"),
        (
            (
                "       and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane"
                " limit 1) is null\n     limit",
                "     limit",
            ),
            (
                "           and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane "
                "limit 1) is null offset 0) y\n",
                "           offset 0) y\n",
            ),
        ),
    ),
    Mutant(
        "a full lane is not woken",
        "  if c.max_concurrency is not null\n     or (c.ordered and (select s.lane_by = 'key'",
        "  return;\n  if c.max_concurrency is not null\n     or (c.ordered and (select s.lane_by = 'key'",
        ("capped", "limits"),
    ),
    Mutant(
        "a rotation does not look which keys fly",
        "(y.m).key in (select unnest(flying))), false) as blocked",
        "(y.m).key in (select unnest(flying)) and false), false) as blocked",
        ("channels", "many-channels"),
    ),
    Mutant(
        "a lane that there is no room for sleeps",
        "case when r.room <= 0 then 'infinity' when r.share <= 0 or r.delayed then r.next_at",
        "case when r.share <= 0 then 'infinity' when r.delayed then r.next_at",
        (),
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
        ("held", "seeks"),
    ),
    # storage
    Mutant(
        "segments go whoever needs them",
        "      continue when exists (select from headgate.rest_of(g));\n",
        "",
        ("storage", "storage-lanes"),
        (("    if p_how in ('done', 'compacted') and exists (", "    if false and exists ("),),
    ),
    Mutant(
        "a segment goes whoever needs it",
        "    if p_how in ('done', 'compacted') and exists (",
        "    if false and exists (",
        (),  # the end of a seek has to meet a millisecond of compaction: test_meetings.py sees to it
    ),
    Mutant(
        "what is parked is not kept",
        "    if p_how = 'compacted' then\n      perform headgate.preserve_unfinished(g);\n",
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
        "a newer version is not seen",
        "    ' where newer.key = %1$s.key and newer.seq > %1$s.seq)'\n",
        "    ' where false)'\n",
        ("upsert-dead",),
    ),
    Mutant(
        "a version removes itself",
        "on o.key = v.key and o.seq < v.seq for update of o skip locked",
        "on o.key = v.key and o.seq <= v.seq for update of o skip locked",
        ("upsert",),
    ),
    # what REVIEW.md found, put back
    Mutant(
        "E1: an ack of a receive is lost to an extension",
        "      if got < cardinality(acks) then perform headgate.settle_surely(c, acks); end if;\n      if (is_limited",
        "      if (is_limited",
        ("keys", "channels"),
    ),
    Mutant(
        "maintenance has an id before it knows how far streams are",
        "  -- point: streams are to get ticks\n",
        "  perform pg_current_xact_id();\n  -- point: streams are to get ticks\n",
        (),  # (histories hardly find it: test_meetings.py does)
        (("  if pg_current_xact_id_if_assigned() is not null then return; end if;\n  for i in 1", "  for i in 1"),),
    ),
    Mutant(
        "E2: a caller's word makes a tick in an old transaction",
        "  open := headgate.in_user_transaction() or open;\n",
        "  open := coalesce(open, headgate.in_user_transaction());\n",
        ("misuse",),
        (
            (
                "  if (p_hi0 is null and pg_current_xact_id_if_assigned() is not null)\n     or current_setting",
                "  if current_setting",
            ),
        ),
    ),
    Mutant(
        "E7: a seek queues behind an open transaction",
        "      perform set_config('lock_timeout', '20ms', true);\n"
        "      execute format('lock table headgate.preserved_%s in row exclusive mode'",
        "      execute format('lock table headgate.preserved_%s in row exclusive mode'",
        ("held",),
    ),
    Mutant(
        "E8: an ack waits for the messages of others",
        "              and not exists (select unnest(x.seqs) except select unnest(p_seqs))))\n"
        "         for update skip locked;",
        "              and not exists (select unnest(x.seqs) except select unnest(p_seqs))))\n         for update;",
        ("plain",),
    ),
    Mutant(
        "E8: what expires is waited for",
        "            order by x.id limit 100 for update skip locked loop\n",
        "            order by x.id limit 100 for update loop\n",
        ("plain",),
    ),
    Mutant(
        "E17: a seek does not keep compaction off",
        "      execute format('lock table headgate.preserved_%s in row exclusive mode', c.stream);\n      -- twice",
        "      -- twice",
        ("compaction",),
    ),
    Mutant(
        "E18: late ranges beyond the mark are not looked for",
        "t.id <= coalesce(closing, p_up_to)",
        "t.id <= p_up_to",
        (),  # its sister in mutants_readers.py, of ticks that are thinned out, is found
    ),
    Mutant(
        "E19: kept messages are parked in lanes of before",
        "      select ($1).id, headgate.parking_lane($1, k.lane, k.key, k.seq), k.seq,",
        "      select ($1).id, k.lane, k.seq,",
        ("compaction-lanes",),
    ),
    Mutant(
        "E20: an upsert is compared with what its id drops",
        "       where u.key is not null and coalesce(u.is_new, true)\n",
        "       where u.key is not null\n",
        ("upsert",),
    ),
    Mutant(
        "E20: the ids of unmodified messages are forgotten",
        "  return case when ids is null then seqs else headgate.record_ids(s, ids, seqs) end;\n",
        "  seqs := case when ids is null then seqs else headgate.record_ids(s, ids, seqs) end;\n"
        "  delete from headgate.message_id m using unnest(ids, same) u (id, same)\n"
        "   where m.stream = s.id and m.id = u.id and u.same is not null;\n"
        "  return seqs;\n",
        ("upsert",),
    ),
    Mutant(
        "E21: newer versions are forgotten with their segment",
        "    perform headgate.note_newest(g);\n",
        "",
        ("upsert-redriven",),
    ),
    Mutant(
        "E22: compaction looks with an old snapshot",
        "  perform headgate.need_read_committed('compact');\n",
        "",
        ("compaction",),
    ),
    Mutant(
        "E24: an ack is stale where the table was rewritten",
        "      if is_fixed then perform headgate.expect_no_delivery(c.id, p_lane, p_delivery); end if;\n",
        "",
        ("rewrites", "snapshots"),
        (
            ("    perform headgate.expect_no_delivery(p_consumer, p_lane, p_delivery);\n", "    null;\n"),
            ("when p_live <= 20000 then 64 + p_live / 4", "when p_live <= 20000 then 0"),  # rewritten much more often
        ),
    ),
    Mutant(
        "E26: seqs are drawn beyond the segments",
        "       where seqs[cardinality(p_datas)] < p_end)\n",
        "       )\n",
        ("storage", "compaction"),
        (
            ("  if seqs[n] < ending then return seqs; end if;\n", "  return seqs;\n"),
            (", 50000)", ", 1)"),  # and less room ahead
        ),
    ),
    Mutant(
        "a batch that was sent is sent again",
        "      where w.batch < excluded.batch;",
        "      where w.batch <= excluded.batch;",
        ("staged",),
    ),
    Mutant(
        "a rewrite keeps two rows",
        "(select * from headgate.%I limit 200001) x",
        "(select * from headgate.%I limit 2) x",
        ("rewrites", "rewrites-channels"),
    ),
    Mutant(
        "a discard looks at no channel",
        "         and (($1).channel is null or (m.lane",
        "         and (true or (m.lane",
        ("discards-channels",),
    ),
    Mutant(
        "a discard looks at no age",
        "         and (($1).sent_before is null or m.created_at < ($1).sent_before)\n",
        "",
        ("discards", "discards-keys"),
    ),
    Mutant(
        "what is in flight is replayed",
        "             p.seq is null and d.seq is null\n",
        "             p.seq is null\n",
        ("plain", "keys"),
    ),
    Mutant(
        "a replay passes the filter by",
        "             p.seq is null and d.seq is null\n"
        "               and (($1).pattern is null or coalesce(m.key ~ ($1).pattern, false))",
        "             p.seq is null and d.seq is null",
        ("filters",),
    ),
    Mutant(
        "what is not read yet is replayed",
        "               and not coalesce(\n                 (select %2$s from headgate.cursor k",
        "               and not (false and coalesce(\n                 (select %2$s from headgate.cursor k",
        ("plain", "keys"),
        ((", %3$s, false)%4$s as is_done\n", ", %3$s, false))%4$s as is_done\n"),),
    ),
)
