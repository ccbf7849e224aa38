-- The settings of consumers: what is possible, how consumers are made with them, how they are
-- changed, and what clients need to know of them.

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

-- create_consumer(stream, name, …): adds a consumer and its cursors; no backfill, whatever the
-- start. Returns its id. `push` has the server post its messages to a URL: see outside/push.sql. A
-- setting that is null is not given: order is then 'none' (in a stream with one_message_per_key
-- always 'key'), ack_wait 30 seconds, start 'beginning', leased false, lease_time 10 seconds, and
-- there are no filter, no limits and no push. With if_not_exists an existing one is left as it is,
-- wherever it stands; HG015 when it has other settings than those that are given.
-- Writes: consumer, cursor, push, and a stream for dead letters when max_deliver is given.
create or replace function headgate.create_consumer(
  stream text, name text, filter text[] default null, "order" text default null,
  ack_wait interval default null,
  max_deliver int default null, max_ack_pending int default null, backoff jsonb default null,
  start text default null,
  max_concurrency int default null, release_interval interval default null,
  leased boolean default null, lease_time interval default null, max_waiting int default null,
  push jsonb default null, if_not_exists boolean default false) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  given headgate.consumer;  -- null: not given
  c headgate.consumer;
  newest headgate.tick;
begin
  perform headgate.check_name('consumer', create_consumer.name);
  perform headgate.check_consumer("order", ack_wait, max_deliver, max_ack_pending, backoff,
                                  max_concurrency, release_interval, lease_time, max_waiting);
  perform headgate.check_limits(s, max_concurrency, release_interval,
    'make the stream with lane_by => ''channel'' (or ''key''), or limit the whole consumer: max_ack_pending');
  push := nullif(push, 'null');
  backoff := nullif(backoff, 'null');
  select create_consumer.name, create_consumer.filter, create_consumer.ack_wait,
         create_consumer.max_deliver, create_consumer.max_ack_pending, create_consumer.backoff,
         create_consumer.max_concurrency, create_consumer.release_interval, create_consumer.leased,
         create_consumer.lease_time, create_consumer.max_waiting
    into given.name, given.filter, given.ack_wait,
         given.max_deliver, given.max_ack_pending, given.backoff,
         given.max_concurrency, given.release_interval, given.leased,
         given.lease_time, given.max_waiting;
  select * into c from headgate.consumer k where k.stream = s.id and k.name = create_consumer.name;
  if c.id is null then
    -- a private one, at this very moment
    newest := headgate.make_tick(s.id, headgate.in_user_transaction() or start = 'end');
    perform headgate.hold_stream(s);
    insert into headgate.consumer (
        stream, name, filter, pattern, ordered, ack_wait, max_deliver, max_ack_pending, backoff,
        max_concurrency, release_interval, leased, lease_time, max_waiting)
      values (
        s.id, given.name, given.filter, headgate.filter_pattern(given.filter),
        coalesce("order", 'none') = 'key' or s.one_message_per_key,
        coalesce(given.ack_wait, '30 seconds'), given.max_deliver, given.max_ack_pending,
        given.backoff, given.max_concurrency, given.release_interval,
        coalesce(given.leased, false), coalesce(given.lease_time, '10 seconds'), given.max_waiting)
      on conflict on constraint consumer_stream_name_key do nothing returning * into c;
    if c.id is not null then
      perform headgate.begin_consumer(s, c, coalesce(start, 'beginning'), newest, push);
      return c.id;
    end if;
  end if;
  if not coalesce(if_not_exists, false) then
    perform headgate.fail('HG004',
      format('stream "%s" has a consumer "%s" already', s.name, given.name),
      'choose another name, or say if_not_exists => true');
  end if;
  c := headgate.find_consumer(s.name, given.name);
  perform headgate.fail_if_consumer_differs(s, given, "order", push, c);
  return c.id;
end $$;

-- begin_consumer(stream, consumer, start, newest tick, push): puts a new consumer where it starts,
-- with all that its settings need.
-- Writes: cursor, lease, push, and a stream for dead letters.
create or replace function headgate.begin_consumer(
  s headgate.stream, c headgate.consumer, p_start text, newest headgate.tick, p_push jsonb)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if c.max_deliver is not null then perform headgate.ensure_dead_stream(s); end if;
  perform headgate.position_cursors(c, p_start, newest);
  if c.leased then perform headgate.ensure_slots(c); end if;
  if p_push is not null then perform headgate.write_push(c, p_push); end if;
end $$;

-- fail_if_consumer_differs(stream, given, order, push, consumer): HG015 when some setting is given
-- (is not null) and is not the one that the consumer has.
create or replace function headgate.fail_if_consumer_differs(
  s headgate.stream, given headgate.consumer, p_order text, p_push jsonb, c headgate.consumer)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.filter_pattern(given.filter);  -- is it one?
  perform headgate.fail_if_different(
    format('consumer "%s" of stream "%s"', c.name, s.name), 'headgate.alter_consumer',
    array[
      row('filter', nullif(headgate.sorted(given.filter), headgate.sorted(c.filter)),
          c.filter, 'alter'),
      row('order',
          case when (p_order = 'key' or s.one_message_per_key) <> c.ordered then p_order end,
          case when c.ordered then 'key' else 'none' end, null),
      row('ack_wait', nullif(given.ack_wait, c.ack_wait), c.ack_wait, 'alter'),
      row('max_deliver', nullif(given.max_deliver, c.max_deliver),
          c.max_deliver, 'alter'),
      row('max_ack_pending', nullif(given.max_ack_pending, c.max_ack_pending),
          c.max_ack_pending, 'alter'),
      row('backoff', nullif(given.backoff, c.backoff), c.backoff, 'alter'),
      row('max_concurrency', nullif(given.max_concurrency, c.max_concurrency),
          c.max_concurrency, 'alter'),
      row('release_interval', nullif(given.release_interval, c.release_interval),
          c.release_interval, 'alter'),
      row('leased', nullif(given.leased, c.leased), c.leased, null),
      row('lease_time', nullif(given.lease_time, c.lease_time), c.lease_time, 'alter'),
      row('max_waiting', nullif(given.max_waiting, c.max_waiting), c.max_waiting, 'alter')
    ]::headgate.setting[] || headgate.push_settings(c, p_push));
end $$;

-- sorted(filter) -> the patterns of a filter in one order, each once.
create or replace function headgate.sorted(p_filter text[]) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array_agg(distinct x order by x) from unnest(p_filter) x
$$;

-- push_settings(consumer, push) -> what is given of it beside what there is. Secrets are not shown,
-- nor the values of headers.
create or replace function headgate.push_settings(c headgate.consumer, p_push jsonb)
returns headgate.setting[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare p headgate.push;
begin
  if p_push is null then return '{}'; end if;
  select * into p from headgate.push x where x.consumer = c.id;
  if p.consumer is null then
    return array[row('push', coalesce(p_push ->> 'url', 'given'), null,
                     'alter')]::headgate.setting[];
  end if;
  return array[
    row('push.url', nullif(p_push ->> 'url', p.url), p.url, 'alter'),
    row('push.secret',
        case when headgate.texts_of(p_push -> 'secret') <> p.secrets then 'the given one' end,
        'another one', 'alter'),
    row('push.concurrency', nullif(p_push -> 'concurrency', to_jsonb(p.concurrency)), p.concurrency,
        'alter'),
    row('push.timeout', nullif(p_push -> 'timeout', to_jsonb(extract(epoch from p.timeout))),
        trim_scale(extract(epoch from p.timeout)), 'alter'),
    row('push.headers',
        case when coalesce(nullif(p_push -> 'headers', 'null'), '{}') <> coalesce(p.headers, '{}')
                              and p_push ? 'headers' then 'the given ones' end, 'others',
                                  'alter')]::headgate.setting[];
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
