"""The documentation's site: it builds, its links hold, it needs no other host, and its reference is complete."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import get_origin

import psycopg
import pytest
from playwright.sync_api import sync_playwright

import build_docs
import errors_reference
import headgate
import http_reference
import install_chromium
import python_reference
import settings_reference
import sql_reference
from console.browser import FLAGS, PATIENCE
from headgate.server.api.routes import ROUTES
from headgate.server.http.errors import Problem
from headgate.worker.options import WorkerOptions

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"

# Attributes by which a browser loads something by itself. A link (a href) is followed by people only.
LOADS = {"src", "srcset", "poster", "data", "action", "background"}


class Loaded(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name in LOADS or (name == "href" and tag in ("link", "image", "use"))):
                self.found.append(value)
            if value and name == "style":
                self.found += re.findall(r"url\(([^)]+)\)", value)
            if name == "class":
                self.classes |= set((value or "").split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in strict mode: a broken link or anchor, or a page that is in no menu, fails it."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", "mkdocs.yml", "-d", str(target)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        built = page.relative_to(DOCS).with_suffix(".html")
        if built.name == "README.html":
            built = built.with_name("index.html")
        assert (site / built).exists(), f"{built} is missing"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        parser = Loaded()
        text = page.read_text(encoding="utf-8")
        parser.feed(text)
        assert parser.found, page
        elsewhere = [u for u in parser.found if re.match(r"\s*['\"]?(?:[a-z]+:)?//", u)]
        assert elsewhere == [], f"{page.name} loads {elsewhere}"
        assert "mermaid" not in parser.classes, "the theme would load mermaid from a CDN: draw an SVG"
        for style in re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL):
            assert "//" not in re.sub(r"data:[^)]*", "", style), page.name
    for sheet in site.rglob("*.css"):
        loaded = re.findall(r"url\(\s*['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)", sheet.read_text(encoding="utf-8"))
        assert [u for u in loaded if re.match(r"(?:https?:)?//", u[0] or u[1])] == [], sheet.name


def test_what_is_loaded_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        for url in parser.found:
            path = url.partition("#")[0].partition("?")[0]
            if page.name != "404.html" and path and not path.startswith("data:"):
                assert (page.parent / path).exists(), f"{page.name} loads {url}"


def test_pictures_stand_alone() -> None:
    """Each is used, described, and refers to nothing outside itself."""
    used = "".join(p.read_text(encoding="utf-8") for part in ("concepts", "guides") for p in (DOCS / part).glob("*.md"))
    used += (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pictures = list((DOCS / "pictures").glob("*.svg"))
    assert len(pictures) >= 6
    for picture in pictures:
        text = picture.read_text(encoding="utf-8")
        assert f"pictures/{picture.name}" in used
        assert "<title>" in text
        assert re.findall(r'https?://(?!www\.w3\.org/2000/svg")', text) == []
        assert "viewBox" in text


def test_figures_of_the_front_page_were_measured() -> None:
    figures = re.findall(r"<strong>([\d,.]+)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert len(figures) == 3
    measured = (DOCS / "benchmarks/README.md").read_text(encoding="utf-8")
    assert [f for f in figures if f"| {f} |" not in measured] == []


def test_each_decision_is_in_the_index() -> None:
    index = (DOCS / "adr/README.md").read_text(encoding="utf-8")
    assert [f.name for f in (DOCS / "adr").glob("0*.md") if f"({f.name})" not in index] == []


def test_the_site_can_be_searched_as_files(site: Path) -> None:
    """Where nothing may be fetched and no Worker started, the index is a script, and a frame of the page searches."""
    program = next(filter(None, map(shutil.which, install_chromium.NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "concepts/lanes.html").as_uri())
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").press_sequentially("dead letter")
        found = page.locator(".md-search-result__item a").first
        found.wait_for(timeout=PATIENCE)
        found.click()
        page.wait_for_url("**/*h=dead*")
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", build_docs.PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == build_docs.PAGES[name](), "run `make docs`"


OFFERED = (
    {name: getattr(home, name) for home in (headgate, headgate.types) for name in home.__all__}
    | {c.__name__: c for c in errors_reference.classes()}
    | {c.__name__: c for c, _ in python_reference.CLASSES}
)


@pytest.mark.parametrize("name", OFFERED)
def test_python_is_complete(name: str) -> None:
    """Every public name is in the reference of Python or of errors; of classes, every method and property."""
    thing = OFFERED[name]
    page = python_reference.page()
    if get_origin(thing) is not None:  # the alias of a type
        return
    if inspect.isclass(thing) and issubclass(thing, headgate.Error):
        assert thing is headgate.Error or f"| `{name}` |" in errors_reference.page()
        return
    if name.startswith("Async"):
        assert f"`headgate.{name}`" in page
        return
    heading = rf"^#+ (?:headgate\.)?{name}$"
    assert re.search(heading, page, re.MULTILINE)
    if thing in [cls for cls, _ in python_reference.CLASSES]:
        section = re.split(r"^## ", page.partition(f"\n## {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        for method, value in inspect.getmembers(thing):
            if method.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
                continue
            shown = f"| `{method}` |" if isinstance(value, property) else f"### {name}.{method}\n"
            assert shown in section, f"{name}.{method}"


def test_worker_options_are_complete() -> None:
    section = python_reference.page().partition("\n## WorkerOptions\n")[2]
    for option in inspect.get_annotations(WorkerOptions):
        assert f"| `{option}` |" in section


@pytest.mark.parametrize("route", ROUTES.all, ids=lambda r: f"{r.method} {r.path}")
def test_http_is_complete(route: object) -> None:
    page = http_reference.page()
    assert f"\n### `{route.method} {route.path}`\n" in page  # type: ignore[attr-defined]
    for name in http_reference.api()["components"]["schemas"]:
        assert name.endswith("Query") or f"\n### {name}\n" in page


def test_sql_is_complete(db: psycopg.Connection) -> None:
    """Every function that a role may call and every view that one may read, with the columns that the database has."""
    page = sql_reference.page()
    callable_by_somebody = db.execute("""
        select distinct p.proname from pg_proc p cross join unnest(array['producer', 'consumer', 'monitor', 'owner']) r
         where p.pronamespace = 'headgate'::regnamespace and p.proname !~ '_[0-9]+$'
           and has_function_privilege('headgate_' || r, p.oid, 'execute')""").fetchall()
    assert len(callable_by_somebody) > 40
    for (name,) in callable_by_somebody:
        assert f"\n### {name}\n" in page, name
    columns: dict[str, list[str]] = {}
    for view, column in db.execute("""
        select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
         where c.relkind = 'v' and c.relnamespace = 'headgate'::regnamespace
           and has_table_privilege('headgate_monitor', c.oid, 'select') order by c.relname, a.attnum"""):
        columns.setdefault(view, []).append(column)
    assert {name: found for name, (_, found) in sql_reference.views().items()} == columns


def test_errors_are_complete() -> None:
    page = errors_reference.page()
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src" / "headgate" / "sql").rglob("*.sql"))
    for state in set(re.findall(r"'(HG\d{3})'", sources)):
        assert f"| `{state}` |" in page, state
    calls = [
        code
        for p in (ROOT / "src" / "headgate" / "server").rglob("*.py")
        for code in re.findall(r"Problem\(\s*\d{3}, \"(\w+)\"", p.read_text(encoding="utf-8"))
    ]
    assert Problem.__name__ == "Problem"
    assert calls
    for code in calls:
        assert f"`{code}` |" in page, code


def test_settings_are_complete(db: psycopg.Connection) -> None:
    """Every optional argument that the database knows, each with a meaning."""
    page = settings_reference.page()
    for function in ("create_stream", "create_consumer"):
        found = db.execute(
            "select proargnames[pronargs - pronargdefaults + 1 : pronargs] from pg_proc "
            "where pronamespace = 'headgate'::regnamespace and proname = %s", [function]
        ).fetchone()  # fmt: skip
        assert found
        assert list(settings_reference.arguments(function)) == found[0]
        for name in found[0]:
            [row] = re.findall(
                rf"^\| `{name}`(?: ✎)? \|(.*)\|$", page.partition(f"{function}(")[2].partition("\n## ")[0], re.M
            )
            assert row.split("|")[-1].strip().endswith("."), f"{name} has no meaning"
