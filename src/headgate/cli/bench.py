"""`headgate bench`: measurements."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import click

from .app import app
from .call import Call, command
from .exit_codes import NOTHING
from .output import print_data, print_status
from .progress import each

BENCHMARKS = (
    "publish",
    "consume",
    "sql",
    "fanout",
    "latency",
    "backlog",
    "pinned",
    "channels",
    "idle",
    "active",
    "keys",
    "looking",
    "streams",
)

APART = ("http", "spark")  # these have benchmarks of their own


@command(app, "bench")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=click.Choice((*BENCHMARKS, *APART)))
@click.option("--quick", is_flag=True, help="Short rounds: some minutes in all.")
@click.option("--report", metavar="DIR", type=click.Path(path_type=Path), help="Write README.md and plots there.")
@click.option("--only-headgate", is_flag=True, help="Leave pgmq and COPY out.")
@click.option("--check", is_flag=True, help=f"Exit with {NOTHING} when a target is missed.")
@click.option("--scale", type=float, default=1.0, hidden=True)  # for tests
def bench(call: Call, names: tuple[str, ...], **options: object) -> int:
    """Measure Headgate beside pgmq and a raw COPY: all benchmarks, or those called NAME.

    `headgate bench http` measures the HTTP server instead, under the load of 50 clients on this machine, and
    `headgate bench spark` Spark's source and sink, and archives.
    """
    args = argparse.Namespace(names=names, json=call.json, database=call.named_url, **options)
    if set(APART) & set(names):
        if len(names) > 1:
            raise click.UsageError(f"{' and '.join(APART)} are measured by themselves: leave the other names out")
        measure = getattr(import_module(f"headgate.bench.{names[0]}.run"), names[0])  # here: no other command needs it
        return int(
            measure(args, say=print_data, talk=print_status, watch=lambda found: each(found, f"bench {names[0]}"))
        )
    from headgate.bench import command as benchmarks

    return benchmarks.bench(args, say=print_data, talk=print_status, watch=lambda names: each(names, "bench"))
