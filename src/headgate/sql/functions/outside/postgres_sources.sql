-- Sources that read tables of a PostgreSQL database (headgate.replication). One reader at a time:
-- the row of source_progress names it. A reader writes its progress in the transaction that sends
-- the messages, so after any crash the next one begins exactly behind what is in the stream.

-- find_postgres_source(name) -> the source's row, or HG020.
create or replace function headgate.find_postgres_source(p_name text)
returns headgate.postgres_source
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

-- add_postgres_source(name, stream, access): a source whose publication and slot are there already.
-- `access` is what setup.prepare found: url, place (the URL without its password), tables,
-- publication, publication_oid, slot, made (what was made for the source), system_identifier,
-- timeline, and lsn, from where on it is read. HG021 when there is one of this name.
-- Writes: postgres_source, source_progress.
create or replace function headgate.add_postgres_source(name text, stream text, access jsonb)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(add_postgres_source.stream);
  tables text[] := headgate.texts(access -> 'tables');
begin
  perform headgate.check_source_name(add_postgres_source.name);
  if s.dead_of is not null then perform headgate.refuse_dead(s); end if;
  if cardinality(tables) = 0 then
    perform headgate.fail('HG010', 'the source has no tables', 'name at least one: schema.table');
  end if;
  perform headgate.hold_stream(s);
  insert into headgate.postgres_source
      (name, stream, url, place, tables, publication, publication_oid, slot, made,
       system_identifier)
    values (add_postgres_source.name, s.id, access ->> 'url', access ->> 'place', tables,
            access ->> 'publication', (access ->> 'publication_oid')::bigint, access ->> 'slot',
            headgate.texts(access -> 'made'), access ->> 'system_identifier');
  insert into headgate.source_progress (source, lsn, timeline)
    values (add_postgres_source.name, (access ->> 'lsn')::pg_lsn, (access ->> 'timeline')::int);
end $$;

-- texts(list) -> the strings of a JSON list.
create or replace function headgate.texts(list jsonb) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(t order by n), '{}')
    from jsonb_array_elements_text(list) with ordinality x (t, n)
$$;

-- restart_postgres_source(name, access): reads on from `access`, whose slot is a new one: what was
-- written in between is not in the stream, which is what a backfill with `deletions` is for.
-- Writes: postgres_source, source_progress.
create or replace function headgate.restart_postgres_source(name text, access jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(restart_postgres_source.name);
begin
  update headgate.source_progress g
     set lsn = (access ->> 'lsn')::pg_lsn, timeline = (access ->> 'timeline')::int, reader = null,
         reader_until = null, state = 'starting', error = null, hint = null,
         state_at = clock_timestamp(),
         wal_end = null, retained_bytes = null, wal_status = null, problems = '{}'
   where g.source = r.name;
  update headgate.postgres_source p
     set url = access ->> 'url', place = access ->> 'place',
         tables = headgate.texts(access -> 'tables'),
         publication = access ->> 'publication',
         publication_oid = (access ->> 'publication_oid')::bigint,
         slot = access ->> 'slot', made = headgate.texts(access -> 'made'),
         system_identifier = access ->> 'system_identifier', is_paused = false,
         version = nextval('headgate.postgres_source_version')
   where p.name = r.name;
end $$;

-- alter_postgres_source(name, …): changes what is given. `tables` are those of its publication now.
-- A limit of 0 is none.
-- Writes: postgres_source.
create or replace function headgate.alter_postgres_source(
  name text, stream text default null, url text default null, place text default null,
  tables text[] default null, warn_bytes bigint default null, drop_bytes bigint default null,
  backfill_rate int default null, backfill_paused boolean default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  r headgate.postgres_source := headgate.find_postgres_source(alter_postgres_source.name);
  s headgate.stream;
begin
  if least(warn_bytes, drop_bytes, backfill_rate) < 0 then
    perform headgate.fail('HG010', 'a limit of a source is below zero',
                          'give bytes, or rows a second; 0 is none');
  end if;
  if alter_postgres_source.stream is not null then
    s := headgate.find_stream(alter_postgres_source.stream);
    if s.dead_of is not null then perform headgate.refuse_dead(s); end if;
    perform headgate.hold_stream(s);
  end if;
  update headgate.postgres_source p
     set stream = coalesce(s.id, p.stream),
         url = coalesce(alter_postgres_source.url, p.url),
         place = coalesce(alter_postgres_source.place, p.place),
         tables = coalesce(alter_postgres_source.tables, p.tables),
         warn_bytes = coalesce(alter_postgres_source.warn_bytes, p.warn_bytes),
         drop_bytes = nullif(coalesce(alter_postgres_source.drop_bytes, p.drop_bytes), 0),
         backfill_rate = nullif(coalesce(alter_postgres_source.backfill_rate, p.backfill_rate), 0),
         is_backfill_paused = coalesce(alter_postgres_source.backfill_paused, p.is_backfill_paused)
   where p.name = r.name;
  if s.id is not null or alter_postgres_source.url is not null
     or alter_postgres_source.tables is not null then
    update headgate.postgres_source p set version = nextval('headgate.postgres_source_version')
     where p.name = r.name;  -- its reader begins again with what holds now
  end if;
  if alter_postgres_source.tables is not null then
    perform set_config('headgate.dropped_source', r.name, true);
    delete from headgate.source_route t
     where t.source = r.name and t.table_name <> all (alter_postgres_source.tables);
    delete from headgate.source_backfill b
     where b.source = r.name and b.table_name <> all (alter_postgres_source.tables);
    perform set_config('headgate.dropped_source', '', true);
  end if;
end $$;

-- route_source(name, table, stream, key): a table goes to a stream of its own (null: the source's),
-- with a key of these columns (null: those of the row's identity). HG010 for a table that is not
-- the source's.
-- Writes: source_route.
create or replace function headgate.route_source(name text, table_name text, stream text,
                                                 key text[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  r headgate.postgres_source := headgate.find_postgres_source(route_source.name);
  s headgate.stream;
begin
  perform headgate.check_source_tables(r, array[route_source.table_name]);
  if route_source.stream is not null then
    s := headgate.find_stream(route_source.stream);
    if s.dead_of is not null then perform headgate.refuse_dead(s); end if;
    perform headgate.hold_stream(s);
  end if;
  insert into headgate.source_route as t (source, table_name, stream, key)
    values (r.name, route_source.table_name, s.id, nullif(route_source.key, '{}'))
    on conflict on constraint source_route_pkey do update
      set stream = excluded.stream, key = excluded.key;
  update headgate.postgres_source p set version = nextval('headgate.postgres_source_version')
   where p.name = r.name;
end $$;

-- check_source_tables(source, tables): HG010 for one that is not the source's.
create or replace function headgate.check_source_tables(r headgate.postgres_source, tables text[])
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare wrong text;
begin
  select t into wrong from unnest(tables) t where t <> all (r.tables) limit 1;
  if wrong is not null then
    perform headgate.fail('HG010', format('"%s" is not a table of source "%s"', wrong, r.name),
      'it has ' || array_to_string(r.tables, ', '));
  end if;
end $$;

-- check_source_name(name): HG005 if no source can have it, HG021 if one does.
create or replace function headgate.check_source_name(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.check_name('source', check_source_name.name);
  if exists (select from headgate.postgres_source p where p.name = check_source_name.name)
     or exists (select from headgate.source w where w.name = check_source_name.name) then
    perform headgate.fail('HG021', format('source "%s" exists already', check_source_name.name),
                          'choose another name');
  end if;
end $$;

-- set_source_paused(name, paused): whether a source is read. While it is not, its slot keeps the
-- WAL of the database that it reads.
-- Writes: postgres_source.
create or replace function headgate.set_source_paused(name text, paused boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(set_source_paused.name);
begin
  update headgate.postgres_source p
     set is_paused = paused, version = nextval('headgate.postgres_source_version')
   where p.name = r.name and p.is_paused <> paused;
end $$;

-- drop_postgres_source(name): forgets a source. Its publication and slot have to be dropped where
-- they are.
-- Writes: postgres_source and what refers to it.
create or replace function headgate.drop_postgres_source(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(drop_postgres_source.name);
begin
  perform set_config('headgate.dropped_source', r.name, true);
  delete from headgate.postgres_source p where p.name = r.name;
end $$;

-- guard_postgres_source(), before a source is deleted: HG010 unless drop_postgres_source does it.
-- With a stream it must not go: nobody would drop its slot, which then keeps WAL until that disk is
-- full.
create or replace function headgate.guard_postgres_source() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('headgate.dropped_source', true) is distinct from old.name then
    perform headgate.fail('HG010', format('the source "%s" sends to this stream', old.name),
      'remove the source first, so that its replication slot goes too: headgate source remove');
  end if;
  return old;
end $$;

-- guard_source_route(), before the route of a table is deleted: HG010 unless its source is changed.
-- With its stream it must not go: its changes would come into another one.
create or replace function headgate.guard_source_route() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if current_setting('headgate.dropped_source', true) is distinct from old.source then
    perform headgate.fail('HG010', format('the source "%s" sends to this stream', old.source),
      format('send the changes of %s to another stream first, or remove the source',
             old.table_name));
  end if;
  return old;
end $$;

-- guard_source_name(), before a webhook source is made: HG021 if a source of tables has its name.
create or replace function headgate.guard_source_name() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from headgate.postgres_source p where p.name = new.name) then
    perform headgate.fail('HG021', format('source "%s" exists already', new.name),
                          'choose another name');
  end if;
  return new;
end $$;

-- postgres_source_access(name) -> how to reach what is read, with the password: for the owner's
-- eyes alone.
create or replace function headgate.postgres_source_access(name text)
returns table (url text, publication text, slot text, made text[], system_identifier text,
               tables text[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.postgres_source := headgate.find_postgres_source(postgres_source_access.name);
begin
  return query select r.url, r.publication, r.slot, r.made, r.system_identifier, r.tables;
end $$;
