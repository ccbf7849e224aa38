"""The doctor from Python and from the command line."""

from __future__ import annotations

import json

import psycopg
import pytest

import headgate
from headgate import cli
from support.calls import Db
from support.postgres import NewCluster

S = "orders"


class TestSdk:
    def test_findings(self, database_url: str, db: Db) -> None:
        with headgate.connect(database_url) as hg:
            orders = hg.stream(S, create=True)
            orders.consumer("c", create=True).pause()
            orders.send("a")
            found = [f for f in hg.doctor() if f.subject != "setting fsync"]
            assert [(f.severity, f.subject) for f in found] == [("note", "consumer orders/c")]
            db.execute("update headgate.functions_digest set digest = 'other'")
            first = hg.doctor()[0]
            assert (first.severity, first.subject) == ("problem", "version")
            assert "older than this code" in first.finding
            db.execute("insert into headgate.migration (version, name) values (9999, 'later')")
            assert "upgrade the headgate package" in hg.doctor()[0].advice

    async def test_async(self, database_url: str) -> None:
        async with await headgate.connect_async(database_url) as hg:
            assert {f.subject for f in await hg.doctor()} == {"setting fsync"}

    def test_a_role_that_may_not_ask(self, database_url: str, db: Db) -> None:
        db.execute("create role just_a_producer login in role headgate_producer")
        try:
            with headgate.connect(database_url.replace("//postgres@", "//just_a_producer@")) as hg:
                [found] = hg.doctor()
            assert (found.severity, found.subject) == ("problem", "rights")
            assert "headgate_monitor" in found.advice
        finally:
            db.execute("drop role just_a_producer")


class TestCli:
    def test_a_problem(self, database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["doctor", "--database", database_url]) == 1
        assert capsys.readouterr().out == (
            "problem: The setting fsync is off: a crash of the machine can destroy the whole database.\n"
            "    alter system set fsync = on; select pg_reload_conf();\n"
        )

    def test_patience(self, database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
        """What lasts longer is reported: five minutes, unless something else is asked for."""
        with psycopg.connect(database_url) as forgotten:
            forgotten.execute("select txid_current()")
            session = f"Session {forgotten.info.backend_pid}"
            assert cli.main(["doctor", "--database", database_url]) == 1
            assert session not in capsys.readouterr().out
            assert cli.main(["doctor", "--patience", "0s", "--database", database_url]) == 1
            assert session in capsys.readouterr().out

    def test_json(self, database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["doctor", "--json", "--database", database_url]) == 1
        [found] = json.loads(capsys.readouterr().out)
        assert found.keys() == {"severity", "subject", "finding", "advice"}

    def test_nothing_is_wrong(self, new_cluster: NewCluster, capsys: pytest.CaptureFixture[str]) -> None:
        cluster = new_cluster()
        cluster.stop()
        cluster.settings["fsync"] = "on"
        cluster.start()
        assert cli.main(["migrate", "--database", cluster.url()]) == 0
        capsys.readouterr()
        assert cli.main(["doctor", "--database", cluster.url()]) == 0
        out = capsys.readouterr()
        assert (out.out, out.err) == ("", "nothing is wrong\n")

    def test_a_database_that_does_not_fit(self, database_url: str, db: Db, capsys: pytest.CaptureFixture[str]) -> None:
        db.execute("update headgate.functions_digest set digest = 'other'")
        assert cli.main(["doctor", "--database", database_url]) == 1
        assert "headgate migrate" in capsys.readouterr().out
