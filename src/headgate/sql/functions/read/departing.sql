-- Departing: how messages leave the delivery that they are in, whoever settles or expires them.
--
-- A message leaves its delivery in one of two ways. When all that is left of a delivery goes at
-- once, its row is deleted. When some of it goes, the row stays as it is and a row in `departed`
-- says so for each message: two sessions that settle different messages of a batch insert different
-- rows, and never wait for each other. In flight is a delivery less its departed.
--
-- What an open transaction settles nobody else may hand out before its end. Who lets a part depart
-- holds the delivery FOR KEY SHARE, who takes all of it FOR UPDATE, and who takes expired ones
-- apart asks for FOR UPDATE SKIP LOCKED, which meets both. An extension (NO KEY UPDATE) and
-- departures do not meet. Nobody queues for these locks, so that there is no circle to be closed:
-- who does not get one tries again for a moment, and then the message is another's to settle, which
-- is what a stale ack_id says.

-- meet_no_rewrite(): waits until nobody rewrites the small tables that settling writes, and keeps
-- them from that until the end of the transaction. The functions below wait for rows for a moment
-- only (lock_timeout), and would take a table that is being rewritten for one of these.
-- Locks: delivery, departed, parked, wake ACCESS SHARE.
create or replace function headgate.meet_no_rewrite() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  lock table headgate.delivery, headgate.departed, headgate.parked, headgate.wake
    in access share mode;
end $$;

-- in_flight_of(delivery) -> its messages that are still in flight: seqs, attempts and keys without
-- what has departed.
create or replace function headgate.in_flight_of(d headgate.delivery) returns headgate.delivery
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare gone bigint[];
begin
  gone := array(
    select x.seq from headgate.departed x
     where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id);
  if gone <> '{}' then
    d := headgate.part_of(d, array(select unnest(d.seqs) except select unnest(gone)));
  end if;
  return d;
end $$;

-- keys_in_flight(consumer id, lane) -> the keys of what is in flight there.
create or replace function headgate.keys_in_flight(p_consumer int, p_lane bigint) returns text[]
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
begin
  if exists (select from headgate.departed x where x.consumer = p_consumer and x.lane = p_lane) then
    return array(
      select distinct f.key from headgate.in_flight f
       where f.consumer = p_consumer and f.lane = p_lane and f.key is not null);
  end if;
  return array(
    select distinct k from headgate.delivery d, unnest(d.keys) k
     where d.consumer = p_consumer and d.lane = p_lane and k is not null);
end $$;

-- part_of(delivery, seqs) -> the delivery with these of its messages alone, in its order. (A batch
-- may have 10,000: its callers turn the joins off that take no longer for them.)
create or replace function headgate.part_of(d headgate.delivery, p_seqs bigint[])
returns headgate.delivery
language plpgsql immutable set search_path = pg_catalog, pg_temp set enable_hashjoin = on
  set enable_mergejoin = on as $$
begin
  if cardinality(p_seqs) = cardinality(d.seqs) then return d; end if;
  select coalesce(array_agg(u.s order by u.ord), '{}'),
         case when d.attempts is not null then coalesce(array_agg(u.a order by u.ord), '{}') end,
         case when d.keys is not null then coalesce(array_agg(u.k order by u.ord), '{}') end
    into d.seqs, d.attempts, d.keys
    from unnest(d.seqs, d.attempts, d.keys) with ordinality u (s, a, k, ord)
      join unnest(p_seqs) p (s) using (s);
  return d;
end $$;

-- depart_later(delivery, seqs) -> these messages, which have left the delivery, and the later ones
-- of the same keys, which leave it now. Only what has left takes along what is in flight behind it:
-- one that was acked before does not, nor one that another is settling.
-- Needs: the caller holds a part of the delivery.
-- Writes: departed.
create or replace function headgate.depart_later(d headgate.delivery, p_seqs bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare
  later bigint[] := array(select unnest(headgate.with_later(d, p_seqs)) intersect
                          select unnest((headgate.in_flight_of(d)).seqs));
begin
  return p_seqs || case when later <> '{}' then headgate.depart(d, later) end;
end $$;

-- alone_of(delivery, seq) -> the delivery with this message alone.
create or replace function headgate.alone_of(d headgate.delivery, p_seq bigint)
returns headgate.delivery
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  nth int := array_position(d.seqs, p_seq);
begin
  if d.keys is not null then d.keys := array[d.keys[nth]]; end if;
  if d.attempts is not null then d.attempts := array[d.attempts[nth]]; end if;
  d.seqs := array[p_seq];
  return d;
end $$;

-- take_out(consumer, lane, delivery, seqs, until, later) -> the delivery with those messages that
-- leave it now, of the ones that are asked for (null: all) and are in flight; null when there is no
-- such delivery any more, or another transaction is settling all of it. With `later`, the later
-- messages of the same keys leave, too.
-- Locks: the delivery as the head of this file says; waits no longer than `until`.
-- Writes: delivery, departed.
create or replace function headgate.take_out(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_until timestamptz,
  p_later boolean default false)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare
  d headgate.delivery;
  asked bigint[];
  is_fixed boolean := headgate.has_fixed_snapshot();
begin
  if cardinality(p_seqs) = 1 and not p_later then  -- most often out of a larger batch
    d := headgate.hold_part(c.id, p_lane, p_delivery);
    if cardinality(d.seqs) > 1 then
      asked := headgate.let_depart(d, p_seqs);
      if asked = '{}' then return headgate.part_of(d, asked); end if;
      return headgate.alone_of(d, asked[1]);
    end if;
  end if;
  loop
    -- there the rows of `departed` that this would have to see may be out of sight
    if not is_fixed then
      select * into d from headgate.delivery x
       where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery
         and (p_seqs is null or (cardinality(x.seqs) <= cardinality(p_seqs)
              -- hashed: <@ is quadratic
              and not exists (select unnest(x.seqs) except select unnest(p_seqs))))
         for update skip locked;
      if found then
        d := headgate.in_flight_of(d);
        -- point: all of a delivery is held
        perform headgate.remove_delivery(d);
        return d;
      end if;
    end if;
    d := headgate.hold_part(c.id, p_lane, p_delivery);
    if d.id is not null then
      -- point: a part of a delivery is held
      asked := headgate.depart(d, p_seqs);
      if p_later and p_seqs is not null and asked <> '{}' then
        asked := headgate.depart_later(d, asked);
      end if;
      -- not before: with it goes who has departed, and would be taken along again
      perform headgate.remove_if_empty(d);
      return headgate.part_of(d, asked);
    end if;
    perform from headgate.delivery x
     where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery;
    if not found then
      if is_fixed then perform headgate.expect_no_delivery(c.id, p_lane, p_delivery); end if;
      return null;
    end if;
    if clock_timestamp() > p_until then return null; end if;
    perform pg_sleep(0.005);
  end loop;
end $$;

-- hold_part(consumer id, lane, delivery) -> the delivery, held so that a part of it may depart;
-- null when there is none, or another holds all of it.
-- Locks: the delivery FOR KEY SHARE (SKIP LOCKED, which waits after all when a newer version of the
-- row has to be locked, too).
create or replace function headgate.hold_part(p_consumer int, p_lane bigint, p_delivery bigint)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare d headgate.delivery;
begin
  select * into d from headgate.delivery x
   where x.consumer = p_consumer and x.lane = p_lane and x.id = p_delivery
     for key share skip locked;
  return d;
exception when lock_not_available then
  return null;
end $$;

-- remove_delivery(delivery): deletes a delivery of which nothing is in flight any more.
-- Needs: the caller holds it.
-- Writes: delivery, departed.
create or replace function headgate.remove_delivery(d headgate.delivery) returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  delete from headgate.delivery x where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id;
  delete from headgate.departed x
   where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id;
$$;

-- with_later(delivery, seqs) -> these, and the messages of the delivery that come after one of them
-- in its key.
create or replace function headgate.with_later(d headgate.delivery, p_seqs bigint[])
returns bigint[]
language sql immutable set search_path = pg_catalog, pg_temp set enable_hashjoin = on
  set enable_mergejoin = on as $$
  select array(
    with firsts as (
      select u.k, min(u.s) as seq from unnest(d.seqs, d.keys) u (s, k) join unnest(p_seqs) p (s)
       using (s)
       where u.k is not null group by u.k)
    select u.s from unnest(d.seqs, d.keys) u (s, k) join firsts f on f.k = u.k and u.s > f.seq
    union
    select unnest(p_seqs))
$$;

-- let_depart(delivery, seqs) -> as depart; deletes the delivery when nothing of it is left.
-- Writes: departed, delivery.
create or replace function headgate.let_depart(d headgate.delivery, p_seqs bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  gone bigint[] := headgate.depart(d, p_seqs);
begin
  perform headgate.remove_if_empty(d);
  return gone;
end $$;

-- remove_if_empty(delivery): deletes a delivery of which everything has departed. What has departed
-- is only counted once the last message has, and one taken by chance: a batch that is acked one by
-- one is not counted each time.
-- Needs: the caller holds it FOR KEY SHARE.
-- Locks: the delivery (SKIP LOCKED).
-- Writes: delivery, departed.
create or replace function headgate.remove_if_empty(d headgate.delivery) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  some_seq bigint := d.seqs[1 + floor(random() * cardinality(d.seqs))::int];
begin
  if (select x.seq from headgate.departed x
       where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id
         and x.seq = d.seqs[cardinality(d.seqs)]) is null
     or (select x.seq from headgate.departed x
          where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id
            and x.seq = some_seq) is null then
    return;
  end if;
  if cardinality(d.seqs) <= (
       select count(*) from headgate.departed x
        where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id) then
    perform from headgate.delivery x
     where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id for update skip locked;
    if found then perform headgate.remove_delivery(d); end if;
  end if;
end $$;

-- depart(delivery, seqs) -> those of the messages (null: all) that leave the delivery now.
-- Needs: the caller holds it FOR KEY SHARE and has set lock_timeout: a message that another open
-- transaction lets depart is not waited for longer than that.
-- Writes: departed.
create or replace function headgate.depart(d headgate.delivery, p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  asked bigint[];
  gone bigint[];
begin
  asked := case when p_seqs is null then d.seqs
                when cardinality(p_seqs) = 1 then case when p_seqs[1] = any(d.seqs) then p_seqs
                                                       else '{}' end
                else array(select unnest(d.seqs) intersect select unnest(p_seqs)) end;
  if asked = '{}' then return asked; end if;
  -- point: messages are to depart
  gone := headgate.insert_departed_patiently(d, asked);
  -- point: messages have departed
  return gone;
end $$;

-- insert_departed(delivery, seqs) -> those that had not departed before. Waits for another
-- transaction that lets the same message depart. Where the snapshot is fixed, PostgreSQL raises a
-- serialization failure when that has happened out of sight.
-- Writes: departed.
create or replace function headgate.insert_departed(d headgate.delivery, p_seqs bigint[])
returns bigint[]
language sql set search_path = pg_catalog, pg_temp as $$
  with gone as (
    insert into headgate.departed (consumer, lane, delivery, seq)
      select d.consumer, d.lane, d.id, s from unnest(p_seqs) s order by s
      on conflict do nothing returning seq)
  select coalesce(array_agg(g.seq), '{}') from gone g
$$;

-- insert_departed_patiently(delivery, seqs) -> the same, without those that another open
-- transaction is letting depart: all at once, and when that fails for one of them, ever smaller
-- parts, so that a batch of thousands is not held up by one. Waits for half a second in all.
-- Writes: departed.
create or replace function headgate.insert_departed_patiently(d headgate.delivery, p_seqs bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  gone bigint[] := '{}';
  was text := current_setting('lock_timeout');
  waits int := 0;
  n int := cardinality(p_seqs);
  firsts int[] := array[1, n / 2 + 1];  -- parts that are left to do, by their places
  lasts int[] := array[n / 2, n];
  first int;
  last int;
begin
  begin
    return headgate.insert_departed(d, p_seqs);
  exception when lock_not_available or deadlock_detected then
    if n = 1 then return gone; end if;
  end;
  while firsts <> '{}' and waits < 200 loop
    first := firsts[1];
    last := lasts[1];
    firsts := firsts[2 :];
    lasts := lasts[2 :];
    begin
      perform set_config('lock_timeout', '2ms', true);
      gone := gone || headgate.insert_departed(d, p_seqs[first : last]);
    exception when lock_not_available or deadlock_detected then
      waits := waits + 1;
      if first < last then
        firsts := firsts || array[first, (first + last + 1) / 2];
        lasts := lasts || array[(first + last + 1) / 2 - 1, last];
      end if;
    end;
  end loop;
  perform set_config('lock_timeout', was, true);
  return gone;
end $$;

-- expect_no_delivery(consumer id, lane, id): raises a serialization failure when there is such a
-- delivery after all, out of sight of this transaction's fixed snapshot (it is younger, or its
-- table was rewritten): only a unique index tells.
-- Writes: nothing that stays.
create or replace function headgate.expect_no_delivery(p_consumer int, p_lane bigint, p_id bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
begin
  insert into headgate.delivery (consumer, lane, id, seqs, deadline)
    values (p_consumer, p_lane, p_id, '{}', 'infinity') on conflict do nothing;
  delete from headgate.delivery x where x.consumer = p_consumer and x.lane = p_lane and x.id = p_id;
exception when lock_not_available or deadlock_detected then
  perform headgate.no_fixed_snapshot();
end $$;

-- forget_departed(consumer) -> how many rows about messages of deliveries that are gone were
-- deleted, at most 10,000 a call. First deletes deliveries of which everything has departed: two
-- that settled the last of it at the same time did not see each other, and the row would count as
-- one in flight until its deadline.
-- Locks: deliveries (SKIP LOCKED).
-- Writes: delivery, departed.
create or replace function headgate.forget_departed(c headgate.consumer) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare n int;
begin
  with counted as materialized (
    select x.lane, x.delivery, count(*) as n from headgate.departed x
     where x.consumer = c.id group by x.lane, x.delivery),
  empty as materialized (
    select d.lane, d.id from counted x join headgate.delivery d
        on d.consumer = c.id and d.lane = x.lane and d.id = x.delivery
        and cardinality(d.seqs) <= x.n
       for update of d skip locked)
  delete from headgate.delivery d using empty x
   where d.consumer = c.id and d.lane = x.lane and d.id = x.id;
  with gone as (
    select x.lane, x.delivery, x.seq from headgate.departed x
     where x.consumer = c.id
       and not exists (select from headgate.delivery d
                        where d.consumer = c.id and d.lane = x.lane and d.id = x.delivery)
     limit 10000 for update skip locked)
  delete from headgate.departed x using gone g
   where x.consumer = c.id and x.lane = g.lane and x.delivery = g.delivery and x.seq = g.seq;
  get diagnostics n = row_count;
  return n;
end $$;
