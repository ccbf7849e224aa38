-- What the readers of sources of tables say: who reads, how far, and what keeps them from it.

-- sources_to_watch(patience) -> sources whose slot nobody has looked at for so long, as when they
-- are paused or cannot be read. It keeps WAL all the same.
create or replace function headgate.sources_to_watch(patience interval)
returns table (name text, url text, slot text, drop_bytes bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.name, p.url, p.slot, p.drop_bytes
    from headgate.postgres_source p join headgate.source_progress g on g.source = p.name
   where coalesce(g.looked_at, p.created_at) < clock_timestamp() - patience
     and g.wal_status is distinct from 'gone' order by p.name
$$;

-- note_source_slot(name, wal_end, retained_bytes, wal_status): what the slot keeps.
-- Writes: source_progress.
create or replace function headgate.note_source_slot(
  name text, wal_end pg_lsn, retained_bytes bigint, wal_status text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_progress g
     set wal_end = coalesce(note_source_slot.wal_end, g.wal_end),
         retained_bytes = note_source_slot.retained_bytes,
         wal_status = note_source_slot.wal_status, looked_at = clock_timestamp()
   where g.source = note_source_slot.name
$$;

-- lose_source(name, error, hint): it cannot be read on, whoever reads it.
-- Writes: source_progress.
create or replace function headgate.lose_source(name text, error text, hint text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_progress g
     set state = 'lost', error = lose_source.error, hint = lose_source.hint, wal_status = 'gone',
         retained_bytes = null,
         state_at = case when g.state = 'lost' then g.state_at else clock_timestamp() end
   where g.source = lose_source.name
$$;

-- sources_to_read() -> the sources that are to be read now, and those who read them.
create or replace function headgate.sources_to_read()
returns table (name text, version bigint, reader text, is_free boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.name, p.version, g.reader, g.reader is null or g.reader_until < clock_timestamp()
    from headgate.postgres_source p join headgate.source_progress g on g.source = p.name
   where not p.is_paused order by p.name
$$;

-- take_source(name, reader, lease) -> what the reader needs, if it may read now; no row while
-- another does. `routes` has the streams and keys of tables that have their own.
-- Locks: its row of source_progress.
-- Writes: source_progress.
create or replace function headgate.take_source(name text, reader text, lease interval)
returns table (
  version bigint, stream text, url text, publication text, slot text, system_identifier text,
  lsn text,
  timeline int, publication_oid bigint, made text[], tables text[], drop_bytes bigint, routes text)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with taken as (
    update headgate.source_progress g
       set reader = take_source.reader, reader_until = clock_timestamp() + lease
     where g.source = take_source.name
       and (g.reader is null or g.reader = take_source.reader or g.reader_until < clock_timestamp())
    returning g.source, g.lsn, g.timeline)
  select p.version, s.name, p.url, p.publication, p.slot, p.system_identifier, t.lsn::text,
         t.timeline,
         p.publication_oid, p.made, p.tables, p.drop_bytes, headgate.source_routes(p.name)::text
    from taken t join headgate.postgres_source p on p.name = t.source
    join headgate.stream s on s.id = p.stream
   where not p.is_paused
$$;

-- source_routes(name) -> {table: {"stream", "key"}} of the tables that have a stream or key of
-- their own.
create or replace function headgate.source_routes(p_name text) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(
    jsonb_object_agg(t.table_name, jsonb_build_object('stream', s.name, 'key', t.key)), '{}')
    from headgate.source_route t left join headgate.stream s on s.id = t.stream
      where t.source = p_name
$$;

-- keep_source(name, reader, lease, lsn, wal_end, caught_up, retained_bytes, wal_status, problems,
-- timeline) -> whether the reader still is the one. Up to `lsn` there was nothing to send.
-- Locks: the source's row of source_progress.
-- Writes: source_progress.
create or replace function headgate.keep_source(
  name text, reader text, lease interval, lsn pg_lsn default null, wal_end pg_lsn default null,
  caught_up boolean default false, retained_bytes bigint default null, wal_status text default null,
  problems text[] default '{}', timeline int default null) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare at timestamptz := clock_timestamp();
begin
  update headgate.source_progress g
     set reader_until = at + lease,
         lsn = greatest(g.lsn, keep_source.lsn),
         wal_end = coalesce(keep_source.wal_end, g.wal_end),
         caught_up_at = case when caught_up then at else g.caught_up_at end,
         retained_bytes = coalesce(keep_source.retained_bytes, g.retained_bytes),
         wal_status = coalesce(keep_source.wal_status, g.wal_status), looked_at = at,
         problems = keep_source.problems, timeline = coalesce(keep_source.timeline, g.timeline),
         state = 'reading', error = null, hint = null,
         state_at = case when g.state = 'reading' then g.state_at else at end,
         rate = case when at < g.marked_at + interval '5 s' then g.rate
                     else
                       (g.messages - g.marked_messages) / extract(epoch from at - g.marked_at) end,
         marked_at = case when at < g.marked_at + interval '5 s' then g.marked_at else at end,
         marked_messages = case when at < g.marked_at + interval '5 s' then g.marked_messages
                                else g.messages end
   where g.source = keep_source.name and g.reader = keep_source.reader;
  return found;
end $$;

-- note_source_progress(name, reader, lsn, committed_at, messages): called last in the transaction
-- that sends, so that its row is locked for a moment only. HG022 unless the reader still is the
-- one.
-- Writes: source_progress.
create or replace function headgate.note_source_progress(
  name text, reader text, lsn pg_lsn, committed_at timestamptz, messages bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('synchronous_commit') = 'off' then  -- the slot forgets what is committed here
    perform set_config('synchronous_commit', 'local', true);
  end if;
  update headgate.source_progress g
     set lsn = greatest(g.lsn, note_source_progress.lsn),
         messages = g.messages + note_source_progress.messages,
         committed_at = coalesce(note_source_progress.committed_at, g.committed_at)
   where g.source = note_source_progress.name and g.reader = note_source_progress.reader
     and g.reader_until is not null;
  if not found then
    perform headgate.fail('HG022', format('source "%s" is read by another process, or is gone',
      note_source_progress.name),
      'nothing was sent; its reader goes on behind what is in the stream');
  end if;
end $$;

-- send_changes(stream, datas, keys, name, reader, lsn, committed_at): sends messages of
-- transactions that have all ended, and notes how far that is, in one statement. Errors as
-- note_source_progress.
create or replace function headgate.send_changes(
  stream text, datas text[], keys text[], name text, reader text, lsn pg_lsn,
  committed_at timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.send_batch(stream, datas, keys);
  perform headgate.note_source_progress(name, reader, lsn, committed_at, cardinality(datas));
end $$;

-- note_source_state(name, reader, state, error, hint): why it cannot be read.
-- Writes: source_progress.
create or replace function headgate.note_source_state(name text, reader text, state text,
                                                      error text, hint text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_progress g
     set state = note_source_state.state, error = note_source_state.error,
         hint = note_source_state.hint,
         state_at = case when g.state = note_source_state.state then g.state_at
                         else clock_timestamp() end
   where g.source = note_source_state.name and g.reader = note_source_state.reader
$$;

-- leave_source(name, reader): lets another read it at once.
-- Writes: source_progress.
create or replace function headgate.leave_source(name text, reader text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_progress g set reader = null, reader_until = null
   where g.source = leave_source.name and g.reader = leave_source.reader
$$;

-- postgres_sources() -> the sources, how far they are read and what keeps them from it. No
-- passwords.
create or replace function headgate.postgres_sources()
returns table (
  name text, stream text, place text, tables text[], publication text, slot text, state text,
  error text, hint text,
  since timestamptz, reader text, lsn text, lag_bytes bigint, lag interval, messages bigint,
  rate double precision,
  created_at timestamptz, routes jsonb, problems text[], retained_bytes bigint, wal_status text,
  looked_at timestamptz,
  warn_bytes bigint, drop_bytes bigint, backfill_rate int, backfill_paused boolean,
  backfill_rows bigint,
  backfill_of bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.name, s.name, p.place, p.tables, p.publication, p.slot,
         case when p.is_paused and g.wal_status is distinct from 'gone' then 'paused'
              when g.reader is null or g.reader_until < clock_timestamp()
                then case when g.state = 'reading' then 'waiting' else g.state end
              else g.state end,
         g.error, g.hint, g.state_at,
         case when g.reader_until >= clock_timestamp() then g.reader end, g.lsn::text,
         case when g.wal_end is not null then greatest(g.wal_end - g.lsn, 0)::bigint end,
         case when g.lsn >= g.wal_end then interval '0'
              else
                greatest(clock_timestamp() - greatest(g.committed_at, g.caught_up_at),
                         interval '0') end,
         g.messages, g.rate, p.created_at, headgate.source_routes(p.name), g.problems,
         g.retained_bytes,
         g.wal_status, g.looked_at, p.warn_bytes, p.drop_bytes, p.backfill_rate,
         p.is_backfill_paused, b.rows, b.of
    from headgate.postgres_source p join headgate.source_progress g on g.source = p.name
    join headgate.stream s on s.id = p.stream
    left join lateral (
      select sum(b.rows)::bigint as rows, sum(greatest(b.estimate, b.rows))::bigint as of
        from headgate.source_backfill b
          where b.source = p.name and b.state in ('waiting', 'running')) b on true
$$;
