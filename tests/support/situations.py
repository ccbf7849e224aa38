"""A situation that a person on call meets, with a real server, and what shows it: /metrics, alerts, the doctor."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import yaml

import headgate
from headgate.cli.advice import as_commands
from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.exposition import families
from support.promql import History, Labels, Scrape, firing
from support.servers import Replica, replica

RULES_FILE = Path(__file__).parent.parent.parent / "deploy" / "prometheus" / "headgate.rules.yaml"
RULES: list[dict[str, Any]] = [r for g in yaml.safe_load(RULES_FILE.read_text())["groups"] for r in g["rules"]]
USED = set(re.findall(r"\w+", " ".join(r["expr"] for r in RULES)))  # the metrics among these words are looked at
STEP = 60.0  # seconds between scrapes, as Prometheus is told
SLOWER = 10  # such steps between two scrapes that were recorded: what happens is played back so much slower

SQL = re.compile(
    r"(?<![\w`])((?:select|alter system|alter table|alter database|vacuum|grant|revoke|rollback prepared)\b[^;`]*);"
)
SHELL = re.compile(r"`([^`]+)`")


@dataclass
class Situation:
    """A server of its own, what was scraped from it, and what its doctor says."""

    cluster: Cluster
    url: str
    servers: list[Replica]
    http: httpx.Client
    prometheus: httpx.Client
    db: psycopg.Connection
    directory: Path
    scrapes: list[Scrape] = field(default_factory=list)

    def scrape(self) -> Scrape:
        """All servers as Prometheus scrapes them, once more in the recording."""
        found: Scrape = {}
        for server in self.servers:
            instance = {("job", "headgate"), ("instance", server.url)}
            try:
                with server.client(self.prometheus.headers["authorization"].split()[1]) as client:
                    answer = client.get("/metrics", timeout=10)
                up = float(answer.status_code == 200)
            except httpx.HTTPError:
                up = 0.0
            found["up", frozenset(instance)] = up
            if up:
                for family in families(answer.text).values():
                    for s in family.samples:
                        found[s.name, frozenset({*s.labels.items(), *instance})] = float(s.value)
        self.scrapes.append(found)
        return found

    def value(self, name: str, **labels: str) -> float:
        """Of a metric, as it is now."""
        found = self.scrape()
        self.scrapes.pop()
        return next((v for (n, ls), v in found.items() if n == name and labels.items() <= dict(ls).items()), 0.0)

    def record(self, times: int = 5, between: Callable[[], object] = lambda: time.sleep(0.1)) -> None:
        """Scrapes so often, and does something in between."""
        for _ in range(times):
            self.scrape()
            between()

    def fires(self, lasting: set[str] | None = None) -> set[str]:
        """The names of the alerts that fire at any time in what was recorded, and forgets the recording."""
        history = played_back(self.scrapes, lasting or set())
        self.scrapes.clear()
        found = firing(RULES, history, STEP)
        check_with_promtool(history, found, self.directory)
        return {name for fires in found.values() for name, _ in fires}

    def doctor(self, subject: str, patience: float = 1.0) -> list[headgate.types.Finding]:
        """What it finds about a subject."""
        with headgate.connect(self.url) as hg:
            found = hg.doctor(patience)
        assert not [f for f in found if f.subject == "doctor"], found
        return [f for f in found if f.subject == subject]

    def follow(self, advice: str) -> list[str]:
        """Does what the advice says, as written, every statement and every shell command in it: as `headgate doctor`
        writes it. What it says in SQL where that is a command of the shell is tried, and taken back."""
        text = as_commands(advice)
        commands, statements = SHELL.findall(text), SQL.findall(text)
        done = [*commands, *statements]
        assert done, f"nothing to do in: {advice}"
        with self.db.transaction(force_rollback=True):
            for statement in SQL.findall(advice):
                if statement not in statements:
                    self.db.execute(statement)
        for command in commands:
            program, *words = shlex.split(command)
            if program == "headgate":
                self._at_a_terminal(words)
                continue
            where = {"PGHOST": str(self.cluster.socket_dir), "PGPORT": "5432", "PGUSER": "postgres"}
            subprocess.run(
                [str(self.cluster.bin_dir / program), *words], env=where, check=True, timeout=60, capture_output=True
            )
        for statement in statements:
            self.db.execute(statement)
        return done

    def _at_a_terminal(self, words: list[str]) -> None:
        """A command of ours, by somebody who says yes when asked."""
        person, terminal = pty.openpty()
        os.write(person, b"y\n")
        try:
            done = subprocess.run(
                [sys.executable, "-m", "headgate", *words], env={**os.environ, "HEADGATE_DATABASE_URL": self.url},
                stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, os.read(person, 10_000).decode()
        finally:
            os.close(person)
            os.close(terminal)


def played_back(scrapes: list[Scrape], lasting: set[str]) -> History:
    """A recording, slowed down: between two scrapes lie ten minutes, in which values change evenly. A series that is
    gone is gone. The ages in `lasting` last so much longer, too."""
    history: History = []
    for n, scrape in enumerate(scrapes):
        following = scrapes[min(n + 1, len(scrapes) - 1)]
        for i in range(SLOWER):
            part = i / SLOWER
            moment = {
                series: (v + (following.get(series, v) - v) * part) * (SLOWER * STEP if series[0] in lasting else 1)
                for series, v in scrape.items()
                if series[0] in USED
            }
            history.append(((n * SLOWER + i) * STEP, moment))
    return history


def check_with_promtool(history: History, found: dict[float, set[tuple[str, Labels]]], directory: Path) -> None:
    """Prometheus's own judgment of the same series, where it is installed: it must be ours."""
    if shutil.which("promtool") is None:
        return
    series = sorted({s for _, scrape in history for s in scrape}, key=str)
    inputs = []
    for name, labels in series:
        values = [repr(scrape[name, labels]) if (name, labels) in scrape else "stale" for _, scrape in history]
        shown = ",".join(f"{k}={yaml.safe_dump(v, default_style=chr(34)).strip()}" for k, v in sorted(labels))
        inputs.append({"series": f"{name}{{{shown}}}", "values": " ".join(values)})
    bare = [{k: v for k, v in r.items() if k != "annotations"} for r in RULES]
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "headgate", "rules": bare}]}))
    severity = {r["alert"]: r["labels"]["severity"] for r in RULES}
    ends = [at for n, at in enumerate(sorted(found)) if n % SLOWER == SLOWER - 1]
    tests = [
        {
            "eval_time": f"{int(at)}s", "alertname": name,
            "exp_alerts": [
                {"exp_labels": {**dict(labels), "severity": severity[name]}} for n, labels in found[at] if n == name
            ],
        }
        for at in ends for name in severity
    ]  # fmt: skip
    whole = {
        "rule_files": ["rules.yaml"], "evaluation_interval": f"{int(STEP)}s",
        "tests": [{"interval": f"{int(STEP)}s", "input_series": inputs, "alert_rule_test": tests}],
    }  # fmt: skip
    (directory / "test.yaml").write_text(yaml.safe_dump(whole, width=10**9))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=directory, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"promtool judges otherwise:\n{done.stdout[:4000]}{done.stderr[:4000]}"


@contextmanager
def situation(cluster: Cluster, directory: Path, *options: str, replicas: int = 1) -> Iterator[Situation]:
    """A fresh database and servers for it, with nothing wrong."""
    with new_database(cluster) as url, _replicas(url, directory, options, replicas) as servers:
        token = servers[0].new_token("monitor")
        with (
            servers[0].client() as http,
            servers[0].client(token) as prometheus,
        ):
            s = Situation(cluster, url, servers, http, prometheus, psycopg.connect(url, autocommit=True), directory)
            try:
                yield s
            finally:
                s.db.close()


@contextmanager
def _replicas(url: str, directory: Path, options: tuple[str, ...], count: int) -> Iterator[list[Replica]]:
    if count == 0:
        yield []
        return
    with replica(url, directory, *options) as server, _replicas(url, directory, options, count - 1) as others:
        yield [server, *others]
