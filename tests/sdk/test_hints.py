"""Hints speak the caller's language, and misspelt names are answered with those that may have been meant."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

import headgate
from headgate.cli.advice import as_commands
from headgate.hints import did_you_mean, similar, translate
from headgate.postgres.cluster import Cluster
from support.calls import Db
from support.command_line import CommandLine
from support.databases import new_database
from support.engine_hints import SQL as ENGINE_FOLDER
from support.engine_hints import hints
from support.servers import Replica, replica

SQL = re.compile(r"=>|\bheadgate\.(?!connect\b|Outgoing\b)\w+|\bview\b|\bselect\b|\bSQL\b|\bdatas\b.*=>")
PYTHON = re.compile(
    r"=True|=False|\bNone\b|\bhg\.|\bstream\.\w+\(|\bconsumer\.\w+\(|timedelta|\bPython\b|\bstr\b|\bint\b"
)
OBJECT = re.compile(r"\{[^}]*,[^}]*\}")  # the same in all languages
HTTP = re.compile(r"/api/|\bGET\b|\bPOST\b|\bPATCH\b|over HTTP|_ms\b")


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with new_database(cluster) as url, replica(url, tmp_path_factory.mktemp("server")) as found:
        yield found


ENGINE = sorted({(state, text) for state, text in hints()})


def test_the_engine_has_hints() -> None:
    assert len(ENGINE) > 80
    assert (
        "HG003",
        "create it with headgate.create_consumer(stream, name), or look at the view headgate.consumers",
    ) in (ENGINE)


@pytest.mark.parametrize(("state", "text"), ENGINE)
def test_every_hint_of_the_engine_is_translated(state: str, text: str) -> None:
    python, http, cli = (translate(text, language) for language in ("python", "http", "cli"))  # type: ignore[arg-type]
    assert not SQL.search(python), python
    assert not HTTP.search(python), python
    assert not SQL.search(http), http
    assert not PYTHON.search(http), http
    for found in (translate(text, "cli"), translate(python, "cli")):
        assert not SQL.search(found), found
        assert not PYTHON.search(found), found
        assert not HTTP.search(found), found
    # what the SDK raises is translated once more: that must not spoil it
    assert translate(python, "python") == python
    assert translate(python, "http") == http
    assert cli == translate(python, "cli")
    # and what a server answers is put into the words of its client
    for found in (translate(http, "python"), translate(http, "cli")):
        assert not HTTP.search(found), found
        assert '": ' not in OBJECT.sub("", found), found


@pytest.mark.parametrize(
    ("text", "python", "http", "cli"),
    [
        (
            "leave channels out, or make the stream with lane_by => 'channel'",
            'leave channels out, or make the stream with lane_by="channel"',
            'leave channels out, or make the stream with "lane_by": "channel"',
            "leave channels out, or make the stream with --lane-by channel",
        ),
        (
            "choose retain_at_least <= retain_up_to",
            "choose retain_at_least <= retain_up_to",
            "choose retain_at_least_ms <= retain_up_to_ms",
            "choose --retain-at-least <= --retain-up-to",
        ),
        (
            "receive right away, or make a consumer with leased => true",
            "receive right away, or make a consumer with leased=True",
            'receive right away, or make a consumer with "leased": true',
            "receive right away, or make a consumer with --leased",
        ),
    ],
)
def test_arguments(text: str, python: str, http: str, cli: str) -> None:
    assert translate(text, "python") == python
    assert translate(text, "http") == translate(python, "http") == http
    assert translate(text, "cli") == translate(python, "cli") == cli


class TestSimilar:
    NAMES = ("orders", "orders.dead", "refunds", "Invoices", "billing-eu", "billing-us")

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("odrers", ["orders"]), ("order", ["orders"]), ("ORDERS", ["orders"]), ("invoices", ["Invoices"]),
            ("billing", ["billing-us", "billing-eu"]), ("nonsense", []), ("orders", []), ("", []), ("x" * 10_000, []),
        ],
    )  # fmt: skip
    def test_names(self, name: str, meant: list[str]) -> None:
        assert sorted(similar(name, self.NAMES)) == sorted(meant)

    def test_it_is_said(self) -> None:
        assert did_you_mean([]) == ""
        assert did_you_mean(["a"]) == "did you mean a? "
        assert did_you_mean(["a", "b", "c"]) == "did you mean a, b or c? "


def calls_advised() -> list[str]:
    """The calls in the doctor's advice, with names and numbers put in."""
    found = []
    for file in sorted(ENGINE_FOLDER.glob("functions/operate/doctor*.sql")):
        text = re.sub(r"'\n\s*'", "", file.read_text(encoding="utf-8"))  # a literal over several lines
        for call in re.findall(r"select headgate\.\w+\([^;]*%[^;]*\);", text):
            call = re.sub(r"%+(?:\d\$)?L", "'it''s'", call.replace("''", "'"), count=1)
            found.append(re.sub(r"%s(?=\))", "", re.sub(r"%(?:\d\$)?s(?!\))|%3\$s", "20", call.replace("%L", "'c'"))))
    return [re.sub(r"%+\d\$[Ls]", "7", re.sub(r"%+2\$L", "'c'", call)) for call in found]


def test_the_doctor_advises_commands(run: CommandLine) -> None:
    """Each is one that the command line takes."""
    calls = calls_advised()
    assert len(calls) >= 14
    for call in calls:
        said = as_commands(f"Do it: {call} Then look.")
        assert "select" not in said, call
        command = re.fullmatch(r"Do it: `headgate (.*)` Then look.", said)
        assert command, said
        done = run(*shlex.split(command[1]), "--as-curl")
        assert done.code == 0, (command[1], done.err)
    assert as_commands("End it: select pg_terminate_backend(3);") == "End it: select pg_terminate_backend(3);"
    assert as_commands("select headgate.alter_stream('s', segment_age => '1 day 08:00:00');") == (
        "`headgate stream edit s --segment-age 115200s`"
    )


class TestNamesThatMayHaveBeenMeant:
    def test_in_python(self, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        orders.consumer("billing", create=True)
        for misspelt in (lambda: hg.stream("odrers"), lambda: hg.insights.stream("odrers")):
            with pytest.raises(headgate.errors.StreamNotFound) as caught:
                misspelt()
            assert str(caught.value.hint).startswith("did you mean orders? create it with hg.stream(name, create=True)")
            assert caught.value.similar == ["orders"]
        for misspelt in (lambda: orders.consumer("biling"), lambda: hg.insights.consumer("orders", "biling")):
            with pytest.raises(headgate.errors.ConsumerNotFound) as caught_too:
                misspelt()
            assert str(caught_too.value.hint).startswith("did you mean billing? create it with stream.consumer(name,")

    def test_nothing_is_near(self, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        with pytest.raises(headgate.errors.StreamNotFound) as caught:
            hg.stream("completely-different")
        assert str(caught.value.hint).startswith("create it with hg.stream(")
        assert not caught.value.similar

    async def test_in_async_python(self, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        async with headgate.AsyncHeadgate(hg.url) as there:
            with pytest.raises(headgate.errors.StreamNotFound, match="did you mean orders"):
                await there.stream("order")

    def test_whoever_may_not_list_them_is_told_nothing(
        self, hg: headgate.Headgate, db: Db, orders: headgate.Stream
    ) -> None:
        db.execute("create role hint_producer login in role headgate_producer")
        try:
            with headgate.connect(hg.url.replace("//postgres@", "//hint_producer@")) as there:
                with pytest.raises(headgate.errors.StreamNotFound) as caught:
                    there.stream("odrers").send("x")
            assert "did you mean" not in str(caught.value)
        finally:
            db.execute("drop role hint_producer")

    def test_in_the_shell(self, run: CommandLine, orders: headgate.Stream) -> None:
        orders.consumer("billing", create=True)
        for command in (
            "stream show odrers",
            "send odrers x",
            "peek odrers billing",
            "stream segments odrers",
        ):
            done = run(*command.split())
            assert done.code == 3
            assert "hint: did you mean orders? `headgate stream list` shows" in done.err, command
        for command in ("consumer show orders biling", "receive orders biling", "ack orders biling 1.2.3"):
            done = run(*command.split())
            assert done.code == 3
            assert "hint: did you mean billing? `headgate consumer list` shows" in done.err, command

    def test_over_http(self, server: Replica) -> None:
        with server.client() as http:
            for name in ("orders", "private.orders1"):
                http.post("/api/streams", json={"name": name}).raise_for_status()
            http.post("/api/streams/orders/consumers", json={"name": "billing"}).raise_for_status()
            sent = http.post("/api/streams/odrers/messages", json={"messages": [{"data": 1}]})
            received = http.post("/api/streams/orders/consumers/biling/receive", params={"batch_size": 1}, json={})
            acked = http.post("/api/streams/orders/consumers/biling/ack", json={"ack_ids": ["1.2.3"]})
            for answer in (http.get("/api/streams/odrers"), sent):
                told = answer.json()["error"]["hint"]
                assert told.startswith("did you mean orders? create it with POST /api/streams"), answer.text
            for answer in (http.get("/api/streams/orders/consumers/biling"), received, acked):
                told = answer.json()["error"]["hint"]
                assert told.startswith("did you mean billing? create it with POST /api/streams/{stream}/"), answer.text

    def test_fields(self, server: Replica) -> None:
        with server.client() as http:
            http.post("/api/streams", json={"name": "fields", "if_not_exists": True}).raise_for_status()
            wrong = http.post("/api/streams/fields/consumers/c/receive", params={"max": 1}).json()["error"]
            assert wrong["hint"].startswith("there are batch_size, wait_ms, worker, ")
            wrong = http.get("/api/streams/fields/messages", params={"first": 1}).json()["error"]
            assert wrong["hint"].startswith("there are ")
            wrong = http.post("/api/streams/fields/messages", json={"messages": [{"dat": 1}]}).json()["error"]
            assert wrong["hint"] == "GET /openapi.json has the schema"

    def test_a_token_is_told_of_its_own_streams_alone(self, server: Replica) -> None:
        with server.client() as http:
            for name in ("tenant.orders", "tenant.orderz", "secret.orders"):
                http.post("/api/streams", json={"name": name}).raise_for_status()
        with server.client(server.new_token("admin", streams=["tenant.orders", "secret.order"])) as bound:
            answer = bound.get("/api/streams/secret.order")
            assert answer.status_code == 404
            assert "did you mean" not in answer.text
            assert "secret.orders" not in answer.text
