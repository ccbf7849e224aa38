-- Consumers: named readers of a stream with their own progress.

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

-- drop_consumer(stream, name): removes a consumer and its progress. Its dead letters stay. 55P03
-- when an open transaction has something of it in hand for longer than a second.
-- Locks: as hold_consumer.
-- Writes: as remove_consumer.
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

-- remove_consumer(consumer): what drop_consumer does once nobody is in its way.
-- Needs: the caller holds the consumer.
-- Writes: all its tables.
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

-- pause(stream, consumer): it receives nothing until it is resumed; what is in flight can still be
-- acked.
-- Locks: its row FOR NO KEY UPDATE.
-- Writes: consumer.
create or replace function headgate.pause(stream text, consumer text) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
  select headgate.hold_settings(headgate.find_consumer($1, $2));
  update headgate.consumer set paused = true where id = (headgate.find_consumer($1, $2)).id
$$;

-- resume(stream, consumer): a paused consumer receives again.
-- Locks: its row FOR NO KEY UPDATE.
-- Writes: consumer, push.
create or replace function headgate.resume(stream text, consumer text) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
  select headgate.hold_settings(headgate.find_consumer($1, $2));
  update headgate.push set note = null
   where consumer = (headgate.find_consumer($1, $2)).id and note is not null;
  update headgate.consumer set paused = false where id = (headgate.find_consumer($1, $2)).id
$$;
