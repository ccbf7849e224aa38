"""Pipelines as files: what is in them, what is wrong with them, and commands about them. Nothing here starts Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headgate
from headgate.errors import InvalidArgument
from headgate.pipeline import load, parse
from headgate.pipeline.spec import KINDS, meanings, schema
from headgate.pipeline.templates import template
from support.command_line import CommandLine

ROOT = Path(__file__).parent.parent.parent
GOOD = 'kind = "archive"\nname = "a"\nstream = "orders"\nto = "lake"\n'


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("kind = ", "is not TOML", "toml.io"),
        ('name = "a"', "kind is None", "archive, replay"),
        ('kind = "copy"', "kind is 'copy'", "archive, replay"),
        ('kind = "archive"\nname = "a"\nto = "x"', "required field `stream`", "partition_by"),
        (GOOD + "colour = 1", "unknown field `colour`", "partition_by"),
        (GOOD + 'compact = "yes"', "Expected `bool`, got `str` - at `$.compact`", "compact"),
        (GOOD + "rows_per_batch = 0", "rows_per_batch", "rows_per_batch"),
        (GOOD.replace('"a"', '"a b"'), "name", "name"),
        (GOOD + 'run = "every 0 seconds"', 'run is "every 0 seconds"', "every 5 minutes"),
        (GOOD + 'run = "hourly"', 'run is "hourly"', "every 5 minutes"),
        ('kind = "replay"\nname = "a"\nsource = "x"\nstream = "y"\nrun = "continuous"', "runs once", "rate"),
        ('kind = "replay"\nname = "a"\nsource = "x"\nstream = "y"\nkey = "1"\nnew_keys = {}', "which key", "one of"),
        ('kind = "transform"\nname = "a"\nstream = "s"\nsql = "x"', "where the result goes", "to_stream"),
        ('kind = "transform"\nname = "a"\nstream = "s"\nto_lake = "x"', "what is done", "python"),
        (
            'kind = "transform"\nname = "a"\nstream = "s"\nto_lake = "x"\nsql = "x"\ntable_keys = ["a"]',
            "table_keys",
            "leave it out",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, problem: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(text, "p.toml")
    message = str(caught.value).splitlines()[0]
    assert message.startswith("p.toml")
    assert problem in message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_is_a_pipeline_also_with_all_that_can_be_said(kind: str) -> None:
    text = template(kind, "mine", 'a "quoted" stream')
    assert parse(text).kind == kind
    said = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    assert said == {"kind", *KINDS[kind].__struct_fields__} - ({"run"} if kind in ("replay", "report") else set())
    everything = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    for extra in ("key", "python", "to_table", "table_keys", "to_lake"):  # those that exclude others
        everything = re.sub(rf"^{extra} = .*$", "", everything, flags=re.MULTILINE)
    assert parse(everything).name == "mine"


def test_every_setting_is_explained() -> None:
    for kind in KINDS.values():
        assert set(meanings(kind)) == set(kind.__struct_fields__)
    properties = schema()["$defs"]["Archive"]["properties"]
    assert properties["to"]["description"].startswith("The table")


def test_the_published_schema_is_current(run: CommandLine) -> None:
    published = json.loads((ROOT / "docs" / "pipeline.schema.json").read_text("utf-8"))
    assert published == schema(), "run `make docs`"
    assert run("pipeline", "schema").json == published


def test_the_examples_in_the_documentation_are_pipelines() -> None:
    text = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
    found = [parse(example) for example in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    assert {p.kind for p in found} == set(KINDS)


def test_new_show_and_list(run: CommandLine, hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("orders", create=True)
    file = tmp_path / "p" / "nightly.toml"
    file.parent.mkdir()
    assert run("pipeline", "new", file, "--kind", "archive", "--stream", "orders").code == 0
    made = load(file)
    assert (made.kind, made.name, made.stream, made.to) == ("archive", "nightly", "orders", "lake/orders")
    again = run("pipeline", "new", file, "--kind", "archive", "--stream", "orders")
    assert (again.code, "is there already" in again.err) == (1, True)
    for given, missing in ((), "--kind"), (("--kind", "latest"), "--stream"):  # nobody can be asked
        refused = run("pipeline", "new", tmp_path / "q.toml", *given)
        assert refused.code == 2
        assert f"Missing option '{missing}'" in refused.err
    assert run("pipeline", "new", tmp_path / "q.toml", "--kind", "report").code == 0
    shown = run("pipeline", "show", file)
    assert re.search(r"partition_by +\[\"date\", \"hour\"\] +date and hour of created_at", shown.out)
    assert run("pipeline", "show", file, "--json").json["checkpoint"] == ".headgate/pipelines/nightly"
    (file.parent / "bad.toml").write_text('kind = "archive"\nname = "b"')
    (file.parent / "pyproject.toml").write_text("[project]")
    hg.run("select headgate.note_pipeline('nightly', 'archive', 'done', 'x', '{}')", ())
    listed = run("pipeline", "list", file.parent, "--json").json
    assert [(r["pipeline"], r["kind"], r["state"]) for r in listed] == [
        (None, None, "wrong"),
        ("nightly", "archive", "done"),
    ]
    assert "required field" in listed[0]["error"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there are no pipelines in" in run("pipeline", "list", empty).err
