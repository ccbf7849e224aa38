"""Reading the log by spans: two marks always give the same messages, and no message is skipped or comes twice."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from engine.test_restore import move
from engine.test_stress import Stress
from support.calls import Db, call, column, send, send_batch, tick, value
from support.postgres import NewCluster
from support.waiting import wait_until

Mark = dict[str, Any]


def mark(db: Db, position: str = "latest") -> Mark:
    return value(db, "select headgate.mark('s', %s)", position)  # type: ignore[no-any-return]


def following(db: Db, start: Mark, most: int | None = None, until: Mark | None = None) -> Mark:
    query = "select headgate.next_mark('s', %s, %s, %s)"
    return value(db, query, json.dumps(start), most, json.dumps(until) if until else None)  # type: ignore[no-any-return]


def tasks(db: Db, start: Mark, end: Mark, **options: object) -> list[list[tuple[Any, ...]]]:
    """The rows of each task, as (seq, key)."""
    named = "".join(f", {name} => %s" for name in options)
    query = f"select query from headgate.read_plan('s', %s, %s, columns => '{{seq,key}}'{named})"
    plans = column(db, query, json.dumps(start), json.dumps(end), *options.values())
    return [db.execute(plan).fetchall() for plan in plans]


def read(db: Db, start: Mark, end: Mark, **options: object) -> list[int]:
    return [seq for rows in tasks(db, start, end, **options) for seq, _ in rows]


def maintained(db: Db, query: str) -> Any:
    """What a query says after a step of maintenance."""
    db.execute("select * from headgate.maintain()")
    return value(db, query)


@pytest.fixture
def stream(db: Db) -> int:
    return int(call(db, "create_stream", "s", lanes=4, segment_rows=1000))


@pytest.mark.usefixtures("stream")
class TestMarks:
    def test_what_lies_between_two(self, db: Db) -> None:
        first = send(db, "s", *"abc", key="k")
        start, before = mark(db, "beginning"), mark(db)
        more = send(db, "s", *"de", key="k")
        end = following(db, before)
        assert read(db, start, before) == first
        assert read(db, before, end) == more
        assert read(db, start, following(db, start)) == first + more

    def test_nothing_new(self, db: Db) -> None:
        send(db, "s", "a")
        start = mark(db)
        assert following(db, start) == start
        assert following(db, start, 10) == start
        assert tasks(db, start, start) == [[]]

    def test_what_has_committed_is_in_the_latest(self, db: Db, database_url: str) -> None:
        """Also when the call was slow to begin, as on a busy machine, and looks like part of an open transaction."""
        start = mark(db, "beginning")
        with psycopg.connect(database_url) as slow:
            slow.execute("select pg_sleep(0.01)")
            sent = send(db, "s", "a", key="k")
            assert read(db, start, mark(slow)) == sent
            slow.commit()
            slow.execute("select pg_sleep(0.01)")
            sent += send(db, "s", "b", key="k")
            assert read(db, start, following(slow, start)) == sent

    def test_the_latest_waits_for_a_tick_that_is_being_made(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as holder, psycopg.connect(database_url, autocommit=True) as reader:
            holder.execute("select 1 from headgate.stream for no key update")
            sent = send(db, "s", "a")
            found: list[Mark] = []
            waiting = threading.Thread(target=lambda: found.append(mark(reader)))
            waiting.start()
            pid = reader.info.backend_pid
            state = "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
            wait_until(lambda: value(db, state, pid))
            holder.commit()
            waiting.join()
        assert read(db, mark(db, "beginning"), found[0]) == sent

    def test_the_latest_of_a_transaction_that_has_written(self, db: Db) -> None:
        """It cannot make a tick for all: it gets the newest there is."""
        seqs = send(db, "s", "a")
        start = mark(db, "beginning")
        known = mark(db)
        with db.transaction():
            send(db, "s", "b")
            assert mark(db) == known
        assert read(db, start, known) == seqs

    def test_positions(self, db: Db) -> None:
        seqs = send(db, "s", *"abcdef", key="k")
        at = value(db, "select created_at from headgate.log_s where seq = %s", seqs[3])
        for position, expected in [
            ("beginning", seqs), ("latest", []), ("end", []), (str(seqs[2]), seqs[2:]), (f"seq:{seqs[4]}", seqs[4:]),
            (at.isoformat(), seqs[3:]),
        ]:  # fmt: skip
            start = mark(db, position)
            assert read(db, start, following(db, start)) == expected, position

    def test_a_tick(self, db: Db) -> None:
        first = send(db, "s", "a")
        old = mark(db)
        more = send(db, "s", "b")
        start = mark(db, f"tick:{old['tick']}")
        assert start == old
        assert read(db, start, following(db, start)) == more
        assert sorted(read(db, mark(db, "beginning"), mark(db, f"tick:{old['tick'] + 1}"))) in (first, first + more)

    @pytest.mark.parametrize("position", ["the day before", "tick:x", "{}", '{"tick": 1}', "seq:-4", "", "{"])
    def test_no_position(self, db: Db, position: str) -> None:
        with pytest.raises(psycopg.Error) as caught:
            mark(db, position)
        assert caught.value.sqlstate == "HG011"

    def test_ends(self, db: Db) -> None:
        seqs = send(db, "s", *"abcdef", key="k")
        at = value(db, "select created_at from headgate.log_s where seq = %s", seqs[3])
        start = mark(db, "beginning")
        ends = [("latest", seqs), (f"seq:{seqs[2]}", seqs[:2]), (at.isoformat(), seqs[:3]), ("beginning", [])]
        for position, expected in ends:
            end = value(db, "select headgate.end_mark('s', %s, %s)", json.dumps(start), position)
            assert read(db, start, end) == expected, position

    def test_in_parts(self, db: Db) -> None:
        """One long span, as a bulk load leaves it, is read in parts, and each part again."""
        seqs = send_batch(db, "s", [str(i) for i in range(1000)], keys=[f"k{i % 7}" for i in range(1000)])
        start = at = mark(db, "beginning")
        parts = []
        while (end := following(db, at, 300)) != at:
            parts.append((at, end))
            at = end
        assert len(parts) == 4
        assert [len(read(db, a, b)) for a, b in parts] == [300, 300, 300, 100]
        assert sorted(seq for a, b in parts for seq in read(db, a, b)) == seqs
        assert [read(db, a, b) for a, b in parts] == [read(db, a, b) for a, b in parts]
        assert sorted(read(db, start, at)) == seqs

    def test_up_to_a_mark(self, db: Db) -> None:
        seqs = send(db, "s", *"abcd")
        start, until = mark(db, "beginning"), mark(db)
        send(db, "s", "later")
        assert sorted(read(db, start, following(db, start, None, until))) == seqs
        half = following(db, start, 2, until)
        assert half["pos"] == seqs[1]
        assert following(db, half, 2, until)["tick"] == until["tick"]
        assert following(db, until, 2, until) == until

    def test_marks_that_do_not_belong_together(self, db: Db) -> None:
        send(db, "s", *"abcd")
        half = following(db, mark(db, "beginning"), 2)
        send(db, "s", "e")
        with pytest.raises(psycopg.Error, match="do not make a span"):
            tasks(db, half, mark(db))


@pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
def test_tasks(db: Db, lane_by: str) -> None:
    """Every message is in one task, and all of a key, or channel, in the same one, in order."""
    call(db, "create_stream", "s", lanes=8, lane_by=lane_by)
    names = [f"k{i % 40}" for i in range(800)]
    seqs = send_batch(db, "s", ["x"] * 800, keys=names, channels=names if lane_by == "channel" else None)
    seqs += send(db, "s", "no name")
    start, end = mark(db, "beginning"), mark(db)
    ways = [({"tasks": 1}, 1), ({"tasks": 3}, 3), ({"lanes_per_task": 2}, 4), ({"lanes_per_task": 100}, 1)]
    for options, count in ways:
        found = tasks(db, start, end, **options)
        assert len(found) == count, options
        assert sorted(seq for rows in found for seq, _ in rows) == seqs
        for key in set(names):
            homes = [[seq for seq, k in rows if k == key] for rows in found]
            assert sum(map(bool, homes)) == 1, key
            assert all(a < b for home in homes for a, b in pairwise(home))
    assert sum(bool(rows) for rows in tasks(db, start, end, tasks=3)) == 3


def test_filter_and_columns(db: Db) -> None:
    call(db, "create_stream", "s")
    send(db, "s", "1", key="a.b")
    wanted = send(db, "s", "2", key="c.d")
    start, end = mark(db, "beginning"), mark(db)
    assert read(db, start, end, filter=["c.>"]) == wanted
    (query,) = column(db, "select query from headgate.read_plan('s', %s, %s)", json.dumps(start), json.dumps(end))
    names = [c.name for c in db.execute(query).description or ()]
    assert names == ["seq", "key", "data", "headers", "channel", "lane", "created_at", "tick"]
    with pytest.raises(psycopg.Error, match='no column "xid"'):
        db.execute("select headgate.read_plan('s', %s, %s, columns => '{xid}')", [json.dumps(start), json.dumps(end)])


def test_lanes_that_change(db: Db) -> None:
    """While two layouts overlap a key is in both: one task reads them, and the order of seqs is its order."""
    call(db, "create_stream", "s", lanes=2)
    seqs = send_batch(db, "s", ["x"] * 50, keys=[f"k{i % 5}" for i in range(50)])
    call(db, "set_lanes", "s", 5)
    seqs += send_batch(db, "s", ["x"] * 50, keys=[f"k{i % 5}" for i in range(50)])
    start = mark(db, "beginning")
    found = tasks(db, start, following(db, start), tasks=4)
    assert len(found) == 1
    assert sorted(seq for seq, _ in found[0]) == seqs
    for key in {k for _, k in found[0]}:
        mine = [seq for seq, k in found[0] if k == key]
        assert mine == sorted(mine)


def test_late_transactions_and_a_reader_that_was_away(db: Db, database_url: str) -> None:
    """Ticks are thinned out while nobody reads; what late transactions left below is still found."""
    call(db, "create_stream", "s", lanes=2)
    with psycopg.connect(database_url) as late, psycopg.connect(database_url) as later:
        lost = send(late, "s", "late")
        lost += send(later, "s", "later")
        tick(db, "s")
        db.execute("select count(nextval('headgate.seq_1')) from generate_series(1, 10000)")
        send(db, "s", "read")
        tick(db, "s")
        tick(db, "s")
        start = mark(db)
        assert start["lo"] > max(lost), "what they leave lies below what is read from here"
        others = send(db, "s", "other")
        tick(db, "s")
        late.commit()
        tick(db, "s")
        others += send(db, "s", "other")
        tick(db, "s")
        later.commit()
        tick(db, "s")
    others += send(db, "s", "other")
    tick(db, "s")
    db.execute("update headgate.tick set at = date_trunc('hour', at) - interval '2 hours'")
    others += send(db, "s", "last")
    tick(db, "s")
    assert value(db, "select headgate.thin_ticks(1)") > 0
    assert value(db, "select count(*) from headgate.tick where late is not null") == 1
    end = following(db, start)
    found = read(db, start, end)
    assert sorted(found) == sorted(lost + others)
    at, parts = start, []
    while (part := following(db, at, 3)) != at:
        assert value(db, "select headgate.removed_between('s', %s, %s)", json.dumps(at), json.dumps(part)) is None
        parts += read(db, at, part)
        at = part
    assert sorted(parts) == sorted(found)


def test_removed_before_it_was_read(db: Db) -> None:
    call(db, "create_stream", "s", lanes=1, segment_rows=1000, retain_up_to="1 hour")
    start = mark(db, "beginning")
    send_batch(db, "s", ["x"] * 2500)
    read_all = following(db, start)
    assert value(db, "select headgate.removed_between('s', %s, %s)", json.dumps(start), json.dumps(read_all)) is None
    wait_until(lambda: maintained(db, "select count(*) from headgate.segment where state = 'closed'") == 2)
    db.execute("update headgate.segment set last_at = last_at - interval '2 hours' where state = 'closed'")
    wait_until(lambda: maintained(db, "select min(first_seq) from headgate.segment") == 2001)
    query = "select headgate.removed_between('s', %s, %s)::text"
    assert value(db, query, json.dumps(start), json.dumps(following(db, start))) == "{[1,2001)}"
    assert value(db, query, json.dumps(read_all), json.dumps(mark(db))) is None
    begin = mark(db, "beginning")
    assert value(db, query, json.dumps(begin), json.dumps(following(db, begin))) is None
    assert len(read(db, begin, following(db, begin))) == 500


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("removed", [True, False])
def test_removed_out_of_sight(db: Db, database_url: str, isolation: str, removed: bool) -> None:
    """A table that was emptied looks empty to a snapshot from before, too, which still shows its segment."""
    call(db, "create_stream", "s", lanes=1, segment_rows=1000, retain_up_to="1 hour")
    start = mark(db, "beginning")
    send_batch(db, "s", ["x"] * 2500)
    end = following(db, start)
    wait_until(lambda: maintained(db, "select count(*) from headgate.segment where state = 'closed'") == 2)
    with psycopg.connect(database_url) as reader:
        reader.execute(f"set transaction isolation level {isolation}")
        assert len(column(reader, "select id from headgate.segment where state = 'closed'")) == 2
        if removed:
            db.execute("update headgate.segment set last_at = last_at - interval '2 hours' where id = 1")
            wait_until(lambda: maintained(db, "select min(first_seq) from headgate.segment") == 1001)
        got = read(reader, start, end)
        query = "select headgate.removed_between('s', %s, %s)::text"
        if removed:
            part = {**end, "pos": 1000, "since": start}
            assert value(reader, query, json.dumps(part), json.dumps(end)) is None  # only the rest was asked for
            with pytest.raises(psycopg.errors.SerializationFailure):
                value(reader, query, json.dumps(start), json.dumps(end))
        else:
            assert value(reader, query, json.dumps(start), json.dumps(end)) is None
            assert len(got) == 2500


def test_the_unused_end_of_a_segment_is_missed_by_nobody(db: Db) -> None:
    """A reader of everything is away while the segment is closed for its age and removed; then while messages are."""
    call(db, "create_stream", "s", lanes=1, retain_up_to="1 hour")
    query = "select headgate.removed_between('s', %s, %s)::text"

    def remove() -> None:
        db.execute("update headgate.message_1 set created_at = created_at - interval '2 hours'")
        wait_until(lambda: maintained(db, "select count(*) from headgate.message_1") == 0)

    send(db, "s", "a", "b")
    # (while the server itself has a transaction open, a vacuum for example, nobody can say that nothing lies before it)
    wait_until(lambda: (found := mark(db))["floor"] == found["hi"])
    start = mark(db)
    remove()
    send(db, "s", "c")
    assert value(db, query, json.dumps(start), json.dumps(following(db, start))) is None
    assert len(read(db, start, following(db, start))) == 1
    remove()
    last = send(db, "s", "d")[0]
    assert value(db, query, json.dumps(start), json.dumps(following(db, start))) is not None, "c is"
    now = following(db, start)
    remove()
    assert value(db, query, json.dumps(now), json.dumps(following(db, now))) is None
    assert value(db, "select removed_to from headgate.stream where name = 's'") == last


def test_what_was_removed_in_the_late_part_of_a_span(db: Db) -> None:
    """A part may end among what late transactions left, below the messages of the span itself."""
    call(db, "create_stream", "s", lanes=1)
    send_batch(db, "s", ["x"] * 200)
    start = {"tick": 1, "snap": "3:3:", "lo": 100, "hi": 100, "floor": 100}
    end = {**mark(db), "late": "{[10,60)}", "pos": 50, "since": start, "floor": 0}
    query = "select headgate.removed_between('s', %s, %s)::text"
    assert value(db, query, json.dumps(start), json.dumps(end)) is None
    db.execute("update headgate.segment set first_seq = 20 where id = 1")
    db.execute("update headgate.stream set removed_to = 19")
    assert value(db, query, json.dumps(start), json.dumps(end)) == "{[10,20)}"


def test_moving_house(db: Db, database_url: str, bin_dir: Path, new_cluster: NewCluster, tmp_path: Path) -> None:
    """A mark taken before a dump goes on in the restored database: the bridge ends a span."""
    call(db, "create_stream", "s", lanes=2)
    first = send(db, "s", "a", "b")
    start = mark(db)
    unread = send(db, "s", "c")
    with psycopg.connect(move(bin_dir, database_url, new_cluster(), tmp_path / "dump"), autocommit=True) as there:
        fresh = send(there, "s", "d", "e")
        found, at = [], start
        while (end := following(there, at)) != at:
            found += read(there, at, end)
            at = end
        assert sorted(found) == sorted(unread + fresh)
        begin = mark(there, "beginning")
        found = []
        while (end := following(there, begin)) != begin:
            found += read(there, begin, end)
            begin = end
        assert sorted(found) == sorted(first + unread + fresh)


def test_rights(db: Db, database_url: str) -> None:
    call(db, "create_stream", "s")
    seqs = send(db, "s", "a")
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("set role headgate_monitor")
        start = mark(other, "beginning")
        assert read(other, start, following(other, start)) == seqs
        other.execute("set role headgate_producer")
        for query in ("select * from headgate.read_1", "select headgate.mark('s')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.execute(query)


@pytest.mark.parametrize("lane_by", ["hash", "channel"])
def test_under_traffic(database_url: str, lane_by: str) -> None:
    """20 writers with rollbacks, savepoints and long transactions; a reader that takes spans, whole or in parts.
    Nothing is skipped or read twice, nothing rolled back is seen, and a key's messages come in order."""
    stress = Stress(database_url, seconds=4, longest=2.5, seed=5, lane_by="hash" if lane_by == "hash" else "key")
    stress.consumers = []
    writing = threading.Thread(target=lambda: asyncio.run(stress.run()))
    writing.start()
    rng = random.Random(7)
    batches: list[tuple[Mark, Mark, list[tuple[Any, ...]]]] = []
    with psycopg.connect(database_url, autocommit=True) as db:
        wait_until(lambda: value(db, "select count(*) from headgate.stream") == 1)
        at = mark(db, "beginning")
        done = False
        while True:
            over = not writing.is_alive()
            end = following(db, at, rng.choice([None, 1, 5, 50]))
            if end == at:
                if over and done:
                    break
                done = over
                continue
            rows = [row for part in tasks(db, at, end, tasks=3) for row in part]
            batches.append((at, end, rows))
            at = end
            if rng.random() < 0.1:
                db.execute("select headgate.thin_ticks(1)")
        writing.join()
        for start, end, rows in rng.sample(batches, min(len(batches), 100)):
            assert [row for part in tasks(db, start, end, tasks=3) for row in part] == rows, (
                "read again, it is the same"
            )
    read_seqs = [seq for _, _, rows in batches for seq, _ in rows]
    assert len(read_seqs) == len(set(read_seqs))
    assert set(read_seqs) == stress.sent.keys()
    place = {seq: i for i, seq in enumerate(read_seqs)}
    for key in {m.key for m in stress.sent.values()}:
        mine = [m for m in stress.sent.values() if m.key == key]
        for a in rng.sample(mine, min(len(mine), 60)):
            assert all(place[a.seq] < place[b.seq] for b in mine if b.started > a.committed)


def test_the_sdk_error_is_a_headgate_error(hg: headgate.Headgate) -> None:
    with pytest.raises(headgate.errors.StreamNotFound):
        hg.run("select headgate.mark('nowhere')", ())


class TestRowsPerTask:
    """More tasks than lanes: each reads a range of seqs."""

    def test_one_lane_in_several_tasks(self, db: Db) -> None:
        call(db, "create_stream", "s", lanes=1)
        seqs = send(db, "s", *map(str, range(100)), key="k")
        start, end = mark(db, "beginning"), mark(db)
        assert len(tasks(db, start, end, tasks=8)) == 1
        found = tasks(db, start, end, tasks=8, rows_per_task=30)
        assert [len(rows) for rows in found] == [25, 25, 25, 25]
        assert [seq for rows in found for seq, _ in rows] == seqs

    def test_lanes_and_ranges(self, db: Db, stream: int) -> None:
        for n in range(5):
            send(db, "s", *map(str, range(20)), key=f"k{n}")
        start, end = mark(db, "beginning"), mark(db)
        found = tasks(db, start, end, tasks=2, rows_per_task=10)
        assert len(found) == 10
        assert sorted(seq for rows in found for seq, _ in rows) == list(range(1, 101))
        for key in (f"k{n}" for n in range(5)):  # of a key, the order of tasks is that of seqs
            mine = [seq for rows in found for seq, k in rows if k == key]
            assert mine == sorted(mine)

    def test_what_came_late_is_in_one_of_them(self, db: Db, stream: int, database_url: str) -> None:
        with psycopg.connect(database_url) as late:
            late.execute("select headgate.send('s', 'late', 'k')")
            send(db, "s", *map(str, range(50)), key="k")
            start = following(db, mark(db, "beginning"))
            late.commit()
        send(db, "s", *map(str, range(50)), key="k")
        end = following(db, start)
        assert sorted(read(db, start, end, tasks=2, rows_per_task=5)) == [1, *range(52, 102)]

    def test_none_in_a_task_is_refused(self, db: Db, stream: int) -> None:
        with pytest.raises(psycopg.Error, match="not possible"):
            tasks(db, mark(db, "beginning"), mark(db), rows_per_task=0)


def test_the_lag_of_a_reader_in_messages_and_seconds(db: Db, stream: int) -> None:
    query = "select messages, seconds from headgate.reading_lag('s', %s)"
    start = mark(db)
    assert db.execute(query, [json.dumps(start)]).fetchone() == (0, 0)
    send(db, "s", "a", "b", key="k")
    db.execute("update headgate.message_1 set created_at = clock_timestamp() - interval '90 seconds' where seq = 1")
    messages, seconds = db.execute(query, [json.dumps(start)]).fetchone() or (0, 0)
    assert messages == 2
    assert 90 <= seconds < 150
    assert db.execute(query, [json.dumps(following(db, start))]).fetchone() == (0, 0)


def test_streams_are_chosen_by_name_and_by_pattern(db: Db) -> None:
    for name in ("orders.eu", "orders.us", "other"):
        call(db, "create_stream", name)
    call(db, "create_consumer", "orders.eu", "c", max_deliver=1)
    names = "select array_agg(stream order by stream) from headgate.chosen_streams(%s, %s)"
    assert value(db, names, None, ["orders.*"]) == ["orders.eu", "orders.us"]
    assert value(db, names, ["other", "orders.us"], None) == ["orders.us", "other"]
    assert value(db, names, None, ["nothing.>"]) is None
    with pytest.raises(psycopg.Error, match="does not exist"):
        value(db, names, ["nowhere"], None)
