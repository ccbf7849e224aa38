"""The command line, run in this process or as one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate import cli


@dataclass(frozen=True)
class Done:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its one JSON document."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Its lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """`headgate …` with a home of its own. Calling it runs a command in this process, without a terminal."""

    def __init__(
        self, url: str | None, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.home = home
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.environment = {"XDG_CONFIG_HOME": str(home), "COLUMNS": "100"}
        if url:
            self.environment["HEADGATE_DATABASE_URL"] = url
        for name in ("HEADGATE_DATABASE_URL", "HEADGATE_CONTEXT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    def __call__(self, *args: str | int | Path, input: str | bytes = "") -> Done:
        raw = input if isinstance(input, bytes) else input.encode()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        self._capsys.readouterr()
        code = cli.main([str(a) for a in args])
        return Done(code, *self._capsys.readouterr())

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "headgate.cli", *args],
            env={**os.environ, **self.environment}, text=True, **options,
        )  # fmt: skip
