-- Settling what was received: ack, nack, release, extend. These change only the caller's own deliveries and insert rows, so they
-- are safe inside any transaction. An ack_id is lane.delivery.seq for a message, lane.delivery for a whole delivery.

-- parse_acks(ack_ids) -> lane, delivery, seqs (null: all of them), given (how many ack_ids); HG008 when one is malformed.
create or replace function headgate.parse_acks(p_acks text[])
returns table (lane bigint, delivery bigint, seqs bigint[], given int)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare bad text;
begin
  select a into bad from unnest(p_acks) a where a is null or a !~ '^[0-9]{1,18}\.[0-9]{1,18}(\.[0-9]{1,18})?$' limit 1;
  if found then
    perform headgate.fail('HG008', format('"%s" is not an ack_id', coalesce(bad, 'null')), 'use the ack_id that receive returned, as it is');
  end if;
  return query
  select split_part(a, '.', 1)::bigint as l, split_part(a, '.', 2)::bigint as d,
         case when not bool_or(split_part(a, '.', 3) = '') then array_agg(nullif(split_part(a, '.', 3), '')::bigint) end, count(*)::int
    from unnest(p_acks) a group by l, d order by l, d;
end $$;

-- settle(consumer, ack_ids) -> how many messages were acked, how many ack_ids were stale. Deletes or shortens the
-- deliveries; in ordered consumers leaves a note for keys that have messages waiting. Writes delivery, wake.
create or replace function headgate.settle(c headgate.consumer, p_acks text[], out acked int, out stale int)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare a record; d headgate.delivery; done bigint[]; freed text[]; n int;
begin
  acked := 0; stale := 0;
  for a in select * from headgate.parse_acks(p_acks) loop
    if a.seqs is null then
      delete from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery returning * into d;
      if not found then stale := stale + a.given; continue; end if;
      done := d.seqs;
      freed := d.keys;
    else
      select * into d from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery for update;
      if not found then stale := stale + a.given; continue; end if;
      done := array(select unnest(d.seqs) intersect select unnest(a.seqs));
      if cardinality(done) = cardinality(d.seqs) then
        delete from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery;
        freed := d.keys;
      else
        freed := case when c.ordered then array(select u.k from unnest(d.seqs, d.keys) u (s, k) join unnest(done) f (s) using (s)) end;
        if done <> '{}' then perform headgate.keep_in_flight(d, done); end if;
      end if;
    end if;
    acked := acked + cardinality(done);
    if a.seqs is not null then
      select count(distinct s) - cardinality(done) into n from unnest(a.seqs) s;
      stale := stale + n;
    end if;
    if c.ordered then perform headgate.leave_notes(c, d.lane, freed); end if;
    if d.lane >= 144115188075855872 then perform headgate.note_lane(c, d.lane); end if;
  end loop;
end $$;

-- note_lane(consumer, lane): tells the next receive that something of a named lane is in flight no more, if the lane has limits.
-- Writes wake.
create or replace function headgate.note_lane(c headgate.consumer, p_lane bigint) returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  insert into headgate.wake (consumer, lane) select c.id, p_lane
   where c.ordered or c.max_concurrency is not null or exists (select from headgate.channel h where h.consumer = c.id and h.lane = p_lane)
$$;

-- keep_in_flight(delivery, without): takes messages out of a delivery that keeps others. Writes delivery.
create or replace function headgate.keep_in_flight(d headgate.delivery, p_without bigint[]) returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  update headgate.delivery x set (seqs, attempts, keys) = (
      select array_agg(u.s order by u.ord), case when d.attempts is not null then array_agg(u.a order by u.ord) end,
             case when d.keys is not null then array_agg(u.k order by u.ord) end
        from unnest(d.seqs, d.attempts, d.keys) with ordinality u (s, a, k, ord)
       where not exists (select from unnest(p_without) w (s) where w.s = u.s))
   where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id
$$;

-- ack(stream, consumer, ack_ids) -> acked, stale. A stale ack (the delivery has expired, or is settled already) changes nothing.
create or replace function headgate.ack(stream text, consumer text, ack_ids text[], out acked int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  select s.acked, s.stale into ack.acked, ack.stale from headgate.settle(headgate.find_consumer(stream, consumer), ack_ids) s;
end $$;

-- nack(stream, consumer, ack_ids, delay, error) -> nacked, stale. The messages come again after the delay (default: the
-- consumer's backoff), or become dead letters after max_deliver attempts. In ordered consumers later messages of the same
-- keys in the same deliveries are released with them. Writes delivery, parked, the dead-letter stream.
create or replace function headgate.nack(
  stream text, consumer text, ack_ids text[], delay interval default null, error text default null, out nacked int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer); a record; d headgate.delivery; failed bigint[]; released bigint[]; n int;
begin
  nacked := 0; stale := 0;
  if delay < interval '0' then
    perform headgate.fail('HG010', format('a delay of %s is not possible', delay), 'choose 0 or more');
  end if;
  for a in select * from headgate.parse_acks(ack_ids) loop
    select * into d from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery for update;
    if not found then stale := stale + a.given; continue; end if;
    failed := case when a.seqs is null then d.seqs else array(select unnest(d.seqs) intersect select unnest(a.seqs)) end;
    released := '{}';
    if c.ordered then
      released := array(
        with f as (select u.k, min(u.s) as first from unnest(d.seqs, d.keys) u (s, k) join unnest(failed) x (s) using (s) group by u.k)
        select u.s from unnest(d.seqs, d.keys) u (s, k) join f on f.k = u.k and f.first < u.s except select unnest(failed));
    end if;
    if cardinality(d.seqs) = cardinality(failed) + cardinality(released) then
      delete from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery;
    elsif failed <> '{}' then
      perform headgate.keep_in_flight(d, failed || released);
    end if;
    perform headgate.park_failed(c, d, failed, delay, 'nacked', error);
    insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
      select c.id, d.lane, u.s, u.k, coalesce(u.a, 1) - 1, clock_timestamp(), 'blocked'
        from unnest(d.seqs, d.attempts, d.keys) u (s, a, k) join unnest(released) x (s) using (s);
    nacked := nacked + cardinality(failed);
    if a.seqs is not null then
      select count(distinct s) - cardinality(failed) into n from unnest(a.seqs) s;
      stale := stale + n;
    end if;
  end loop;
end $$;

-- release(stream, consumer, ack_ids) -> released, stale. Hands back messages that nobody began to work on: they are due at
-- once, and this delivery does not count as an attempt. In ordered consumers later messages of the same keys in the same
-- deliveries are released with them. Writes delivery, parked.
create or replace function headgate.release(stream text, consumer text, ack_ids text[], out released int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); a record; d headgate.delivery; asked bigint[]; back bigint[]; n int;
begin
  released := 0; stale := 0;
  for a in select * from headgate.parse_acks(ack_ids) loop
    select * into d from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery for update;
    if not found then stale := stale + a.given; continue; end if;
    asked := case when a.seqs is null then d.seqs else array(select unnest(d.seqs) intersect select unnest(a.seqs)) end;
    back := asked;
    if c.ordered then
      back := array(
        with f as (select u.k, min(u.s) as first from unnest(d.seqs, d.keys) u (s, k) join unnest(asked) x (s) using (s) group by u.k)
        select u.s from unnest(d.seqs, d.keys) u (s, k) join f on f.k = u.k and f.first < u.s union select unnest(asked));
    end if;
    if cardinality(d.seqs) = cardinality(back) then
      delete from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery;
    elsif back <> '{}' then
      perform headgate.keep_in_flight(d, back);
    end if;
    insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
      select c.id, d.lane, u.s, u.k, coalesce(u.a, 1) - 1, clock_timestamp(), 'released'
        from unnest(d.seqs, d.attempts, d.keys) u (s, a, k) join unnest(back) x (s) using (s);
    if d.lane >= 144115188075855872 then insert into headgate.wake (consumer, lane) values (c.id, d.lane); end if;
    released := released + cardinality(asked);
    if a.seqs is not null then
      select count(distinct s) - cardinality(asked) into n from unnest(a.seqs) s;
      stale := stale + n;
    end if;
  end loop;
end $$;

-- extend(stream, consumer, ack_ids, by) -> extended, stale. Moves the deadline of the deliveries to `by` from now, never
-- nearer (a lane is not looked at before its sweep_at). It does not count as an attempt.
create or replace function headgate.extend(stream text, consumer text, ack_ids text[], by interval, out extended int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); a record; held bigint[]; n int;
begin
  extended := 0; stale := 0;
  if by is null or by <= interval '0' or by > interval '7 days' then
    perform headgate.fail('HG010', format('an extension by %s is not possible', coalesce(by::text, 'null')), 'choose more than 0 and at most 7 days');
  end if;
  for a in select * from headgate.parse_acks(ack_ids) loop
    update headgate.delivery x set deadline = greatest(x.deadline, clock_timestamp() + by)
     where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery and (a.seqs is null or x.seqs && a.seqs) returning x.seqs into held;
    n := case when not found then 0 when a.seqs is null then a.given
              else (select count(*) from unnest(a.seqs) s (s) join unnest(held) h (s) using (s)) end;
    extended := extended + n;
    stale := stale + a.given - n;
  end loop;
end $$;

-- park_failed(consumer, delivery, seqs, delay, reason, error): parks messages of a delivery for another attempt, or moves
-- them to the dead-letter stream. Writes parked, wake, the dead-letter stream.
create or replace function headgate.park_failed(c headgate.consumer, d headgate.delivery, p_seqs bigint[], p_delay interval, p_reason text, p_error text)
returns void language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare dead bigint[]; tried int[];
begin
  p_seqs := headgate.without_removed(c, d, headgate.still_newest(c, d, p_seqs));
  if c.max_deliver is not null then
    select array_agg(u.s order by u.s), array_agg(coalesce(u.a, 1) order by u.s) into dead, tried
      from unnest(d.seqs, d.attempts) u (s, a) join unnest(p_seqs) x (s) using (s) where coalesce(u.a, 1) >= c.max_deliver;
    if dead is not null then
      perform headgate.bury(c, dead, tried, coalesce(p_error, p_reason));
      if c.ordered then  -- what waited behind them goes on
        perform headgate.leave_notes(c, d.lane, array(select u.k from unnest(d.seqs, d.keys) u (s, k) join unnest(dead) x (s) using (s)));
      end if;
    end if;
  end if;
  insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason, last_error)
    select c.id, d.lane, u.s, u.k, coalesce(u.a, 1),
           case when p_reason = 'nacked' then clock_timestamp() + coalesce(p_delay, headgate.backoff_delay(c.backoff, coalesce(u.a, 1)))
                else d.deadline end,  -- expired: due at once, also for the claim that found it
           p_reason, p_error
      from unnest(d.seqs, d.attempts, d.keys) u (s, a, k) join unnest(p_seqs) x (s) using (s)
     where not exists (select from unnest(dead) y (s) where y.s = u.s);
  if d.lane >= 144115188075855872 then insert into headgate.wake (consumer, lane) values (c.id, d.lane); end if;
end $$;

-- take_apart(consumer, lane, now) -> the next deadline in the lane. Parks the messages of deliveries past their deadline;
-- at most 100 deliveries a call. The caller holds the lane's cursor. Locks deliveries (SKIP LOCKED); writes delivery, parked.
create or replace function headgate.take_apart(c headgate.consumer, p_lane bigint, p_now timestamptz) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare d headgate.delivery;
begin
  for d in select * from headgate.delivery x where x.consumer = c.id and x.lane = p_lane and x.deadline <= p_now
            order by x.id limit 100 for update skip locked loop
    delete from headgate.delivery x where x.consumer = c.id and x.lane = p_lane and x.id = d.id;
    perform headgate.park_failed(c, d, d.seqs, null, 'expired', null);
  end loop;
  -- a delivery that is being settled at this moment was skipped: look again soon
  return (select greatest(min(x.deadline), p_now + interval '100 milliseconds') from headgate.delivery x where x.consumer = c.id and x.lane = p_lane);
end $$;

-- sweep(consumer, now): takes expired deliveries apart in every lane that nobody is claiming. Writes delivery, parked, cursor.
create or replace function headgate.sweep(c headgate.consumer, p_now timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare l bigint; n int := headgate.expire(c, p_now);
begin
  for l in select k.lane from headgate.cursor k where k.consumer = c.id and k.lane < 144115188075855872 and k.sweep_at <= p_now
            order by k.lane for update skip locked loop
    update headgate.cursor k set sweep_at = headgate.take_apart(c, l, p_now) where k.consumer = c.id and k.lane = l;
    n := n + 1;
  end loop;
  return n;
end $$;

-- leave_notes(consumer, lane, keys): tells the next claim of the lane which of these keys, that are free now, have messages
-- waiting. Writes wake.
create or replace function headgate.leave_notes(c headgate.consumer, p_lane bigint, p_keys text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if exists (select from headgate.parked p where p.consumer = c.id and p.lane = p_lane) then
    insert into headgate.wake (consumer, lane, key)
      select c.id, p_lane, p.key from headgate.parked p
       where p.ctid = any(headgate.first_parked(c.id, p_lane, array(select distinct k from unnest(p_keys) k)));
  end if;
end $$;

-- take_notes(consumer, lane, now): makes the first waiting message of each key that an ack has freed due. The caller holds
-- the lane's cursor. Writes wake, parked.
create or replace function headgate.take_notes(c headgate.consumer, p_lane bigint, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare freed text[];
begin
  if not exists (select from headgate.wake w where w.consumer = c.id and w.lane = p_lane and w.key is not null) then return; end if;
  with w as (delete from headgate.wake w where w.consumer = c.id and w.lane = p_lane and w.key is not null returning w.key)
  select array_agg(distinct w.key) into freed from w;
  update headgate.parked p set visible_at = p_now
   where p.ctid = any(headgate.first_parked(c.id, p_lane, freed)) and p.reason = 'blocked' and p.visible_at > p_now;
end $$;

-- first_parked(consumer id, lane, keys) -> where the first parked message of each key lies.
create or replace function headgate.first_parked(p_consumer int, p_lane bigint, p_keys text[]) returns tid[]
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return array(
    select first.ctid from unnest(p_keys) k (key) cross join lateral (
      select p.ctid from headgate.parked p where p.consumer = p_consumer and p.lane = p_lane
         and p.key is not null and (p.key, p.seq) >= (k.key, 0) and (p.key, p.seq) <= (k.key, 9223372036854775807) order by p.key, p.seq limit 1) first);
end $$;

-- unpark(consumer, lane, n, now) -> seq, attempt of parked messages that may be delivered now; they are parked no more.
-- In an ordered consumer a key's messages leave only in order, and none while one of them is in flight.
-- The caller holds the lane's cursor, so rows stay where they are found (ctid). Writes parked.
create or replace function headgate.unpark(c headgate.consumer, p_lane bigint, n int, p_now timestamptz) returns table (seq bigint, attempt int)
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  flying text[] := '{}'; free text[]; gone text[]; due tid[]; due_keys text[]; behind tid[]; taken tid[]; firsts tid[]; total int := 0;
begin
  if c.ordered then
    flying := array(select k from headgate.delivery d, unnest(d.keys) k where d.consumer = c.id and d.lane = p_lane and k is not null);
  end if;
  loop
    -- what is due, but has to wait for an earlier message of its key, is put off below: then look at what else is due
    select array_agg(x.ctid), array_agg(x.key) into due, due_keys from (
      select p.ctid, p.key from headgate.parked p where p.consumer = c.id and p.lane = p_lane and p.visible_at <= p_now
       order by p.visible_at, p.seq limit n - total) x;
    exit when due is null;
    if not c.ordered then
      return query delete from headgate.parked p where p.ctid = any(due) returning p.seq, p.attempt + 1;
      return;
    end if;
    -- behind a message in flight: ask again later, ever more seldom; the ack's note usually comes first
    behind := array(select u.t from unnest(due, due_keys) u (t, k) where u.k = any(flying));
    if behind <> '{}' then
      update headgate.parked p set reason = 'blocked',
             visible_at = p_now + least(greatest((p_now - p.parked_at) / 4, interval '50 milliseconds'), interval '5 seconds')
       where p.ctid = any(behind);
    end if;
    free := array(select distinct k from unnest(due_keys) k where k <> all(flying));
    select array_agg(x.ctid), array_agg(x.key) into taken, gone from (
      select y.ctid, y.key from (
        select q.ctid, q.key, q.seq from unnest(free) k (key) cross join lateral (
          select p.ctid, p.key, p.seq, bool_and(p.visible_at <= p_now or p.reason = 'blocked') over (order by p.key, p.seq) as ok
            from headgate.parked p where p.consumer = c.id and p.lane = p_lane
             and p.key is not null and (p.key, p.seq) >= (k.key, 0) and (p.key, p.seq) <= (k.key, 9223372036854775807) order by p.key, p.seq limit n - total) q
         where q.ok
        union all
        select p.ctid, null, p.seq from headgate.parked p where p.ctid = any(due) and p.key is null) y
       order by y.seq limit n - total) x;
    if taken is not null then
      return query delete from headgate.parked p where p.ctid = any(taken) returning p.seq, p.attempt + 1;
      total := total + cardinality(taken);
    end if;
    -- of each key, the first one left: behind a message now in flight it asks again, behind nothing (the batch was full) it
    -- stays due; behind a waiting one the rest sleep
    firsts := headgate.first_parked(c.id, p_lane, free);
    update headgate.parked p set visible_at = 'infinity', reason = 'blocked'
     where p.ctid = any(due) and p.key = any(free) and p.ctid <> all(firsts);
    update headgate.parked p set visible_at = case when p.key = any(gone) then p_now + interval '50 milliseconds' else least(p.visible_at, p_now) end
     where p.ctid = any(firsts) and p.reason = 'blocked';
    exit when total >= n;
  end loop;
end $$;
