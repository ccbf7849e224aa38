"""python -m histories [--preset P …] [--seed N] [--count K] [--seconds S] [--pg 15]: run, judge, and tell."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from headgate import schema
from headgate.cluster import Cluster, postgres_bin
from histories.check import judge
from histories.run import run
from histories.story import census, tell
from histories.world import PRESETS

SETTINGS = {"fsync": "off", "max_connections": "100", "shared_buffers": "128MB"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m histories", description=__doc__)
    parser.add_argument("--preset", nargs="*", choices=sorted(PRESETS), default=sorted(PRESETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1, help="so many seeds, one after the other")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--pg", help="Debian's PostgreSQL of that version instead of the embedded one")
    parser.add_argument("--stories", type=int, default=3, help="how many findings of a history are told in full")
    asked = parser.parse_args()
    bin_dir = Path(f"/usr/lib/postgresql/{asked.pg}/bin") if asked.pg else postgres_bin()
    home = Path(tempfile.mkdtemp(prefix="headgate-histories-"))
    cluster = Cluster(bin_dir, home / "data", home / "run", settings=SETTINGS)
    cluster.init()
    cluster.start()
    found = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that PostgreSQL is stopped, too
    try:
        with psycopg.connect(cluster.url(), autocommit=True) as admin:
            admin.execute("create database template")
            with psycopg.connect(cluster.url("template")) as db:
                db.execute(schema.install_sql())
            for preset in asked.preset:
                for seed in range(asked.seed, asked.seed + asked.count):
                    name = f"h_{preset.replace('-', '_')}_{seed}"
                    admin.execute(f'create database "{name}" template template')
                    began = time.monotonic()
                    history = run(cluster.url(name), PRESETS[preset], seed, asked.seconds)
                    ran = time.monotonic() - began
                    findings = judge(history, PRESETS[preset])
                    found += len(findings)
                    took = time.monotonic() - began
                    print(f"{preset} seed {seed}: {len(history.events)} calls, {ran:.1f}+{took - ran:.1f} s")
                    print(f"  {census(history)}")
                    print(tell(history, findings, asked.stories), flush=True)
                    admin.execute(f'drop database "{name}" with (force)')
    finally:
        cluster.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)
    return 1 if found else 0


sys.exit(main())
