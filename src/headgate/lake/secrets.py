"""What nobody may see: the URL of a database, the credentials of an object store.

A Spark Connect server writes requests into its log: plans with their options, and functions as they were pickled. So
no request holds a secret. It is uploaded once, as a file of the session, and requests only name it.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any

NAMED = "headgate-secret:"

_known: dict[str, str] = {}


class Secret(str):
    """Text that is not shown: the text itself, or the name of a file that has it."""

    def __repr__(self) -> str:
        return "'***'"


def keep_secret(spark: Any, text: str) -> Secret:
    """The text as it may be part of an option or a function of this session: `.option("url", keep_secret(spark, url))`.

    It is the text itself, unless the session is one of Spark Connect.
    """
    if not type(spark).__module__.startswith("pyspark.sql.connect") or text.startswith(NAMED):
        return Secret(text)
    name = f"headgate-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_text(text, "utf-8")
        spark.addArtifact(str(path), file=True)
    named = Secret(NAMED + name)
    _known[named] = text
    return named


def plain(secret: str) -> Secret:
    """The text itself. Of streaming queries only the planning finds the file: its tasks are to be given the text."""
    if not secret.startswith(NAMED):
        return Secret(secret)
    if secret not in _known:
        from pyspark import SparkFiles

        _known[secret] = Path(SparkFiles.get(secret.removeprefix(NAMED))).read_text("utf-8")
    return Secret(_known[secret])
