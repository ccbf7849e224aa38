"""Archives: retention that waits for them, what is known of them, and what is said when they stand still."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import headgate
from support.calls import Db, ack, call, column, drain, nack, pass_time, receive, record, send, send_batch, tick, value
from support.storage import create, end_segment, exists, lost, maintain, segment
from support.waiting import wait_until

BEGINNING: dict[str, Any] = {"tick": 0, "snap": "3:3:", "lo": 0, "hi": 0, "floor": 0}


def copy(db: Db, name: str = "lake", start: dict[str, Any] | None = None, most: int | None = None) -> dict[str, Any]:
    """Reads on from a mark, as an archive does, and notes how far it came; the new mark."""
    tick(db, "s")
    end: dict[str, Any] = call(db, "next_mark", "s", start or BEGINNING, most)
    call(db, "note_archive", "s", name, f"lake/{name}", end)
    return end


def read(db: Db, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, str]]:
    """The messages between two marks."""
    found: list[tuple[int, str]] = []
    for query in column(
        db, "select query from headgate.read_plan('s', %s::text::jsonb, %s::text::jsonb)", *map(text, (start, end))
    ):
        found += [(row[0], row[2]) for row in db.execute(query)]
    return sorted(found)


def text(mark: dict[str, Any]) -> str:
    return json.dumps(mark)


def age(db: Db, by: str) -> None:
    db.execute(
        "update headgate.segment set last_at = last_at - %s::interval, closed_at = closed_at - %s::interval", [by, by]
    )


@pytest.fixture
def stream(db: Db) -> str:
    return create(db, retain="until_archived")


@pytest.mark.usefixtures("stream")
class TestUntilArchived:
    def test_a_segment_goes_once_every_archive_has_it_and_every_consumer_is_done(self, db: Db) -> None:
        call(db, "create_consumer", "s", "c")
        send(db, "s", "1", "2")
        first = end_segment(db)
        assert drain(db, "s", "c") == ["1", "2"]
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "the stream has no archive yet"
        call(db, "note_archive", "s", "slow", "lake/slow", call(db, "mark", "s", "beginning"))
        copy(db)
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "archive slow does not have it yet"
        call(db, "seek", "s", "c", "beginning")
        copy(db, "slow")
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "consumer c has not read it"
        assert drain(db, "s", "c") == ["1", "2"]
        assert segment(db, first["id"])["kept_by"] == "the next maintenance removes it"
        maintain(db)
        assert not exists(db, first["id"])
        assert lost(db) == 0

    def test_no_consumer_is_needed(self, db: Db) -> None:
        send(db, "s", "x")
        first = end_segment(db)
        copy(db)
        maintain(db)
        assert not exists(db, first["id"])

    def test_a_mark_in_the_middle_of_a_segment_keeps_it(self, db: Db) -> None:
        send_batch(db, "s", [str(n) for n in range(10)])
        first = end_segment(db)
        mark = copy(db, most=4)
        assert mark["floor"] < first["end_seq"] - 1
        maintain(db)
        assert exists(db, first["id"])
        copy(db, start=mark)
        maintain(db)
        assert not exists(db, first["id"])

    def test_a_dropped_archive_holds_nothing(self, db: Db) -> None:
        send(db, "s", "x")
        first = end_segment(db)
        call(db, "note_archive", "s", "dead", "lake/dead", call(db, "mark", "s", "beginning"))
        copy(db)
        maintain(db)
        assert exists(db, first["id"])
        call(db, "drop_archive", "s", "dead")
        maintain(db)
        assert not exists(db, first["id"])
        with pytest.raises(psycopg.Error) as told:
            call(db, "drop_archive", "s", "dead")
        assert told.value.sqlstate == "HG014"

    def test_what_a_late_transaction_commits_is_archived_before_its_segment_goes(
        self, db: Db, database_url: str
    ) -> None:
        """The archive reads on while a transaction is open in the middle of what it has read."""
        with psycopg.connect(database_url) as slow:
            send(slow, "s", "slow")
            send(db, "s", "fast")
            mark = copy(db)
            assert [d for _, d in read(db, BEGINNING, mark)] == ["fast"]
            for _ in range(3):
                pass_time(db, "2 seconds")  # it is late now
                before, mark = mark, copy(db, start=mark)
                assert read(db, before, mark) == []
                maintain(db)
            slow.commit()
        before, mark = mark, copy(db, start=mark)
        assert [d for _, d in read(db, before, mark)] == ["slow"]
        wait_until(lambda: "remove segments" in maintain(db))


class TestLimits:
    def test_retain_up_to_waits_for_the_archive_but_not_for_consumers(self, db: Db) -> None:
        create(db, retain="until_archived", retain_up_to="1 hour")
        call(db, "create_consumer", "s", "c")
        send(db, "s", "1", "2")
        first = end_segment(db)
        age(db, "2 hours")
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "the stream has no archive yet"
        copy(db)
        maintain(db)
        assert (exists(db, first["id"]), lost(db)) == (False, 2)

    def test_a_full_stream_takes_nothing_until_the_archive_goes_on(self, db: Db) -> None:
        create(db, retain="until_archived", max_storage=1_100_000)
        with pytest.raises(psycopg.Error) as told:
            for _ in range(100):
                send_batch(db, "s", ["x" * 2000] * 20)
                maintain(db)
        assert told.value.sqlstate == "HG013"
        assert "archives" in (told.value.diag.message_hint or "")
        assert "remove segments" not in maintain(db)
        end_segment(db)
        copy(db)
        wait_until(lambda: "remove segments" in maintain(db))
        send(db, "s", "room again")

    def test_compaction_takes_only_what_is_archived(self, db: Db) -> None:
        create(db, retain="until_archived")
        call(db, "create_consumer", "s", "c")
        send_batch(db, "s", [str(n) for n in range(20)])
        messages = receive(db, "s", "c", 100)
        while more := receive(db, "s", "c", 100):
            messages += more
        nack(db, "s", "c", messages[:1], delay="1 hour")
        ack(db, "s", "c", messages[1:])
        first = end_segment(db)
        assert call(db, "compact", "s") == 0
        copy(db)
        assert call(db, "compact", "s") == 1
        assert not exists(db, first["id"])
        pass_time(db, "1 hour")
        assert drain(db, "s", "c") == [messages[0].data]

    def test_the_setting(self, db: Db) -> None:
        create(db)
        call(db, "alter_stream", "s", retain="until_archived")
        assert value(db, "select retain from headgate.streams") == "until_archived"
        with pytest.raises(psycopg.Error, match="until_lost") as told:
            call(db, "alter_stream", "s", retain="until_lost")
        assert "until_archived" in (told.value.diag.message_hint or "")


def test_nothing_is_removed_that_a_concurrent_archive_lacks(db: Db, database_url: str) -> None:
    """Writers commit out of order while an archive copies and maintenance removes: the copy is complete."""
    create(db, retain="until_archived", segment_rows=1000)
    writers, each = 3, 30
    done = threading.Event()
    failed: list[BaseException] = []

    def guarded(run: Any, *arguments: Any) -> threading.Thread:
        def body() -> None:
            try:
                with psycopg.connect(database_url, autocommit=True) as own:
                    run(own, *arguments)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def write(own: Db, writer: int) -> None:
        for n in range(0, each, 2):
            with own.transaction():  # two messages, between which others commit
                send(own, "s", f"{writer}.{n}")
                own.execute("select pg_sleep(0.002 * %s)", [writer])
                send(own, "s", f"{writer}.{n + 1}")

    def keep_house(own: Db) -> None:
        while not done.is_set():
            own.execute("select * from headgate.maintain()")

    sending = [guarded(write, w) for w in range(writers)]
    house = guarded(keep_house)
    mark, got = BEGINNING, list[tuple[int, str]]()
    try:
        for round_ in itertools.count():
            finished = not any(t.is_alive() for t in sending)
            if finished:  # while it makes a tick, the one before is given
                done.set()
                house.join(30)
            tick(db, "s")
            end: dict[str, Any] = call(db, "next_mark", "s", mark, 7 if round_ % 3 else None)
            got += read(db, mark, end)  # the lake has it, and only then it is said so
            if end == mark and finished:
                break
            mark = end
            call(db, "note_archive", "s", "lake", "lake", mark)
    finally:
        done.set()
        for thread in (*sending, house):
            thread.join(30)
    assert not failed
    assert sorted(d for _, d in got) == sorted(f"{w}.{n}" for w in range(writers) for n in range(each))
    end_segment(db)
    copy(db, start=mark)

    def is_empty() -> bool:
        maintain(db)
        return bool(value(db, "select count(*) from headgate.log_s") == 0)

    wait_until(is_empty)


@pytest.mark.usefixtures("stream")
class TestLooking:
    def test_the_view(self, db: Db) -> None:
        send(db, "s", "1", "2", "3")
        end_segment(db)
        mark = copy(db, most=2)
        known = record(db, "select * from headgate.archives")
        assert (known["stream"], known["name"], known["place"], known["floor"]) == (
            "s",
            "lake",
            "lake/lake",
            mark["floor"],
        )
        assert (known["lag"], known["waiting"]) == (1, 1)
        copy(db, start=mark)
        known = record(db, "select * from headgate.archives")
        assert (known["lag"], known["waiting"]) == (0, 0)

    def test_the_doctor_tells_of_an_archive_that_stands_still(self, db: Db) -> None:
        def findings() -> list[str]:
            return column(db, "select finding from headgate.doctor() where finding ~* 'archive'")

        send(db, "s", "x")
        end_segment(db)
        assert findings() == []
        age(db, "1 hour")
        assert "there is no archive" in findings()[0]
        call(db, "note_archive", "s", "lake", "lake", call(db, "mark", "s", "beginning"))
        assert findings() == []
        db.execute("update headgate.archive set at = at - interval '1 hour'")
        assert 'Archive "lake" of stream "s" has not gone on' in findings()[0]
        copy(db)
        assert findings() == []


@pytest.fixture
def hg(database_url: str) -> Iterator[headgate.Headgate]:
    with headgate.connect(database_url) as hg:
        yield hg


def test_the_sdk(db: Db, hg: headgate.Headgate) -> None:
    stream = hg.stream("s", create=True, retain="until_archived")
    assert stream.info().retain == "until_archived"
    assert stream.archives() == []
    stream.send("x")
    mark = copy(db)
    [known] = stream.archives()
    assert (known.name, known.place, known.floor, known.lag) == ("lake", "lake/lake", mark["floor"], 0)
    stream.drop_archive("lake")
    with pytest.raises(headgate.errors.ArchiveNotFound) as told:
        stream.drop_archive("lake")
    assert told.value.hint


@pytest.mark.usefixtures("stream")
def test_marks_go_forward_while_the_floor_stays(db: Db, database_url: str) -> None:
    """A transaction that is open keeps the floor where it is: of two marks the tick tells which is the later one."""
    with psycopg.connect(database_url) as late:
        send(late, "s", "late")
        marks = [BEGINNING]
        for data in "123":
            send(db, "s", data)
            marks.append(copy(db, "lake", marks[-1]))
        assert [m["floor"] for m in marks] == [0] * 4
        for old in (marks[1], marks[2], {**marks[3], "pos": 2, "since": BEGINNING}):
            call(db, "note_archive", "s", "lake", "lake/lake", old)
            assert call(db, "archive_mark", "s", "lake") == marks[3]
    assert copy(db, "lake", marks[3])["floor"] > 0


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("wrong", [{"floor": "x"}, {"floor": None}, {"tick": None}])
def test_what_is_not_a_mark(db: Db, wrong: dict[str, Any]) -> None:
    with pytest.raises(psycopg.Error, match="not a mark") as refused:
        call(db, "note_archive", "s", "lake", "lake/lake", {**BEGINNING, **wrong})
    assert refused.value.sqlstate == "HG011"
