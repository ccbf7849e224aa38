"""Whether a database can be read, what is missing for it, and what reading needs: a publication and a slot.

Nothing here makes the application's writes fail. A table without a replica identity is refused: once it is published,
PostgreSQL refuses updates and deletes of it. Locks are waited for shortly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from ..errors import InvalidArgument, SourceBlocked

OLDEST = 15
SLOT_SECONDS = 10  # a new slot waits for all transactions that are open

Db = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that reading needs; `advice` says what to do when it is not there."""

    name: str
    is_ok: bool
    found: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A database that is ready to be read from `lsn` on."""

    url: str = field(repr=False)
    place: str
    tables: list[str]
    publication: str
    slot: str
    made: list[str]
    system_identifier: str
    lsn: str


def check(url: str, tables: Sequence[str], *, slot: str | None = None) -> list[Check]:
    """What reading these tables needs, and whether it is there."""
    with _connected(url) as db:
        found, _ = _look(db, url, tables, slot)
        return found


def prepare(
    url: str, name: str, tables: Sequence[str], *, publication: str | None = None, slot: str | None = None
) -> Prepared:
    """Makes the publication and the slot of a source, unless existing ones are named. SourceBlocked says what is
    missing; then nothing is left behind."""
    with _connected(url) as db:
        checks, chosen = _look(db, url, tables, slot)
        if problems := [c for c in checks if not c.is_ok]:
            raise SourceBlocked(
                "the database cannot be read: " + "; ".join(c.found for c in problems),
                hint="; ".join(dict.fromkeys(c.advice for c in problems if c.advice)),
            )
        made: list[str] = []
        own = "headgate_" + re.sub(r"[^a-z0-9_]", "_", name.lower())[:50]
        try:
            if publication is None:
                publication = _publish(db, own, chosen)
                made.append("publication")
            if slot is None:
                slot = _make_slot(db, own)
                made.append("slot")
            row = db.execute(
                "select s.confirmed_flush_lsn::text, c.system_identifier::text from pg_replication_slots s, "
                "pg_control_system() c where s.slot_name = %s and s.plugin = 'pgoutput' "
                "and s.database = current_database()",
                (slot,),
            ).fetchone()
            if row is None:
                raise SourceBlocked(
                    f'there is no slot "{slot}" of pgoutput in this database', hint="leave it out: then one is made"
                )
        except BaseException:
            _remove(db, publication or own, slot or own, made)
            raise
        return Prepared(url, _place(db), chosen, publication, slot, made, row[1], row[0])


def remove(url: str, publication: str, slot: str, made: Sequence[str]) -> None:
    """Drops what `prepare` made."""
    with _connected(url) as db:
        _remove(db, publication, slot, made)


@contextmanager
def _connected(url: str) -> Iterator[Db]:
    try:
        db = psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="headgate source")
    except psycopg.ProgrammingError:  # it quotes the part it cannot read, which may be the password
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


def _look(db: Db, url: str, tables: Sequence[str], slot: str | None) -> tuple[list[Check], list[str]]:
    """What is there, and the tables that were meant."""
    checks = [*_server(db, slot), _pooler(url)]
    chosen, problems = _tables(db, tables)
    return [*checks, *problems, *_identities(db, chosen)], chosen


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
        with psycopg.connect(url, autocommit=True, replication="database", connect_timeout=10) as db:
            db.execute("IDENTIFY_SYSTEM")
    except psycopg.Error as error:
        return Check("replication", False, f"it does not let us replicate: {str(error).strip()}", advice)
    return Check("replication", True, "it lets us replicate")


def _tables(db: Db, wanted: Sequence[str]) -> tuple[list[str], list[Check]]:
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
            if schema in ("headgate", "pg_catalog", "information_schema"):
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


def _identities(db: Db, tables: Sequence[str]) -> Iterator[Check]:
    """Whether old rows can be told, of each table and partition."""
    for table in tables:
        rows = db.execute(
            """
            select format('%%I.%%I', n.nspname, c.relname)
              from (select relid from pg_partition_tree(%s::regclass) where isleaf
                    union select %s::regclass where not exists (select from pg_partition_tree(%s::regclass))) t
              join pg_catalog.pg_class c on c.oid = t.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
             where not (c.relreplident = 'f' or exists (
               select from pg_catalog.pg_index i
                where i.indrelid = c.oid and case c.relreplident when 'd' then i.indisprimary
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


def _publish(db: Db, name: str, tables: Sequence[str]) -> str:
    options = "publish_via_partition_root = true"
    if db.info.server_version >= 180000:
        options += ", publish_generated_columns = stored"
    with db.transaction():
        db.execute("set local lock_timeout = '3s'")
        try:
            with db.transaction():
                listed = ", ".join(tables)  # quoted by PostgreSQL itself
                db.execute(
                    sql.SQL("create publication {} for table {} with ({})").format(
                        sql.Identifier(name), sql.SQL(listed), sql.SQL(options)
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
        pids = db.execute(
            "select pid from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() "
            "order by xact_start limit 5"
        ).fetchall()
        listed = ", ".join(str(pid) for (pid,) in pids) or "a prepared transaction"
        raise SourceBlocked(
            f"a new slot waits for all open transactions, and {listed} did not end within {SLOT_SECONDS} seconds",
            hint="end them (pg_stat_activity shows them by pid), then try again",
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
