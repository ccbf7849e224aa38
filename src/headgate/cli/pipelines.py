"""`headgate pipeline`: declared pipelines, run on Spark."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import headgate

from .app import app
from .call import Call, command
from .output import talk

if TYPE_CHECKING:
    from headgate.pipeline.run import Progress

COLUMNS = ("pipeline", "kind", "state", "rows", "rate", "lag", "seen", "error")
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
    from headgate.pipeline.run import run
    from headgate.pipeline.session import session

    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _: stopped.append(n))
    settings = dict(part.split("=", 1) for part in conf if "=" in part)
    hg = call.hg
    spark = session(pipeline.name, master=master, remote=remote, conf=settings)
    try:
        last = run(pipeline, hg, spark, say=_line, stopping=lambda: bool(stopped))
    finally:
        spark.stop()
    call.say(_facts(last), f"{pipeline.name}: {last.total} rows")


@command(pipelines, "status")
@click.argument("name", required=False)
def status(call: Call, name: str | None) -> None:
    """Say how far pipelines are, wherever they run."""
    found = call.hg.run("select row_to_json(s)::text from headgate.pipeline_status(%s) s", (name,))
    rows = [json.loads(row) for (row,) in found]
    if name is not None and not rows:
        raise headgate.Error(f"there is no pipeline {name}", hint="`headgate pipeline status` shows those that ran")
    shown = [
        {
            "pipeline": r["pipeline"], "kind": r["kind"], "state": r["state"], "rows": r["progress"].get("total", 0),
            "rate": round(r["progress"].get("rate", 0)), "lag": r["progress"].get("lag"), "seen": r["seen_at"],
            "error": r["error"] or "",
        }
        for r in rows
    ]  # fmt: skip
    call.say_rows(rows, shown, COLUMNS, "no pipeline ran yet")


def _pipelines() -> Any:
    try:
        import headgate.pipeline as found
    except ImportError as missing:
        raise headgate.Error(f"pipelines need {missing.name}", hint="pip install 'headgate[spark]'") from missing
    return found


def _line(progress: Progress) -> None:
    lag = "" if progress.lag is None else f", {progress.lag} to go"
    note = f" {progress.note}" if progress.note else ""
    talk(f"batch {progress.batch}: {progress.rows} rows, {progress.rate:,.0f} rows/s{lag}{note}")


def _facts(progress: Progress) -> dict[str, Any]:
    return {"batch": progress.batch, "rows": progress.total, "lag": progress.lag}
