-- Streams: the log's tables, and the functions generated for each stream so that its plans stay
-- cached.

-- create_stream(name, …): makes a stream, its sequence, tables and first segments. Returns the
-- stream's id. `lane_by` says what shares a lane: keys of the same hash ('hash', so many lanes),
-- one key ('key'), or one channel ('channel'). Messages are kept for ever, or until every consumer
-- has acked them; in both cases no longer than retain_up_to, and the oldest go when max_storage is
-- reached, unless they are younger than retain_at_least. With 'until_archived' nothing goes, for
-- whatever reason, that is not in every archive of the stream. A setting that is null is not given:
-- lanes are then 16, lane_by 'hash', retain 'forever', one_message_per_key and process_unmodified
-- false, dedup_window 5 minutes, max_message_bytes 16777216, segment_rows 1000000, segment_bytes
-- 1073741824, compact_every 30 minutes, and there are no other limits. With if_not_exists an
-- existing stream is left as it is; HG015 when it has other settings than those that are given.
-- Writes: stream, layout, segment, tick; DDL.
create or replace function headgate.create_stream(
  name text, lanes int default null, lane_by text default null, retain text default null,
  retain_up_to interval default null, retain_at_least interval default null,
  max_storage bigint default null,
  one_message_per_key boolean default null, process_unmodified boolean default null,
  dedup_window interval default null, max_message_bytes int default null,
  segment_rows bigint default null,
  segment_bytes bigint default null, segment_age interval default null,
  compact_every interval default null,
  if_not_exists boolean default false) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare
  given headgate.stream;  -- null: not given
  made headgate.stream;
  added headgate.stream;
begin
  perform headgate.check_name('stream', create_stream.name);
  if length(create_stream.name) > 50 and create_stream.name not like '%.dead' then
    perform headgate.check_name('stream', null);
  end if;
  select create_stream.name, create_stream.lanes, create_stream.lane_by, create_stream.retain,
         create_stream.retain_up_to, create_stream.retain_at_least, create_stream.max_storage,
         create_stream.one_message_per_key, create_stream.process_unmodified,
         create_stream.dedup_window, create_stream.max_message_bytes, create_stream.segment_rows,
         create_stream.segment_bytes, create_stream.segment_age, create_stream.compact_every
    into given.name, given.lanes, given.lane_by, given.retain,
         given.retain_up_to, given.retain_at_least, given.max_storage,
         given.one_message_per_key, given.process_unmodified,
         given.dedup_window, given.max_message_bytes, given.segment_rows,
         given.segment_bytes, given.segment_age, given.compact_every;
  made := headgate.with_defaults(given);
  perform headgate.check_stream(made);
  insert into headgate.stream (
      name, lanes, lane_by, retain, retain_up_to, retain_at_least, max_storage,
      one_message_per_key, process_unmodified, dedup_window, max_message_bytes,
      segment_rows, segment_bytes, segment_age, compact_every)
    values (
      made.name, made.lanes, made.lane_by, made.retain, made.retain_up_to, made.retain_at_least,
      made.max_storage, made.one_message_per_key, made.process_unmodified, made.dedup_window,
      made.max_message_bytes, made.segment_rows, made.segment_bytes, made.segment_age,
      made.compact_every)
    on conflict on constraint stream_name_key do nothing returning * into added;
  if added.id is null then
    if not coalesce(if_not_exists, false) then
      perform headgate.fail('HG002', format('stream "%s" exists already', create_stream.name),
        'choose another name, or say if_not_exists => true');
    end if;
    made := headgate.find_stream(create_stream.name);
    perform headgate.fail_if_stream_differs(given, made);
    return made.id;
  end if;
  perform headgate.make_stream_tables(added);
  return added.id;
end $$;

-- make_stream_tables(stream): the log, what is preserved of it, its views, its first segments and
-- tick, and the functions that are generated for it.
-- Writes: layout, segment, tick; DDL.
create or replace function headgate.make_stream_tables(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  insert into headgate.layout (stream, base, lanes, since) values (s.id, 0, s.lanes, '3');
  execute format('create sequence headgate.seq_%s', s.id);
  execute format($ddl$
    create table headgate.message_%1$s (
      seq bigint not null default nextval('headgate.seq_%1$s'),
      xid xid8 not null,
      created_at timestamptz not null default clock_timestamp(),
      lane %2$s not null,
      key text,
      data text not null,
      headers jsonb,
      deliver_at timestamptz%3$s
    ) partition by range (seq) $ddl$, s.id, case s.lane_by when 'hash' then 'int' else 'bigint' end,
    case s.lane_by when 'channel' then ', channel text' end);
  execute format('create unique index on headgate.message_%s (seq)', s.id);
  execute format('create index on headgate.message_%s (lane, seq)', s.id);
  execute format(
    'create index on headgate.message_%s using brin (created_at) with (pages_per_range = 32, autosummarize = on)', s.id);
  if s.one_message_per_key then
    execute format('create index on headgate.message_%s (key, seq) where key is not null', s.id);
  end if;
  execute format('create table headgate.preserved_%1$s '
                 '(like headgate.message_%1$s, primary key (seq))',
                 s.id);
  execute format(
    'create view headgate.%1$I as select seq, key, data, headers, lane, deliver_at, created_at%2$s from headgate.message_%3$s m where true%4$s '
                 'union all select seq, key, data, headers, lane, deliver_at, created_at%2$s from headgate.preserved_%3$s m where true%4$s',
                 'log_' || s.name,
                 case s.lane_by when 'channel' then ', channel' end, s.id,
                 headgate.newest_only(s, 'm'));
  execute format(
    'create view headgate.read_%1$s as select seq, xid, created_at, lane, key, data, headers, deliver_at, %2$s as channel from headgate.message_%1$s',
                 s.id, case s.lane_by when 'channel' then 'channel' else 'null::text' end);
  perform headgate.grant_views(s);
  perform headgate.ensure_segments(s.id, 0);
  insert into headgate.tick (stream, id, base, snap, lo, hi0, hi, bound)
    select s.id, t, t, '3:3:', 0, 0, 0, '3' from nextval('headgate.tick_id') t;
  perform headgate.build_stream(s.id);
end $$;

-- stored_sql(stream id, columns) -> the SQL of all messages that are stored, with these columns:
-- those in the log, and those that compaction has preserved.
create or replace function headgate.stored_sql(p_stream int, p_columns text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(select %2$s from headgate.message_%1$s m '
                'union all select %2$s from headgate.preserved_%1$s m)', p_stream, p_columns)
$$;

-- grant_views(stream): who looks may read its views, once there is the role.
create or replace function headgate.grant_views(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if to_regrole('headgate_monitor') is null then return; end if;
  if not has_table_privilege('headgate_monitor', format('headgate.%I', 'log_' || s.name), 'select')
     or not has_table_privilege('headgate_monitor', format('headgate.read_%s', s.id), 'select') then
    execute format('grant select on headgate.%I, headgate.read_%s to headgate_monitor',
                   'log_' || s.name, s.id);
  end if;
end $$;

-- last_seq(stream id) -> the last sequence number drawn, 0 before the first.
create or replace function headgate.last_seq(p_stream int) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(pg_sequence_last_value(('headgate.seq_' || p_stream)::regclass), 0)
$$;

-- hold_stream(stream): keeps it from being dropped or given other lanes until the end of the
-- transaction, for what is going to refer to it. Waits for at most a second: 55P03.
-- Locks: its row FOR KEY SHARE.
create or replace function headgate.hold_stream(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  for i in 1 .. 200 loop
    perform from headgate.stream t where t.id = s.id for key share skip locked;
    if found then return; end if;
    perform pg_sleep(0.005);
  end loop;
  perform headgate.find_stream(s.name);  -- dropped meanwhile?
  perform headgate.fail('55P03', format('stream "%s" is held by an open transaction', s.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;
