"""What is generated for each stream: templates are put together from steps, lines and values (base/generated.sql)."""

from __future__ import annotations

import psycopg
import pytest

from headgate.database import schema
from support.calls import Db, call, value

TEMPLATES = {
    "whole": "begin\n  {step steps_of/one keys}\n  {step steps_of/one};\nend",
    "steps/steps_of/one": "a,\n{if keys} b,\n{if not keys} c,\n{if upsert} d,\n{step steps_of/two}",
    "steps/steps_of/two": "e\n  {if keys} f",
    "lost": "begin\n  {step steps_of/nowhere}\nend",
    "strange": "select {something}, '{}', 'a{1,18}'",
    "doubtful": "a\n{if weather_permits} b",
}


@pytest.fixture
def templates(db: Db) -> None:
    """The templates above instead of the engine's."""
    rows = ", ".join(f"('{name}', $source${source}$source$)" for name, source in TEMPLATES.items())
    db.execute(
        "create or replace function headgate.templates() returns jsonb language sql immutable "
        "set search_path = pg_catalog, pg_temp as $templates$ "
        f"select jsonb_object_agg(t.name, t.source) from (values {rows}) t (name, source) $templates$"
    )


def filled(db: Db, name: str) -> object:
    call(db, "create_stream", "orders")
    return value(db, "select headgate.fill(headgate.pasted(%s, '{}'), s) from headgate.stream s", name)


@pytest.mark.usefixtures("templates")
def test_steps_are_pasted_with_their_conditions(db: Db) -> None:
    assert (
        value(db, "select headgate.pasted('whole', '{}')") == "begin\n  a,\n  b,\n  e\n    f\n  a,\n  c,\n  e\n  ;\nend"
    )


@pytest.mark.usefixtures("templates")
def test_a_condition_of_the_stream_holds_in_all_steps(db: Db) -> None:
    text = value(db, "select headgate.pasted('whole', '{upsert}')")
    assert text == "begin\n  a,\n  b,\n  d,\n  e\n    f\n  a,\n  c,\n  d,\n  e\n  ;\nend"


@pytest.mark.usefixtures("templates")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", 'there is no template "nothing"'),
        ("lost", 'there is no template "steps/steps_of/nowhere"'),
    ],
)
def test_an_unknown_step_is_told(db: Db, name: str, problem: str) -> None:
    with pytest.raises(psycopg.errors.InternalError_, match=problem):
        db.execute("select headgate.pasted(%s, '{}')", [name])


@pytest.mark.parametrize(("name", "problem"), [("strange", "{something}"), ("doubtful", "{if weather_permits}")])
def test_an_unknown_value_or_condition_is_told(db: Db, name: str, problem: str) -> None:
    call(db, "create_stream", "orders")
    with pytest.raises(psycopg.errors.InternalError_, match=problem):
        db.execute("select headgate.fill(%s, s) from headgate.stream s", [TEMPLATES[name]])


def test_every_template_and_step_is_used(db: Db) -> None:
    """What stands in a file that nothing pastes would be changed in vain."""
    script = schema.functions_script()
    names = value(db, "select array_agg(n) from jsonb_object_keys(headgate.templates()) n")
    assert len(names) > 30
    unused = [
        name
        for name in names
        if f"{{step {name.removeprefix('steps/')}" not in script
        and f"'{name}'" not in script.split("'append', $source$")[0]
    ]
    assert unused == []


def test_an_unknown_constant_is_told() -> None:
    assert schema.with_constants("lane >= {NAMED_LANES}, '{}', '{a}'") == f"lane >= {2**58}, '{{}}', '{{a}}'"
    with pytest.raises(KeyError, match="NAMELESS_LANES"):
        schema.with_constants("lane >= {NAMELESS_LANES}")
