-- The settings of consumers: what is possible, how they are changed, and what clients need to know
-- of them.

-- check_ack_wait(ack_wait): HG010 unless messages can be a worker's for so long.
create or replace function headgate.check_ack_wait(p_ack_wait interval) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_ack_wait <= interval '0' or p_ack_wait > interval '7 days' then
    perform headgate.fail('HG010', format('ack_wait %s is not possible', p_ack_wait),
      'choose more than 0 and at most 7 days');
  end if;
end $$;

-- check_consumer(…): HG010 for settings that make no sense.
create or replace function headgate.check_consumer(p_order text, p_ack_wait interval,
                                                   p_max_deliver int, p_max_ack_pending int,
                                                   p_backoff jsonb,
  p_max_concurrency int, p_release_interval interval, p_lease_time interval,
  p_max_waiting int default null)
returns void language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_order not in ('none', 'key') then
    perform headgate.fail('HG010', format('order "%s" is not known', p_order),
                          'order is ''none'' or ''key''');
  end if;
  perform headgate.check_ack_wait(p_ack_wait);
  if p_max_deliver < 1 then
    perform headgate.fail('HG010', format('max_deliver %s is not possible', p_max_deliver),
                          'choose at least 1, or null for no limit');
  end if;
  if p_max_ack_pending < 1 then
    perform headgate.fail('HG010', format('max_ack_pending %s is not possible', p_max_ack_pending),
                          'choose at least 1, or null for no limit');
  end if;
  if p_max_waiting < 1 then
    perform headgate.fail('HG010', format('max_waiting %s is not possible', p_max_waiting),
                          'choose at least 1, or null for no limit');
  end if;
  if p_max_concurrency < 0 then
    perform headgate.fail('HG010', format('max_concurrency %s is not possible', p_max_concurrency),
      'choose 1 or more, 0 to hold a channel back, or null for no limit');
  end if;
  if p_release_interval < interval '0' or p_release_interval > interval '1 day' then
    perform headgate.fail('HG010',
                          format('release_interval %s is not possible', p_release_interval),
                          'choose 0 to 1 day, or null for none');
  end if;
  if p_lease_time < interval '100 milliseconds' or p_lease_time > interval '1 hour' then
    perform headgate.fail('HG010', format('lease_time %s is not possible', p_lease_time),
                          'choose 100 milliseconds to 1 hour');
  end if;
  if p_backoff is not null and not coalesce(case jsonb_typeof(p_backoff)
      -- up to 30 years: a time beyond all calendars would fail each nack
      when 'number' then p_backoff::numeric between 0 and 1e9
      when 'array' then jsonb_array_length(p_backoff) > 0
        and not jsonb_path_exists(p_backoff, '$[*] ? (@.type() != "number" || @ < 0 || @ > 1e9)')
      when 'object' then jsonb_typeof(p_backoff -> 'first') = 'number'
        and not exists (select from jsonb_each(p_backoff) e
                         where e.key not in ('first', 'factor', 'max', 'jitter')
                            or jsonb_typeof(e.value) <> 'number'
                            or e.value::numeric not between 0
                               and case e.key when 'jitter' then 1
                                              when 'factor' then 1e300 else 1e9 end)
      end, false) then
    perform headgate.fail('HG010', format('backoff %s is not possible', p_backoff),
      'give seconds (10), a list of seconds ([1, 10, 60]), or {"first": 1, "factor": 2, "max": 300, "jitter": 0.2}');
  end if;
end $$;

-- check_limits(stream, max_concurrency, release_interval, advice): HG010, with this advice, where
-- channels are limited that the stream has not.
create or replace function headgate.check_limits(
  s headgate.stream, p_max_concurrency int, p_release_interval interval, p_advice text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if (p_max_concurrency is not null or p_release_interval is not null) and s.lane_by = 'hash' then
    perform headgate.fail('HG010',
      format('stream "%s" has hashed lanes, which cannot be limited', s.name),
      p_advice);
  end if;
end $$;

-- backoff_delay(backoff, attempt) -> how long a message waits after its attempt-th delivery failed.
create or replace function headgate.backoff_delay(p_backoff jsonb, p_attempt int) returns interval
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select make_interval(secs => case jsonb_typeof(p_backoff)
    when 'number' then p_backoff::float8
    when 'array' then (p_backoff -> least(p_attempt - 1, jsonb_array_length(p_backoff) - 1))::float8
    when 'object' then least(coalesce((p_backoff ->> 'max')::float8, 3600),
        (p_backoff ->> 'first')::float8
          * coalesce((p_backoff ->> 'factor')::float8, 2) ^ least(p_attempt - 1,
          -- far beyond any max, within a float
          60 / greatest(log(greatest((p_backoff ->> 'factor')::float8, 1)), 1)))
      * (1 + coalesce((p_backoff ->> 'jitter')::float8, 0) * (random() * 2 - 1))
    else 0 end)
$$;

-- hold_settings(consumer): keeps others from changing its settings until the end of the
-- transaction. Waits for at most a second: 55P03.
-- Locks: its row FOR NO KEY UPDATE.
create or replace function headgate.hold_settings(c headgate.consumer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  for i in 1 .. 200 loop
    perform from headgate.consumer k where k.id = c.id for no key update skip locked;
    if found then return; end if;
    perform pg_sleep(0.005);
  end loop;
  if not exists (select from headgate.consumer k where k.id = c.id) then return; end if;
  perform headgate.fail('55P03',
    format('consumer "%s" cannot be changed now: an open transaction changes it', c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- alter_consumer(stream, name, …): changes the settings that are given, of `push` those that are in
-- it. `clear` names settings to put back to null; without push, messages wait to be received.
-- Locks: its row FOR NO KEY UPDATE.
-- Writes: consumer, push, wake; a stream for dead letters when max_deliver is given.
create or replace function headgate.alter_consumer(
  stream text, name text, filter text[] default null, ack_wait interval default null,
  max_deliver int default null,
  max_ack_pending int default null, backoff jsonb default null, max_concurrency int default null,
  release_interval interval default null, lease_time interval default null,
  max_waiting int default null, push jsonb default null,
  clear text[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare c headgate.consumer := headgate.find_consumer(stream, name);
begin
  perform headgate.check_limits(headgate.find_stream(stream), max_concurrency, release_interval,
                                'limit the whole consumer: max_ack_pending');
  perform headgate.check_consumer('none', ack_wait, max_deliver, max_ack_pending, backoff,
                                  max_concurrency, release_interval, lease_time, max_waiting);
  if not clear <@ array['filter', 'max_deliver', 'max_ack_pending', 'backoff', 'max_concurrency',
                        'release_interval', 'max_waiting', 'push'] then
    perform headgate.fail('HG010', 'clear names an unknown setting',
      'filter, max_deliver, max_ack_pending, backoff, max_concurrency, release_interval, max_waiting and push can be cleared');
  end if;
  if max_deliver is not null then
    perform headgate.ensure_dead_stream(headgate.find_stream(stream));
  end if;
  perform headgate.hold_settings(c);
  update headgate.consumer k set
    filter = case when 'filter' = any(clear) then null
                  else coalesce(alter_consumer.filter, k.filter) end,
    pattern = case when 'filter' = any(clear) then null
                   else coalesce(headgate.filter_pattern(alter_consumer.filter), k.pattern) end,
    ack_wait = coalesce(alter_consumer.ack_wait, k.ack_wait),
    max_deliver = case when 'max_deliver' = any(clear) then null
                       else coalesce(alter_consumer.max_deliver, k.max_deliver) end,
    max_ack_pending = case when 'max_ack_pending' = any(clear) then null
                           else coalesce(alter_consumer.max_ack_pending, k.max_ack_pending) end,
    backoff = case when 'backoff' = any(clear) then null
                   else coalesce(alter_consumer.backoff, k.backoff) end,
    max_concurrency = case when 'max_concurrency' = any(clear) then null
                           else coalesce(alter_consumer.max_concurrency, k.max_concurrency) end,
    release_interval = case when 'release_interval' = any(clear) then null
                            else coalesce(alter_consumer.release_interval, k.release_interval) end,
    lease_time = coalesce(alter_consumer.lease_time, k.lease_time),
    max_waiting = case when 'max_waiting' = any(clear) then null
                       else coalesce(alter_consumer.max_waiting, k.max_waiting) end
   where k.id = c.id;
  -- point: the consumer is altered
  -- dropped meanwhile
  if not found then perform headgate.consumer_is_missing(stream, name); end if;
  if 'push' = any(clear) then
    delete from headgate.push p where p.consumer = c.id;
  elsif push is not null then
    perform headgate.write_push(c, push);
  end if;
  -- lanes that were full may not be any more
  if max_concurrency is not null or clear && array['max_concurrency', 'release_interval'] then
    -- and those that a claim with the old limits is just putting to sleep, whichever these are
    insert into headgate.wake (consumer, lane)
      select k.consumer, k.lane from headgate.cursor k where k.consumer = c.id and k.lane >= 0;
  end if;
end $$;

-- stream_settings(stream) -> what a client needs to know of a stream; HG001 when there is none.
create or replace function headgate.stream_settings(stream text, out id int, out lanes int,
                                                    out max_message_bytes int)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.id, s.lanes, s.max_message_bytes from headgate.find_stream(stream) s
$$;

-- slot_modulus(consumer) -> what is leased of a lane (read/leases.sql) is the lane modulo this;
-- null: the lane itself.
create or replace function headgate.slot_modulus(c headgate.consumer) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s.lanes::bigint from headgate.stream s where s.id = c.stream and s.lane_by <> 'hash'
$$;

-- consumer_settings(stream, consumer) -> what a worker needs to know of its consumer; HG001 / HG003
-- when there is none.
create or replace function headgate.consumer_settings(
  stream text, consumer text, out stream_id int, out "order" text, out ack_wait interval,
  out backoff jsonb,
  out leased boolean, out lease_time interval, out slot_modulus bigint, out max_waiting int)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select c.stream, case when c.ordered then 'key' else 'none' end, c.ack_wait, c.backoff, c.leased,
         c.lease_time, headgate.slot_modulus(c), c.max_waiting
    from headgate.find_consumer(stream, consumer) c
$$;
