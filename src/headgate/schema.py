"""The database's schema: which scripts make it, and whether a database has the one that this code needs.

Migrations (`sql/migrations/NNNN_name.sql`) change tables and run once each. Functions and views (`sql/functions/*.sql`)
are re-applied on every upgrade, so that a file always shows the current definition.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from .errors import Error, SchemaMissing, SchemaOutdated, SchemaTooNew, ServerTooOld

OLDEST_SERVER = 15

# Two processes migrating at once: the second waits here (a transaction-level lock, so poolers don't mind).
LOCK = "select pg_advisory_xact_lock(7376001)"

# What a database has: the last migration and the digest of its functions. Every role of ours may ask.
INSTALLED = "select migration, digest from headgate.installed_version()"

_BOOTSTRAP = """\
create schema if not exists headgate;
create table if not exists headgate.migration (
  version int primary key,
  name text not null,
  applied_at timestamptz not null default clock_timestamp(),
  applied_by text not null default current_user
);
create table if not exists headgate.functions_digest (
  only_row boolean primary key default true check (only_row),
  digest text not null,
  applied_at timestamptz not null default clock_timestamp()
);
"""


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
    files = [f for f in (resources.files("headgate.sql") / "functions").iterdir() if f.name.endswith(".sql")]
    return "\n".join(f.read_text(encoding="utf-8") for f in sorted(files, key=lambda f: f.name))


@cache
def digest() -> str:
    """Identifies the functions of this code."""
    return hashlib.sha256(functions_script().encode()).hexdigest()[:16]


def newest_migration() -> int:
    """The version of the last migration that this code knows."""
    return migrations()[-1].version


def install_sql(installed: int = 0) -> str:
    """The script that brings a database from migration `installed` (0: none) to this code's schema.

    For people who migrate with their own tool. Run it in one transaction. Running the script of an up-to-date database
    re-applies the functions and changes nothing else.
    """
    parts = [_BOOTSTRAP]
    for m in migrations():
        if m.version > installed:
            parts.append(m.script)
            parts.append(f"insert into headgate.migration (version, name) values ({m.version}, '{m.name}');\n")
    parts.append(functions_script())
    parts.append(
        f"insert into headgate.functions_digest (digest) values ('{digest()}') "
        "on conflict (only_row) do update set digest = excluded.digest, applied_at = clock_timestamp();\n"
    )
    return "\n".join(parts)


def check_server(server_version: int) -> Error | None:
    """The error that stands for a server (its version as libpq tells it: 150004) that is too old for this code."""
    if server_version >= OLDEST_SERVER * 10000:
        return None
    return ServerTooOld(
        f"the server is PostgreSQL {server_version // 10000}, Headgate needs {OLDEST_SERVER} or newer",
        hint="upgrade the server, or use headgate.connect() without a URL",
    )


def check(version: int, found: str | None) -> Error | None:
    """The error that stands for a database whose schema (what INSTALLED answered; 0: none) does not fit this code."""
    if version == 0:
        return SchemaMissing(
            "this database has no Headgate schema",
            hint="run `headgate migrate`, or headgate.connect(url, migrate=True), or apply headgate.install_sql()",
        )
    if version > newest_migration():
        return SchemaTooNew(
            f"the database's schema is at migration {version}, this code knows {newest_migration()}",
            hint="upgrade the headgate package on this machine",
        )
    if version < newest_migration() or found != digest():
        return SchemaOutdated(
            f"the database's schema (migration {version}, functions {found}) is older than this code "
            f"(migration {newest_migration()}, functions {digest()})",
            hint="run `headgate migrate`, or headgate.connect(url, migrate=True)",
        )
    return None
