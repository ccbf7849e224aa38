-- Parked messages: how they come to wait, after a failure, a deadline or behind another one of
-- their key, and how they leave. docs/concepts/parked.md says what for.

-- park_failed(consumer, delivery, seqs, delay, reason, error): parks messages of a delivery for
-- another attempt, or moves them to the dead-letter stream.
-- Writes: parked, wake, attempt, the dead-letter stream.
create or replace function headgate.park_failed(c headgate.consumer, d headgate.delivery,
                                                p_seqs bigint[], p_delay interval, p_reason text,
                                                p_error text)
returns void language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = on as $$
declare
  dead bigint[];
  tried int[];
  failed bigint[] := p_seqs;  -- also those that do not come again
begin
  p_seqs := headgate.without_removed(c, d, headgate.still_newest(c, d, p_seqs));
  if c.max_deliver is not null then
    select array_agg(u.s order by u.s), array_agg(coalesce(u.a, 1) order by u.s) into dead, tried
      from unnest(d.seqs, d.attempts) u (s, a) join unnest(p_seqs) x (s) using (s)
        where coalesce(u.a, 1) >= c.max_deliver;
    if dead is not null then
      perform headgate.append_dead_letters(c, d, dead, tried, coalesce(p_error, p_reason));
      if c.ordered then  -- what waited behind them goes on
        perform headgate.wake_keys(c, d.lane,
                                     array(select u.k from unnest(d.seqs, d.keys) u (s, k)
                                             join unnest(dead) x (s) using (s)));
      end if;
    end if;
  end if;
  perform headgate.note_attempts(c, d, failed, dead, p_reason, p_error);
  -- point: what failed is to be parked
  insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason, last_error,
                               delivery)
    select c.id, d.lane, u.s, u.k, coalesce(u.a, 1),
           case
             when p_reason = 'nacked' then
               clock_timestamp()
                 + coalesce(p_delay, headgate.backoff_delay(c.backoff, coalesce(u.a, 1)))
                else d.deadline end,  -- expired: due at once, also for the claim that found it
           p_reason, p_error,
           -- by which it may still be acked
           case when p_reason = 'expired' then coalesce(d.parent, d.id) end
      from unnest(d.seqs, d.attempts, d.keys) u (s, a, k) join unnest(p_seqs) x (s) using (s)
     where not exists (select from unnest(dead) y (s) where y.s = u.s);
  if d.lane >= {UNNAMED_LANES} then
    insert into headgate.wake (consumer, lane) values (c.id, d.lane);
  end if;
end $$;

-- expire_lane(consumer, lane, now) -> the next deadline in the lane. Parks the messages of
-- deliveries past their deadline; at most 100 deliveries a call.
-- Needs: the caller holds the lane's cursor.
-- Locks: deliveries (SKIP LOCKED).
-- Writes: delivery, parked.
create or replace function headgate.expire_lane(c headgate.consumer, p_lane bigint,
                                               p_now timestamptz) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare d headgate.delivery;
begin
  for d in select * from headgate.delivery x
    where x.consumer = c.id and x.lane = p_lane and x.deadline <= p_now
            order by x.id limit 100 for update skip locked loop
    perform headgate.end_delivery(c, d);
  end loop;
  -- a delivery that is being settled at this moment was skipped: look again soon
  return (select greatest(min(x.deadline), p_now + interval '100 milliseconds')
            from headgate.delivery x where x.consumer = c.id and x.lane = p_lane);
end $$;

-- end_delivery(consumer, delivery): parks what is left of a delivery past its deadline, which the
-- caller holds FOR UPDATE. In ordered consumers later messages of the same keys that came in the
-- same batch, and have deadlines of their own, go back with them.
-- Writes: delivery, departed, parked, wake, the dead-letter stream.
create or replace function headgate.end_delivery(c headgate.consumer, d headgate.delivery)
returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  -- (it may have gone back with another one of its batch in this very sweep)
  if d.parent is not null or d.is_split then
    perform from headgate.delivery x
     where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id;
    if not found then return; end if;
  end if;
  d := headgate.in_flight_of(d);
  -- what has departed out of sight of a fixed snapshot raises a serialization failure here
  if headgate.has_fixed_snapshot() then perform headgate.insert_departed(d, d.seqs); end if;
  -- point: an expired delivery is held
  perform headgate.remove_delivery(d);
  if d.seqs = '{}' then return; end if;
  perform headgate.park_failed(c, d, d.seqs, null, 'expired', null);
  if c.ordered and (d.parent is not null or d.is_split) then
    perform headgate.hand_back_later(c, d);
  end if;
end $$;

-- expire_hashed_lanes(consumer, now): takes expired deliveries apart in every lane that nobody is
-- claiming.
-- Locks: cursors (SKIP LOCKED), and as expire_lane.
-- Writes: delivery, parked, cursor.
create or replace function headgate.expire_hashed_lanes(c headgate.consumer, p_now timestamptz)
returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare l bigint; n int := headgate.expire_named_lanes(c, p_now);
begin
  for l in select k.lane from headgate.cursor k
    where k.consumer = c.id and k.lane < {UNNAMED_LANES} and k.expires_at <= p_now
            order by k.lane for no key update skip locked loop
    update headgate.cursor k set expires_at = headgate.expire_lane(c, l, p_now)
     where k.consumer = c.id and k.lane = l;
    n := n + 1;
  end loop;
  return n;
end $$;

-- wake_keys(consumer, lane, keys): tells the next claim of the lane which of these keys, that are
-- free now, have messages waiting.
-- Writes: wake.
create or replace function headgate.wake_keys(c headgate.consumer, p_lane bigint, p_keys text[])
returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  -- point: keys are to be noted
  if exists (select from headgate.parked p where p.consumer = c.id and p.lane = p_lane) then
    insert into headgate.wake (consumer, lane, key)
      select c.id, p_lane, p.key from headgate.parked p
       where p.ctid
         = any(headgate.first_parked(c.id, p_lane, array(select distinct k from unnest(p_keys) k)));
  end if;
end $$;

-- take_key_wakes(consumer, lane, now): makes the first waiting message of each key that an ack has
-- freed due. Notes of keys whose first one another transaction holds stay.
-- Needs: the caller holds the lane's cursor.
-- Locks: parked (SKIP LOCKED).
-- Writes: wake, parked.
create or replace function headgate.take_key_wakes(c headgate.consumer, p_lane bigint,
                                               p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  freed text[];
  firsts tid[];
  held tid[];
begin
  freed := array(
    select distinct w.key from headgate.wake w
     where w.consumer = c.id and w.lane = p_lane and w.key is not null);
  -- point: notes of keys are read
  if freed = '{}' then return; end if;
  firsts := headgate.first_parked(c.id, p_lane, freed);
  -- point: the first of freed keys are known
  held := headgate.hold_parked(firsts);
  if cardinality(held) < cardinality(firsts) then
    -- (one that is gone by now, acked late or discarded, has another behind it: of that its note
    -- tells)
    freed := array(
      select k from unnest(freed) k
       where exists (select from headgate.parked p where p.ctid = any(held) and p.key = k)
          or headgate.first_parked(c.id, p_lane, array[k]) = '{}');
  end if;
  -- point: the first of freed keys are held
  delete from headgate.wake w where w.consumer = c.id and w.lane = p_lane and w.key = any(freed);
  update headgate.parked p set visible_at = p_now
   where p.ctid = any(held) and p.reason = 'blocked' and p.visible_at > p_now;
end $$;

-- hold_parked(places) -> where the parked messages lie that nobody else holds: now they are held
-- until the end of the transaction. retry_now, discard and late acks change parked messages without
-- a cursor, and may be part of a long transaction: claims pass over these.
-- Locks: parked (SKIP LOCKED).
create or replace function headgate.hold_parked(p_places tid[]) returns tid[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  return array(select p.ctid from headgate.parked p where p.ctid = any(p_places)
                  for update skip locked);
end $$;

-- first_parked(consumer id, lane, keys) -> where the first parked message of each key lies.
create or replace function headgate.first_parked(p_consumer int, p_lane bigint, p_keys text[])
returns tid[]
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return array(
    select first.ctid from unnest(p_keys) k (key) cross join lateral (
      select p.ctid from headgate.parked p where p.consumer = p_consumer and p.lane = p_lane
         and p.key is not null and (p.key, p.seq) >= (k.key, 0)
         and (p.key, p.seq) <= (k.key, 9223372036854775807) order by p.key, p.seq limit 1) first);
end $$;

-- put_off(due, their keys, keys in flight, now): parked messages behind one in flight: they ask
-- again later, ever more seldom; the ack's note usually comes first.
-- Needs: the caller holds what is due.
-- Writes: parked.
create or replace function headgate.put_off(p_due tid[], p_keys text[], p_flying text[],
                                            p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  behind tid[] := array(select u.t from unnest(p_due, p_keys) u (t, k) where u.k = any(p_flying));
begin
  if behind = '{}' then return; end if;
  update headgate.parked p set reason = 'blocked',
         visible_at = p_now
           + least(greatest((p_now - p.parked_at) / 4, interval '50 milliseconds'),
                   interval '5 seconds')
   where p.ctid = any(behind);
end $$;

-- first_in_order(consumer id, lane, keys, due, n, now) -> places and keys of up to n parked
-- messages, by seq: of each of these keys those that come first and may be delivered, and those of
-- `due` that have no key, with null.
create or replace function headgate.first_in_order(
  p_consumer int, p_lane bigint, p_keys text[], p_due tid[], n int, p_now timestamptz,
  out places tid[], out keys text[])
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  select array_agg(x.ctid), array_agg(x.key) into places, keys from (
    select y.ctid, y.key from (
      select q.ctid, q.key, q.seq from unnest(p_keys) k (key) cross join lateral (
        select p.ctid, p.key, p.seq,
               bool_and(p.visible_at <= p_now or p.reason = 'blocked')
                 over (order by p.key, p.seq) as ok
          from headgate.parked p
         where p.consumer = p_consumer and p.lane = p_lane and p.key is not null
           and (p.key, p.seq) >= (k.key, 0) and (p.key, p.seq) <= (k.key, 9223372036854775807)
         order by p.key, p.seq limit n) q
       where q.ok
      union all
      select p.ctid, null, p.seq from headgate.parked p
       where p.ctid = any(p_due) and p.key is null) y
     order by y.seq limit n) x;
end $$;

-- block_rest(consumer id, lane, due, keys, gone, now): of each of these keys, the first one that is
-- left parked: behind a message now in flight (its key is in `gone`) it asks again, behind nothing
-- (the batch was full) it stays due. Behind a waiting one the rest of `due` sleep.
-- Locks: parked.
-- Writes: parked.
create or replace function headgate.block_rest(
  p_consumer int, p_lane bigint, p_due tid[], p_keys text[], p_gone text[], p_now timestamptz)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  firsts tid[] := headgate.first_parked(p_consumer, p_lane, p_keys);
begin
  update headgate.parked p set visible_at = 'infinity', reason = 'blocked'
   where p.ctid = any(p_due) and p.key = any(p_keys) and p.ctid <> all(firsts);
  firsts := headgate.hold_parked(firsts);
  update headgate.parked p
     set visible_at = case when p.key = any(p_gone) then p_now + interval '50 milliseconds'
                           else least(p.visible_at, p_now) end
   where p.ctid = any(firsts) and p.reason = 'blocked';
end $$;

-- unpark(consumer, lane, n, now) -> seq, attempt, key of parked messages that may be delivered now;
-- they are parked no more. In an ordered consumer a key's messages leave only in order, and none
-- while one of them is in flight or held by another transaction. What it takes may have been given
-- back after the caller's statement began: the messages are looked up in the next one.
-- Needs: the caller holds the lane's cursor.
-- Locks: parked (SKIP LOCKED), so that rows stay where they are found (ctid).
-- Writes: parked.
create or replace function headgate.unpark(
  c headgate.consumer, p_lane bigint, n int, p_now timestamptz)
returns table (seq bigint, attempt int, key text)
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  flying text[] := '{}';
  free text[];
  gone text[];
  due tid[];
  due_keys text[];
  taken tid[];
  held tid[];
  stuck text[];
  total int := 0;
begin
  if c.ordered then flying := headgate.keys_in_flight(c.id, p_lane); end if;
  -- point: it is known which keys fly
  loop
    -- what is due, but has to wait for an earlier message of its key, is put off below: then look
    -- at what else is due
    select array_agg(x.ctid), array_agg(x.key) into due, due_keys from (
      select p.ctid, p.key from headgate.parked p
       where p.consumer = c.id and p.lane = p_lane and p.visible_at <= p_now
       order by p.visible_at, p.seq limit n - total for update skip locked) x;
    -- point: what is due is held
    exit when due is null;
    if not c.ordered then
      return query delete from headgate.parked p where p.ctid = any(due)
        returning p.seq, p.attempt + 1, p.key;
      return;
    end if;
    if flying <> '{}' then perform headgate.put_off(due, due_keys, flying, p_now); end if;
    free := array(select distinct k from unnest(due_keys) k where k <> all(flying));
    select x.places, x.keys into taken, gone
      from headgate.first_in_order(c.id, p_lane, free, due, n - total, p_now) x;
    if taken is not null then
      held := headgate.hold_parked(taken);
      -- a key of which another transaction holds one waits as a whole
      if cardinality(held) < cardinality(taken) then
        stuck := array(select distinct u.k from unnest(taken, gone) u (t, k)
                        where u.t <> all(held));
        select array_agg(u.t), array_agg(u.k) into taken, gone from unnest(taken, gone) u (t, k)
         where coalesce(u.k <> all(stuck), true);
        update headgate.parked p set visible_at = p_now + interval '50 milliseconds'
         where p.ctid = any(due) and p.key = any(stuck);
        free := array(select k from unnest(free) k where k <> all(stuck));
      end if;
    end if;
    if taken is not null then
      return query delete from headgate.parked p where p.ctid = any(taken)
        returning p.seq, p.attempt + 1, p.key;
      total := total + cardinality(taken);
    end if;
    perform headgate.block_rest(c.id, p_lane, due, free, gone, p_now);
    exit when total >= n;
  end loop;
end $$;
