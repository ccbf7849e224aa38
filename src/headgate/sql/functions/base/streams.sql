-- Streams: the log's tables, and the functions generated for each stream so that its plans stay
-- cached.

-- check_stream(…): HG007 / HG010 for settings that make no sense. Those that are null are not
-- given.
create or replace function headgate.check_stream(
  p_lanes int, p_lane_by text, p_retain text, p_retain_up_to interval, p_retain_at_least interval,
  p_max_storage bigint, p_max_message_bytes int,
  p_segment_rows bigint, p_segment_bytes bigint, p_segment_age interval, p_compact_every interval)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_lanes not between 1 and 1024 then
    perform headgate.fail('HG007', format('%s lanes are not possible', p_lanes),
      'choose 1 to 1024 lanes; about the number of workers that will run at once is a good choice');
  end if;
  if p_lane_by not in ('hash', 'key', 'channel') then
    perform headgate.fail('HG010', format('lane_by "%s" is not known', p_lane_by),
                          'lane_by is ''hash'', ''key'' or ''channel''');
  end if;
  if p_retain not in ('forever', 'until_acked', 'until_archived') then
    perform headgate.fail('HG010', format('retain "%s" is not known', p_retain),
                          'retain is ''forever'', ''until_acked'' or ''until_archived''');
  end if;
  if least(p_retain_up_to, p_segment_age, p_compact_every) <= interval '0'
     or p_retain_at_least < interval '0' then
    perform headgate.fail('HG010',
                          'retain_up_to, retain_at_least, segment_age and compact_every are lengths of time',
      'choose more than 0, such as ''7 days''');
  end if;
  if p_retain_at_least > p_retain_up_to then
    perform headgate.fail('HG010', 'retain_at_least is longer than retain_up_to',
                          'choose retain_at_least <= retain_up_to');
  end if;
  if p_max_storage < 1048576 then
    perform headgate.fail('HG010', format('max_storage %s is not possible', p_max_storage),
                          'choose at least 1048576 bytes');
  end if;
  if p_max_message_bytes not between 1 and 268435456 then
    perform headgate.fail('HG010',
                          format('max_message_bytes %s is not possible', p_max_message_bytes),
                          'choose 1 to 268435456');
  end if;
  if p_segment_rows not between 1000 and 1000000000 then
    perform headgate.fail('HG010', format('segment_rows %s is not possible', p_segment_rows),
                          'choose 1000 to 1000000000');
  end if;
  if p_segment_bytes < 65536 then
    perform headgate.fail('HG010', format('segment_bytes %s is not possible', p_segment_bytes),
                          'choose at least 65536');
  end if;
end $$;

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
-- Writes stream, layout, segment, tick; DDL.
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
declare s int; made headgate.stream;
begin
  perform headgate.check_name('stream', create_stream.name);
  if length(create_stream.name) > 50 and create_stream.name not like '%.dead' then
    perform headgate.check_name('stream', null);
  end if;
  made.lanes := coalesce(create_stream.lanes, 16);
  made.lane_by := coalesce(create_stream.lane_by, 'hash');
  made.retain := coalesce(create_stream.retain, 'forever');
  made.one_message_per_key := coalesce(create_stream.one_message_per_key, false);
  made.process_unmodified := coalesce(create_stream.process_unmodified, false);
  made.dedup_window := coalesce(create_stream.dedup_window, '5 minutes');
  made.max_message_bytes := coalesce(create_stream.max_message_bytes, 16777216);
  made.segment_rows := coalesce(create_stream.segment_rows, 1000000);
  made.segment_bytes := coalesce(create_stream.segment_bytes, 1073741824);
  made.compact_every := coalesce(create_stream.compact_every, '30 minutes');
  perform headgate.check_stream(
    made.lanes, made.lane_by, made.retain, create_stream.retain_up_to,
    create_stream.retain_at_least,
    create_stream.max_storage, made.max_message_bytes, made.segment_rows, made.segment_bytes,
    create_stream.segment_age, made.compact_every);
  insert into headgate.stream (
      name, lanes, lane_by, retain, retain_up_to, retain_at_least, max_storage, one_message_per_key,
      process_unmodified,
      dedup_window, max_message_bytes, segment_rows, segment_bytes, segment_age, compact_every)
    values (
      create_stream.name, made.lanes, made.lane_by, made.retain, create_stream.retain_up_to,
      create_stream.retain_at_least, create_stream.max_storage, made.one_message_per_key,
      made.process_unmodified,
      made.dedup_window, made.max_message_bytes, made.segment_rows, made.segment_bytes,
      create_stream.segment_age,
      made.compact_every)
    on conflict on constraint stream_name_key do nothing returning id into s;
  if s is null then
    if not coalesce(if_not_exists, false) then
      perform headgate.fail('HG002', format('stream "%s" exists already', create_stream.name),
        'choose another name, or say if_not_exists => true');
    end if;
    made := headgate.find_stream(create_stream.name);
    perform headgate.fail_if_different(
      format('stream "%s"', made.name), 'headgate.alter_stream',
      array[
        row('lanes', nullif(create_stream.lanes, made.lanes), made.lanes, 'headgate.set_lanes'),
        row('lane_by', nullif(create_stream.lane_by, made.lane_by), made.lane_by, null),
        row('retain', nullif(create_stream.retain, made.retain), made.retain, 'alter'),
        row('retain_up_to', nullif(create_stream.retain_up_to, made.retain_up_to),
            made.retain_up_to, 'alter'),
        row('retain_at_least', nullif(create_stream.retain_at_least, made.retain_at_least),
            made.retain_at_least, 'alter'),
        row('max_storage', nullif(create_stream.max_storage, made.max_storage),
            made.max_storage, 'alter'),
        row('one_message_per_key',
            nullif(create_stream.one_message_per_key, made.one_message_per_key),
            made.one_message_per_key, null),
        row('process_unmodified', nullif(create_stream.process_unmodified, made.process_unmodified),
            made.process_unmodified, 'alter'),
        row('dedup_window', nullif(create_stream.dedup_window, made.dedup_window),
            made.dedup_window, 'alter'),
        row('max_message_bytes', nullif(create_stream.max_message_bytes, made.max_message_bytes),
            made.max_message_bytes, 'alter'),
        row('segment_rows', nullif(create_stream.segment_rows, made.segment_rows),
            made.segment_rows, 'alter'),
        row('segment_bytes', nullif(create_stream.segment_bytes, made.segment_bytes),
            made.segment_bytes, 'alter'),
        row('segment_age', nullif(create_stream.segment_age, made.segment_age),
            made.segment_age, 'alter'),
        row('compact_every', nullif(create_stream.compact_every, made.compact_every),
            made.compact_every, 'alter')
      ]::headgate.setting[]);
    return made.id;
  end if;
  insert into headgate.layout (stream, base, lanes, since) values (s, 0, made.lanes, '3');
  execute format('create sequence headgate.seq_%s', s);
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
    ) partition by range (seq) $ddl$, s, case made.lane_by when 'hash' then 'int' else 'bigint' end,
    case made.lane_by when 'channel' then ', channel text' end);
  execute format('create unique index on headgate.message_%s (seq)', s);
  execute format('create index on headgate.message_%s (lane, seq)', s);
  execute format(
    'create index on headgate.message_%s using brin (created_at) with (pages_per_range = 32, autosummarize = on)', s);
  if made.one_message_per_key then
    execute format('create index on headgate.message_%s (key, seq) where key is not null', s);
  end if;
  execute format('create table headgate.kept_%1$s (like headgate.message_%1$s, primary key (seq))',
                 s);
  select * into made from headgate.stream t where t.id = s;
  execute format(
    'create view headgate.%1$I as select seq, key, data, headers, lane, deliver_at, created_at%2$s from headgate.message_%3$s m where true%4$s '
                 'union all select seq, key, data, headers, lane, deliver_at, created_at%2$s from headgate.kept_%3$s m where true%4$s',
                 'log_' || create_stream.name,
                 case made.lane_by when 'channel' then ', channel' end, s,
                 headgate.newest_only(made, 'm'));
  execute format(
    'create view headgate.read_%1$s as select seq, xid, created_at, lane, key, data, headers, deliver_at, %2$s as channel from headgate.message_%1$s',
                 s, case made.lane_by when 'channel' then 'channel' else 'null::text' end);
  perform headgate.grant_views(made);
  perform headgate.ensure_segments(s, 0);
  insert into headgate.tick (stream, id, base, snap, lo, hi0, hi, bound)
    select s, t, t, '3:3:', 0, 0, 0, '3' from nextval('headgate.tick_id') t;
  perform headgate.build_stream(s);
  return s;
end $$;

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
-- transaction, for what is going to refer to it. Waits for at most a second: 55P03. Locks its row
-- FOR KEY SHARE.
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

-- alter_stream(name, …): changes the settings that are given. `clear` names settings to put back to
-- null.
create or replace function headgate.alter_stream(
  name text, retain text default null, retain_up_to interval default null,
  retain_at_least interval default null, max_storage bigint default null,
  process_unmodified boolean default null, dedup_window interval default null,
  max_message_bytes int default null, segment_rows bigint default null,
  segment_bytes bigint default null, segment_age interval default null,
  compact_every interval default null, clear text[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare s headgate.stream := headgate.find_stream(name);
begin
  begin
    -- before it is looked at: another change may be under way
    select * into s from headgate.stream t where t.id = s.id for no key update;
  exception when lock_not_available or deadlock_detected then
    perform headgate.fail('55P03', format('stream "%s" is held by an open transaction', name),
      'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
  end;
  if s.id is null then perform headgate.find_stream(name); end if;
  if not clear <@ array['retain_up_to', 'retain_at_least', 'max_storage', 'segment_age'] then
    perform headgate.fail('HG010', 'clear names an unknown setting',
                          'retain_up_to, retain_at_least, max_storage and segment_age can be cleared');
  end if;
  s.retain := coalesce(alter_stream.retain, s.retain);
  s.retain_up_to := case
    when 'retain_up_to' <> all(clear) then coalesce(alter_stream.retain_up_to, s.retain_up_to) end;
  s.retain_at_least := case
    when 'retain_at_least' <> all(clear) then
      coalesce(alter_stream.retain_at_least, s.retain_at_least) end;
  s.max_storage := case
    when 'max_storage' <> all(clear) then coalesce(alter_stream.max_storage, s.max_storage) end;
  s.process_unmodified := coalesce(alter_stream.process_unmodified, s.process_unmodified);
  s.dedup_window := coalesce(alter_stream.dedup_window, s.dedup_window);
  s.max_message_bytes := coalesce(alter_stream.max_message_bytes, s.max_message_bytes);
  s.segment_rows := coalesce(alter_stream.segment_rows, s.segment_rows);
  s.segment_bytes := coalesce(alter_stream.segment_bytes, s.segment_bytes);
  s.segment_age := case
    when 'segment_age' <> all(clear) then coalesce(alter_stream.segment_age, s.segment_age) end;
  s.compact_every := coalesce(alter_stream.compact_every, s.compact_every);
  perform headgate.check_stream(s.lanes, s.lane_by, s.retain, s.retain_up_to, s.retain_at_least,
                                s.max_storage, s.max_message_bytes,
                                s.segment_rows, s.segment_bytes, s.segment_age, s.compact_every);
  update headgate.stream t
     set retain = s.retain, retain_up_to = s.retain_up_to, retain_at_least = s.retain_at_least,
         max_storage = s.max_storage,
         process_unmodified = s.process_unmodified, dedup_window = s.dedup_window,
         max_message_bytes = s.max_message_bytes,
         segment_rows = s.segment_rows, segment_bytes = s.segment_bytes,
         segment_age = s.segment_age, compact_every = s.compact_every,
         is_full = t.is_full and s.max_storage is not null
   where t.id = s.id;
end $$;

-- drop_stream(name): removes a stream, its consumers, its messages and its dead letters. Of more
-- than 100 segments the rest is dropped by maintenance, in steps, because a transaction can hold
-- only so many locks; the stream is gone at once. Needs its tables and its sequence for itself, and
-- calls under way lock these in any order: it tries to get them all at once, again and again, for
-- up to 10 seconds, so that it neither ends in a deadlock nor holds anybody up for long. DDL,
-- ACCESS EXCLUSIVE.
create or replace function headgate.drop_stream(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(name); was text := current_setting('lock_timeout');
  until timestamptz := clock_timestamp() + interval '10 seconds';
begin
  loop
    begin
      perform headgate.outwait_vacuum(s.id);
      perform set_config('lock_timeout', '20ms', true);
      perform headgate.remove_stream(s);
      perform set_config('lock_timeout', was, true);
      return;
    exception when lock_not_available or deadlock_detected then
      if clock_timestamp() > until then
        perform headgate.fail('55P03',
                              format('stream "%s" is in use by an open transaction', s.name),
                              'wait until it has ended, or end it, and repeat the call');
      end if;
    end;
    perform pg_sleep(0.005 + random() * 0.02);
  end loop;
end $$;

-- outwait_vacuum(stream id): an autovacuum at work on the stream's messages or dead letters gives
-- way to who waits for its lock as long as deadlock_timeout says. What is locked for that is in
-- nobody else's way. SHARE UPDATE EXCLUSIVE.
create or replace function headgate.outwait_vacuum(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare t regclass; held oid[];
begin
  perform set_config('lock_timeout',
                     extract(epoch from current_setting('deadlock_timeout')::interval) + 0.2 || 's',
                     true);
  held := array(select l.relation from pg_locks l
                 where l.mode = 'ShareUpdateExclusiveLock' and l.granted and l.locktype = 'relation'
                   and l.pid <> pg_backend_pid());
  for t in select p.relid from headgate.stream s cross
    join lateral pg_partition_tree(format('headgate.message_%s', s.id)::regclass) p
            where (s.id = p_stream or s.dead_of = p_stream)
              and p.isleaf and p.relid = any(held) loop
    execute format('lock table only %s in share update exclusive mode', t);
  end loop;
end $$;

-- remove_stream(stream): what drop_stream does once nobody is in its way.
create or replace function headgate.remove_stream(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare d headgate.stream;
begin
  -- maintenance passes over a stream that is going
  perform from headgate.stream t where t.id = s.id for update;
  perform headgate.remove_consumer(c) from headgate.consumer c where c.stream = s.id;
  -- in the order in which all others open them, who would otherwise be waited for in vain: the
  -- sequence before the log, and a stream before its dead letters
  execute format('drop view headgate.%I, headgate.read_%s', 'log_' || s.name, s.id);
  -- it was; but there is no LOCK SEQUENCE
  execute format('alter sequence headgate.seq_%s owned by none', s.id);
  perform headgate.drop_staging(g.name) from headgate.staging g where g.stream = s.id;
  if headgate.segment_tables(s.id) <= 100 then
    execute format('drop table headgate.message_%1$s, headgate.kept_%1$s', s.id);
    execute format('drop sequence headgate.seq_%s', s.id);
  else
    -- nobody is using it from here on; who waits to do so has to find that it is gone
    execute format('lock table only headgate.message_%s in access exclusive mode', s.id);
    execute format('alter table headgate.message_%1$s rename to dropped_%1$s', s.id);
    execute format('drop table headgate.kept_%s', s.id);
    insert into headgate.dropped_stream (stream, name) values (s.id, s.name);
    perform headgate.drop_tables_of(s.id, 100);
  end if;
  select * into d from headgate.stream t where t.dead_of = s.id;
  if found then perform headgate.remove_stream(d); end if;
  perform headgate.drop_stream_functions(s.id);
  delete from headgate.tick where stream = s.id;
  delete from headgate.message_id where stream = s.id;
  delete from headgate.newest where stream = s.id;
  delete from headgate.stream where id = s.id;
end $$;

-- drop_tables_of(stream id, most) -> how many tables of a stream that was dropped are gone now:
-- segments, and in the end the log and its sequence. Those that autovacuum is at work on stay for
-- later. The caller holds the parent ACCESS EXCLUSIVE. Writes dropped_stream; DDL.
create or replace function headgate.drop_tables_of(p_stream int, p_most int) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare t regclass; n int := 0; log regclass := format('headgate.dropped_%s', p_stream)::regclass;
begin
  for t in select i.inhrelid::regclass from pg_inherits i
            where i.inhparent = log order by i.inhrelid limit p_most loop
    begin
      execute format('lock table %s in access exclusive mode nowait', t);
      execute format('drop table %s', t);
      n := n + 1;
    exception when lock_not_available then
      null;
    end;
  end loop;
  if not exists (select from pg_inherits i where i.inhparent = log) then
    execute format('drop table %s', log);
    execute format('drop sequence headgate.seq_%s', p_stream);
    delete from headgate.dropped_stream d where d.stream = p_stream;
    n := n + 1;
  end if;
  return n;
end $$;

-- drop_remains() -> of one stream that was dropped in steps, its name and how many of its tables
-- are gone now, at most 50 a call. Waits for nobody longer than a moment; to be called last in a
-- transaction. Locks them ACCESS EXCLUSIVE; writes dropped_stream; DDL.
create or replace function headgate.drop_remains() returns table (name text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare d headgate.dropped_stream; was text := current_setting('lock_timeout');
begin
  select * into d from headgate.dropped_stream x order by x.at limit 1 for update skip locked;
  if not found then return; end if;
  begin
    perform set_config('lock_timeout', '20ms', true);
    execute format('lock table only headgate.dropped_%s in access exclusive mode', d.stream);
    drop_remains.name := d.name;
    done := headgate.drop_tables_of(d.stream, 50);
    perform set_config('lock_timeout', was, true);
    if done > 0 then return next; end if;
  exception when lock_not_available or deadlock_detected then
    null;  -- whoever has read it is not done yet: the next call
  end;
end $$;
