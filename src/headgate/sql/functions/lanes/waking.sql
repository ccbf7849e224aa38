-- How named lanes that sleep are woken: by whatever frees one of their messages, by notes, and by
-- receives that lack lanes. What holds is at the head of lanes/lanes.sql.

-- wake_lanes(consumer, lanes, now): something of these lanes is in flight no more: those that were
-- full go on. Lanes whose cursor somebody holds get a note.
-- Needs: the caller has changed the deliveries in this transaction.
-- Locks: cursors (SKIP LOCKED).
-- Writes: cursor, wake.
create or replace function headgate.wake_lanes(c headgate.consumer, p_lanes bigint[],
                                               p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare held bigint[]; places tid[];
begin
  -- also those that are not full: a claim that counts before this transaction commits must not put
  -- them to sleep
  select array_agg(x.lane), array_agg(x.place) filter (where x.next_at = 'infinity')
    into held, places from (
    select h.* from unnest(p_lanes) u (lane) cross join lateral (
      select k.lane, k.ctid as place, k.next_at from headgate.cursor k
       where k.consumer = c.id and k.lane = u.lane limit 1 for no key update skip locked) h) x;
  -- point: lanes to wake are held
  if places is not null then
    update headgate.cursor k
       set next_at = greatest(p_now, k.served_at + coalesce(k.release_interval, c.release_interval))
         where k.ctid = any(places);
  end if;
  if cardinality(p_lanes) > coalesce(cardinality(held), 0) then
    insert into headgate.wake (consumer, lane) select c.id, u.lane from unnest(p_lanes) u (lane)
     where u.lane <> all(coalesce(held, '{}'));
  end if;
end $$;

-- take_wakes(consumer, now, n, first): makes up to n of the lanes due that notes were left for,
-- from one chosen by chance on; with `first` before all others, if they have no pace. Notes of
-- lanes whose cursor somebody holds stay, and so do those about keys, which the claim of the lane
-- takes up.
-- Locks: cursors, notes (SKIP LOCKED), the gatherer FOR KEY SHARE (SKIP LOCKED).
-- Writes: cursor, wake.
create or replace function headgate.take_wakes(c headgate.consumer, p_now timestamptz, n int,
                                               p_first boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  start bigint := headgate.any_lane();
  noted bigint[];
  held bigint[];
  places tid[];
begin
  -- (lanes, not notes: one may have many)
  noted := array(
    select distinct w.lane from headgate.wake w
     where w.consumer = c.id and w.lane >= start
     order by w.lane limit n);
  if cardinality(noted) < n then
    noted := noted || array(
      select distinct w.lane from headgate.wake w
       where w.consumer = c.id and w.lane < start
       order by w.lane limit n - cardinality(noted));
  end if;
  -- point: notes of lanes are read
  if noted = '{}' then return; end if;
  select coalesce(array_agg(h.lane), '{}'), array_agg(h.place) into held, places
    from unnest(noted) u (lane) cross join lateral (
    select k.lane, k.ctid as place from headgate.cursor k
     where k.consumer = c.id and k.lane = u.lane limit 1 for no key update skip locked) h;
  update headgate.cursor k
     set next_at
       = headgate.when_due(p_now, k.served_at, coalesce(k.release_interval, c.release_interval),
                           p_first)
   where k.ctid = any(places) and (k.next_at is null or k.next_at > p_now);
  held := held || headgate.wake_without_cursor(c, noted, n, p_now);
  -- point: noted lanes are woken
  delete from headgate.wake w where w.ctid = any(array(
    select x.place from unnest(held) u (lane) cross join lateral (
      select w.ctid as place from headgate.wake w
       where w.consumer = c.id and w.lane = u.lane and w.key is null limit 1000
         for update skip locked) x));
end $$;

-- wake_without_cursor(consumer, lanes, n, now) -> those of the lanes, at most n, that had no cursor
-- and have one now, due: nothing was left to read when they went idle, but what is parked there
-- needs one.
-- Locks: each lane by an advisory lock; the gatherer FOR KEY SHARE (SKIP LOCKED).
-- Writes: cursor.
create or replace function headgate.wake_without_cursor(c headgate.consumer, p_lanes bigint[],
                                                        n int, p_now timestamptz)
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  strange bigint[] := array(
    select u.lane from (
      select u.lane from unnest(p_lanes) u (lane)
       where (select k.lane from headgate.cursor k where k.consumer = c.id and k.lane = u.lane
               limit 1) is null
         -- (of those that were discovered take_discovered knows where they begin)
         and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
               limit 1) is null
       limit headgate.room_for_locks(n)) u
     where pg_try_advisory_xact_lock(c.id, (u.lane & 2147483647)::int));
  g headgate.cursor;
begin
  if strange = '{}' then return strange; end if;
  g := headgate.hold_gatherer(c);
  if g.consumer is null then return '{}'; end if;
  -- (again, now that it is known where the gatherer is: who has moved it there may have left word
  -- of them since)
  strange := array(
    select u.lane from unnest(strange) u (lane)
     where (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
             limit 1) is null);
  -- while the gatherer is in the middle of a span, that span is still unread there
  perform headgate.add_lanes(c, g, strange, null, p_now, g.pos < g.to_hi or g.late is not null);
  return array(
    select u.lane from unnest(strange) u (lane)
     where (select k.next_at from headgate.cursor k where k.consumer = c.id and k.lane = u.lane
             limit 1) = p_now);
end $$;

-- note_asleep(consumer, lanes, newest tick): leaves notes for those of the lanes that a claim has
-- put to sleep, unless it sees that they have read all there is (null: it does not look). The
-- gatherer may have met them since, out of its sight: a claim with a fixed snapshot does not see
-- where it is, nor who is moving it.
-- Writes: wake.
create or replace function headgate.note_asleep(
  c headgate.consumer, p_lanes bigint[], newest headgate.tick) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  -- nothing was sent since that tick
  is_quiet boolean := coalesce(newest.id = newest.base and headgate.settled(newest), false);
begin
  insert into headgate.wake (consumer, lane)
    select c.id, u.lane from unnest(p_lanes) u (lane) cross join lateral (
      select k.next_at, k.to_base from headgate.cursor k
       where k.consumer = c.id and k.lane = u.lane limit 1) k
     where k.next_at is null and not (is_quiet and k.to_base >= newest.base);
end $$;

-- lanes_of_batch(n) -> how many lanes are woken or made known for a batch of n messages: more than
-- the ten of 100 that it is first asked of (templates/receive_named), because some turn out to have
-- nothing.
create or replace function headgate.lanes_of_batch(n int) returns int
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select ceil(n::float8 / least(4, greatest(1, n / 25)))::int
$$;

-- lanes_to_wake(consumer, now, n) -> how many lanes a receive of n messages that may be part of a
-- longer transaction should wake: those that it lacks beside the ones that are due. Half the time
-- some more, lest lanes that are always due keep others asleep for ever.
create or replace function headgate.lanes_to_wake(c headgate.consumer, p_now timestamptz, n int)
returns int
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  most int := headgate.lanes_of_batch(n);
  due int;
begin
  select count(*) into due from (
    select from headgate.cursor k
     where k.consumer = c.id and k.next_at <= p_now and k.next_at < 'infinity' limit most) x;
  return least(case when due >= most and random() < 0.5 then (most + 1) / 2 else most - due end,
                 1000);
end $$;

-- when_due(now, last served at, pace, first) -> when a lane that is woken is due: at once, or when
-- its pace allows; with `first` before all others.
create or replace function headgate.when_due(p_now timestamptz, p_turn timestamptz, p_pace interval,
                                             p_first boolean) returns timestamptz
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_first and p_pace is null then '-infinity'
              else greatest(p_now, p_turn + p_pace) end
$$;

-- any_lane() -> a number among those of named lanes, by chance: who takes some of many begins
-- there, lest the first ones hide the others.
create or replace function headgate.any_lane() returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select {NAMED_LANES} + floor(random() * {NAMED_LANES})::bigint
$$;

-- room_for_locks(n) -> how many of n more lanes this transaction may hold by advisory locks. The
-- memory for locks is one for all sessions, and lasts when none has more than
-- max_locks_per_transaction of them.
create or replace function headgate.room_for_locks(n int) returns int
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select greatest(0, least(n, current_setting('max_locks_per_transaction')::int - (
    select count(*)::int from pg_locks l
     where l.pid = pg_backend_pid() and l.locktype = 'advisory')))
$$;
