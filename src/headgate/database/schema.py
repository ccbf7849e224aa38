"""The database's schema: which scripts make it, and whether a database has the one that this code needs.

Migrations (`sql/migrations/NNNN_name.sql`) change tables and run once each. Functions (`sql/functions/FOLDER/*.sql`),
views and rights are re-applied on every upgrade, so that a file always shows the current definition; so are the
functions that are generated for each stream (`sql/templates`, `sql/functions/base/generated.sql`). They have a
version, which grows with every change (`tools/functions_version.py`): older code works with newer functions of the
same migration, and never replaces them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.abc import Traversable
from typing import NamedTuple

from ..errors import Error, SchemaMissing, SchemaOutdated, SchemaTooNew, ServerTooOld

OLDEST_SERVER = 15

# Two processes migrating at once: the second waits for this (a transaction-level lock, so poolers don't mind).
LOCK_KEY = 7376001
LOCK = f"select pg_advisory_xact_lock({LOCK_KEY})"

# What a database has. Every role of ours may ask. (The version of its functions is there since migration 20.)
INSTALLED = (
    "select coalesce(v.migration, 0), v.digest, coalesce((to_jsonb(v) ->> 'functions')::int, 0) "
    "from headgate.installed_version() v"
)

# Whether a role of ours was made after the schema, and so lacks its rights, which whoever asks may grant.
UNGRANTED = (
    "select exists (select from (values ('headgate_owner', 'create_stream'), ('headgate_producer', 'send'), "
    "('headgate_consumer', 'receive'), ('headgate_monitor', 'doctor')) x (role, name) "
    "join pg_proc p on p.pronamespace = n.oid and p.proname = x.name "
    "where to_regrole(x.role) is not null and not has_function_privilege(x.role, p.oid, 'execute')) "
    "from pg_namespace n where n.nspname = 'headgate' and pg_has_role(n.nspowner, 'member')"
)

# The folders of sql/functions, in the order in which they are made. Within a folder the order of names is good enough:
# PostgreSQL is told not to look at what a function calls; only types must be there before functions that take them.
FOLDERS = ("base", "write", "ticks", "read", "lanes", "storage", "outside", "operate")

# Numbers that stand in many functions, templates and views, as `{NAME}`.
CONSTANTS = {
    "UNNAMED_LANES": 2**57,  # Lanes from here on are by key or channel: first those of messages without one,
    "NAMED_LANES": 2**58,  # and from here on the others.
    "LONG_SPAN": 10_000,  # seqs: what is longer is read one segment at a time
}

AFTER_FUNCTIONS = ("views.sql", "rights.sql")

# Migrations in which one of these stands lock tables that are in use.
_ALTERS = re.compile(r"\b(alter|drop|lock|truncate)\s+table\b|\bindex\b|\btrigger\b", re.IGNORECASE)


class Installed(NamedTuple):
    """What a database has: its last migration (0: none), and the digest and version of its functions."""

    migration: int
    digest: str | None
    functions: int


@dataclass(frozen=True)
class Migration:
    """One numbered script."""

    version: int
    name: str
    script: str


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, in order."""
    found = []
    for file in (resources.files("headgate.sql") / "migrations").iterdir():
        if file.name.endswith(".sql"):
            version, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(version), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda m: m.version))


@cache
def functions_script() -> str:
    """The current definitions of all functions and views, as one script."""
    return "\n".join(_parts())


def _parts() -> tuple[str, str]:
    """The functions; and what comes after them: views and rights."""
    files = [
        file
        for folder in FOLDERS
        for file in sorted((resources.files("headgate.sql") / "functions" / folder).iterdir(), key=lambda f: f.name)
        if file.name.endswith(".sql")
    ]
    functions = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return with_constants(functions + _templates()), with_constants("\n".join(_read(name) for name in AFTER_FUNCTIONS))


def with_constants(script: str) -> str:
    """The script with its constants' values; an unknown one is a KeyError that names it."""
    return re.sub(r"\{([A-Z][A-Z_]+)\}", lambda found: str(CONSTANTS[found.group(1)]), script)


def _templates() -> str:
    """The function that has the sources of what is generated for each stream, by name: `sql/templates`."""
    sources = ",\n".join(_sources(resources.files("headgate.sql") / "templates"))
    return _filled(_read("install/templates.sql"), {"sources": sources})


def _sources(folder: Traversable, prefix: str = "") -> Iterator[str]:
    """A row for each file: its name, and what stands below the comment that it begins with."""
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.is_dir():
            yield from _sources(file, f"{prefix}{file.name}/")
        elif file.name.endswith(".sql"):
            source = re.sub(r"\A(--.*\n)+", "", file.read_text(encoding="utf-8")).rstrip()
            # (on a line of its own, because the last one may be a comment)
            yield f"  ('{prefix}{file.name.removesuffix('.sql')}', $source${source}\n$source$)"


@cache
def digest() -> str:
    """Identifies the functions of this code."""
    return hashlib.sha256(functions_script().encode()).hexdigest()[:16]


@cache
def functions_version() -> int:
    """The version of the functions of this code: what `sql/functions_version.txt` says of their digest."""
    return int(_read("functions_version.txt").split()[0])


def newest_migration() -> int:
    """The version of the last migration that this code knows."""
    return migrations()[-1].version


@cache
def rights() -> dict[str, list[str]]:
    """The roles that may call a function or read a view: what rights.sql grants."""
    script = _read("rights.sql")
    found: dict[str, list[str]] = {}
    for role, names in re.findall(r"\('(headgate_\w+)',\s*array\[(.*?)\]", script, re.DOTALL):
        for name in re.findall(r"'(\w+)'", names):
            found.setdefault(name, []).append(role)
    for names, role in re.findall(r"grant\s+select\s+on\s+(.*?)\s+to\s+(headgate_\w+);", script, re.DOTALL):
        for name in re.findall(r"headgate\.(\w+)", names):
            found.setdefault(name, []).append(role)
    return found


def needed_role(statement: str) -> str | None:
    """What to do for a role that may not run a statement of ours; None when that is not known."""
    for name in re.findall(r"headgate\.(\w+)", statement):
        name = "receive" if re.fullmatch(r"receive_\d+", name) else name
        if roles := rights().get(name):
            return f"grant the role {roles[0]}"
    return None


def install_sql(installed: int = 0) -> str:
    """The script that brings any database to this code's schema; run it in one transaction.

    For people who migrate with their own tool. Migrations that the database has are passed over, those up to
    `installed` are not even in the script. It fails rather than replace what a newer release has installed. While a
    transaction is in its way it waits, for `headgate.migrate_wait` (a setting: 60 seconds), and locks nothing.
    """
    functions, views = _parts()
    fillings = {
        "lock": LOCK_KEY,
        "newest": newest_migration(),
        "version": functions_version(),
        "altering": max((m.version for m in migrations() if _ALTERS.search(m.script)), default=0),
        "digest": digest(),
        "in_the_way": in_the_way(),
        "roles": _read("install/roles.sql"),
        "functions": functions,
    }
    begin, gate, end = (_filled(_read(f"install/{name}.sql"), fillings) for name in ("begin", "gate", "end"))
    known = [_once(m) for m in migrations() if m.version > installed]
    apply = "do $apply$ begin execute current_setting('headgate.functions'); end $apply$;"
    return "\n".join([begin, gate, *known, apply, views, end])


@cache
def in_the_way() -> str:
    """The query for transactions (tid, is_view, who) that have used Headgate's tables or views and are still open."""
    return _read("install/in_the_way.sql").strip()


def _once(m: Migration) -> str:
    """A migration that is left out where the database has it."""
    tag = f"$migration_{m.version}$"
    return (
        f"do $once_{m.version}$ begin\n"
        f"if exists (select from headgate.migration m where m.version = {m.version}) then return; end if;\n"
        f"execute {tag}\n{m.script}\n{tag};\n"
        f"insert into headgate.migration (version, name) values ({m.version}, '{m.name}');\n"
        f"end $once_{m.version}$;\n"
    )


def _filled(script: str, fillings: dict[str, object]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: str(fillings[found.group(1)]), script)


def _read(name: str) -> str:
    return (resources.files("headgate.sql") / name).read_text(encoding="utf-8")


def check_server(server_version: int) -> Error | None:
    """The error that stands for a server (its version as libpq tells it: 150004) that is too old for this code."""
    if server_version >= OLDEST_SERVER * 10000:
        return None
    return ServerTooOld(
        f"the server is PostgreSQL {server_version // 10000}, Headgate needs {OLDEST_SERVER} or newer",
        hint="upgrade the server, or use headgate.connect() without a URL",
    )


def check(installed: Installed) -> Error | None:
    """The error that stands for a database whose schema does not fit this code.

    Newer functions of the same migration do: while a release is rolled out, old processes work on with them.
    """
    if installed.migration == 0:
        return SchemaMissing(
            "this database has no Headgate schema",
            hint="run `headgate migrate`, or headgate.connect(url, migrate=True), or apply headgate.install_sql()",
        )
    if installed.migration > newest_migration():
        return SchemaTooNew(
            f"the database's schema is at migration {installed.migration}, this code knows {newest_migration()}",
            hint="upgrade the headgate package on this machine",
        )
    if is_older(installed):
        return SchemaOutdated(
            f"the database's schema (migration {installed.migration}, functions {installed.functions} "
            f"{installed.digest}) is older than this code "
            f"(migration {newest_migration()}, functions {functions_version()} {digest()})",
            hint="run `headgate migrate`, or headgate.connect(url, migrate=True)",
        )
    return None


def is_older(installed: Installed) -> bool:
    """Whether this code has something newer. (The same version with another digest is a development of its own.)"""
    there, here = (installed.migration, installed.functions), (newest_migration(), functions_version())
    return there < here or (there == here and installed.digest != digest())


def is_newer(installed: Installed) -> bool:
    """Whether the database has something newer than this code."""
    return (installed.migration, installed.functions) > (newest_migration(), functions_version())
