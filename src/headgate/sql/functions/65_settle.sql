-- Settling what was received: ack, nack, release, extend. These change only the caller's own deliveries and insert rows, so they
-- are safe inside any transaction. An ack_id is lane.delivery.seq for a message, lane.delivery for a whole delivery.
-- Who may hold what is in docs/concepts/locks.md.

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

-- A message leaves its delivery in one of two ways. When all that is left of a delivery goes at once, its row is deleted. When some
-- of it goes, the row stays as it is and a row in `departed` says so for each message: two sessions that settle different
-- messages of a batch insert different rows, and never wait for each other. In flight is a delivery less its departed.
--
-- What an open transaction settles nobody else may hand out before its end. Who lets a part depart holds the delivery FOR KEY SHARE,
-- who takes all of it FOR UPDATE, and who takes expired ones apart asks for FOR UPDATE SKIP LOCKED, which meets both. An extension
-- (NO KEY UPDATE) and departures do not meet.
-- Nobody queues for these locks, so that there is no circle to be closed: who does not get one tries again for a moment, and
-- then the message is another's to settle, which is what a stale ack_id says.

-- in_flight_of(delivery) -> its messages that are still in flight: seqs, attempts and keys without what has departed.
create or replace function headgate.in_flight_of(d headgate.delivery) returns headgate.delivery
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare gone bigint[];
begin
  gone := array(
    select x.seq from headgate.departed x
     where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id);
  if gone <> '{}' then d := headgate.part_of(d, array(select unnest(d.seqs) except select unnest(gone))); end if;
  return d;
end $$;

-- keys_in_flight(consumer id, lane) -> the keys of what is in flight there.
create or replace function headgate.keys_in_flight(p_consumer int, p_lane bigint) returns text[]
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  if exists (select from headgate.departed x where x.consumer = p_consumer and x.lane = p_lane) then
    return array(
      select distinct f.key from headgate.in_flight f where f.consumer = p_consumer and f.lane = p_lane and f.key is not null);
  end if;
  return array(
    select distinct k from headgate.delivery d, unnest(d.keys) k where d.consumer = p_consumer and d.lane = p_lane and k is not null);
end $$;

-- part_of(delivery, seqs) -> the delivery with these of its messages alone, in its order.
create or replace function headgate.part_of(d headgate.delivery, p_seqs bigint[]) returns headgate.delivery
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if cardinality(p_seqs) = cardinality(d.seqs) then return d; end if;
  select coalesce(array_agg(u.s order by u.ord), '{}'),
         case when d.attempts is not null then coalesce(array_agg(u.a order by u.ord), '{}') end,
         case when d.keys is not null then coalesce(array_agg(u.k order by u.ord), '{}') end
    into d.seqs, d.attempts, d.keys
    from unnest(d.seqs, d.attempts, d.keys) with ordinality u (s, a, k, ord) join unnest(p_seqs) p (s) using (s);
  return d;
end $$;

-- take_out(consumer, lane, delivery, seqs, until, later) -> the delivery with those messages that leave it now, of the ones that are asked for
-- (null: all) and are in flight; null when there is no such delivery any more, or another transaction is settling all of it.
-- With `later`, the later messages of the same keys leave, too. Locks the delivery as the head of this file says; waits
-- no longer than `until`. Writes delivery, departed.
create or replace function headgate.take_out(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_until timestamptz, p_later boolean default false)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
  d headgate.delivery;
  asked bigint[] := p_seqs;
  is_fixed boolean := headgate.has_fixed_snapshot();
begin
  if cardinality(p_seqs) = 1 and not p_later then  -- most often out of a larger batch
    select * into d from headgate.delivery x
     where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery and cardinality(x.seqs) > 1 for key share skip locked;
    if found then
      asked := headgate.let_depart(d, p_seqs);
      if asked = '{}' then return headgate.part_of(d, asked); end if;
      d.keys := case when d.keys is not null then array[d.keys[array_position(d.seqs, asked[1])]] end;
      d.attempts := case when d.attempts is not null then array[d.attempts[array_position(d.seqs, asked[1])]] end;
      d.seqs := asked;
      return d;
    end if;
  end if;
  loop
    if not is_fixed then  -- there the rows of `departed` that this would have to see may be out of sight
      select * into d from headgate.delivery x
       where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery
         and (p_seqs is null or (cardinality(x.seqs) <= cardinality(p_seqs)
              and not exists (select unnest(x.seqs) except select unnest(p_seqs))))  -- hashed: <@ is quadratic
         for update skip locked;
      if found then
        d := headgate.in_flight_of(d);
        perform headgate.remove_delivery(d);
        return d;
      end if;
    end if;
    select * into d from headgate.delivery x
     where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery for key share skip locked;
    if found then
      -- (behind those that are in flight: one that was acked before takes nothing along)
      if p_later and p_seqs is not null then asked := headgate.with_later(headgate.in_flight_of(d), p_seqs); end if;
      return headgate.part_of(d, headgate.let_depart(d, asked));
    end if;
    perform from headgate.delivery x where x.consumer = c.id and x.lane = p_lane and x.id = p_delivery;
    if not found then
      if is_fixed then perform headgate.expect_no_delivery(c.id, p_lane, p_delivery); end if;
      return null;
    end if;
    if clock_timestamp() > p_until then return null; end if;
    perform pg_sleep(0.005);
  end loop;
end $$;

-- remove_delivery(delivery): deletes a delivery of which nothing is in flight any more. The caller holds it. Writes delivery, departed.
create or replace function headgate.remove_delivery(d headgate.delivery) returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  delete from headgate.delivery x where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id;
  delete from headgate.departed x where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id;
$$;

-- with_later(delivery, seqs) -> these, and the messages of the delivery that come after one of them in its key.
create or replace function headgate.with_later(d headgate.delivery, p_seqs bigint[]) returns bigint[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array(
    with firsts as (
      select u.k, min(u.s) as seq from unnest(d.seqs, d.keys) u (s, k) join unnest(p_seqs) p (s) using (s)
       where u.k is not null group by u.k)
    select u.s from unnest(d.seqs, d.keys) u (s, k) join firsts f on f.k = u.k and u.s > f.seq
    union
    select unnest(p_seqs))
$$;

-- let_depart(delivery, seqs) -> those of the messages (null: all) that leave the delivery now. The caller holds it FOR KEY SHARE and has
-- set lock_timeout: a message that another open transaction lets depart is not waited for longer than that.
-- Writes departed; deletes the delivery when nothing of it is left.
create or replace function headgate.let_depart(d headgate.delivery, p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  asked bigint[];
  gone bigint[];
  is_alone boolean;
begin
  asked := case when p_seqs is null then d.seqs
                when cardinality(p_seqs) = 1 then case when p_seqs[1] = any(d.seqs) then p_seqs else '{}' end
                else array(select unnest(d.seqs) intersect select unnest(p_seqs)) end;
  if asked = '{}' then return asked; end if;
  -- While nobody else has a lock on the delivery, nobody is letting its messages depart.
  select x.xmax::text::bigint = (pg_current_xact_id()::text::bigint & 4294967295) into is_alone
    from headgate.delivery x where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id;
  if is_alone then
    with i as (
      insert into headgate.departed (consumer, lane, delivery, seq)
        select d.consumer, d.lane, d.id, s from unnest(asked) s order by s on conflict do nothing returning seq)
    select coalesce(array_agg(i.seq), '{}') into gone from i;
  else
    gone := headgate.insert_departed_patiently(d, asked);
  end if;
  if cardinality(d.seqs) <= (
       select count(*) from headgate.departed x where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id) then
    perform from headgate.delivery x where x.consumer = d.consumer and x.lane = d.lane and x.id = d.id for update skip locked;
    if found then perform headgate.remove_delivery(d); end if;
  end if;
  return gone;
end $$;

-- insert_departed(delivery, seqs) -> those that had not departed before. Waits for another transaction that lets the same message
-- depart. Where the snapshot is fixed, PostgreSQL raises a serialization failure when that has happened out of sight.
-- Writes departed.
create or replace function headgate.insert_departed(d headgate.delivery, p_seqs bigint[]) returns bigint[]
language sql set search_path = pg_catalog, pg_temp as $$
  with gone as (
    insert into headgate.departed (consumer, lane, delivery, seq)
      select d.consumer, d.lane, d.id, s from unnest(p_seqs) s order by s
      on conflict do nothing returning seq)
  select coalesce(array_agg(g.seq), '{}') from gone g
$$;

-- insert_departed_patiently(delivery, seqs) -> the same, without those that another open transaction is letting depart: all at once, and
-- when that fails for one of them, one by one for half a second. Writes departed.
create or replace function headgate.insert_departed_patiently(d headgate.delivery, p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  gone bigint[] := '{}';
  s bigint;
  until timestamptz := clock_timestamp() + interval '500 milliseconds';
begin
  begin
    return headgate.insert_departed(d, p_seqs);
  exception when lock_not_available or deadlock_detected then
    null;
  end;
  foreach s in array p_seqs loop
    exit when clock_timestamp() > until;
    begin
      gone := gone || headgate.insert_departed(d, array[s]);
    exception when lock_not_available or deadlock_detected then
      null;
    end;
  end loop;
  return gone;
end $$;

-- expect_no_delivery(consumer id, lane, id): raises a serialization failure when there is such a delivery after all, out of sight of this
-- transaction's fixed snapshot (it is younger, or its table was rewritten): only a unique index tells. Writes nothing that stays.
create or replace function headgate.expect_no_delivery(p_consumer int, p_lane bigint, p_id bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set lock_timeout = '100ms' as $$
begin
  insert into headgate.delivery (consumer, lane, id, seqs, deadline)
    values (p_consumer, p_lane, p_id, '{}', 'infinity') on conflict do nothing;
  delete from headgate.delivery x where x.consumer = p_consumer and x.lane = p_lane and x.id = p_id;
exception when lock_not_available or deadlock_detected then
  perform headgate.no_fixed_snapshot();
end $$;

-- settle(consumer, ack_ids) -> how many messages were acked, how many ack_ids were stale. In ordered consumers leaves a note for
-- keys that have messages waiting. The usual case goes first, in one statement: all of a delivery, by its own name or by those of its messages in
-- their order, and nobody else has touched it (xmax). Locks as take_out; writes delivery, departed, wake.
create or replace function headgate.settle(c headgate.consumer, p_acks text[], out acked int, out stale int)
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  until timestamptz := clock_timestamp() + interval '200 milliseconds';  -- for all that others hold
  is_fixed boolean := current_setting('transaction_isolation') in ('repeatable read', 'serializable');
  a record;
  r record;
  d headgate.delivery;
  given int := 0;
  whole text[] := '{}';
  l bigint;
  i bigint;
  s bigint[];
begin
  acked := 0; stale := 0;
  if cardinality(p_acks) = 1 and p_acks[1] ~ '^[0-9]{1,18}\.[0-9]{1,18}(\.[0-9]{1,18})?$' then  -- without the rest, which costs more
    l := split_part(p_acks[1], '.', 1); i := split_part(p_acks[1], '.', 2); s := array[nullif(split_part(p_acks[1], '.', 3), '')::bigint];
    if s[1] is null then s := null; end if;
    if not is_fixed then
      delete from headgate.delivery x where x.ctid = (
        select y.ctid from headgate.delivery y
         where y.consumer = c.id and y.lane = l and y.id = i and y.xmax = '0'::xid and (s is null or y.seqs = s) for update skip locked)
        returning x.* into d;
    end if;
    if d.id is null then
      select p.acked, p.stale into settle.acked, settle.stale from headgate.settle_part(c, l, i, s, 1, until) p;
      return;
    end if;
    acked := cardinality(d.seqs);
    whole := p_acks;
    if c.ordered then perform headgate.leave_notes(c, l, d.keys); end if;
    if l >= 144115188075855872 then perform headgate.note_lane(c, l); end if;
  elsif not is_fixed then
    for r in
      delete from headgate.delivery x
       using (select h.place, p.given from headgate.parse_acks(p_acks) p cross join lateral (
                select y.ctid as place from headgate.delivery y
                 where y.consumer = c.id and y.lane = p.lane and y.id = p.delivery and y.xmax = '0'::xid
                   and (p.seqs is null or y.seqs = p.seqs) limit 1 for update skip locked) h offset 0) h
       where x.ctid = h.place
       returning x.lane, x.id, x.keys, cardinality(x.seqs) as n, h.given
    loop
      acked := acked + r.n;
      given := given + r.given;
      whole := whole || (r.lane || '.' || r.id);
      if c.ordered then perform headgate.leave_notes(c, r.lane, r.keys); end if;
      if r.lane >= 144115188075855872 then perform headgate.note_lane(c, r.lane); end if;
    end loop;
  end if;
  -- (what had departed after all: who held it was gone before this looked, or a vacuum forgot that)
  if whole <> '{}' and exists (select from headgate.departed x where x.consumer = c.id) then
    acked := acked - headgate.forget_departed_of(c, whole);
  end if;
  if given >= cardinality(p_acks) or whole = p_acks then return; end if;
  for a in select p.* from headgate.parse_acks(p_acks) p where p.lane || '.' || p.delivery <> all(whole) loop
    select p.* into r from headgate.settle_part(c, a.lane, a.delivery, a.seqs, a.given, until) p;
    acked := acked + r.acked;
    stale := stale + r.stale;
  end loop;
end $$;

-- settle_part(consumer, lane, delivery, seqs, given, until) -> the same for some messages of one delivery (null: all), of which `given` ack_ids speak.
create or replace function headgate.settle_part(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_given int, p_until timestamptz, out acked int, out stale int)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  d headgate.delivery := headgate.take_out(c, p_lane, p_delivery, p_seqs, p_until);
begin
  acked := coalesce(cardinality(d.seqs), 0);
  stale := case when d.seqs = p_seqs then 0 else headgate.stale_of(p_seqs, p_given, d.seqs) end;
  if acked = 0 then return; end if;
  if p_seqs is null then  -- those of the delivery that another open transaction is settling
    stale := stale + (
      select count(*)::int from headgate.in_flight f where f.consumer = c.id and f.lane = p_lane and f.delivery = p_delivery);
  end if;
  if c.ordered then perform headgate.leave_notes(c, d.lane, d.keys); end if;
  if d.lane >= 144115188075855872 then perform headgate.note_lane(c, d.lane); end if;
end $$;

-- forget_departed_of(consumer, deliveries) -> how many messages of these deliveries, which are deleted, had departed before. Writes departed.
create or replace function headgate.forget_departed_of(c headgate.consumer, p_deliveries text[]) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  a record;
  n int;
  total int := 0;
begin
  for a in select * from headgate.parse_acks(p_deliveries) loop
    delete from headgate.departed x where x.consumer = c.id and x.lane = a.lane and x.delivery = a.delivery;
    get diagnostics n = row_count;
    total := total + n;
  end loop;
  return total;
end $$;

-- settle_surely(consumer, ack_ids): settles what a receive was told to, which answers nothing about it. So what another open transaction holds, a
-- seek that may yet be undone for instance, is tried again for a second and then an error, 55P03; what is gone is gone. Writes as settle.
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
        join headgate.in_flight f on f.consumer = c.id and f.lane = a.lane and f.delivery = a.delivery and (a.seqs is null or f.seq = any(a.seqs)));
    if clock_timestamp() > until then
      perform headgate.fail('55P03', 'messages that were to be acked are held by another open transaction', 'repeat the call with the same acks');
    end if;
    perform pg_sleep(0.01);
  end loop;
end $$;

-- stale_of(asked, given, taken) -> how many of the ack_ids given of a delivery, of these messages (null: all of it), were stale.
create or replace function headgate.stale_of(p_asked bigint[], p_given int, p_taken bigint[]) returns int
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_taken is null then p_given
              when p_asked is null then case when p_taken = '{}' then p_given else 0 end
              else (select count(*)::int from (select unnest(p_asked) except select unnest(p_taken)) s) end
$$;

-- note_lane(consumer, lane): tells the next receive that something of a named lane is in flight no more, if the lane has limits or
-- sleeps because of limits that it had. Writes wake.
create or replace function headgate.note_lane(c headgate.consumer, p_lane bigint) returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  insert into headgate.wake (consumer, lane) select c.id, p_lane
   where c.ordered or c.max_concurrency is not null
      or exists (select from headgate.channel h where h.consumer = c.id and h.lane = p_lane)
      or exists (select from headgate.cursor k where k.consumer = c.id and k.lane = p_lane and k.next_at = 'infinity')
$$;

-- ack(stream, consumer, ack_ids) -> acked, stale. A stale ack_id changes nothing: its delivery has expired, the message is settled
-- already, or another open transaction is settling it.
create or replace function headgate.ack(stream text, consumer text, ack_ids text[], out acked int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  select s.acked, s.stale into ack.acked, ack.stale from headgate.settle(headgate.find_consumer(stream, consumer), ack_ids) s;
end $$;

-- nack(stream, consumer, ack_ids, delay, error) -> nacked, stale. The messages come again after the delay (default: the
-- consumer's backoff), or become dead letters after max_deliver attempts. In ordered consumers later messages of the same
-- keys in the same deliveries are released with them. Locks as take_out; writes delivery, departed, parked, the dead-letter stream.
create or replace function headgate.nack(
  stream text, consumer text, ack_ids text[], delay interval default null, error text default null, out nacked int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  until timestamptz := clock_timestamp() + interval '200 milliseconds';  -- for all that others hold
  a record;
  d headgate.delivery;
  failed bigint[];
begin
  nacked := 0; stale := 0;
  if delay < interval '0' then
    perform headgate.fail('HG010', format('a delay of %s is not possible', delay), 'choose 0 or more');
  end if;
  for a in select * from headgate.parse_acks(ack_ids) loop
    d := headgate.take_out(c, a.lane, a.delivery, a.seqs, until, c.ordered);
    stale := stale + headgate.stale_of(a.seqs, a.given, d.seqs);
    continue when d.id is null or d.seqs = '{}';
    failed := case when a.seqs is null then d.seqs else array(select unnest(d.seqs) intersect select unnest(a.seqs)) end;
    perform headgate.park_failed(c, d, failed, delay, 'nacked', error);
    perform headgate.hand_back(headgate.part_of(d, array(select unnest(d.seqs) except select unnest(failed))), 'blocked');
    nacked := nacked + cardinality(failed);
  end loop;
end $$;

-- release(stream, consumer, ack_ids) -> released, stale. Hands back messages that nobody began to work on: they are due at
-- once, and this delivery does not count as an attempt. In ordered consumers later messages of the same keys in the same
-- deliveries are released with them. Locks as take_out; writes delivery, departed, parked.
create or replace function headgate.release(stream text, consumer text, ack_ids text[], out released int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  until timestamptz := clock_timestamp() + interval '200 milliseconds';  -- for all that others hold
  a record;
  d headgate.delivery;
begin
  released := 0; stale := 0;
  for a in select * from headgate.parse_acks(ack_ids) loop
    d := headgate.take_out(c, a.lane, a.delivery, a.seqs, until, c.ordered);
    stale := stale + headgate.stale_of(a.seqs, a.given, d.seqs);
    continue when d.id is null or d.seqs = '{}';
    perform headgate.hand_back(d, 'released');
    if d.lane >= 144115188075855872 then insert into headgate.wake (consumer, lane) values (c.id, d.lane); end if;
    released := released + case when a.seqs is null then cardinality(d.seqs)
                                else (select count(*) from (select unnest(d.seqs) intersect select unnest(a.seqs)) s) end;
  end loop;
end $$;

-- hand_back(delivery, reason): parks messages that left their delivery as if it had not been: due at once, and not an attempt.
-- Writes parked.
create or replace function headgate.hand_back(d headgate.delivery, p_reason text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
    select d.consumer, d.lane, u.s, u.k, coalesce(u.a, 1) - 1, clock_timestamp(), p_reason
      from unnest(d.seqs, d.attempts, d.keys) u (s, a, k)
$$;

-- extend(stream, consumer, ack_ids, by) -> extended, stale. Moves the deadline of the deliveries to `by` from now, never
-- nearer (a lane is not looked at before its sweep_at). It does not count as an attempt. Waits at most half a second for another
-- transaction that extends or settles the same delivery. Locks the deliveries FOR NO KEY UPDATE (SKIP LOCKED); writes delivery.
create or replace function headgate.extend(stream text, consumer text, ack_ids text[], by interval, out extended int, out stale int)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  a record;
  d headgate.delivery;
  until timestamptz := clock_timestamp() + interval '500 milliseconds';
  n int;
begin
  extended := 0; stale := 0;
  if by is null or by <= interval '0' or by > interval '7 days' then
    perform headgate.fail('HG010', format('an extension by %s is not possible', coalesce(by::text, 'null')), 'choose more than 0 and at most 7 days');
  end if;
  for a in select * from headgate.parse_acks(ack_ids) loop
    loop
      select * into d from headgate.delivery x
       where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery for no key update skip locked;
      exit when found or clock_timestamp() > until
        or not exists (select from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery);
      perform pg_sleep(0.002);
    end loop;
    if d.id is null then
      if headgate.has_fixed_snapshot()
         and not exists (select from headgate.delivery x where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery) then
        perform headgate.expect_no_delivery(c.id, a.lane, a.delivery);
      end if;
      stale := stale + a.given;
      continue;
    end if;
    d := headgate.in_flight_of(d);
    n := case when a.seqs is null then case when d.seqs <> '{}' then a.given else 0 end
              else (select count(*) from (select unnest(a.seqs) intersect select unnest(d.seqs)) s) end;
    if n > 0 then
      update headgate.delivery x set deadline = greatest(x.deadline, clock_timestamp() + by)
       where x.consumer = c.id and x.lane = a.lane and x.id = a.delivery;
    end if;
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
    perform headgate.end_delivery(c, d);
  end loop;
  -- a delivery that is being settled at this moment was skipped: look again soon
  return (select greatest(min(x.deadline), p_now + interval '100 milliseconds') from headgate.delivery x where x.consumer = c.id and x.lane = p_lane);
end $$;

-- end_delivery(consumer, delivery): parks what is left of a delivery past its deadline, which the caller holds FOR UPDATE.
-- Writes delivery, departed, parked, wake, the dead-letter stream.
create or replace function headgate.end_delivery(c headgate.consumer, d headgate.delivery) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  d := headgate.in_flight_of(d);
  -- what has departed out of sight of a fixed snapshot raises a serialization failure here
  if headgate.has_fixed_snapshot() then perform headgate.insert_departed(d, d.seqs); end if;
  perform headgate.remove_delivery(d);
  if d.seqs <> '{}' then perform headgate.park_failed(c, d, d.seqs, null, 'expired', null); end if;
end $$;

-- sweep(consumer, now): takes expired deliveries apart in every lane that nobody is claiming. Writes delivery, parked, cursor.
create or replace function headgate.sweep(c headgate.consumer, p_now timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare l bigint; n int := headgate.expire(c, p_now);
begin
  for l in select k.lane from headgate.cursor k where k.consumer = c.id and k.lane < 144115188075855872 and k.sweep_at <= p_now
            order by k.lane for no key update skip locked loop
    update headgate.cursor k set sweep_at = headgate.take_apart(c, l, p_now) where k.consumer = c.id and k.lane = l;
    n := n + 1;
  end loop;
  return n;
end $$;

-- forget_departed(consumer) -> how many rows about messages of deliveries that are gone were deleted, at most 10,000 a call. Writes departed.
create or replace function headgate.forget_departed(c headgate.consumer) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare n int;
begin
  with gone as (
    select x.lane, x.delivery, x.seq from headgate.departed x
     where x.consumer = c.id
       and not exists (select from headgate.delivery d where d.consumer = c.id and d.lane = x.lane and d.id = x.delivery)
     limit 10000 for update skip locked)
  delete from headgate.departed x using gone g
   where x.consumer = c.id and x.lane = g.lane and x.delivery = g.delivery and x.seq = g.seq;
  get diagnostics n = row_count;
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

-- take_notes(consumer, lane, now): makes the first waiting message of each key that an ack has freed due. Notes of keys whose first one
-- another transaction holds stay. The caller holds the lane's cursor. Locks parked (SKIP LOCKED); writes wake, parked.
create or replace function headgate.take_notes(c headgate.consumer, p_lane bigint, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  freed text[];
  firsts tid[];
  held tid[];
begin
  freed := array(
    select distinct w.key from headgate.wake w where w.consumer = c.id and w.lane = p_lane and w.key is not null);
  if freed = '{}' then return; end if;
  firsts := headgate.first_parked(c.id, p_lane, freed);
  held := headgate.hold_parked(firsts);
  if cardinality(held) < cardinality(firsts) then
    freed := array(
      select k from unnest(freed) k
       where not exists (select from headgate.parked p where p.ctid = any(firsts) and p.ctid <> all(held) and p.key = k));
  end if;
  delete from headgate.wake w where w.consumer = c.id and w.lane = p_lane and w.key = any(freed);
  update headgate.parked p set visible_at = p_now where p.ctid = any(held) and p.reason = 'blocked' and p.visible_at > p_now;
end $$;

-- hold_parked(places) -> where the parked messages lie that nobody else holds: now they are held until the end of the transaction.
-- retry_now, discard and late acks change parked messages without a cursor, and may be part of a long transaction: claims pass over
-- these. Locks parked (SKIP LOCKED).
create or replace function headgate.hold_parked(p_places tid[]) returns tid[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  return array(select p.ctid from headgate.parked p where p.ctid = any(p_places) for update skip locked);
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
-- In an ordered consumer a key's messages leave only in order, and none while one of them is in flight or held by another transaction.
-- The caller holds the lane's cursor. Locks parked (SKIP LOCKED), so that rows stay where they are found (ctid); writes parked.
create or replace function headgate.unpark(c headgate.consumer, p_lane bigint, n int, p_now timestamptz) returns table (seq bigint, attempt int)
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  flying text[] := '{}'; free text[]; gone text[]; due tid[]; due_keys text[]; behind tid[]; taken tid[]; held tid[]; firsts tid[]; stuck text[]; total int := 0;
begin
  if c.ordered then
    flying := headgate.keys_in_flight(c.id, p_lane);
  end if;
  loop
    -- what is due, but has to wait for an earlier message of its key, is put off below: then look at what else is due
    select array_agg(x.ctid), array_agg(x.key) into due, due_keys from (
      select p.ctid, p.key from headgate.parked p where p.consumer = c.id and p.lane = p_lane and p.visible_at <= p_now
       order by p.visible_at, p.seq limit n - total for update skip locked) x;
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
      held := headgate.hold_parked(taken);
      if cardinality(held) < cardinality(taken) then  -- a key of which another transaction holds one waits as a whole
        stuck := array(select distinct u.k from unnest(taken, gone) u (t, k) where u.t <> all(held));
        select array_agg(u.t), array_agg(u.k) into taken, gone from unnest(taken, gone) u (t, k) where coalesce(u.k <> all(stuck), true);
        update headgate.parked p set visible_at = p_now + interval '50 milliseconds' where p.ctid = any(due) and p.key = any(stuck);
        free := array(select k from unnest(free) k where k <> all(stuck));
      end if;
    end if;
    if taken is not null then
      return query delete from headgate.parked p where p.ctid = any(taken) returning p.seq, p.attempt + 1;
      total := total + cardinality(taken);
    end if;
    -- of each key, the first one left: behind a message now in flight it asks again, behind nothing (the batch was full) it
    -- stays due; behind a waiting one the rest sleep
    firsts := headgate.first_parked(c.id, p_lane, free);
    update headgate.parked p set visible_at = 'infinity', reason = 'blocked'
     where p.ctid = any(due) and p.key = any(free) and p.ctid <> all(firsts);
    firsts := headgate.hold_parked(firsts);
    update headgate.parked p set visible_at = case when p.key = any(gone) then p_now + interval '50 milliseconds' else least(p.visible_at, p_now) end
     where p.ctid = any(firsts) and p.reason = 'blocked';
    exit when total >= n;
  end loop;
end $$;
