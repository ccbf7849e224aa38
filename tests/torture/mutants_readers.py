"""Faults planted in the engine's SQL that only readers, observers and counters notice: as in mutants.py."""

from __future__ import annotations

from torture.mutants import Mutant

MUTANTS = (
    # readers with marks
    Mutant(
        "a reader begins a span with what it has read",
        "         || case when p_start->>'snap' <> '3:3:'  -- nothing is visible in that one\n",
        "         || case when false\n",
        ("marks", "marks-channels"),
    ),
    Mutant(
        "a reader goes beyond its mark",
        "  select format('pg_visible_in_snapshot(m.xid, %L)', p_end->>'snap')\n",
        "  select 'true'\n",
        ("marks", "marks-lanes"),
    ),
    Mutant(
        "a reader passes over late messages",
        "    from unnest(late) r where upper(r) - 1 > pos and lower(r) <= upto;\n  select * into shared",
        "    from unnest(late) r where false;\n  select * into shared",
        ("marks",),
    ),
    Mutant(
        "late ranges go with the ticks that are thinned out",
        "    update headgate.tick t set late = coalesce(t.late, '{}') + moved\n",
        "    update headgate.tick t set late = t.late\n",
        ("marks", "marks-channels"),
    ),
    Mutant(
        "parts of a span overlap",
        "  lo bigint := greatest(pos, (since->>'lo')::bigint); shared record;",
        "  lo bigint := greatest(pos - 1, (since->>'lo')::bigint); shared record;",
        ("marks",),
    ),
    Mutant(
        "nobody says what was removed between two marks",
        "           nullif(y.seqs - headgate.log_ranges(s.id)",
        "           nullif('{}'::int8multirange * y.seqs - headgate.log_ranges(s.id)",
        ("marks-aging", "marks-storage"),
    ),
    Mutant(
        "the latest mark is the newest there happens to be",
        "    t := headgate.make_tick(p_stream, null);\n    if headgate.sees_all_of(t.snap, mine)",
        "    if true or headgate.sees_all_of(t.snap, mine)",
        ("marks",),
    ),
    Mutant(
        "nobody waits for archives",
        "  select s.retain <> 'until_archived' or coalesce(",
        "  select true or s.retain <> 'until_archived' or coalesce(",
        ("archives",),
    ),
    # floors, counts, states, losses
    Mutant(
        "the floor passes what is in flight",
        "(select min(f.seq) - 1 from headgate.in_flight f where f.consumer = c.id),\n",
        "null::bigint,\n",
        ("looks", "looks-storage", "looks-channels"),
        (
            (
                "  held := least((select min(f.seq) from headgate.in_flight f where f.consumer = c.id),\n",
                "  held := least(null::bigint,\n",
            ),
        ),
    ),
    Mutant(
        "the floor passes what is parked",
        "                  (select min(p.seq) - 1 from headgate.parked p where p.consumer = c.id));\nend $$;\n\n"
        "-- late_floor",
        "                  null::bigint);\nend $$;\n\n-- late_floor",
        ("looks", "looks-storage"),
        (("                (select min(p.seq) from headgate.parked p where p.consumer = c.id));\n", "null);\n"),),
    ),
    Mutant(
        "the floor passes what late transactions write",
        "  return least(r, headgate.late_floor(c, newest),",
        "  return least(greatest(r, newest.lo),",
        ("looks", "looks-dead"),
        (
            (
                "  floor := least(floor, headgate.late_floor(c, newest), held - 1);",
                "  floor := least(greatest(floor, newest.lo), held - 1);",
            ),
        ),
    ),
    Mutant(
        "what has departed is counted as in flight",
        "(cardinality(d.seqs) - (select count(*) from headgate.departed x where x.consumer = d.consumer "
        "and x.lane = d.lane and x.delivery = d.id))), 0)::bigint as in_flight, min(",
        "cardinality(d.seqs)), 0)::bigint as in_flight, min(",
        ("looks", "looks-dead"),
    ),
    Mutant(
        "what is unread counts the messages of one lane less",
        "      select m.key, %4$s as counts from headgate.cursor k cross join lateral (\n",
        "      select m.key, %4$s as counts "
        "from (select * from headgate.cursor where lane > 0) k cross join lateral (\n",
        ("looks", "looks-dead"),
        (
            (
                "    select sum(x.passed)::bigint, max(x.looked),",
                "    select sum(x.passed) filter (where k.lane > 0)::bigint, max(x.looked),",
            ),
        ),
    ),
    Mutant(
        "what is lost is what was there",
        "select c.id, p.progress, coalesce(x.messages, headgate.unread_in(c, g))",
        "select c.id, p.progress, coalesce(x.messages, g.messages)",
        ("losses",),
    ),
    Mutant(
        "nobody counts what is given up",
        "    if n > 0 then perform headgate.record_loss(l.consumer, first, last, n, p_reason); end if;\n",
        "",
        ("losses",),
    ),
)
