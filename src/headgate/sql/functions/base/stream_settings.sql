-- The settings of streams: what is possible, and how they are changed.

-- check_lanes(n): HG007 unless a stream can have so many lanes.
create or replace function headgate.check_lanes(n int) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if n not between 1 and 1024 then
    perform headgate.fail('HG007', format('%s lanes are not possible', n),
      'choose 1 to 1024 lanes; about the number of workers that will run at once is a good choice');
  end if;
end $$;

-- check_stream(stream): HG007 / HG010 for settings that make no sense. Those that are null are not
-- given.
create or replace function headgate.check_stream(s headgate.stream) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.check_lanes(s.lanes);
  if s.lane_by not in ('hash', 'key', 'channel') then
    perform headgate.fail('HG010', format('lane_by "%s" is not known', s.lane_by),
                          'lane_by is ''hash'', ''key'' or ''channel''');
  end if;
  if s.retain not in ('forever', 'until_acked', 'until_archived') then
    perform headgate.fail('HG010', format('retain "%s" is not known', s.retain),
                          'retain is ''forever'', ''until_acked'' or ''until_archived''');
  end if;
  if least(s.retain_up_to, s.segment_age, s.compact_every) <= interval '0'
     or s.retain_at_least < interval '0' then
    perform headgate.fail('HG010',
                          'retain_up_to, retain_at_least, segment_age and compact_every are lengths of time',
      'choose more than 0, such as ''7 days''');
  end if;
  if s.retain_at_least > s.retain_up_to then
    perform headgate.fail('HG010', 'retain_at_least is longer than retain_up_to',
                          'choose retain_at_least <= retain_up_to');
  end if;
  if s.max_storage < 1048576 then
    perform headgate.fail('HG010', format('max_storage %s is not possible', s.max_storage),
                          'choose at least 1048576 bytes');
  end if;
  if s.max_message_bytes not between 1 and 268435456 then
    perform headgate.fail('HG010',
                          format('max_message_bytes %s is not possible', s.max_message_bytes),
                          'choose 1 to 268435456');
  end if;
  if s.segment_rows not between 1000 and 1000000000 then
    perform headgate.fail('HG010', format('segment_rows %s is not possible', s.segment_rows),
                          'choose 1000 to 1000000000');
  end if;
  if s.segment_bytes < 65536 then
    perform headgate.fail('HG010', format('segment_bytes %s is not possible', s.segment_bytes),
                          'choose at least 65536');
  end if;
end $$;

-- with_defaults(stream) -> the stream that is to be made: what is not given has its default.
create or replace function headgate.with_defaults(s headgate.stream) returns headgate.stream
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  s.lanes := coalesce(s.lanes, 16);
  s.lane_by := coalesce(s.lane_by, 'hash');
  s.retain := coalesce(s.retain, 'forever');
  s.one_message_per_key := coalesce(s.one_message_per_key, false);
  s.process_unmodified := coalesce(s.process_unmodified, false);
  s.dedup_window := coalesce(s.dedup_window, '5 minutes');
  s.max_message_bytes := coalesce(s.max_message_bytes, 16777216);
  s.segment_rows := coalesce(s.segment_rows, 1000000);
  s.segment_bytes := coalesce(s.segment_bytes, 1073741824);
  s.compact_every := coalesce(s.compact_every, '30 minutes');
  return s;
end $$;

-- fail_if_stream_differs(given, there): HG015 when some setting is given (is not null) and is not
-- the one that the stream has.
create or replace function headgate.fail_if_stream_differs(
  given headgate.stream, there headgate.stream) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.fail_if_different(
    format('stream "%s"', there.name), 'headgate.alter_stream',
    array[
      row('lanes', nullif(given.lanes, there.lanes), there.lanes, 'headgate.set_lanes'),
      row('lane_by', nullif(given.lane_by, there.lane_by), there.lane_by, null),
      row('retain', nullif(given.retain, there.retain), there.retain, 'alter'),
      row('retain_up_to', nullif(given.retain_up_to, there.retain_up_to),
          there.retain_up_to, 'alter'),
      row('retain_at_least', nullif(given.retain_at_least, there.retain_at_least),
          there.retain_at_least, 'alter'),
      row('max_storage', nullif(given.max_storage, there.max_storage),
          there.max_storage, 'alter'),
      row('one_message_per_key',
          nullif(given.one_message_per_key, there.one_message_per_key),
          there.one_message_per_key, null),
      row('process_unmodified', nullif(given.process_unmodified, there.process_unmodified),
          there.process_unmodified, 'alter'),
      row('dedup_window', nullif(given.dedup_window, there.dedup_window),
          there.dedup_window, 'alter'),
      row('max_message_bytes', nullif(given.max_message_bytes, there.max_message_bytes),
          there.max_message_bytes, 'alter'),
      row('segment_rows', nullif(given.segment_rows, there.segment_rows),
          there.segment_rows, 'alter'),
      row('segment_bytes', nullif(given.segment_bytes, there.segment_bytes),
          there.segment_bytes, 'alter'),
      row('segment_age', nullif(given.segment_age, there.segment_age),
          there.segment_age, 'alter'),
      row('compact_every', nullif(given.compact_every, there.compact_every),
          there.compact_every, 'alter')
    ]::headgate.setting[]);
end $$;

-- alter_stream(name, …): changes the settings that are given. `clear` names settings to put back to
-- null.
-- Locks: its row FOR NO KEY UPDATE, for at most 900 milliseconds: 55P03.
-- Writes: stream.
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
  perform headgate.check_stream(s);
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
