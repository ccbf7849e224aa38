"""What is wrong with a pipeline is said before Spark starts, and before anything is made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import headgate
from headgate.errors import Error
from headgate.lake.storage import Location
from headgate.lake.table import LakeTable
from headgate.pipeline import parse
from headgate.pipeline.run import run
from headgate.pipeline.session import end

ARCHIVE = 'kind = "archive"\nname = "a"\nstream = "{stream}"\nto = "{to}"\n'
TRANSFORM = 'kind = "transform"\nname = "a"\nstream = "orders"\nsql = "select * from messages"\n'


class NotYet(Exception):
    """Spark was to be started: all was right."""


def spark() -> Any:
    raise NotYet


def problem_of(text: str, hg: headgate.Headgate, tmp_path: Path) -> Error:
    with pytest.raises(Error) as caught:
        run(parse(text), hg, spark, directory=tmp_path / "state")
    return caught.value


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (ARCHIVE.format(stream="ordres", to="{lake}"), 'stream "ordres" does not exist', 'is it "orders"?'),
        (ARCHIVE.format(stream="x", to="{lake}"), 'stream "x" does not exist', "`headgate stream add x`"),
        (ARCHIVE.format(stream="orders", to="{lake}") + 'partition_by = ["day"]', '"day"', "date, hour"),
        (ARCHIVE.format(stream="orders", to="{lake}") + 'start = "tick:0"', "no tick as old", "beginning"),
        (ARCHIVE.format(stream="orders", to="{lake}") + 'start = "soon"', "soon", ""),
        (ARCHIVE.format(stream="orders", to="{lake}") + 'filter = ["a.>.b"]', "is not a key filter", "tokens"),
        (ARCHIVE.format(stream="orders", to="{file}/t"), "is not a directory", "another place"),
        (ARCHIVE.format(stream="orders", to="{lake}") + 'schema = "id lon"', "the type lon", "long"),
        (TRANSFORM + 'to_lake = "{lake}"\nschema = "id lon"', "the type lon", "long"),
        ('kind = "latest"\nname = "a"\nstream = "orders"\nto = "{lake}"\nschema = "id"', "has no type", "id long"),
        ('kind = "latest"\nname = "a"\nstream = "order"\nto = "{lake}"', '"order" does not exist', '"orders"'),
        (TRANSFORM + 'to_stream = "odrers"', 'stream "odrers" does not exist', '"orders"'),
        (TRANSFORM + 'to_table = "nowhere.t"', 'no schema "nowhere"', "create schema"),
        (TRANSFORM.replace("orders", "orderz") + 'to_lake = "{lake}"', '"orderz" does not exist', '"orders"'),
        (TRANSFORM.replace("sql", "python") + 'to_lake = "{lake}"', "cannot be found", "module:function"),
        ('kind = "replay"\nname = "a"\nsource = "{lake}"\nstream = "orders"', "there is no Delta table", "archive"),
        ('kind = "replay"\nname = "a"\nsource = "{other}"\nstream = "orders"', "has no column seq", "archive"),
        ('kind = "report"\nname = "a"\nto = "{lake}/r.html"\nstreams = ["o"]', '"o" does not exist', "stream add o`"),
        ('kind = "report"\nname = "a"\nto = "{lake}/r.html"\nsince = "monday"', "is not a time", "2026-05-01"),
    ],
)
def test_it_is_said_before_spark_starts_and_nothing_is_made(
    hg: headgate.Headgate, tmp_path: Path, text: str, problem: str, hint: str
) -> None:
    hg.stream("orders", create=True)
    write_deltalake(str(tmp_path / "other"), pa.table({"n": [1]}))
    (tmp_path / "file").write_text("x")
    before = {str(p) for p in tmp_path.rglob("*")}
    places = {name: str(tmp_path / name) for name in ("lake", "other", "file")}
    for name, path in places.items():
        text = text.replace("{" + name + "}", path)
    error = problem_of(text, hg, tmp_path)
    assert problem in error.message
    assert hint in (error.hint or "")
    assert "Os {" not in str(error)
    assert {str(p) for p in tmp_path.rglob("*")} == before
    [(state, said)] = hg.run("select state, error from headgate.pipeline_status()", ())
    assert state == "failed"
    assert problem in said


def test_a_table_of_another_pipeline_is_refused_before_spark_starts(hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("orders", create=True)
    place = tmp_path / "t"
    LakeTable(Location(str(place)), pa.schema([("n", pa.int64())]), stream="orders", pipeline="b").open()
    text = ARCHIVE.format(stream="orders", to=place) + "partition_by = []"
    assert "is of the pipeline b, not of the pipeline a" in str(problem_of(text, hg, tmp_path))


def test_what_is_right_goes_on_to_spark(hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("orders", create=True)
    with pytest.raises(Error) as caught:
        run(parse(ARCHIVE.format(stream="orders", to=tmp_path / "t")), hg, spark, directory=tmp_path / "state")
    assert isinstance(caught.value.__cause__, NotYet)


@pytest.mark.parametrize("missing", ["pyspark", "deltalake", "pyarrow", "adbc_driver_postgresql"])
def test_without_spark_it_is_said_what_to_install(hg: headgate.Headgate, tmp_path: Path, missing: str) -> None:
    hg.stream("orders", create=True)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{missing!r}] = None\n")
    file = tmp_path / "p.toml"
    file.write_text(ARCHIVE.format(stream="orders", to=tmp_path / "t"))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for command in ("run", "show"):
        done = subprocess.run(
            [sys.executable, "-m", "headgate.cli", "pipeline", command, str(file)], cwd=tmp_path, text=True,
            env={**os.environ, "PYTHONPATH": path, "HEADGATE_DATABASE_URL": hg.url},
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        if command == "run":
            assert done.returncode == 1
            assert f"{missing} is not installed" in done.stderr
            assert "pip install 'headgate[spark]'" in done.stderr
        else:
            assert done.returncode == 0  # what a file says can be looked at anywhere


def test_a_signal_that_ends_spark_as_well_is_no_failure(hg: headgate.Headgate, tmp_path: Path) -> None:
    """As systemd sends it: to all processes of a unit."""
    hg.stream("orders", create=True)

    class Gone:
        def stop(self) -> None:
            raise ConnectionRefusedError(111, "Connection refused")

    def start() -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    text = ARCHIVE.format(stream="orders", to=tmp_path / "lake")
    run(parse(text), hg, start, directory=tmp_path / "state", stopping=lambda: True)
    [(state, said)] = hg.run("select state, error from headgate.pipeline_status()", ())
    assert (state, said) == ("stopped", None)
    end(Gone())
    with pytest.raises(Error, match="Connection refused"):
        run(parse(text), hg, start, directory=tmp_path / "state")
