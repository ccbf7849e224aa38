-- Deadlines: extend, messages that have a deadline of their own, and acks that come after it.
--
-- The deadline of a batch is in its row. A message that is given another one alone departs from its
-- batch, as in read/departing.sql, and gets a row of its own in `delivery`, with the batch as its
-- parent. So all that counts or looks for what is in flight finds it there like any other, and it
-- is settled by the ack_id that its worker holds: what has departed from the batch is looked for
-- among the rows with that parent. Such rows hold one message each, and are held FOR UPDATE by who
-- settles or expires them, FOR NO KEY UPDATE by who moves their deadline. What holds:
--   1. a message is in flight in one row only: it departs from the batch and gets its own row in
--      one transaction;
--   2. a batch of which a message has left like this is marked (is_split), before the lock on it is
--      let go: its name no longer names all of it, so that an ack of the whole must not just delete
--      the row;
--   3. a deadline that was moved nearer is found by the index of deadlines (is_watched), because
--      its lane is not looked at before the lane's expires_at, which only claims may change;
--   4. where keys are kept in order, a message whose deadline passes takes back the later ones of
--      its key in its batch, whatever their deadlines: they must not be done before it.
-- A message that expired is parked and remembers the delivery that its worker had. Until it is
-- handed out again an ack by that delivery settles it.

-- hold_own(consumer id, lane, delivery, seqs, to settle, until) -> the ids of the rows of those
-- messages of the delivery (null: all) that have deadlines of their own, but not of those that
-- others hold until then.
-- Locks: the rows FOR UPDATE to settle them, otherwise FOR NO KEY UPDATE (SKIP LOCKED, which waits
-- after all when a newer version of a row has to be locked, too).
create or replace function headgate.hold_own(
  p_consumer int, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_to_settle boolean,
  p_until timestamptz) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '100ms' as $$
declare
  there int;
  held bigint[] := '{}';
begin
  loop
    select count(*) into there from headgate.delivery x
     where x.consumer = p_consumer and x.lane = p_lane and x.parent = p_delivery
       and (p_seqs is null or x.seqs[1] = any(p_seqs));
    if there = 0 then return '{}'; end if;
    begin
      if p_to_settle then
        held := array(
          select x.id from headgate.delivery x
           where x.consumer = p_consumer and x.lane = p_lane and x.parent = p_delivery
             and (p_seqs is null or x.seqs[1] = any(p_seqs)) for update skip locked);
      else
        held := array(
          select x.id from headgate.delivery x
           where x.consumer = p_consumer and x.lane = p_lane and x.parent = p_delivery
             and (p_seqs is null or x.seqs[1] = any(p_seqs)) for no key update skip locked);
      end if;
    exception when lock_not_available then
      null;
    end;
    if cardinality(held) >= there or clock_timestamp() > p_until then return held; end if;
    perform pg_sleep(0.005);
  end loop;
end $$;

-- take_own(consumer, lane, delivery, seqs, until) -> as take_out, of those of the messages that
-- have deadlines of their own.
-- Locks: the rows FOR UPDATE (SKIP LOCKED, until then).
-- Writes: delivery.
create or replace function headgate.take_own(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_until timestamptz)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  held bigint[] := headgate.hold_own(c.id, p_lane, p_delivery, p_seqs, true, p_until);
  d headgate.delivery;
begin
  -- point: messages with deadlines of their own are held
  if p_seqs is null or cardinality(held) < cardinality(p_seqs) then
    perform headgate.expect_no_more(c.id, p_lane, p_delivery, p_seqs);
  end if;
  if held = '{}' then return null; end if;
  with gone as (
    delete from headgate.delivery x where x.consumer = c.id and x.lane = p_lane and x.id = any(held)
 returning x.*)
  select c.id, p_lane, p_delivery, array_agg(g.seqs[1] order by g.seqs[1]),
         array_agg(g.attempts[1] order by g.seqs[1]),
         case when c.ordered then array_agg(g.keys[1] order by g.seqs[1]) end, min(g.deadline),
         min(g.delivered_at), min(g.worker)
    into d.consumer, d.lane, d.id, d.seqs, d.attempts, d.keys, d.deadline, d.delivered_at, d.worker
    from gone g;
  return d;
end $$;

-- with_own(consumer, taken, lane, delivery, seqs, until) -> what take_out took of a delivery, and
-- those of the other messages that were asked for (null: all) that have deadlines of their own:
-- they leave now, too.
-- Locks: as take_own.
-- Writes: as take_own.
create or replace function headgate.with_own(
  c headgate.consumer, d headgate.delivery, p_lane bigint, p_delivery bigint, p_seqs bigint[],
  p_until timestamptz)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  missing bigint[] := case
    when p_seqs is not null then array(select unnest(p_seqs) except select unnest(d.seqs)) end;
begin
  if missing = '{}' then return d; end if;
  return headgate.joined(d, headgate.take_own(c, p_lane, p_delivery, missing, p_until));
end $$;

-- joined(a, b) -> two parts of one delivery as one, in the order of seqs; null when there is
-- neither.
create or replace function headgate.joined(a headgate.delivery, b headgate.delivery)
returns headgate.delivery
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if b.id is null then return a; end if;
  if a.id is null then return b; end if;
  select array_agg(u.s order by u.s), array_agg(coalesce(u.a, 1) order by u.s),
         case when a.keys is not null or b.keys is not null then array_agg(u.k order by u.s) end
    into a.seqs, a.attempts, a.keys
    from (select * from unnest(a.seqs, a.attempts, a.keys) x (s, a, k)
          union all
          select * from unnest(b.seqs, b.attempts, b.keys) x (s, a, k)) u;
  return a;
end $$;

-- take_out_all(consumer, lane, delivery, seqs, until, later) -> as take_out, wherever the messages
-- are: in the batch, or with deadlines of their own.
-- Locks: as take_out and take_own.
-- Writes: as take_out and take_own.
create or replace function headgate.take_out_all(
  c headgate.consumer, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_until timestamptz,
  p_later boolean default false)
returns headgate.delivery
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  batch headgate.delivery := headgate.take_out(c, p_lane, p_delivery, p_seqs, p_until, p_later);
  d headgate.delivery := headgate.with_own(c, batch, p_lane, p_delivery, p_seqs, p_until);
  is_split boolean := coalesce(batch.is_split, batch.id is null
                               or cardinality(d.seqs) > cardinality(batch.seqs));
  later bigint[];
  back headgate.delivery;
begin
  if p_later and p_seqs is not null and is_split and d.seqs <> '{}' then
    later := headgate.later_in_flight(c.id, p_lane, p_delivery, d.seqs, d.keys);
    if later <> '{}' then
      back := headgate.take_out(c, p_lane, p_delivery, later, p_until);
      d := headgate.joined(d, headgate.with_own(c, back, p_lane, p_delivery, later, p_until));
    end if;
  end if;
  return d;
end $$;

-- later_in_flight(consumer id, lane, delivery, seqs, keys) -> what is in flight of the delivery,
-- also with deadlines of their own, that comes after one of these messages in its key.
create or replace function headgate.later_in_flight(
  p_consumer int, p_lane bigint, p_delivery bigint, p_seqs bigint[], p_keys text[]) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  return array(
    with firsts as materialized (
      select u.k, min(u.s) as seq from unnest(p_seqs, p_keys) u (s, k) where u.k is not null
       group by u.k)
    select f.seq from headgate.in_flight f join firsts x on x.k = f.key and f.seq > x.seq
     where f.consumer = p_consumer and f.lane = p_lane and f.delivery = p_delivery
    union
    select f.seq from headgate.in_flight f join firsts x on x.k = f.key and f.seq > x.seq
     where f.consumer = p_consumer and f.lane = p_lane and f.parent = p_delivery);
end $$;

-- hand_back_later(consumer, delivery): after a part of a batch has expired, hands back what is in
-- flight of the same batch behind it in its key, as nack does. What others are settling or
-- extending at this moment stays with them.
-- Locks: as take_out.
-- Writes: delivery, departed, parked.
create or replace function headgate.hand_back_later(c headgate.consumer, d headgate.delivery)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  batch bigint := coalesce(d.parent, d.id);
  later bigint[] := headgate.later_in_flight(c.id, d.lane, batch, d.seqs, d.keys);
  now timestamptz := clock_timestamp();
  back headgate.delivery;
begin
  if later = '{}' then return; end if;
  back := headgate.take_out(c, d.lane, batch, later, now);
  back := headgate.with_own(c, back, d.lane, batch, later, now);
  -- point: what is behind an expired message is taken out
  if back.seqs <> '{}' then perform headgate.hand_back(back, 'blocked'); end if;
end $$;

-- settle_late(consumer, delivery, seqs) -> those of these messages (null: all) that expired as part
-- of the delivery and that nobody has got since: they are done. In ordered consumers leaves a note
-- for their keys.
-- Locks: parked (SKIP LOCKED: claims pass over what an open transaction has acked like this).
-- Writes: parked, wake.
create or replace function headgate.settle_late(c headgate.consumer, p_delivery bigint,
                                                p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  places tid[];
  found_seqs bigint[] := '{}';
  r record;
begin
  places := array(
    select p.ctid from headgate.parked p
     where p.consumer = c.id and p.delivery = p_delivery and (p_seqs is null or p.seq = any(p_seqs))
       for update skip locked);
  if places = '{}' then return '{}'; end if;
  -- point: messages that are acked late are held
  for r in
    with gone as (delete from headgate.parked p where p.ctid = any(places)
                  returning p.lane, p.seq, p.key)
    select g.lane, array_agg(g.seq) as seqs, array_agg(g.key) as keys from gone g group by g.lane
     order by g.lane
  loop
    found_seqs := found_seqs || r.seqs;
    -- (whether or not one that waits behind them is seen: a claim that still sees them may just be
    -- parking it)
    if c.ordered then
      insert into headgate.wake (consumer, lane, key)
        select distinct c.id, r.lane, k from unnest(r.keys) k where k is not null;
    end if;
    if r.lane >= {UNNAMED_LANES} then perform headgate.wake_lane(c, r.lane); end if;
  end loop;
  return found_seqs;
end $$;

-- expect_no_more(consumer id, lane, delivery, seqs): where the snapshot is fixed, raises a
-- serialization failure when the delivery, or one of these messages of it with a deadline of its
-- own, is there after all, out of sight: only a unique index tells.
-- Writes: nothing that stays.
create or replace function headgate.expect_no_more(p_consumer int, p_lane bigint, p_delivery bigint,
                                                   p_seqs bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare made bigint[];
begin
  if not headgate.has_fixed_snapshot() then return; end if;
  if not exists (select from headgate.delivery x
                  where x.consumer = p_consumer and x.lane = p_lane and x.id = p_delivery) then
    perform headgate.expect_no_delivery(p_consumer, p_lane, p_delivery);
  end if;
  begin
    with made_here as (
      insert into headgate.delivery (consumer, lane, seqs, deadline, parent)
        select p_consumer, p_lane, array[s], 'infinity', p_delivery from unnest(p_seqs) s
        on conflict do nothing returning id)
    select coalesce(array_agg(id), '{}') into made from made_here;
    delete from headgate.delivery x
     where x.consumer = p_consumer and x.lane = p_lane and x.id = any(made);
  exception when lock_not_available or deadlock_detected then
    perform headgate.no_fixed_snapshot();
  end;
end $$;
