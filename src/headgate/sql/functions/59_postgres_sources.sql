-- Sources that read tables of a PostgreSQL database (headgate.replication). One reader at a time: the row
-- of source_progress names it. A reader writes its progress in the transaction that sends the messages,
-- so after any crash the next one begins exactly behind what is in the stream.

-- find_postgres_source(name) -> the source's row, or HG020.
create or replace function headgate.find_postgres_source(p_name text) returns headgate.postgres_source
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source;
begin
  select * into r from headgate.postgres_source where name = p_name;
  if not found then
    perform headgate.fail('HG020', format('there is no source "%s" of tables', p_name),
      'headgate.postgres_sources() lists those that there are');
  end if;
  return r;
end $$;

-- add_postgres_source(name, stream, url, place, tables, publication, slot, made, system_identifier, lsn):
-- a source whose publication and slot are there already. `place` is the URL without its password, `made`
-- says what was made for the source, `lsn` from where on it is read. HG021 when there is one of this name.
-- Writes postgres_source, source_progress.
create or replace function headgate.add_postgres_source(
  name text, stream text, url text, place text, tables text[], publication text, slot text,
  made text[], system_identifier text, lsn pg_lsn) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(add_postgres_source.stream);
begin
  perform headgate.check_source_name(add_postgres_source.name);
  if s.dead_of is not null then perform headgate.refuse_dead(s); end if;
  if coalesce(cardinality(tables), 0) = 0 then
    perform headgate.fail('HG010', 'the source has no tables', 'name at least one: schema.table');
  end if;
  perform headgate.hold_stream(s);
  insert into headgate.postgres_source
      (name, stream, url, place, tables, publication, slot, made, system_identifier)
    values (add_postgres_source.name, s.id, add_postgres_source.url, add_postgres_source.place,
            add_postgres_source.tables, add_postgres_source.publication, add_postgres_source.slot,
            add_postgres_source.made, add_postgres_source.system_identifier);
  insert into headgate.source_progress (source, lsn) values (add_postgres_source.name, add_postgres_source.lsn);
end $$;

-- check_source_name(name): HG005 if no source can have it, HG021 if one does.
create or replace function headgate.check_source_name(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.check_name('source', check_source_name.name);
  if exists (select from headgate.postgres_source p where p.name = check_source_name.name)
     or exists (select from headgate.source w where w.name = check_source_name.name) then
    perform headgate.fail('HG021', format('source "%s" exists already', check_source_name.name), 'choose another name');
  end if;
end $$;

-- set_source_paused(name, paused): whether a source is read. While it is not, its slot keeps the WAL of
-- the database that it reads. Writes postgres_source.
create or replace function headgate.set_source_paused(name text, paused boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(set_source_paused.name);
begin
  update headgate.postgres_source p
     set is_paused = paused, version = nextval('headgate.postgres_source_version')
   where p.name = r.name and p.is_paused <> paused;
end $$;

-- drop_postgres_source(name): forgets a source. Its publication and slot have to be dropped where they are.
create or replace function headgate.drop_postgres_source(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(drop_postgres_source.name);
begin
  perform set_config('headgate.dropped_source', r.name, true);
  delete from headgate.postgres_source p where p.name = r.name;
end $$;

-- guard_postgres_source(), before a source is deleted: HG010 unless drop_postgres_source does it. With a
-- stream it must not go: nobody would drop its slot, which then keeps WAL until that disk is full.
create or replace function headgate.guard_postgres_source() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('headgate.dropped_source', true) is distinct from old.name then
    perform headgate.fail('HG010', format('the source "%s" sends to this stream', old.name),
      'remove the source first, so that its replication slot goes too: headgate source remove');
  end if;
  return old;
end $$;

-- guard_source_name(), before a webhook source is made: HG021 if a source of tables has its name.
create or replace function headgate.guard_source_name() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from headgate.postgres_source p where p.name = new.name) then
    perform headgate.fail('HG021', format('source "%s" exists already', new.name), 'choose another name');
  end if;
  return new;
end $$;

-- postgres_source_access(name) -> how to reach what is read, with the password: for the owner's eyes alone.
create or replace function headgate.postgres_source_access(name text)
returns table (url text, publication text, slot text, made text[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(postgres_source_access.name);
begin
  return query select r.url, r.publication, r.slot, r.made;
end $$;

-- sources_to_read() -> the sources that are to be read now, and those who read them.
create or replace function headgate.sources_to_read()
returns table (name text, version bigint, reader text, is_free boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.name, p.version, g.reader, g.reader is null or g.reader_until < clock_timestamp()
    from headgate.postgres_source p join headgate.source_progress g on g.source = p.name
   where not p.is_paused order by p.name
$$;

-- take_source(name, reader, lease) -> what the reader needs, if it may read now; no row while another does.
-- Locks and writes the source's row of source_progress.
create or replace function headgate.take_source(name text, reader text, lease interval)
returns table (version bigint, stream text, url text, publication text, slot text, system_identifier text, lsn text)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with taken as (
    update headgate.source_progress g
       set reader = take_source.reader, reader_until = clock_timestamp() + lease
     where g.source = take_source.name
       and (g.reader is null or g.reader = take_source.reader or g.reader_until < clock_timestamp())
    returning g.source, g.lsn)
  select p.version, s.name, p.url, p.publication, p.slot, p.system_identifier, t.lsn::text
    from taken t join headgate.postgres_source p on p.name = t.source
    join headgate.stream s on s.id = p.stream
   where not p.is_paused
$$;

-- keep_source(name, reader, lease, lsn, wal_end, caught_up) -> whether the reader still is the one. Up to
-- `lsn` there was nothing to send. Locks and writes the source's row of source_progress.
create or replace function headgate.keep_source(
  name text, reader text, lease interval, lsn pg_lsn default null, wal_end pg_lsn default null,
  caught_up boolean default false) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare at timestamptz := clock_timestamp();
begin
  update headgate.source_progress g
     set reader_until = at + lease,
         lsn = greatest(g.lsn, keep_source.lsn),
         wal_end = coalesce(keep_source.wal_end, g.wal_end),
         caught_up_at = case when caught_up then at else g.caught_up_at end,
         state = 'reading', error = null, hint = null,
         state_at = case when g.state = 'reading' then g.state_at else at end,
         rate = case when at < g.marked_at + interval '5 s' then g.rate
                     else (g.messages - g.marked_messages) / extract(epoch from at - g.marked_at) end,
         marked_at = case when at < g.marked_at + interval '5 s' then g.marked_at else at end,
         marked_messages = case when at < g.marked_at + interval '5 s' then g.marked_messages else g.messages end
   where g.source = keep_source.name and g.reader = keep_source.reader;
  return found;
end $$;

-- note_source_progress(name, reader, lsn, committed_at, messages): called last in the transaction that
-- sends, so that its row is locked for a moment only. HG022 unless the reader still is the one.
create or replace function headgate.note_source_progress(
  name text, reader text, lsn pg_lsn, committed_at timestamptz, messages bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update headgate.source_progress g
     set lsn = greatest(g.lsn, note_source_progress.lsn), messages = g.messages + note_source_progress.messages,
         committed_at = coalesce(note_source_progress.committed_at, g.committed_at)
   where g.source = note_source_progress.name and g.reader = note_source_progress.reader
     and g.reader_until is not null;
  if not found then
    perform headgate.fail('HG022', format('source "%s" is read by another process, or is gone',
      note_source_progress.name), 'nothing was sent; its reader goes on behind what is in the stream');
  end if;
end $$;

-- note_source_state(name, reader, state, error, hint): why it cannot be read. Writes source_progress.
create or replace function headgate.note_source_state(name text, reader text, state text, error text, hint text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_progress g
     set state = note_source_state.state, error = note_source_state.error, hint = note_source_state.hint,
         state_at = case when g.state = note_source_state.state then g.state_at else clock_timestamp() end
   where g.source = note_source_state.name and g.reader = note_source_state.reader
$$;

-- leave_source(name, reader): lets another read it at once. Writes source_progress.
create or replace function headgate.leave_source(name text, reader text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_progress g set reader = null, reader_until = null
   where g.source = leave_source.name and g.reader = leave_source.reader
$$;

-- postgres_sources() -> the sources, how far they are read and what keeps them from it. No passwords.
create or replace function headgate.postgres_sources()
returns table (
  name text, stream text, place text, tables text[], publication text, slot text, state text, error text, hint text,
  since timestamptz, reader text, lsn text, lag_bytes bigint, lag interval, messages bigint, rate double precision,
  created_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.name, s.name, p.place, p.tables, p.publication, p.slot,
         case when p.is_paused then 'paused'
              when g.reader is null or g.reader_until < clock_timestamp()
                then case when g.state = 'reading' then 'waiting' else g.state end
              else g.state end,
         g.error, g.hint, g.state_at, case when g.reader_until >= clock_timestamp() then g.reader end, g.lsn::text,
         greatest(g.wal_end - g.lsn, 0)::bigint,
         case when g.lsn >= g.wal_end then interval '0'
              else greatest(clock_timestamp() - greatest(g.committed_at, g.caught_up_at), interval '0') end,
         g.messages, g.rate, p.created_at
    from headgate.postgres_source p join headgate.source_progress g on g.source = p.name
    join headgate.stream s on s.id = p.stream
$$;

-- backfill_source(name, tables): has all rows of tables (null: of all of the source's) read, beside their
-- changes, from the beginning. HG010 for a table that is not the source's. Writes source_backfill.
create or replace function headgate.backfill_source(name text, tables text[] default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(backfill_source.name); wrong text;
begin
  select t into wrong from unnest(backfill_source.tables) t where t <> all (r.tables) limit 1;
  if wrong is not null then
    perform headgate.fail('HG010', format('"%s" is not a table of source "%s"', wrong, r.name),
      'it has ' || array_to_string(r.tables, ', '));
  end if;
  insert into headgate.source_backfill as b (source, table_name)
    select r.name, t from unnest(coalesce(backfill_source.tables, r.tables)) t
    on conflict (source, table_name) do update
      set state = 'waiting', last_key = null, again = '{}', rows = 0, estimate = null, error = null,
          asked_at = clock_timestamp(), finished_at = null;
end $$;

-- next_backfill(name) -> the table whose rows are to be read next, and how far that is; no row: none is.
create or replace function headgate.next_backfill(name text)
returns table (table_name text, asked_at timestamptz, last_key text[], again text[])
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.table_name, b.asked_at, b.last_key, b.again from headgate.source_backfill b
   where b.source = next_backfill.name and b.state in ('running', 'waiting')
   order by b.state, b.asked_at, b.table_name limit 1
$$;

-- note_backfill(name, table, asked_at, state, last_key, again, rows, estimate, error): how far the rows of a
-- table are read. Nothing is noted of a backfill that was asked for anew. Writes source_backfill.
create or replace function headgate.note_backfill(
  name text, table_name text, asked_at timestamptz, state text, last_key text[], again text[], rows bigint,
  estimate bigint, error text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update headgate.source_backfill b
     set state = note_backfill.state, last_key = coalesce(note_backfill.last_key, b.last_key),
         again = note_backfill.again, rows = b.rows + note_backfill.rows,
         estimate = coalesce(note_backfill.estimate, b.estimate), error = note_backfill.error,
         finished_at = case when note_backfill.state in ('done', 'failed') then clock_timestamp() end
   where b.source = note_backfill.name and b.table_name = note_backfill.table_name
     and b.asked_at = note_backfill.asked_at
$$;

-- source_backfills(name) -> the tables whose rows are read or were, and how far that is.
create or replace function headgate.source_backfills(name text)
returns table (
  table_name text, state text, rows bigint, estimate bigint, error text, asked_at timestamptz, finished_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.table_name, b.state, b.rows, b.estimate, b.error, b.asked_at, b.finished_at
    from headgate.source_backfill b where b.source = source_backfills.name order by b.asked_at, b.table_name
$$;
