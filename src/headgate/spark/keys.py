"""Keys of messages outside the database: filters with wildcards, and new names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidFilter


def pattern(filters: Sequence[str]) -> str:
    """One regular expression that matches the keys that pass: the same that pass headgate.filter_pattern()."""
    return f"(?s)^(?:{'|'.join(_one(f) for f in filters)})$"


def matching(batch: pa.RecordBatch, filters: str) -> pa.RecordBatch:
    """The rows whose key matches a pattern. A message without a key matches none."""
    return batch.filter(pc.match_substring_regex(batch.column("key"), filters).fill_null(False))


def renamed(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """The rows with new keys: those that the map has, and those below `old.>`, of which the beginning changes."""
    at = batch.schema.get_field_index("key")
    old = batch.column(at).dictionary_encode()
    new = pa.array([_new(key, names) for key in old.dictionary.to_pylist()], pa.string())
    return batch.set_column(at, batch.schema.field(at), new.take(old.indices))


def check_names(names: Mapping[str, str]) -> None:
    """An error for a map of keys that cannot be meant so."""
    for old, new in names.items():
        below = old == ">" or old.endswith(".>")
        if below:
            _one(old)
        if below != (new == ">" or new.endswith(".>")) or (below and new == ">" and old == ">"):
            raise InvalidFilter(
                f'"{old}" cannot become "{new}"', hint='give two keys, or two beginnings: "old.>" = "new.>"'
            )


def _new(key: str, names: Mapping[str, str]) -> str:
    if key in names:
        return names[key]
    tokens = key.split(".")
    for n in range(len(tokens) - 1, -1, -1):  # the longest beginning counts
        old = ".".join([*tokens[:n], ">"])
        if old in names:
            return names[old].removesuffix(">") + ".".join(tokens[n:])
    return key


def _one(given: str) -> str:
    tokens = given.split(".")
    for i, token in enumerate(tokens):
        if token == "" or (token == ">" and i < len(tokens) - 1) or (len(token) > 1 and re.search("[*>]", token)):
            raise InvalidFilter(
                f'"{given}" is not a key filter',
                hint='write tokens separated by dots; "*" stands for one token, ">" at the end for one or more: '
                "orders.*.created, orders.>",
            )
    return r"\.".join({"*": "[^.]+", ">": ".+"}.get(token) or re.escape(token) for token in tokens)
