-- Rows of tables that were there before their source (headgate.replication.backfill): what is to be
-- read, how far that is, and which rows are gone.

-- backfill_source(name, tables, from_column, from_value, deletions): has all rows of tables (null:
-- of all of the source's) read, beside their changes, from the beginning; or only those whose
-- column is not below a value. With `deletions` also tells rows that the stream has and the table
-- no longer. HG010 for a table that is not the source's.
-- Writes: source_backfill.
create or replace function headgate.backfill_source(
  name text, tables text[] default null, from_column text default null,
  from_value text default null,
  deletions boolean default false) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(backfill_source.name);
begin
  perform headgate.check_source_tables(r, backfill_source.tables);
  if (from_column is null) <> (from_value is null) then
    perform headgate.fail('HG010', 'a column without a value to begin at, or the other way round',
                          'give both');
  end if;
  if deletions and from_column is not null then
    perform headgate.fail('HG010', 'a part of a table does not tell which rows are gone',
      'leave from_column out, or deletions');
  end if;
  if deletions and exists (
    select from headgate.source_route t
     where t.source = r.name and t.key is not null
       and (backfill_source.tables is null or t.table_name = any (backfill_source.tables))) then
    perform headgate.fail('HG010',
                          'rows that are gone are told by their keys, and a table here has a key of your own',
      'leave deletions out, or name the other tables');
  end if;
  if deletions and exists (
    select from headgate.postgres_source p
     where p.name <> r.name and p.tables && coalesce(backfill_source.tables, r.tables)
       and headgate.streams_of_source(p.name) && headgate.streams_of_source(r.name)) then
    perform headgate.fail('HG010',
                          'another source sends a table of this name to the same stream, so it cannot be told '
      'whose rows are gone', 'leave deletions out, or give the sources streams of their own');
  end if;
  insert into headgate.source_backfill as b
      (source, table_name, from_column, from_value, finds_deleted)
    select r.name, t, backfill_source.from_column, backfill_source.from_value, deletions
      from unnest(coalesce(backfill_source.tables, r.tables)) t
    on conflict (source, table_name) do update
      set state = 'waiting', last_key = null, again = '{}', rows = 0, estimate = null, error = null,
          asked_at = clock_timestamp(), finished_at = null, from_column = excluded.from_column,
          from_value = excluded.from_value, finds_deleted = excluded.finds_deleted,
          first_seq = null, deleted = 0;
end $$;

-- streams_of_source(name) -> the ids of the streams that a source sends to.
create or replace function headgate.streams_of_source(p_name text) returns int[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select array(select p.stream from headgate.postgres_source p where p.name = p_name
               union select t.stream from headgate.source_route t
                 where t.source = p_name and t.stream is not null)
$$;

-- cancel_backfill(name, tables): ends the backfills of tables (null: all) that are not done.
-- Writes: source_backfill.
create or replace function headgate.cancel_backfill(name text, tables text[] default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(cancel_backfill.name);
begin
  perform headgate.check_source_tables(r, cancel_backfill.tables);
  update headgate.source_backfill b
     set state = 'failed', error = 'it was cancelled', asked_at = clock_timestamp(),
         finished_at = clock_timestamp()
   where b.source = r.name and b.state in ('waiting', 'running')
     and (cancel_backfill.tables is null or b.table_name = any (cancel_backfill.tables));
end $$;

-- next_backfill(name) -> the table whose rows are to be read next, and how far that is; no row:
-- none is.
create or replace function headgate.next_backfill(name text)
returns table (
  table_name text, asked_at timestamptz, last_key text[], again text[], from_column text,
  from_value text,
  finds_deleted boolean, rate int)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.table_name, b.asked_at, b.last_key, b.again, b.from_column, b.from_value,
         b.finds_deleted, p.backfill_rate
    from headgate.source_backfill b join headgate.postgres_source p on p.name = b.source
   where b.source = next_backfill.name and b.state in ('running', 'waiting')
     and not p.is_backfill_paused
   order by b.state, b.asked_at, b.table_name limit 1
$$;

-- note_backfill(name, table, asked_at, state, last_key, again, rows, estimate, error): how far the
-- rows of a table are read. Nothing is noted of a backfill that was asked for anew.
-- Writes: source_backfill.
create or replace function headgate.note_backfill(
  name text, table_name text, asked_at timestamptz, state text, last_key text[], again text[],
  rows bigint,
  estimate bigint, error text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_backfill b
     set state = note_backfill.state, last_key = coalesce(note_backfill.last_key, b.last_key),
         again = note_backfill.again, rows = b.rows + note_backfill.rows,
         estimate = coalesce(note_backfill.estimate, b.estimate), error = note_backfill.error,
         finished_at = case
           when note_backfill.state in ('done', 'failed') then clock_timestamp() end
   where b.source = note_backfill.name and b.table_name = note_backfill.table_name
     and b.asked_at = note_backfill.asked_at
$$;

-- begin_backfill(name, table, asked_at): it is read from now on, and what it finds comes behind
-- what is in the stream.
-- Writes: source_backfill.
create or replace function headgate.begin_backfill(name text, table_name text, asked_at timestamptz)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare first bigint;
begin
  select headgate.last_seq(coalesce(t.stream, p.stream)) + 1 into first
    from headgate.postgres_source p
    left
      join headgate.source_route t on t.source = p.name and t.table_name = begin_backfill.table_name
   where p.name = begin_backfill.name;
  update headgate.source_backfill b
     set state = 'running', error = null, first_seq = coalesce(b.first_seq, first)
   where b.source = begin_backfill.name and b.table_name = begin_backfill.table_name
     and b.asked_at = begin_backfill.asked_at;
end $$;

-- readable_json(data) -> what a message of a source says, for looking into. The json of a column
-- may escape what no text of PostgreSQL has, a zero or half a surrogate pair: nothing can be taken
-- out of that, so such characters become U+FFFD.
create or replace function headgate.readable_json(data text) returns json
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when data ~ '\\u(0000|[dD][89a-fA-F])'
              then regexp_replace(data, '(?<!\\)((?:\\\\)*)\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})',
                                  '\1\\ufffd', 'g')
              else data end::json
$$;

-- tell_deleted_rows(name, table, asked_at, schema, relation) -> how many rows of a table the stream
-- has that were not met while all of the table was read, and whose messages say so now: a key whose
-- last message is older than the backfill, and no delete. Called by the reader alone, in the
-- transaction that ends the backfill: nobody else sends what would be newer. Reads the table's
-- messages. Sends messages.
create or replace function headgate.tell_deleted_rows(
  name text, table_name text, asked_at timestamptz, schema text, relation text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  b headgate.source_backfill;
  s headgate.stream;
  told record;
  keys text[] := '{}';
  datas text[] := '{}';
  n bigint := 0;
begin
  select x.* into b from headgate.source_backfill x
   where x.source = tell_deleted_rows.name and x.table_name = tell_deleted_rows.table_name
     and x.asked_at = tell_deleted_rows.asked_at and x.finds_deleted;
  if not found then return 0; end if;
  select s2.* into s from headgate.postgres_source p
    left join headgate.source_route t on t.source = p.name and t.table_name = b.table_name
    join headgate.stream s2 on s2.id = coalesce(t.stream, p.stream) where p.name = b.source;
  for told in execute format($q$
    with sent as (  -- (every message of a source begins so; others need not be JSON)
      select m.seq, m.key, m.data from headgate.message_%1$s m
       where case when m.data like '{"action":"%%'
                  then (select x.said #>> '{metadata,schema}' = $1
                                 and x.said #>> '{metadata,table}' = $2
                          from (select case when strpos(m.data, '\u') = 0 then m.data::json
                                            else headgate.readable_json(m.data) end) x (said))
             end),
    emptied as (
      select coalesce(max(t.seq), 0) as seq from sent t where t.data like '{"action":"truncate"%%'),
    last as (
      select distinct on (t.key) t.seq, t.key, t.data from sent t order by t.key, t.seq desc)
    select l.key,
           format('{"action":"delete","record":%%s,"changes":null,"metadata":%%s}',
                  headgate.readable_json(l.data) -> 'record',
             jsonb_build_object('lsn', null, 'commit_lsn', null, 'commit_time', null,
                                'transaction_id', null,
               'schema', $1, 'table', $2, 'schema_version',
               headgate.readable_json(l.data) #> '{metadata,schema_version}',
               'unchanged', '[]'::jsonb, 'found_by', 'backfill')) as data
      from last l, emptied e
     where l.seq < $3 and l.seq > e.seq and l.data not like '{"action":"delete"%%'$q$, s.id)
    using tell_deleted_rows.schema, tell_deleted_rows.relation, b.first_seq loop
    keys := keys || told.key;
    datas := datas || told.data;
    n := n + 1;
    if cardinality(keys) = 1000 then
      perform headgate.send_batch(s.name, datas, keys);
      keys := '{}';
      datas := '{}';
    end if;
  end loop;
  if cardinality(keys) > 0 then perform headgate.send_batch(s.name, datas, keys); end if;
  update headgate.source_backfill x set deleted = n
   where x.source = b.source and x.table_name = b.table_name;
  return n;
end $$;

-- source_backfills(name) -> the tables whose rows are read or were, and how far that is.
create or replace function headgate.source_backfills(name text)
returns table (
  table_name text, state text, rows bigint, estimate bigint, error text, asked_at timestamptz,
  finished_at timestamptz,
  from_column text, from_value text, finds_deleted boolean, deleted bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.table_name,
         case when p.is_backfill_paused and b.state in ('waiting', 'running') then 'paused'
              else b.state end,
         b.rows, b.estimate, b.error, b.asked_at, b.finished_at, b.from_column, b.from_value,
         b.finds_deleted, b.deleted
    from headgate.source_backfill b join headgate.postgres_source p on p.name = b.source
   where b.source = source_backfills.name order by b.asked_at, b.table_name
$$;
