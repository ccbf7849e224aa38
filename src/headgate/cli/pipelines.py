"""`headgate pipeline`: declared pipelines, run on Spark."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import headgate

from .app import app
from .call import Call, at_terminal, command
from .output import print_data, print_status, print_table

if TYPE_CHECKING:
    from headgate.pipeline.run import Progress

COLUMNS = (
    "pipeline",
    "kind",
    "state",
    "batch",
    "rows",
    "rate",
    "lag",
    "behind",
    "files",
    "committed",
    "next",
    "seen",
    "error",
)
KINDS = ("archive", "replay", "transform", "latest", "report")


@app.group("pipeline")
def pipelines() -> None:
    """Streams to a lake and back, transformed, reported on."""


@command(pipelines, "run")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--master", metavar="URL", help="The Spark cluster. Default: local[*].")
@click.option("--remote", metavar="URL", help="A Spark Connect server: sc://host:15002.")
@click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark.")
def run_file(call: Call, file: Path, master: str | None, remote: str | None, conf: tuple[str, ...]) -> None:
    """Run the pipeline in FILE until it is done, or interrupted."""
    pipeline_module = _pipelines()
    pipeline = pipeline_module.load(file)
    try:
        from headgate.pipeline.run import run
        from headgate.pipeline.session import end, session

        import_module("headgate.pipeline.checks")  # this one needs all that is needed
    except ImportError as missing:
        raise _missing(missing) from missing
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _: stopped.append(n))
    settings = dict(part.split("=", 1) for part in conf if "=" in part)
    hg = call.direct
    with ExitStack() as ending:

        def start() -> Any:
            spark = session(pipeline.name, master=master, remote=remote, conf=settings)
            ending.callback(end, spark)
            return spark

        last = run(pipeline, hg, start, say=_line, stopping=lambda: bool(stopped))
    call.print_data(_facts(last), f"{pipeline.name}: {last.total} rows")


@command(pipelines, "new")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--kind", type=click.Choice(KINDS), help="What kind of pipeline.")
@click.option("--name", help="Its name. Default: that of the file.")
@click.option("--stream", help="The stream that it is about.")
@click.option("--to", help="Where its result goes; of a replay: the table that is read.")
def new(call: Call, file: Path, kind: str | None, name: str | None, stream: str | None, to: str | None) -> None:
    """Write a pipeline to begin with into FILE: what can be said is in its comments."""
    pipeline_module = _pipelines()
    from headgate.pipeline.templates import TARGETS, template

    if file.exists():
        raise headgate.Error(f"{file} is there already", hint="choose another name, or remove it")
    if not at_terminal():
        for option, value in (("--kind", kind), ("--stream", stream if kind != "report" else "")):
            if value is None:
                raise click.UsageError(f"Missing option '{option}'.")
    guided = kind is None
    kind = kind or str(call.ask("kind", type=click.Choice(KINDS)))
    name = name or file.stem
    if kind != "report":
        stream = call.stream(stream)
    if to is None and guided:
        to = call.ask("table to read" if kind == "replay" else "to", default=TARGETS[kind].format(stream=stream))
    text = template(kind, name, stream or "orders", to)
    pipeline_module.parse(text, file.name)
    file.write_text(text, encoding="utf-8")
    call.print_data({"file": str(file), "kind": kind, "name": name}, f"{file}")
    print_status(f"look at it, then: headgate pipeline run {file}")


@command(pipelines, "list")
@click.argument("directory", required=False, default=".", type=click.Path(path_type=Path, exists=True, file_okay=False))
def list_files(call: Call, directory: Path) -> None:
    """List the pipelines in the files of DIRECTORY, and what they last said."""
    pipeline_module = _pipelines()
    states: dict[str, str] = {}
    try:
        states = dict(call.direct.run("select pipeline, state from headgate.pipeline_status()", ()))
    except headgate.Error as error:
        print_status(f"which of them ran is not known: {error}")
    rows = []
    for path in sorted(directory.glob("*.toml")):
        try:
            found = pipeline_module.load(path)
        except headgate.Error as error:
            if "kind" in path.read_text("utf-8", errors="replace"):  # other files of TOML are none of ours
                rows.append(
                    {"file": str(path), "pipeline": None, "kind": None, "state": "wrong", "error": _first(error)}
                )
            continue
        state = states.get(found.name, "never ran" if states else "-")
        rows.append({"file": str(path), "pipeline": found.name, "kind": found.kind, "state": state, "error": ""})
    call.print_rows(
        rows, rows, ("file", "pipeline", "kind", "state", "error"), f"there are no pipelines in {directory}"
    )


@command(pipelines, "show")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def show(call: Call, file: Path) -> None:
    """Check the pipeline in FILE and say what it would do: all of its settings, and what they mean."""
    found = _pipelines().load(file)
    from headgate.pipeline.spec import meanings, resolved

    settings = resolved(found)
    said = meanings(type(found))
    rows = [{"setting": name, "value": value, "meaning": said.get(name, "")} for name, value in settings.items()]
    if call.json:
        print_data(settings)
    else:
        print_table(rows, ("setting", "value", "meaning"))


@command(pipelines, "schema")
def schema(call: Call) -> None:
    """Print the JSON schema of pipelines, for editors that complete and check them."""
    _pipelines()
    from headgate.pipeline.spec import schema

    print_data(schema())


@command(pipelines, "status")
@click.argument("name", required=False)
def status(call: Call, name: str | None) -> None:
    """Say how far pipelines are, wherever they run."""
    found = call.direct.run("select row_to_json(s)::text from headgate.pipeline_status(%s) s", (name,))
    rows = [json.loads(row) for (row,) in found]
    if name is not None and not rows:
        raise headgate.Error(f"there is no pipeline {name}", hint="`headgate pipeline status` shows those that ran")
    shown = [
        {
            "pipeline": r["pipeline"], "kind": r["kind"], "state": r["state"], "batch": r["progress"].get("batch"),
            "rows": r["progress"].get("total", 0), "rate": round(r["progress"].get("rate", 0)),
            "lag": r["progress"].get("lag"), "behind": _seconds(r["progress"].get("behind")),
            "files": r["progress"].get("files"), "committed": r["progress"].get("committed_at"),
            "next": r["progress"].get("next_run"), "seen": r["seen_at"], "error": r["error"] or "",
        }
        for r in rows
    ]  # fmt: skip
    call.print_rows(rows, shown, COLUMNS, "no pipeline ran yet")


def _pipelines() -> Any:
    try:
        import headgate.pipeline as found
    except ImportError as missing:
        raise _missing(missing) from missing
    return found


def _seconds(given: float | None) -> str | None:
    return None if given is None else f"{given:.0f} s"


def _missing(error: ImportError) -> headgate.Error:
    name = (error.name or str(error)).partition(".")[0]
    return headgate.Error(f"pipelines run on Spark, and {name} is not installed", hint="pip install 'headgate[spark]'")


def _first(error: headgate.Error) -> str:
    return str(error).splitlines()[0]


def _line(progress: Progress) -> None:
    lag = "" if progress.lag is None else f", {progress.lag} to go"
    if progress.lag:
        lag += f" ({_seconds(progress.behind)} behind)"
    note = f" {progress.note}" if progress.note else ""
    print_status(f"batch {progress.batch}: {progress.rows} rows, {progress.rate:,.0f} rows/s{lag}{note}")


def _facts(progress: Progress) -> dict[str, Any]:
    return {"batch": progress.batch, "rows": progress.total, "lag": progress.lag}
