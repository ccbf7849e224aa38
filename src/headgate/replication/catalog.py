"""What the source knows of its types and keys. The WAL names types by number only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection

from .pgoutput import Relation
from .values import BUILT_IN, TEXT, Type

# Types of which values are made of others': arrays, domains, composites. All others are text.
_TYPES = """
select t.oid::int8,
       case when t.typcategory = 'A' and t.typlen = -1 then nullif(t.typelem, 0)::int8 end,
       coalesce((select e.typdelim from pg_catalog.pg_type e where e.oid = t.typelem), ',')::text,
       case when t.typtype = 'd' then t.typbasetype::int8 end,
       case when t.typtype = 'c' then array(
         select a.attname::text from pg_catalog.pg_attribute a
          where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum) end,
       case when t.typtype = 'c' then array(
         select a.atttypid::int8 from pg_catalog.pg_attribute a
          where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped order by a.attnum) end
  from pg_catalog.pg_type t where t.oid = any(%s::oid[])
"""

# The columns of the primary key of a table, or of the partitioned one above it.
_PRIMARY_KEY = """
select array(select a.attname::text from pg_catalog.pg_index i, unnest(i.indkey) k
               join pg_catalog.pg_attribute a on a.attnum = k
              where i.indrelid = %s::oid and i.indisprimary and a.attrelid = i.indrelid)
"""


async def load_types(conn: AsyncConnection[Any], oids: Iterable[int], known: dict[int, Type]) -> None:
    """Adds what is known of types, and of those that they are made of, to `known`."""
    wanted = {oid for oid in oids if oid not in known and oid not in BUILT_IN and oid != TEXT}
    while wanted:
        rows = await (await conn.execute(_TYPES, (list(wanted),))).fetchall()
        known.update({oid: Type(oid) for oid in wanted})
        found: set[int] = set()
        for oid, element, delimiter, base, names, fields in rows:
            pairs = None if names is None else tuple(zip(names, fields, strict=True))
            known[oid] = Type(oid, element, delimiter, base, pairs)
            found.update(x for x in (element, base, *(fields or ())) if x is not None)
        wanted = {oid for oid in found if oid not in known and oid not in BUILT_IN and oid != TEXT}


async def load_primary_key(conn: AsyncConnection[Any], relation: Relation) -> list[str]:
    """The columns of a table's primary key, as it is now."""
    row = await (await conn.execute(_PRIMARY_KEY, (relation.oid,))).fetchone()
    return list(row[0]) if row else []


async def load_name(conn: AsyncConnection[Any], relation: Relation) -> str:
    """The name of a table, quoted where SQL would."""
    row = await (
        await conn.execute("select format('%%I.%%I', %s::text, %s::text)", (relation.schema, relation.name))
    ).fetchone()
    return str(row[0]) if row else ""
