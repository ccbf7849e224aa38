"""ARCHITECTURE.md: it is short, what it names is there, and no table is left out."""

from __future__ import annotations

import re
from pathlib import Path

from docs.test_glossary import tables

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROOMS = [ROOT, ROOT / "src/headgate", ROOT / "src/headgate/sql", ROOT / "src/headgate/sql/functions"]


def test_it_is_read_in_ten_minutes() -> None:
    assert len(TEXT.split()) < 2000
    rows = TEXT.split("## Where to change what")[1].split("|---|---|\n")[1].splitlines()
    assert len(rows) <= 20, "if it needs more, the names are wrong"


def test_what_it_names_is_there() -> None:
    files = set(re.findall(r"`([\w/.]+(?:\.(?:py|sql|md)|/))`", TEXT)) | set(re.findall(r"\]\(([^)]+)\)", TEXT))
    inner = {
        "api/",
        "flow/",
        "push/",
        "intake/",
        "operate/",
        "processes/",
        "console/",
        "steps/",
    }  # of server, templates
    assert len(files) > 60
    assert [f for f in sorted(files - inner) if not any((room / f).exists() for room in ROOMS)] == []


def test_each_table_is_in_it() -> None:
    part = TEXT.split("## Tables")[1].split("## Where")[0]
    named = {re.sub(r"<id>", "1", name) for name in re.findall(r"`([\w<>]+)`", part)}
    made = {re.sub(r"_\d+$", "_1", name) for name, _ in tables()}
    assert made - named == set()


def test_each_room_is_in_it() -> None:
    part = TEXT.split("| room |")[1].split("In `sql/`")[0]
    named = {name.strip("/") for name in re.findall(r"`([\w/]+)`", part)}
    made = {p.stem for p in (ROOT / "src/headgate").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert made - named - {"__init__", "__main__", "trouble"} == set()
