-- Streams: the log's tables, and the functions generated for each stream so that its plans stay cached.

-- create_stream(name, …): makes a stream, its sequence, table and first segments. With if_not_exists an existing
-- stream is left as it is. Returns the stream's id. Writes stream, segment, tick; DDL.
create or replace function headgate.create_stream(
  name text, lanes int default 16, dedup_window interval default '5 minutes', max_message_bytes int default 16777216,
  segment_rows bigint default 1000000, if_not_exists boolean default false) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s int;
begin
  perform headgate.check_name('stream', create_stream.name);
  if length(create_stream.name) > 50 and create_stream.name not like '%.dead' then
    perform headgate.check_name('stream', null);
  end if;
  if create_stream.lanes is null or create_stream.lanes not between 1 and 1024 then
    perform headgate.fail('HG007', format('%s lanes are not possible', coalesce(create_stream.lanes::text, 'null')),
      'choose 1 to 1024 lanes; about the number of workers that will run at once is a good choice');
  end if;
  if max_message_bytes not between 1 and 268435456 then
    perform headgate.fail('HG010', format('max_message_bytes %s is not possible', max_message_bytes), 'choose 1 to 268435456');
  end if;
  if segment_rows not between 1000 and 1000000000 then
    perform headgate.fail('HG010', format('segment_rows %s is not possible', segment_rows), 'choose 1000 to 1000000000');
  end if;
  insert into headgate.stream (name, lanes, dedup_window, max_message_bytes, segment_rows)
    values (create_stream.name, create_stream.lanes, create_stream.dedup_window, create_stream.max_message_bytes,
            create_stream.segment_rows)
    on conflict on constraint stream_name_key do nothing returning id into s;
  if s is null then
    if not if_not_exists then
      perform headgate.fail('HG002', format('stream "%s" exists already', create_stream.name),
        'choose another name, or say if_not_exists => true');
    end if;
    return (headgate.find_stream(create_stream.name)).id;
  end if;
  execute format('create sequence headgate.seq_%s', s);
  execute format($ddl$
    create table headgate.message_%1$s (
      seq bigint not null default nextval('headgate.seq_%1$s'),
      xid xid8 not null,
      created_at timestamptz not null default clock_timestamp(),
      lane int not null,
      key text,
      data text not null,
      headers jsonb,
      deliver_at timestamptz
    ) partition by range (seq) $ddl$, s);
  execute format('create unique index on headgate.message_%s (seq)', s);
  execute format('create index on headgate.message_%s (lane, seq)', s);
  execute format('create index on headgate.message_%s using brin (created_at) with (pages_per_range = 32, autosummarize = on)', s);
  execute format('create view headgate.%I as select seq, key, data, headers, lane, deliver_at, created_at from headgate.message_%s',
                 'log_' || create_stream.name, s);
  if to_regrole('headgate_monitor') is not null then
    execute format('grant select on headgate.%I to headgate_monitor', 'log_' || create_stream.name);
  end if;
  perform headgate.ensure_segments(s, 0);
  insert into headgate.tick (stream, id, base, snap, lo, hi0, hi, bound)
    select s, t, t, '3:3:', 0, 0, 0, '3' from nextval('headgate.tick_id') t;
  perform headgate.build_stream(s);
  return s;
end $$;

-- segments_end(stream id) -> messages with a seq below this have a segment.
create or replace function headgate.segments_end(p_stream int) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce((select end_seq from headgate.segment where stream = p_stream order by id desc limit 1), 1)
$$;

-- ensure_segments(stream id, n): room for n more messages and some ahead. The new table is made apart and attached,
-- which conflicts with no insert or read. Locks the parent SHARE UPDATE EXCLUSIVE, and waits for that lock only when
-- there is little room left: other senders that looked at the same moment need some too. Writes segment; DDL.
create or replace function headgate.ensure_segments(p_stream int, p_room bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream; k int; first bigint; ending bigint; part text;
begin
  select * into s from headgate.stream where id = p_stream;
  begin
    execute format('lock table headgate.message_%s in share update exclusive mode nowait', p_stream);
  exception when lock_not_available then
    if headgate.segments_end(p_stream) > headgate.last_seq(p_stream) + p_room + greatest(s.segment_rows, 50000) / 4 then return; end if;
    execute format('lock table headgate.message_%s in share update exclusive mode', p_stream);
  end;
  while headgate.segments_end(p_stream) <= headgate.last_seq(p_stream) + p_room + greatest(s.segment_rows, 50000) loop
    k := coalesce((select max(id) from headgate.segment where stream = p_stream), 0) + 1;
    first := headgate.segments_end(p_stream);
    ending := first + s.segment_rows;
    part := format('message_%s_%s', p_stream, k);
    execute format('create table headgate.%I (like headgate.message_%s including defaults, constraint in_range check (seq >= %s and seq < %s)) '
                   'with (autovacuum_vacuum_insert_scale_factor = 0.2)', part, p_stream, first, ending);
    execute format('alter table headgate.message_%s attach partition headgate.%I for values from (%s) to (%s)',
                   p_stream, part, first, ending);
    execute format('alter table headgate.%I drop constraint in_range', part);
    insert into headgate.segment (stream, id, first_seq, end_seq) values (p_stream, k, first, ending);
  end loop;
end $$;

-- last_seq(stream id) -> the last sequence number drawn, 0 before the first.
create or replace function headgate.last_seq(p_stream int) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(pg_sequence_last_value(('headgate.seq_' || p_stream)::regclass), 0)
$$;

-- alter_stream(name, …): changes the settings that are given.
create or replace function headgate.alter_stream(
  name text, dedup_window interval default null, max_message_bytes int default null, segment_rows bigint default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(name);
begin
  if max_message_bytes not between 1 and 268435456 then
    perform headgate.fail('HG010', format('max_message_bytes %s is not possible', max_message_bytes), 'choose 1 to 268435456');
  end if;
  if segment_rows not between 1000 and 1000000000 then
    perform headgate.fail('HG010', format('segment_rows %s is not possible', segment_rows), 'choose 1000 to 1000000000');
  end if;
  update headgate.stream t set dedup_window = coalesce(alter_stream.dedup_window, t.dedup_window),
         max_message_bytes = coalesce(alter_stream.max_message_bytes, t.max_message_bytes),
         segment_rows = coalesce(alter_stream.segment_rows, t.segment_rows)
   where t.id = s.id;
end $$;

-- drop_stream(name): removes a stream, its consumers, its messages and its dead letters. DDL, ACCESS EXCLUSIVE.
create or replace function headgate.drop_stream(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(name); d text;
begin
  select t.name into d from headgate.stream t where t.dead_of = s.id;
  if found then perform headgate.drop_stream(d); end if;
  perform headgate.drop_consumer(drop_stream.name, c.name) from headgate.consumer c where c.stream = s.id;
  execute format('drop view headgate.%I', 'log_' || drop_stream.name);
  execute format('drop table headgate.message_%s', s.id);
  execute format('drop sequence headgate.seq_%s', s.id);
  perform headgate.drop_stream_functions(s.id);
  delete from headgate.tick where stream = s.id;
  delete from headgate.message_id where stream = s.id;
  delete from headgate.stream where id = s.id;
end $$;

-- drop_stream_functions(stream id): removes what build_stream made.
create or replace function headgate.drop_stream_functions(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare f regprocedure;
begin
  for f in select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = 'headgate' and p.proname in ('append_' || p_stream, 'receive_' || p_stream, 'sift_' || p_stream) loop
    execute 'drop function ' || f;
  end loop;
end $$;

-- build_stream(stream id): (re)makes the functions generated for one stream. Called by create_stream and on each upgrade.
create or replace function headgate.build_stream(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare f regprocedure;
begin
  perform headgate.drop_stream_functions(p_stream);
  execute replace(headgate.append_template(), '{stream}', p_stream::text);
  execute replace(headgate.sift_template(), '{stream}', p_stream::text);
  execute replace(headgate.receive_template(), '{stream}', p_stream::text);
  for f in select p.oid::regprocedure from pg_proc p where p.pronamespace = 'headgate'::regnamespace
            and p.proname in ('append_' || p_stream, 'receive_' || p_stream, 'sift_' || p_stream) loop
    execute format('revoke all on function %s from public', f);
    if f::text like 'headgate.receive%' and to_regrole('headgate_consumer') is not null then
      execute format('grant execute on function %s to headgate_consumer', f);
    end if;
  end loop;
end $$;
