"""Makes what reading a database needs, a publication and a slot, and removes it again.

Nothing here makes the application's writes fail (`checks`). Locks are waited for shortly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from ..errors import InvalidArgument, SourceBlocked
from .changes import Route
from .checks import Check, Db, connected, find_tables, identities, keys, look, refuse
from .connections import connect_sync

SLOT_SECONDS = 10  # a new slot waits for all transactions that are open


@dataclass(frozen=True, slots=True)
class Prepared:
    """A database that is ready to be read from `lsn` on."""

    url: str = field(repr=False)
    place: str
    tables: list[str]
    publication: str
    publication_oid: int
    slot: str
    made: list[str]
    system_identifier: str
    timeline: int
    lsn: str
    routes: dict[str, Route]  # of the tables that have a stream or key of their own

    def access(self) -> dict[str, Any]:
        """What headgate.add_postgres_source takes."""
        found = asdict(self)
        del found["routes"]
        return found


@dataclass(frozen=True, slots=True)
class Routing:
    """Streams and columns of keys by table, in any form of its name. A template is of the streams of all others:
    `{schema}` and `{table}` stand for their names."""

    streams: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    template: str | None = None


def check(
    url: str, tables: Sequence[str], *, slot: str | None = None, publication: str | None = None
) -> tuple[list[Check], list[str]]:
    """What reading these tables needs, and whether it is there; and which tables those are."""
    with connected(url) as db:
        return look(db, url, tables, slot, publication)


def prepare(
    url: str,
    name: str,
    tables: Sequence[str],
    *,
    publication: str | None = None,
    slot: str | None = None,
    routing: Routing | None = None,
) -> Prepared:
    """Makes the publication and the slot of a source, unless existing ones are named. SourceBlocked says what is
    missing; then nothing is left behind."""
    with connected(url) as db:
        checks, chosen = look(db, url, tables, slot, publication)
        refuse(checks)
        routes = _routes(db, routing or Routing(), chosen)
        made: list[str] = []
        own = "headgate_" + re.sub(r"[^a-z0-9_]", "_", name.lower())[:50]
        try:
            if publication is None:
                publication = _publish(db, own, chosen)
                made.append("publication")
            if slot is None:
                slot = _make_slot(db, own)
                made.append("slot")
            [row] = db.execute(
                "select s.confirmed_flush_lsn::text, c.system_identifier::text, p.oid::int8 "
                "from pg_replication_slots s, pg_control_system() c, pg_publication p "
                "where s.slot_name = %s and p.pubname = %s",
                (slot, publication),
            ).fetchall()
            timeline = _timeline(url)
        except BaseException:
            _remove(db, publication or own, slot or own, made)
            raise
        return Prepared(url, _place(db), chosen, publication, row[2], slot, made, row[1], timeline, row[0], routes)


def remove(url: str, publication: str, slot: str, made: Sequence[str]) -> None:
    """Drops what `prepare` made."""
    with connected(url) as db:
        _remove(db, publication, slot, made)


def change_tables(
    url: str, publication: str, made: Sequence[str], tables: Sequence[str], routing: Routing
) -> tuple[list[str], dict[str, Route]]:
    """Has a publication be of these tables, if it was made here, else sees that it is; the tables that were meant."""
    with connected(url) as db:
        chosen, problems = find_tables(db, tables)
        refuse([*problems, *identities(db, chosen)])
        routes = _routes(db, routing, chosen)
        if "publication" in made:
            with db.transaction():
                db.execute("set local lock_timeout = '3s'")
                db.execute(
                    sql.SQL("alter publication {} set table {}").format(sql.Identifier(publication), _listed(chosen))
                )
        else:
            refuse(look(db, url, tables, None, publication)[0])
        return chosen, routes


def check_place(url: str, system_identifier: str, slot: str) -> str:
    """Sees that a URL leads to a server that was read before, under another name or user; where that is."""
    with connected(url) as db:
        [(found, there)] = db.execute(
            "select c.system_identifier::text, exists (select from pg_replication_slots s "
            "where s.slot_name = %s and s.database = current_database()) from pg_control_system() c",
            (slot,),
        ).fetchall()
        if found != system_identifier or not there:
            raise InvalidArgument(
                "the URL leads to another database than the one that is read, or its slot is not there",
                hint="to read another one, remove the source and add it anew",
            )
        return _place(db)


def _routes(db: Db, routing: Routing, chosen: Sequence[str]) -> dict[str, Route]:
    """The streams and keys of tables that have their own; SourceBlocked for what cannot be."""
    streams, columns = dict[str, str](), dict[str, tuple[str, ...]]()
    if routing.template is not None:
        for table in chosen:
            [(schema, name)] = db.execute(
                "select n.nspname::text, c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace "
                "where c.oid = %s::regclass", (table,),
            ).fetchall()  # fmt: skip
            streams[table] = routing.template.replace("{schema}", schema).replace("{table}", name)
    problems: list[Check] = []

    def meant(table: str) -> str:
        found, wrong = find_tables(db, [table])
        problems.extend(wrong)
        if not wrong and (len(found) != 1 or found[0] not in chosen):
            problems.append(Check("tables", False, f"{table} is not one of the tables", "write schema.table"))
        return found[0] if found else table

    streams |= {meant(table): stream for table, stream in routing.streams.items()}
    columns |= {meant(table): tuple(key) for table, key in routing.keys.items()}
    refuse(problems)
    refuse(list(keys(db, columns)))
    return {t: Route(streams.get(t), columns.get(t, ())) for t in {**streams, **columns}}


def _timeline(url: str) -> int:
    with connect_sync(url, replication=True) as db:
        row = db.execute("IDENTIFY_SYSTEM").fetchone()
        assert row is not None
        return int(row[1])


def _listed(tables: Sequence[str]) -> sql.Composable:
    """The tables alone: others that inherit from them are tables of their own. (Quoted by PostgreSQL itself.)"""
    return sql.SQL(", ").join(sql.SQL("only " + t) for t in tables)


def _publish(db: Db, name: str, tables: Sequence[str]) -> str:
    options = "publish_via_partition_root = true"
    if db.info.server_version >= 180000:
        options += ", publish_generated_columns = stored"
    with db.transaction():
        db.execute("set local lock_timeout = '3s'")
        try:
            with db.transaction():
                db.execute(
                    sql.SQL("create publication {} for table {} with ({})").format(
                        sql.Identifier(name), _listed(tables), sql.SQL(options)
                    )
                )
        except psycopg.errors.DuplicateObject:
            raise SourceBlocked(
                f'there is a publication "{name}" already, perhaps of a source that was forgotten',
                hint=f"run DROP PUBLICATION {name} there, or choose another name for the source",
            ) from None
    return name


def _make_slot(db: Db, name: str) -> str:
    more = ", failover => true" if db.info.server_version >= 170000 else ""
    try:
        with db.transaction():
            db.execute(f"set local statement_timeout = '{SLOT_SECONDS}s'")
            db.execute(f"select pg_create_logical_replication_slot(%s, 'pgoutput', false, false{more})", (name,))
    except psycopg.errors.DuplicateObject:
        raise SourceBlocked(
            f'there is a replication slot "{name}" already, perhaps of a source that was forgotten',
            hint=f"run SELECT pg_drop_replication_slot('{name}') there, or choose another name for the source",
        ) from None
    except psycopg.errors.QueryCanceled:
        open_ones = db.execute(
            "(select format('that of process %s', pid), format('SELECT pg_terminate_backend(%s)', pid) "
            "from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() "
            "order by xact_start limit 5) union all "
            "(select format('the prepared %L of database %I', gid, database), "
            "format('ROLLBACK PREPARED %1$L or COMMIT PREPARED %1$L in database %2$I', gid, database) "
            "from pg_prepared_xacts order by prepared limit 5)"
        ).fetchall()
        listed = ", ".join(name for name, _ in open_ones) or "one of them"
        raise SourceBlocked(
            f"a new slot waits for all open transactions of that server, and {listed} did not end within "
            f"{SLOT_SECONDS} seconds",
            hint="; ".join(["wait for them, or end them", *(end for _, end in open_ones)]),
        ) from None
    return name


def _remove(db: Db, publication: str, slot: str, made: Sequence[str]) -> None:
    if "slot" in made:
        for _ in range(100):
            row = db.execute(
                "select active_pid from pg_replication_slots where slot_name = %s and database = current_database()",
                (slot,),
            ).fetchone()
            if row is None:
                break
            with suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                if row[0] is not None:
                    db.execute("select pg_terminate_backend(%s), pg_sleep(0.05)", (row[0],))
                db.execute("select pg_drop_replication_slot(%s)", (slot,))
    if "publication" in made:
        with db.transaction():
            db.execute("set local lock_timeout = '3s'")
            db.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(publication)))


def _place(db: Db) -> str:
    """Where a database is, without the password."""
    info = db.info
    return f"{info.user}@{info.host}:{info.port}/{info.dbname}"
