"""Whether a database can be read, and what is missing for it. Changes nothing.

A table without a replica identity is refused: once it is published, PostgreSQL refuses the application's updates and
deletes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from ..errors import InvalidArgument, SourceBlocked
from .connections import OWN_SCHEMA, UNLIMITED, connect_sync

OLDEST = 15

Db = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that reading needs; `advice` says what to do when it is not there."""

    name: str
    is_ok: bool
    found: str
    advice: str | None = None


@contextmanager
def connected(url: str) -> Iterator[Db]:
    try:
        db = connect_sync(url)
        db.execute(
            "select set_config(name, value, false) from json_each_text(%s) x (name, value)", (json.dumps(UNLIMITED),)
        )
    except (psycopg.ProgrammingError, ValueError):  # it quotes the part it cannot read, which may be the password
        raise InvalidArgument(
            "the URL of the database to read is not one", hint="write postgresql://user:password@host:port/database"
        ) from None
    except psycopg.Error as error:
        raise SourceBlocked(
            f"the database to read cannot be reached: {str(error).strip()}",
            hint="check host, port, user, password and pg_hba.conf of that server",
        ) from None
    with db:
        try:
            yield db
        except psycopg.errors.LockNotAvailable:
            raise SourceBlocked(
                "a table is locked by somebody else", hint="try again once long transactions on the tables have ended"
            ) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise SourceBlocked(
                f"the user may not do that: {error.diag.message_primary}",
                hint="connect as the owner of the tables, or let the owner make the publication and name it",
            ) from None
        except psycopg.Error as error:
            raise SourceBlocked(f"the database to read refuses: {error.diag.message_primary or error}") from error


def look(
    db: Db, url: str, tables: Sequence[str], slot: str | None = None, publication: str | None = None
) -> tuple[list[Check], list[str]]:
    """What is there, and the tables that were meant."""
    checks = [*_server(db, slot), _pooler(url)]
    chosen, problems = find_tables(db, tables)
    checks += [*problems, *identities(db, chosen)]
    if publication is not None:
        checks += _publication(db, publication, chosen)
    return checks, chosen


def refuse(checks: Sequence[Check]) -> None:
    """SourceBlocked that says what is missing, if anything is."""
    if problems := [c for c in checks if not c.is_ok]:
        raise SourceBlocked(
            "the database cannot be read: " + "; ".join(c.found for c in problems),
            hint="; ".join(dict.fromkeys(c.advice for c in problems if c.advice)),
        )


def _server(db: Db, slot: str | None) -> Iterator[Check]:
    [(version, level, standby, slots, used, senders, sending, user, may_replicate)] = db.execute(
        """
        select current_setting('server_version_num')::int / 10000, current_setting('wal_level'),
               pg_is_in_recovery(), current_setting('max_replication_slots')::int,
               (select count(*) from pg_replication_slots), current_setting('max_wal_senders')::int,
               (select count(*) from pg_stat_replication), current_user,
               exists (select from pg_roles r where r.rolname = current_user and (r.rolreplication or r.rolsuper))
               or exists (select from pg_roles r where r.rolname in ('rds_replication', 'cloudsqlreplica')
                          and pg_has_role(current_user, r.oid, 'member'))
        """
    ).fetchall()
    yield Check("version", version >= OLDEST, f"it is PostgreSQL {version}", f"PostgreSQL {OLDEST} or newer is needed")
    yield Check("primary", not standby, "it is a standby" if standby else "it is the primary", "give the primary's URL")
    yield Check(
        "wal_level", level == "logical", f"its wal_level is {level}",
        "run ALTER SYSTEM SET wal_level = logical and restart that server (hosted ones have a setting for it)",
    )  # fmt: skip
    yield Check(
        "rights", may_replicate, f"the user {user} {'may' if may_replicate else 'may not'} replicate",
        f"run ALTER ROLE {sql.Identifier(user).as_string()} REPLICATION as its superuser",
    )  # fmt: skip
    if slot is not None:
        yield _slot(db, slot)
    yield Check(
        "slots", slot is not None or used < slots, f"{used} of its {slots} replication slots are used",
        "raise max_replication_slots and restart it, or drop a slot that nobody reads (pg_replication_slots)",
    )  # fmt: skip
    yield Check(
        "senders", sending < senders, f"{sending} of its {senders} senders of WAL are used",
        "raise max_wal_senders and restart it",
    )  # fmt: skip


def _pooler(url: str) -> Check:
    """Replication goes through no pooler."""
    advice = "give the URL of the server itself, not of a pooler, and let pg_hba.conf admit the user"
    try:
        with connect_sync(url, replication=True) as db:
            db.execute("IDENTIFY_SYSTEM")
    except psycopg.Error as error:
        return Check("replication", False, f"it does not let us replicate: {str(error).strip()}", advice)
    return Check("replication", True, "it lets us replicate")


def find_tables(db: Db, wanted: Sequence[str]) -> tuple[list[str], list[Check]]:
    """The tables that names, schema.* and * stand for; and what is wrong with them."""
    chosen: dict[str, None] = {}
    problems: list[Check] = []
    for name in wanted:
        if name == "*" or name.endswith(".*"):
            schema = None if name == "*" else name[:-2]
            found = db.execute(_IN_SCHEMA, (schema, schema)).fetchall()
            if not found:
                problems.append(Check("tables", False, f"there are no tables {name}", "name tables that there are"))
        else:
            try:
                found = db.execute(_ONE_TABLE, (name,)).fetchall()
            except (psycopg.errors.SyntaxError, psycopg.errors.InvalidName):
                found = []
            if not found:
                problems.append(Check("tables", False, f"there is no table {name}", "write schema.table, as in SQL"))
        for table, schema, kind, persistence in found:
            if schema in (OWN_SCHEMA, "pg_catalog", "information_schema"):
                problems.append(Check("tables", False, f"{table} is not a table of yours", "leave it out"))
            elif kind not in "rp" or persistence != "p":
                what = {"u": "unlogged", "t": "temporary"}.get(persistence, "not a table")
                problems.append(Check("tables", False, f"{table} is {what}", "leave it out"))
            else:
                chosen[table] = None
    if not wanted:
        problems.append(Check("tables", False, "no tables are named", "name them: schema.table, schema.* or *"))
    return list(chosen), problems


_NAMED = "select format('%%I.%%I', n.nspname, c.relname), n.nspname::text, c.relkind::text, c.relpersistence::text "
_ONE_TABLE = (
    _NAMED + "from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
    "where c.oid = to_regclass(%s)"
)
_IN_SCHEMA = (
    _NAMED + "from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
    "where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition and n.nspname <> 'headgate' "
    "and n.nspname not like 'pg\\_%%' and n.nspname <> 'information_schema' "
    "and (%s::text is null or n.oid = to_regnamespace(%s)) order by 1"
)


def identities(db: Db, tables: Sequence[str]) -> Iterator[Check]:
    """Whether old rows can be told, of each table and partition."""
    for table in tables:
        rows = db.execute(
            """
            select format('%%I.%%I', n.nspname, c.relname)
              from (select relid from pg_partition_tree(%s::regclass) where isleaf
                    union select %s::regclass where not exists (select from pg_partition_tree(%s::regclass))) t
              join pg_catalog.pg_class c on c.oid = t.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where not (c.relreplident = 'f' or exists (
               select from pg_catalog.pg_index i  -- (one that is deferrable does not count)
                where i.indrelid = c.oid and i.indimmediate
                  and case c.relreplident when 'd' then i.indisprimary
                                          when 'i' then i.indisreplident else false end))
            """,
            (table, table, table),
        ).fetchall()
        for (name,) in rows:
            yield Check(
                "replica identity", False,
                f"{name} has no primary key or other replica identity, so PostgreSQL would refuse the application's "
                "updates and deletes of it",
                f"give it a primary key, or run ALTER TABLE {name} REPLICA IDENTITY FULL",
            )  # fmt: skip
        if db.execute(
            """
            select 1 from pg_catalog.pg_class c where c.oid = %s::regclass and c.relkind = 'p' and not exists (
              select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary and i.indimmediate)
            """,
            (table,),
        ).fetchone():  # (a new partition has the primary key of what it is a part of, and no other identity)
            yield Check(
                "replica identity", False,
                f"{table} is partitioned and has no primary key, so PostgreSQL would refuse the application's updates "
                "and deletes of partitions that are made later",
                f"give {table} a primary key, or name its partitions as tables instead of it",
            )  # fmt: skip
        if db.execute(
            """
            select 1 from (select relid from pg_partition_tree(%s::regclass) union select %s::regclass) t
              join pg_catalog.pg_class c on c.oid = t.relid and c.relreplident = 'f'
              join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attgenerated = 'v' and not a.attisdropped
            """,
            (table, table),
        ).fetchone():
            yield Check(
                "replica identity", False,
                f"{table} has REPLICA IDENTITY FULL and virtual generated columns, which are not in the log, so "
                "PostgreSQL would refuse the application's updates and deletes of it",
                f"run ALTER TABLE {table} REPLICA IDENTITY DEFAULT, or store those columns",
            )  # fmt: skip


def keys(db: Db, routes: Mapping[str, Sequence[str]]) -> Iterator[Check]:
    """Whether the columns that messages are to be keyed by are known of each change: those of old rows, too."""
    for table, columns in routes.items():
        rows = db.execute(
            """
            select a.attname::text, c.relreplident = 'f' or a.attnum = any(i.indkey::int2[])
              from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0
              left join pg_catalog.pg_index i on i.indrelid = c.oid
               and case c.relreplident when 'i' then i.indisreplident else i.indisprimary end
             where c.oid = %s::regclass and not a.attisdropped
            """,
            (table,),
        ).fetchall()
        known: dict[str, bool] = {name: bool(is_known) for name, is_known in rows}
        for column in columns:
            if column not in known:
                yield Check("key", False, f"{table} has no column {column}", "name columns of the table")
            elif not known[column]:
                yield Check(
                    "key", False, f"{column} is not in the log when a row of {table} is deleted, so it cannot be a key",
                    f"run ALTER TABLE {table} REPLICA IDENTITY FULL, or choose columns of its primary key",
                )  # fmt: skip


def _slot(db: Db, slot: str) -> Check:
    """One that is there already."""
    row = db.execute(
        "select active_pid, plugin = 'pgoutput' and database = current_database(), wal_status = 'lost' "
        "from pg_replication_slots where slot_name = %s",
        (slot,),
    ).fetchone()
    if row is None or not row[1]:
        return Check(
            "slot", False, f'there is no slot "{slot}" of pgoutput in this database', "leave it out: then one is made"
        )
    if row[2]:
        return Check("slot", False, f'the slot "{slot}" is lost', "drop it, and leave it out: then one is made")
    if row[0] is not None:
        return Check(
            "slot", False, f'the slot "{slot}" is read by process {row[0]}', "end that reader, or leave the slot out"
        )
    return Check("slot", True, f'the slot "{slot}" is there')


def _publication(db: Db, name: str, tables: Sequence[str]) -> Iterator[Check]:
    """One that is there already."""
    row = db.execute(
        "select pubinsert and pubupdate and pubdelete and pubtruncate, pubviaroot from pg_publication "
        "where pubname = %s",
        (name,),
    ).fetchone()
    if row is None:
        yield Check("publication", False, f'there is no publication "{name}"', "leave it out: then one is made")
        return
    yield Check(
        "publication", row[0], f'the publication "{name}" has {"all" if row[0] else "not all"} kinds of changes',
        f"run ALTER PUBLICATION {sql.Identifier(name).as_string()} SET (publish = 'insert, update, delete, truncate')",
    )  # fmt: skip
    rows = db.execute(
        "select format('%%I.%%I', schemaname, tablename), schemaname = %s from pg_publication_tables "
        "where pubname = %s", (OWN_SCHEMA, name),
    ).fetchall()  # fmt: skip
    if any(is_own for _, is_own in rows):
        yield Check(
            "publication", False, f'the publication "{name}" has tables of Headgate itself, so the stream would feed '
            "itself", "leave it out: then one is made, of the tables alone",
        )  # fmt: skip
    published = {table for table, is_own in rows if not is_own}
    for table in sorted(published - {*tables}):
        yield Check(
            "publication", False, f'the publication "{name}" also has {table}, whose changes would come, too',
            f"name {table}, too, or run ALTER PUBLICATION {sql.Identifier(name).as_string()} DROP TABLE {table}",
        )  # fmt: skip
    for table in sorted({*tables} - published):
        yield Check(
            "publication", False, f'{table} is not in the publication "{name}"',
            f"run ALTER PUBLICATION {sql.Identifier(name).as_string()} ADD TABLE {table} (of a partitioned table also "
            "SET (publish_via_partition_root))",
        )  # fmt: skip
