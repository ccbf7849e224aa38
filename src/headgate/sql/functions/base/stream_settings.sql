-- The settings of streams: what is possible, and how they are changed.

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
