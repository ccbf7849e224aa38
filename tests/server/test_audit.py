"""What is remembered of administrative calls, and for how long."""

from __future__ import annotations

import httpx
import psycopg
import pytest

import headgate
from headgate.errors import InvalidArgument
from headgate.server.http.app import App
from headgate.server.server import Server
from headgate.server.settings import Settings
from support.clients import until
from support.command_line import CommandLine
from support.servers import data


def note(db: psycopg.Connection, action: str, days: int) -> None:
    db.execute("select headgate.note_audit('me', null, %s, 200)", (action,))
    db.execute(
        "update headgate.audit set at = clock_timestamp() - make_interval(days => %s) where action = %s", (days, action)
    )


def actions(db: psycopg.Connection) -> list[str]:
    return [a for (a,) in db.execute("select action from headgate.audit_log() order by id").fetchall()]


def test_the_oldest_go_first_and_in_parts(db: psycopg.Connection) -> None:
    for n in range(5):
        note(db, f"old {n}", 100)
    note(db, "new", 1)
    [(removed,)] = db.execute("select headgate.forget_audit('90 days', 3)").fetchall()
    assert (removed, actions(db)) == (3, ["old 3", "old 4", "new"])
    [(removed,)] = db.execute("select headgate.forget_audit('90 days')").fetchall()
    assert (removed, actions(db)) == (2, ["new"])


@pytest.mark.parametrize(("days", "left"), [(90, ["new"]), (None, ["old", "new"])])
async def test_a_server_forgets(
    ahg: headgate.AsyncHeadgate, db: psycopg.Connection, days: int | None, left: list[str]
) -> None:
    note(db, "old", 91)
    note(db, "new", 89)
    service = Server(ahg, Settings(auth=False, audit_days=days))
    service.start()
    if days is not None:
        await until(lambda: len(actions(db)) == 1)
    assert actions(db) == left
    await service.stop()


async def test_paged(ahg: headgate.AsyncHeadgate) -> None:
    service = Server(ahg, Settings(auth=False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
        for name in ("a", "b", "c"):
            await http.delete(f"/api/streams/{name}")
        newest = data(await http.get("/api/audit", params={"limit": 2}))
        rest = data(await http.get("/api/audit", params={"limit": 2, "before": newest[-1]["id"]}))
    assert [n["action"] for n in newest + rest] == [f"DELETE /api/streams/{name}" for name in ("c", "b", "a")]


def test_command_line(run: CommandLine, db: psycopg.Connection) -> None:
    assert run("token", "audit").err == "no administrative calls\n"
    note(db, "DELETE /api/streams/x", 0)
    [found] = run("token", "audit", "--json").json
    assert (found["who"], found["action"], found["status"]) == ("me", "DELETE /api/streams/x", 200)
    assert "DELETE /api/streams/x" in run("token", "audit").out
    assert run("token", "audit", "--before", found["id"]).out == ""
    assert run("token", "audit", "--limit", "0").code == 2


def test_bad_settings() -> None:
    for bad in ({"audit_days": 0}, {"audit_days": 10**6}, {"connections": 0}):
        with pytest.raises(InvalidArgument):
            Settings(**bad)  # type: ignore[arg-type]
