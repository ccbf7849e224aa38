-- Consumers: named readers of a stream with their own progress, and where they stand.

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
      when 'number' then p_backoff::numeric >= 0
      when 'array' then jsonb_array_length(p_backoff) > 0
        and not jsonb_path_exists(p_backoff, '$[*] ? (@.type() != "number" || @ < 0)')
      when 'object' then jsonb_typeof(p_backoff -> 'first') = 'number'
        and (p_backoff ->> 'first')::numeric >= 0
        and not exists (select from jsonb_each(p_backoff) e
                         where e.key not in ('first', 'factor', 'max', 'jitter')
                                                               or jsonb_typeof(e.value) <> 'number'
                                                               or e.value::numeric < 0)
      end, false) then
    perform headgate.fail('HG010', format('backoff %s is not possible', p_backoff),
      'give seconds (10), a list of seconds ([1, 10, 60]), or {"first": 1, "factor": 2, "max": 300, "jitter": 0.2}');
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

-- create_consumer(stream, name, …): adds a consumer and its cursors; no backfill, whatever the
-- start. Returns its id. `push` has the server post its messages to a URL: see outside/push.sql. A
-- setting that is null is not given: order is then 'none' (in a stream with one_message_per_key
-- always 'key'), ack_wait 30 seconds, start 'beginning', leased false, lease_time 10 seconds, and
-- there are no filter, no limits and no push. With if_not_exists an existing one is left as it is,
-- wherever it stands; HG015 when it has other settings than those that are given. Writes consumer,
-- cursor, push, and a stream for dead letters when max_deliver is given.
create or replace function headgate.create_consumer(
  stream text, name text, filter text[] default null, "order" text default null,
  ack_wait interval default null,
  max_deliver int default null, max_ack_pending int default null, backoff jsonb default null,
  start text default null,
  max_concurrency int default null, release_interval interval default null,
  leased boolean default null,
  lease_time interval default null, max_waiting int default null, push jsonb default null,
  if_not_exists boolean default false) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer;
  newest headgate.tick;
begin
  perform headgate.check_name('consumer', create_consumer.name);
  perform headgate.check_consumer("order", ack_wait, max_deliver, max_ack_pending, backoff,
                                  max_concurrency, release_interval, lease_time, max_waiting);
  if (max_concurrency is not null or release_interval is not null) and s.lane_by = 'hash' then
    perform headgate.fail('HG010',
                          format('stream "%s" has hashed lanes, which cannot be limited', s.name),
      'make the stream with lane_by => ''channel'' (or ''key''), or limit the whole consumer: max_ack_pending');
  end if;
  push := nullif(push, 'null');
  backoff := nullif(backoff, 'null');
  select * into c from headgate.consumer k where k.stream = s.id and k.name = create_consumer.name;
  if c.id is null then
    -- a private one, at this very moment
    newest := headgate.make_tick(s.id, headgate.is_open() or start = 'end');
    perform headgate.hold_stream(s);
    insert into headgate.consumer (
        stream, name, filter, pattern, ordered, ack_wait, max_deliver, max_ack_pending, backoff,
        max_concurrency,
        release_interval, leased, lease_time, max_waiting)
      values (
        s.id, create_consumer.name, create_consumer.filter,
        headgate.filter_pattern(create_consumer.filter),
        coalesce("order", 'none') = 'key' or s.one_message_per_key,
        coalesce(create_consumer.ack_wait, '30 seconds'),
        create_consumer.max_deliver, create_consumer.max_ack_pending, create_consumer.backoff,
        create_consumer.max_concurrency, create_consumer.release_interval,
        coalesce(create_consumer.leased, false),
        coalesce(create_consumer.lease_time, '10 seconds'), create_consumer.max_waiting)
      on conflict on constraint consumer_stream_name_key do nothing returning * into c;
    if c.id is not null then
      if max_deliver is not null then perform headgate.ensure_dead_stream(s); end if;
      perform headgate.place(c, coalesce(start, 'beginning'), newest);
      if c.leased then perform headgate.ensure_slots(c); end if;
      if push is not null then perform headgate.write_push(c, push); end if;
      return c.id;
    end if;
  end if;
  if not coalesce(if_not_exists, false) then
    perform headgate.fail('HG004',
                          format('stream "%s" has a consumer "%s" already', s.name,
                                 create_consumer.name),
      'choose another name, or say if_not_exists => true');
  end if;
  c := headgate.find_consumer(create_consumer.stream, create_consumer.name);
  perform headgate.filter_pattern(create_consumer.filter);
  perform headgate.fail_if_different(
    format('consumer "%s" of stream "%s"', c.name, s.name), 'headgate.alter_consumer',
    array[
      row('filter', nullif(headgate.sorted(create_consumer.filter), headgate.sorted(c.filter)),
          c.filter, 'alter'),
      row('order',
          case when ("order" = 'key' or s.one_message_per_key) <> c.ordered then "order" end,
          case when c.ordered then 'key' else 'none' end, null),
      row('ack_wait', nullif(create_consumer.ack_wait, c.ack_wait), c.ack_wait, 'alter'),
      row('max_deliver', nullif(create_consumer.max_deliver, c.max_deliver),
          c.max_deliver, 'alter'),
      row('max_ack_pending', nullif(create_consumer.max_ack_pending, c.max_ack_pending),
          c.max_ack_pending, 'alter'),
      row('backoff', nullif(create_consumer.backoff, c.backoff), c.backoff, 'alter'),
      row('max_concurrency', nullif(create_consumer.max_concurrency, c.max_concurrency),
          c.max_concurrency, 'alter'),
      row('release_interval', nullif(create_consumer.release_interval, c.release_interval),
          c.release_interval, 'alter'),
      row('leased', nullif(create_consumer.leased, c.leased), c.leased, null),
      row('lease_time', nullif(create_consumer.lease_time, c.lease_time), c.lease_time, 'alter'),
      row('max_waiting', nullif(create_consumer.max_waiting, c.max_waiting), c.max_waiting, 'alter')
    ]::headgate.setting[] || headgate.push_settings(c, push));
  return c.id;
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

-- hold_settings(consumer): keeps others from changing its settings until the end of the
-- transaction. Waits for at most a second: 55P03. Locks its row FOR NO KEY UPDATE.
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
  if (max_concurrency is not null or release_interval is not null)
     and (headgate.find_stream(stream)).lane_by = 'hash' then
    perform headgate.fail('HG010',
                          format('stream "%s" has hashed lanes, which cannot be limited', stream),
                          'limit the whole consumer: max_ack_pending');
  end if;
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

-- drop_consumer(stream, name): removes a consumer and its progress. Its dead letters stay. 55P03
-- when an open transaction has something of it in hand for longer than a second.
create or replace function headgate.drop_consumer(stream text, name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s' as $$
declare c headgate.consumer := headgate.find_consumer(stream, name);
begin
  perform headgate.need_read_committed('drop_consumer');
  perform headgate.hold_consumer(c, 'dropped');
  perform headgate.remove_consumer(c);
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03',
                        format('consumer "%s" cannot be dropped now: an open transaction uses it',
                               name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- remove_consumer(consumer): what drop_consumer does once nobody is in its way. The caller holds
-- the consumer. Writes all its tables.
create or replace function headgate.remove_consumer(c headgate.consumer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  delete from headgate.consumer where id = c.id;
  delete from headgate.cursor where consumer = c.id;
  delete from headgate.delivery where consumer = c.id;
  delete from headgate.departed where consumer = c.id;
  delete from headgate.parked where consumer = c.id;
  delete from headgate.wake where consumer = c.id;
  delete from headgate.discovered where consumer = c.id;
  delete from headgate.channel where consumer = c.id;
  delete from headgate.lease where consumer = c.id;
  delete from headgate.worker where consumer = c.id;
  delete from headgate.loss where consumer = c.id;
  delete from headgate.discarded where consumer = c.id;
  delete from headgate.attempt where consumer = c.id;
  perform headgate.forget_sample(c.id);
end $$;

-- hold_consumer(consumer, what): for moving or removing a consumer as a whole. Holds its cursors,
-- what is in flight and parked, its workers, and keeps compaction off, until the end of the
-- transaction. Never queues behind an open transaction: it tries to get everything in a moment,
-- again and again, holding nothing in between, and gives up after a second: 55P03, which says that
-- the consumer cannot be `what`. Locks kept_<stream id> ROW EXCLUSIVE, and those rows FOR UPDATE.
create or replace function headgate.hold_consumer(c headgate.consumer, p_what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  was text := current_setting('lock_timeout');
  until timestamptz := clock_timestamp() + interval '1 second';
begin
  loop
    begin
      perform set_config('lock_timeout', '20ms', true);
      execute format('lock table headgate.kept_%s in row exclusive mode', c.stream);
      -- twice: lanes that were made while the first one waited are out of its sight. From then on
      -- none is made.
      perform from headgate.cursor k where k.consumer = c.id order by k.lane for update;
      -- point: the cursors are held once
      perform from headgate.cursor k where k.consumer = c.id order by k.lane for update;
      perform from headgate.delivery d where d.consumer = c.id order by d.lane, d.id for update;
      perform from headgate.parked p where p.consumer = c.id order by p.lane, p.seq for update;
      perform from headgate.wake w where w.consumer = c.id order by w.lane for update;
      perform from headgate.discovered x where x.consumer = c.id order by x.lane for update;
      perform from headgate.lease l where l.consumer = c.id order by l.slot for update;
      perform from headgate.worker w where w.consumer = c.id order by w.name for update;
      -- point: the consumer is held
      perform set_config('lock_timeout', was, true);
      return;
    exception when lock_not_available or deadlock_detected then
      if clock_timestamp() > until then
        perform headgate.fail('55P03',
          format(
            'consumer "%s" cannot be %s now: an open transaction has received, settled or changed something of it', c.name, p_what),
          'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
      end if;
    end;
    perform pg_sleep(0.02 + random() * 0.03);  -- in which the others go on
  end loop;
end $$;

-- hold_in_place(consumer, what): keeps hold_consumer off until the end of the transaction, and
-- nobody else: for what adds to a consumer, or changes what is parked, and would be overlooked by a
-- seek. Waits for at most a second: 55P03, which says that the consumer's messages cannot be
-- `what`. Locks the first of its cursors that is to be had FOR KEY SHARE.
create or replace function headgate.hold_in_place(c headgate.consumer, p_what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  for i in 1 .. 200 loop
    perform from headgate.cursor k where k.consumer = c.id order by k.lane limit 1
      for key share skip locked;
    if found then return; end if;
    perform pg_sleep(0.005);
  end loop;
  perform headgate.fail('55P03',
                        format(
                          'messages of consumer "%s" cannot be %s now: a transaction that moves it is open', c.name, p_what),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- hold_to_park(consumer, what): as hold_in_place, for who parks messages: it keeps go_over off,
-- too, which would overlook them in lanes that the consumer leaves behind. That holds all lanes of
-- the oldest layout, and only these: so the very first cursor, and no other, is locked FOR KEY
-- SHARE.
create or replace function headgate.hold_to_park(c headgate.consumer, p_what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  for i in 1 .. 200 loop
    perform from headgate.cursor k
      where k.consumer = c.id
        and k.lane = (select min(f.lane) from headgate.cursor f where f.consumer = c.id)
        for key share skip locked;
    if found then return; end if;
    perform pg_sleep(0.005);
  end loop;
  perform headgate.fail('55P03',
    format('messages of consumer "%s" cannot be %s now: a transaction that moves it is open',
           c.name, p_what),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- pause(stream, consumer) / resume(…): a paused consumer receives nothing; what is in flight can
-- still be acked.
create or replace function headgate.pause(stream text, consumer text) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
  select headgate.hold_settings(headgate.find_consumer($1, $2));
  update headgate.consumer set paused = true where id = (headgate.find_consumer($1, $2)).id
$$;
create or replace function headgate.resume(stream text, consumer text) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
  select headgate.hold_settings(headgate.find_consumer($1, $2));
  update headgate.push set note = null
   where consumer = (headgate.find_consumer($1, $2)).id and note is not null;
  update headgate.consumer set paused = false where id = (headgate.find_consumer($1, $2)).id
$$;

-- seek(stream, consumer, target): moves the whole consumer to 'beginning', 'end', a seq or a time.
-- What was in flight or parked is forgotten, and so is what was discarded: it comes again from the
-- target on; acks of it are stale. 55P03 when an open transaction has something of it in hand for
-- longer than a second. Locks as hold_consumer; writes cursor, delivery, departed, parked, wake,
-- discovered, discarded.
create or replace function headgate.seek(stream text, consumer text, target text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  newest headgate.tick;
  had bigint[];
begin
  perform headgate.need_read_committed('seek');
  -- is it one?
  if target is distinct from 'end' then perform headgate.target_seq(c.stream, target); end if;
  -- a private one, at this very moment
  newest := headgate.make_tick(c.stream, headgate.is_open() or target = 'end');
  -- point: a seek has its tick
  perform headgate.hold_consumer(c, 'moved');
  had := headgate.forget(c);
  delete from headgate.discarded x where x.consumer = c.id;
  -- point: a seek has forgotten
  perform headgate.place(c, target, newest);
  -- point: a seek has placed the cursors
  perform headgate.forget_sample(c.id);
  if target <> 'end' then
    perform headgate.park_kept(c, had, headgate.target_seq(c.stream, target));
  end if;
end $$;

-- place(consumer, target, newest): puts every cursor of a consumer at a target. Where lanes are
-- named that is the gatherer alone (see lanes/lanes.sql). Writes cursor.
create or replace function headgate.place(c headgate.consumer, p_target text, newest headgate.tick)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t headgate.tick;
  seq bigint;
  named boolean := (select s.lane_by <> 'hash' from headgate.stream s where s.id = c.stream);
begin
  if p_target = 'end' then
    seq := null;
  else
    seq := headgate.target_seq(c.stream, p_target);
    -- what was restored from another cluster is read up to its bridge first
    select * into t from headgate.tick k
     where k.stream = c.stream and k.reborn is not null and k.hi >= seq order by k.id limit 1;
    if found then newest := t; end if;
  end if;
  if named then delete from headgate.cursor k where k.consumer = c.id and k.lane >= 0; end if;
  insert into headgate.cursor as k (consumer, lane, first_seq, from_tick, from_snap, from_lo,
                                    to_tick, to_base, to_snap, to_lo, to_hi, pos, turn)
    select c.id, lane, case when p_target ~ '^[0-9]+$' then seq else 0 end,
           coalesce(case when seq is null then newest.id end, 0),
           case when seq is null then newest.snap else '3:3:' end,
           case when seq is null then newest.lo when named then seq - 1 else 0 end, newest.id,
           newest.base, newest.snap, newest.lo, newest.hi,
           coalesce(seq - 1, newest.hi), clock_timestamp()
      from (select -1 as lane where named
            union all
            select generate_series(y.base, y.base + y.lanes - 1) from headgate.layout y
             where not named and y.stream = c.stream
               and (y.end_seq is null or y.end_seq > coalesce(seq, newest.hi + 1))) lanes
    on conflict (consumer, lane) do update
      set first_seq = excluded.first_seq, from_tick = excluded.from_tick,
          from_snap = excluded.from_snap, from_lo = excluded.from_lo,
      to_tick = excluded.to_tick, to_base = excluded.to_base, to_snap = excluded.to_snap,
      to_lo = excluded.to_lo,
      to_hi = excluded.to_hi, pos = excluded.pos, late = null, sweep_at = null,
      turn = excluded.turn, discards = false;
  if not named then perform headgate.gate_lanes(c, seq, newest); end if;
end $$;

-- target_seq(stream id, target) -> the first seq at 'beginning', a seq, or a time; HG011 when it is
-- none of these.
create or replace function headgate.target_seq(p_stream int, p_target text) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare moment timestamptz; near bigint; seq bigint;
begin
  if p_target = 'beginning' then return 1; end if;
  begin
    if p_target ~ '^[0-9]+$' then return greatest(p_target::bigint, 1); end if;
    moment := p_target::timestamptz;
  exception when others then
    moment := null;
  end;
  if moment is null then
    perform headgate.fail('HG011',
                          format('"%s" is not a position in a stream', coalesce(p_target, 'null')),
      'say beginning, end, a seq, or a time such as 2026-01-31 12:00:00+00');
  end if;
  -- Above the floor of the newest tick before that time lies what was not committed then; the rest
  -- is older. (A message may have drawn its seq long before it was written, so what had been drawn
  -- at that time says nothing.)
  select least(t.lo, (select min(f) from unnest(t.late_from) f)) into near
    from headgate.tick t where t.stream = p_stream and t.at <= moment and t.base = t.id
      order by t.id desc limit 1;
  execute format(
    'select m.seq from (select seq, created_at from headgate.message_%1$s union all select seq, created_at from headgate.kept_%1$s) m '
                 'where m.seq > $1 and m.created_at >= $2 order by m.seq limit 1', p_stream)
    into seq using coalesce(near, 0), moment;
  return coalesce(seq, headgate.last_seq(p_stream) + 1);
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
