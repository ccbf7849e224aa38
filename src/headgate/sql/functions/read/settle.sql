-- Settling what was received: ack, nack, release. These change only the caller's own deliveries and
-- insert rows, so they are safe inside any transaction. An ack_id is lane.delivery.seq for a
-- message, lane.delivery for a whole delivery. How messages leave their delivery is in
-- read/departing.sql, extend and what has a deadline of its own in read/deadlines.sql, who may hold
-- what in docs/concepts/locks.md.

-- parse_acks(ack_ids) -> lane, delivery, seqs (null: all of them), given (how many ack_ids); HG008
-- when one is malformed.
create or replace function headgate.parse_acks(p_acks text[])
returns table (lane bigint, delivery bigint, seqs bigint[], given int)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare bad text;
begin
  select a into bad from unnest(p_acks) a
   where a is null or a !~ '^[0-9]{1,18}\.[0-9]{1,18}(\.[0-9]{1,18})?$' limit 1;
  if found then
    perform headgate.fail('HG008', format('"%s" is not an ack_id', coalesce(bad, 'null')),
                          'use the ack_id that receive returned, as it is');
  end if;
  return query
  select split_part(a, '.', 1)::bigint as l, split_part(a, '.', 2)::bigint as d,
         case
           when not bool_or(split_part(a, '.', 3) = '') then
             array_agg(nullif(split_part(a, '.', 3), '')::bigint) end, count(*)::int
    from unnest(p_acks) a group by l, d order by l, d;
end $$;

-- settle_part(consumer, lane, delivery, seqs, given, until) -> the same for some messages of one
-- delivery (null: all), of which `given` ack_ids speak: those that are in flight in the batch,
-- those that have a deadline of their own, and those whose deadline has passed and that nobody else
-- has got.
create or replace function headgate.settle_part(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_given int,
  p_until timestamptz, out acked int, out stale int)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  d headgate.delivery;
  late bigint[] := '{}';
begin
  perform headgate.meet_no_rewrite();
  d := headgate.take_out(c, p_lane, p_delivery, p_seqs, p_until);
  if p_seqs is null or cardinality(d.seqs) is distinct from cardinality(p_seqs) then
    d := headgate.with_own(c, d, p_lane, p_delivery, p_seqs, p_until);
    late := headgate.settle_late(c, p_delivery, p_seqs);
  end if;
  acked := coalesce(cardinality(d.seqs), 0) + cardinality(late);
  stale := case when d.seqs = p_seqs then 0
                else
                  headgate.stale_of(p_seqs, p_given,
                                    case when acked > 0 then coalesce(d.seqs, '{}') || late
                                         else d.seqs end) end;
  if acked = 0 then return; end if;
  if p_seqs is null then  -- those of the delivery that another open transaction is settling
    stale := stale + (
      select count(*)::int from headgate.in_flight f
       where f.consumer = c.id and f.lane = p_lane and f.delivery = p_delivery) + (
      select count(*)::int from headgate.in_flight f
       where f.consumer = c.id and f.lane = p_lane and f.parent = p_delivery);
  end if;
  if d.seqs is null or d.seqs = '{}' then return; end if;
  if c.ordered then perform headgate.wake_keys(c, d.lane, d.keys); end if;
  if d.lane >= {UNNAMED_LANES} then perform headgate.wake_lane(c, d.lane); end if;
end $$;

-- forget_departed_of(consumer, deliveries) -> how many messages of these deliveries, which are
-- deleted, had departed before.
-- Writes: departed.
create or replace function headgate.forget_departed_of(c headgate.consumer, p_deliveries text[])
returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  a record;
  n int;
  total int := 0;
begin
  for a in select * from headgate.parse_acks(p_deliveries) loop
    delete from headgate.departed x
     where x.consumer = c.id and x.lane = a.lane and x.delivery = a.delivery;
    get diagnostics n = row_count;
    total := total + n;
  end loop;
  return total;
end $$;

-- settle_surely(consumer, ack_ids): settles what a receive was told to, which answers nothing about
-- it. So what another open transaction holds, a seek that may yet be undone for instance, is tried
-- again for a second and then an error, 55P03; what is gone is gone.
-- Writes: as settle.
create or replace function headgate.settle_surely(c headgate.consumer, p_acks text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  until timestamptz := clock_timestamp() + interval '1 second';
  n int;
begin
  loop
    select s.stale into n from headgate.settle(c, p_acks) s;
    exit when n = 0 or not exists (
      select from headgate.parse_acks(p_acks) a
        join headgate.in_flight f on f.consumer = c.id and f.lane = a.lane
          and (f.delivery = a.delivery or f.parent = a.delivery)
         and (a.seqs is null or f.seq = any(a.seqs)));
    if clock_timestamp() > until then
      perform headgate.fail('55P03',
                            'messages that were to be acked are held by another open transaction',
                            'repeat the call with the same acks');
    end if;
    perform pg_sleep(0.01);
  end loop;
end $$;

-- stale_of(asked, given, taken) -> how many of the ack_ids given of a delivery, of these messages
-- (null: all of it), were stale.
create or replace function headgate.stale_of(p_asked bigint[], p_given int, p_taken bigint[])
returns int
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_taken is null and p_asked is null then p_given
              -- (an id that is given twice is one)
              when p_taken is null then (select count(distinct u)::int from unnest(p_asked) u)
              when p_asked is null then case when p_taken = '{}' then p_given else 0 end
              else
                (select count(*)::int
                   from (select unnest(p_asked) except select unnest(p_taken)) s) end
$$;

-- leave_lane_wakes(consumer, lanes): tells the next receive that something of these named lanes is
-- in flight no more: of those that have limits (a lane of one key in order has that of one
-- delivery), or sleep because of limits that they had.
-- Writes: wake.
create or replace function headgate.leave_lane_wakes(c headgate.consumer, p_lanes bigint[])
returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if c.max_concurrency is not null
     or (c.ordered and (select s.lane_by = 'key' from headgate.stream s where s.id = c.stream)) then
    insert into headgate.wake (consumer, lane) select c.id, u from unnest(p_lanes) u;
  else
    insert into headgate.wake (consumer, lane) select c.id, u.lane from unnest(p_lanes) u (lane)
     where exists (select from headgate.channel h where h.consumer = c.id and h.lane = u.lane
                   offset 0)
        or (select k.next_at from headgate.cursor k where k.consumer = c.id and k.lane = u.lane)
          = 'infinity';
  end if;
end $$;

-- wake_lane(consumer, lane): leave_lane_wakes of one.
create or replace function headgate.wake_lane(c headgate.consumer, p_lane bigint) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  select headgate.leave_lane_wakes(c, array[p_lane])
$$;

-- wake_keys_of(consumer, deliveries): wake_keys of what was in these deliveries, which are
-- settled. Most often nothing waits behind any of it.
-- Writes: wake.
create or replace function headgate.wake_keys_of(c headgate.consumer,
                                                   p_deliveries headgate.delivery[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  d headgate.delivery;
begin
  -- (each lane is looked up: joined, this might read all that is parked)
  if exists (
       select from unnest(p_deliveries) u
        where (select p.lane from headgate.parked p where p.consumer = c.id and p.lane = u.lane
                limit 1) is not null) then
    foreach d in array p_deliveries loop
      perform headgate.wake_keys(c, d.lane, d.keys);
    end loop;
  end if;
end $$;

-- ack(stream, consumer, ack_ids) -> acked, stale. After the deadline an ack still counts while
-- nobody else has got the message. A stale ack_id changes nothing: another worker has the message,
-- or it is settled already or dead, or another open transaction is settling it.
create or replace function headgate.ack(stream text, consumer text, ack_ids text[], out acked int,
                                        out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  select s.acked, s.stale into ack.acked, ack.stale
    from headgate.settle(headgate.find_consumer(stream, consumer), ack_ids) s;
end $$;

-- nack(stream, consumer, ack_ids, delay, error) -> nacked, stale. The messages come again after the
-- delay (default: the consumer's backoff), or become dead letters after max_deliver attempts. In
-- ordered consumers later messages of the same keys in the same deliveries are released with them.
-- Locks: as take_out.
-- Writes: delivery, departed, parked, the dead-letter stream.
create or replace function headgate.nack(
  stream text, consumer text, ack_ids text[], delay interval default null, error text default null,
  out nacked int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  until timestamptz := clock_timestamp() + interval '200 milliseconds';  -- for all that others hold
  a record;
  d headgate.delivery;
  failed bigint[];
begin
  nacked := 0; stale := 0;
  if delay < interval '0' then
    perform headgate.fail('HG010', format('a delay of %s is not possible', delay),
                          'choose 0 or more');
  end if;
  perform headgate.meet_no_rewrite();
  for a in select * from headgate.parse_acks(ack_ids) loop
    d := headgate.take_out_all(c, a.lane, a.delivery, a.seqs, until, c.ordered);
    stale := stale + headgate.stale_of(a.seqs, a.given, d.seqs);
    continue when d.id is null or d.seqs = '{}';
    failed := case when a.seqs is null then d.seqs
                   else array(select unnest(d.seqs) intersect select unnest(a.seqs)) end;
    -- point: what failed is taken out
    perform headgate.park_failed(c, d, failed, delay, 'nacked', error);
    perform headgate.hand_back(
      headgate.part_of(d, array(select unnest(d.seqs) except select unnest(failed))), 'blocked');
    nacked := nacked + cardinality(failed);
  end loop;
end $$;

-- release(stream, consumer, ack_ids) -> released, stale. Hands back messages that nobody began to
-- work on: they are due at once, and this delivery does not count as an attempt. In ordered
-- consumers later messages of the same keys in the same deliveries are released with them.
-- Locks: as take_out.
-- Writes: delivery, departed, parked.
create or replace function headgate.release(stream text, consumer text, ack_ids text[],
                                            out released int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  until timestamptz := clock_timestamp() + interval '200 milliseconds';  -- for all that others hold
  a record;
  d headgate.delivery;
begin
  released := 0; stale := 0;
  perform headgate.meet_no_rewrite();
  for a in select * from headgate.parse_acks(ack_ids) loop
    d := headgate.take_out_all(c, a.lane, a.delivery, a.seqs, until, c.ordered);
    stale := stale + headgate.stale_of(a.seqs, a.given, d.seqs);
    continue when d.id is null or d.seqs = '{}';
    -- point: what is released is taken out
    perform headgate.hand_back(d, 'released');
    if d.lane >= {UNNAMED_LANES} then
      insert into headgate.wake (consumer, lane) values (c.id, d.lane);
    end if;
    released := released + case when a.seqs is null then cardinality(d.seqs)
                                else
                                  (select count(*)
                                     from (select unnest(d.seqs) intersect
                                           select unnest(a.seqs)) s) end;
  end loop;
end $$;

-- hand_back(delivery, reason): parks messages that left their delivery as if it had not been: due
-- at once, and not an attempt.
-- Writes: parked.
create or replace function headgate.hand_back(d headgate.delivery, p_reason text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
    select d.consumer, d.lane, u.s, u.k, coalesce(u.a, 1) - 1, clock_timestamp(), p_reason
      from unnest(d.seqs, d.attempts, d.keys) u (s, a, k)
$$;
