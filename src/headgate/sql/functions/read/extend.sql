-- extend: later or nearer deadlines, of whole deliveries and of messages. What holds is at the head
-- of read/deadlines.sql.

-- extend(stream, consumer, ack_ids, by) -> extended, stale. Of messages: their deadline is `by`
-- from now, also when that is nearer, and the other messages of their batches keep theirs. Of whole
-- deliveries: the deadline of all that is in flight of it is at least `by` from now. With 0 they
-- are visible at once, as if their deadline had passed: the delivery counts as an attempt, as it
-- does then, and an ack still counts until somebody else gets them; in ordered consumers later
-- messages of the same keys in the same deliveries go back with them. Otherwise it does not count
-- as an attempt. Waits at most half a second for another transaction that extends or settles the
-- same.
-- Locks: the deliveries FOR NO KEY UPDATE, those that are split FOR KEY SHARE (SKIP LOCKED).
-- Writes: delivery, departed; with 0 as nack.
create or replace function headgate.extend(stream text, consumer text, ack_ids text[], by interval,
                                           out extended int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  until timestamptz := clock_timestamp() + interval '500 milliseconds';
  a record;
  n int;
begin
  extended := 0; stale := 0;
  if by is null or by < interval '0' or by > interval '7 days' then
    perform headgate.fail('HG010',
                          format('an extension by %s is not possible', coalesce(by::text, 'null')),
      'choose 0 (visible now) to 7 days');
  end if;
  perform headgate.meet_no_rewrite();
  for a in select * from headgate.parse_acks(ack_ids) loop
    if by = interval '0' then
      n := headgate.expire_now(c, a.lane, a.delivery, a.seqs, until);
    elsif a.seqs is null then
      n := headgate.extend_whole(c, a.lane, a.delivery, by, until);
    else
      n := headgate.extend_messages(c, a.lane, a.delivery, a.seqs, by, until);
    end if;
    if a.seqs is null and n > 0 then n := a.given; end if;
    extended := extended + n;
    stale := stale + greatest(case when a.seqs is null then a.given
                                   else
                                     (select count(distinct s)::int from unnest(a.seqs) s) end - n,
                                     0);
  end loop;
end $$;

-- expire_now(consumer, lane, delivery, seqs, until) -> how many of these messages (null: all) were
-- in flight and are visible now.
-- Locks: as take_out.
-- Writes: delivery, departed, parked, wake, the dead-letter stream.
create or replace function headgate.expire_now(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_until timestamptz)
returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  d headgate.delivery := headgate.take_out_all(c, p_lane, p_delivery, p_seqs, p_until, c.ordered);
  expired bigint[];
begin
  if d.seqs is null or d.seqs = '{}' then return 0; end if;
  expired := case when p_seqs is null then d.seqs
                  else array(select unnest(d.seqs) intersect select unnest(p_seqs)) end;
  -- point: what expires now is taken out
  d.id := p_delivery;
  d.parent := null;
  d.deadline := clock_timestamp();
  perform headgate.park_failed(c, d, expired, null, 'expired', null);
  perform headgate.hand_back(
    headgate.part_of(d, array(select unnest(d.seqs) except select unnest(expired))), 'blocked');
  perform headgate.mark_split(c.id, p_lane, p_delivery);
  return cardinality(expired);
end $$;

-- mark_split(consumer id, lane, delivery): an ack of what is left of the batch is to look for
-- messages of it that are parked. (Where another transaction extends it at this moment it stays
-- without the mark, and they may come again after such an ack.)
-- Locks: the delivery FOR NO KEY UPDATE (SKIP LOCKED).
-- Writes: delivery.
create or replace function headgate.mark_split(p_consumer int, p_lane bigint, p_delivery bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
begin
  perform from headgate.delivery x
    where x.consumer = p_consumer and x.lane = p_lane and x.id = p_delivery and x.is_split is null
      for no key update skip locked;
  if found then
    update headgate.delivery x set is_split = true
     where x.consumer = p_consumer and x.lane = p_lane and x.id = p_delivery;
  end if;
exception when lock_not_available then
  null;
end $$;

-- extend_whole(consumer, lane, delivery, by, until) -> how many rows of what is in flight of a
-- delivery have a deadline that is no nearer than that now.
-- Locks: the deliveries FOR NO KEY UPDATE (SKIP LOCKED).
-- Writes: delivery.
create or replace function headgate.extend_whole(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_by interval, p_until timestamptz)
returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  d headgate.delivery := headgate.hold_to_extend(c.id, p_lane, p_delivery, p_until);
  own bigint[];
  n int := 0;
begin
  -- point: a delivery to extend is held
  if d.id is not null then
    d := headgate.in_flight_of(d);
    if d.seqs <> '{}' then
      update headgate.delivery x set deadline = greatest(x.deadline, clock_timestamp() + p_by)
       where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery;
      n := 1;
    end if;
  end if;
  own := headgate.hold_own(c.id, p_lane, p_delivery, null, false, p_until);
  if own <> '{}' then
    update headgate.delivery x set deadline = greatest(x.deadline, clock_timestamp() + p_by)
     where x.consumer = c.id and x.lane = p_lane and x.id = any(own);
    n := n + cardinality(own);
  end if;
  if n = 0 and d.id is null then
    perform headgate.expect_no_more(c.id, p_lane, p_delivery, null);
  end if;
  return n;
end $$;

-- split_off(delivery, seqs, deadline) -> those of these messages that left the delivery for rows of
-- their own, with that deadline.
-- Needs: the caller holds the delivery, or a part of it.
-- Writes: delivery, departed.
create or replace function headgate.split_off(d headgate.delivery, p_seqs bigint[],
                                              p_deadline timestamptz) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare
  mine bigint[] := headgate.insert_departed_patiently(d, p_seqs);
begin
  -- point: messages have left for deadlines of their own
  insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at,
                                 worker, parent, is_watched)
    select d.consumer, d.lane, array[u.s], array[coalesce(u.a, 1)],
           case when d.keys is not null then array[u.k] end,
           p_deadline, d.delivered_at, d.worker, d.id, true
      from unnest(d.seqs, d.attempts, d.keys) u (s, a, k) where u.s = any(mine) order by u.s;
  if d.is_split is null and mine <> '{}' then
    update headgate.delivery x set is_split = true
     where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id;
  end if;
  perform headgate.remove_if_empty(d);
  return mine;
end $$;

-- extend_messages(consumer, lane, delivery, seqs, by, until) -> how many of these messages were in
-- flight and have their deadline then. All that is left of a batch keeps its row; otherwise each
-- gets a row of its own.
-- Locks: as extend.
-- Writes: delivery, departed.
create or replace function headgate.extend_messages(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_by interval,
  p_until timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare
  d headgate.delivery;
  flying bigint[];
  mine bigint[] := '{}';
  missing bigint[] := p_seqs;
  own bigint[];
  until timestamptz;
  has_all boolean;
begin
  perform from headgate.delivery x
   where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery and x.is_split;
  has_all := not found;
  if has_all then
    d := headgate.hold_to_extend(c.id, p_lane, p_delivery, p_until);
  else
    -- others may extend other messages of it at the same time
    d := headgate.hold_part(c.id, p_lane, p_delivery);
  end if;
  -- point: a batch to extend messages of is held
  if d.id is not null then
    flying := (headgate.in_flight_of(d)).seqs;
    mine := array(select unnest(flying) intersect select unnest(p_seqs));
    until := clock_timestamp() + p_by;
    if mine <> '{}' and has_all and cardinality(mine) = cardinality(flying) then
      update headgate.delivery x set
             is_watched = case when until < x.deadline then true else x.is_watched end,
             deadline = until
       where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery;
    elsif mine <> '{}' then
      mine := headgate.split_off(d, mine, until);
    end if;
    missing := array(select unnest(p_seqs) except select unnest(mine));
  end if;
  if missing = '{}' then return cardinality(mine); end if;
  own := headgate.hold_own(c.id, p_lane, p_delivery, missing, false, p_until);
  if own <> '{}' then
    update headgate.delivery x set deadline = clock_timestamp() + p_by
     where x.consumer = c.id and x.lane = p_lane and x.id = any(own);
  end if;
  if cardinality(own) < cardinality(missing) then
    perform headgate.expect_no_more(c.id, p_lane, p_delivery, missing);
  end if;
  return cardinality(mine) + cardinality(own);
end $$;

-- hold_to_extend(consumer id, lane, delivery, until) -> the delivery, which is held now; null when
-- it is gone, or another's.
-- Locks: the delivery FOR NO KEY UPDATE (SKIP LOCKED, again and again until then).
create or replace function headgate.hold_to_extend(p_consumer int, p_lane bigint, p_delivery bigint,
                                                   p_until timestamptz)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare d headgate.delivery;
begin
  loop
    begin
      select * into d from headgate.delivery x
       where x.consumer = p_consumer and x.lane = p_lane and x.id = p_delivery
         for no key update skip locked;
    exception when lock_not_available then  -- (as hold_part says)
      d := null;
    end;
    exit when d.id is not null or clock_timestamp() > p_until
      or not exists (select from headgate.delivery x
                      where x.consumer = p_consumer and x.lane = p_lane and x.id = p_delivery);
    perform pg_sleep(0.002);
  end loop;
  return d;
end $$;
