-- What a cursor has still to come to, as conditions for queries and as functions.

-- not_discarded_sql(cursor, message) -> the condition that a message which the cursor has still to
-- come to was not discarded, for these aliases: see read/discard.sql.
create or replace function headgate.not_discarded_sql(p_cursor text, p_message text default 'm')
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(%1$s.discards is not true or (select z.seq from headgate.discarded z '
                'where z.consumer = %1$s.consumer and z.seq = %2$s.seq limit 1) is null)', p_cursor,
                p_message)
$$;

-- ahead_sql(cursor, message) -> the condition that the cursor has still to come to a message of its
-- lane, discarded or not, for these aliases. Written out where many messages are looked at: a call
-- for each would cost ten times as much.
create or replace function headgate.ahead_sql(p_cursor text, p_message text default 'm')
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- (+ 0: not a condition for an index, or a planner goes through the log by seq instead of by
  -- lane)
  select format('(%2$s.seq + 0 >= %1$s.first_seq and (%2$s.seq > %1$s.to_hi or (%1$s.to_tick <> 0 '
                'and not pg_visible_in_snapshot(%2$s.xid, %1$s.from_snap) '
                'and (not pg_visible_in_snapshot(%2$s.xid, %1$s.to_snap) '
                'or (%2$s.seq > %1$s.pos and (%2$s.seq > %1$s.from_lo or %1$s.late is not null))))))',
                p_cursor, p_message)
$$;

-- unread_sql(cursor, message) -> the same of a message that was not discarded.
create or replace function headgate.unread_sql(p_cursor text, p_message text default 'm')
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(%s and %s)', headgate.ahead_sql(p_cursor, p_message),
                headgate.not_discarded_sql(p_cursor, p_message))
$$;

-- read_up_to_sql(cursor, stream) -> what the cursor has still to come to lies above, as far as
-- ticks tell.
create or replace function headgate.read_up_to_sql(p_cursor text, p_stream text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('greatest(%1$s.first_seq - 1, least(%1$s.pos, %1$s.to_lo, lower(%1$s.late) - 1, ('
                'select min(lower(t.late)) - 1 from headgate.tick t '
                'where t.stream = %2$s and t.id > %1$s.to_base and t.late is not null)))', p_cursor,
                p_stream)
$$;

-- unread(cursor, seq, xid) -> whether the cursor has still to come to a message of its lane, which
-- was not discarded. read_up_to(stream id, cursor) -> what the cursor has still to come to lies
-- above, as far as ticks tell.
do $$ begin
  execute format(
    'create or replace function headgate.unread(k headgate.cursor, p_seq bigint, p_xid xid8) '
                 'returns boolean language sql stable set search_path = pg_catalog, pg_temp as %L',
                 format('select %s from (select p_seq as seq, p_xid as xid) m',
                        headgate.unread_sql('k')));
  execute format('create or replace function headgate.read_up_to(p_stream int, k headgate.cursor) '
                 'returns bigint language sql stable set search_path = pg_catalog, pg_temp as %L',
                 'select ' || headgate.read_up_to_sql('k', 'p_stream'));
end $$;
