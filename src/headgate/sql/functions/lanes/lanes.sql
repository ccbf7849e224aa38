-- Named lanes: one per key or per channel, any number of them, most of them idle. How they wake,
-- sleep and are forgotten; templates/receive_named.sql serves them.
--
-- A lane has a cursor only while something is known of it. The gatherer (the cursor of lane -1)
-- reads the log once for the whole consumer, span by span, and wakes the lanes that it meets. A
-- claim takes the lanes that are due, in the order of next_at, and each gives its share of the
-- batch and goes to the end of the rotation. What holds:
--   1. a lane without a cursor has nothing unread up to the tick that the gatherer has reached,
--     except from the span on that `discovered`
--      tells of it;
--   2. a lane goes idle (next_at null) only when it has read up to that tick, as seen after its
--     cursor was locked; and the
--      gatherer, which meets a cursor that is locked, leaves a note (wake) instead of waiting. So
--        no wake is lost;
--   3. a lane found full (next_at infinity) is woken by whatever takes one of its messages out of
--     flight: an ack in the same
--      receive wakes it directly when it gets the cursor, everything else leaves a note;
--   4. only one claim at a time holds a lane's cursor, and it counts what is in flight after it got
--     it: limits hold over
--      all workers;
--   5. the gatherer is moved by who holds it FOR NO KEY UPDATE. Nobody needs that to go on: while
--     it is held, by a transaction that
--      may be open for long, others add the few lanes that they need themselves (`few` below), from
--        where the gatherer stands. They
--      hold it FOR KEY SHARE, which keeps a seek off, and each lane by an advisory lock, by which
--        whoever moves the gatherer
--      tells that a lane may still be undone;
--   6. who moves the gatherer and may be part of a longer transaction touches only the lanes that
--     it serves itself (`direct`). Of the
--      others it leaves word that nobody has to wait for: notes (wake) of those that have a cursor,
--        rows in `discovered` of
--      those that have none. A lane of which there is such word is not forgotten, and one that was
--        discovered gets its cursor from
--      there alone (take_discovered): from anywhere else it would begin too late.

-- set_channel(stream, consumer, channel, …): changes the limits of one channel (or key, by the
-- stream's lanes) that are given; null leaves
-- a limit as it is, and `clear` names those to put back to the consumer's own. max_concurrency 0
--   holds the channel back.
-- Writes channel, cursor.
create or replace function headgate.set_channel(
  stream text, consumer text, channel text, max_concurrency int default null,
  release_interval interval default null,
  clear text[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  l bigint := case when channel is null then 144115188075855872
                   else headgate.named_lane(channel) end;
  h headgate.channel;
begin
  if s.lane_by = 'hash' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name),
                          'make the stream with lane_by => ''channel'' (or ''key'')');
  end if;
  perform headgate.check_consumer('none', null, null, null, null, max_concurrency, release_interval,
                                  null);
  clear := coalesce(clear, '{}');
  if not clear <@ array['max_concurrency', 'release_interval'] then
    perform headgate.fail('HG010', 'clear names an unknown limit',
                          'max_concurrency and release_interval can be cleared');
  end if;
  insert into headgate.channel as x (consumer, lane, name, max_concurrency, release_interval)
    values (c.id, l, set_channel.channel,
            case when 'max_concurrency' <> all(clear) then set_channel.max_concurrency end,
            case when 'release_interval' <> all(clear) then set_channel.release_interval end)
    on conflict on constraint channel_pkey do update set
      max_concurrency = case
        when 'max_concurrency' <> all(clear) then
          coalesce(excluded.max_concurrency, x.max_concurrency) end,
      release_interval = case
        when 'release_interval' <> all(clear) then
          coalesce(excluded.release_interval, x.release_interval) end
    returning * into h;
  if h.max_concurrency is null and h.release_interval is null then
    delete from headgate.channel x where x.consumer = c.id and x.lane = l;
  end if;
  update headgate.cursor k
     set max_concurrency = h.max_concurrency, release_interval = h.release_interval,
         next_at = case when k.next_at = 'infinity' then clock_timestamp() else k.next_at end
   where k.consumer = c.id and k.lane = l;
  -- a cursor that is being made with the old limits: its next claim sees to it
  insert into headgate.wake (consumer, lane) values (c.id, l);
exception when lock_not_available then
  perform headgate.fail('55P03',
                        format('channel "%s" of consumer "%s" is held by an open transaction',
                               set_channel.channel, c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- wake_lanes(consumer, lanes, now): something of these lanes is in flight no more: those that were
-- full go on. The caller has changed the deliveries in this transaction. Lanes whose cursor
-- somebody holds get a note. Locks cursors (SKIP LOCKED); writes cursor, wake.
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
       set next_at = greatest(p_now, k.turn + coalesce(k.release_interval, c.release_interval))
         where k.ctid = any(places);
  end if;
  if cardinality(p_lanes) > coalesce(cardinality(held), 0) then
    insert into headgate.wake (consumer, lane) select c.id, u.lane from unnest(p_lanes) u (lane)
     where u.lane <> all(coalesce(held, '{}'));
  end if;
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

-- when_due(now, last turn, pace, first) -> when a lane that is woken is due: at once, or when its
-- pace allows; with `first` before all others.
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
  select 288230376151711744 + floor(random() * 288230376151711744)::bigint
$$;

-- hold_gatherer(consumer) -> the gatherer, held so that no seek overlooks the lanes that are added;
-- null while the consumer is being moved. With a fixed snapshot it must be as it is there: lanes
-- may have come, been read and been forgotten since. Locks it FOR KEY SHARE, or NO KEY UPDATE (SKIP
-- LOCKED).
create or replace function headgate.hold_gatherer(c headgate.consumer) returns headgate.cursor
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' as $$
declare g headgate.cursor;
begin
  if headgate.has_fixed_snapshot() then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
       for no key update skip locked;
  else
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
      for key share skip locked;
  end if;
  return g;
-- (when a newer version of the row has to be locked as well, SKIP LOCKED waits after all)
exception when lock_not_available then
  return null;
end $$;

-- take_wakes(consumer, now, n, first): makes up to n of the lanes due that notes were left for,
-- from one chosen by chance on; with `first` before all others, if they have no pace. Notes of
-- lanes whose cursor somebody holds stay, and so do those about keys, which the claim of the lane
-- takes up. Locks cursors, notes (SKIP LOCKED), the gatherer FOR KEY SHARE (SKIP LOCKED); writes
-- cursor, wake.
create or replace function headgate.take_wakes(c headgate.consumer, p_now timestamptz, n int,
                                               p_first boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  start bigint := headgate.any_lane();
  noted bigint[];
  held bigint[];
  strange bigint[];
  places tid[];
  g headgate.cursor;
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
       = headgate.when_due(p_now, k.turn, coalesce(k.release_interval, c.release_interval), p_first)
   where k.ctid = any(places) and (k.next_at is null or k.next_at > p_now);
  -- a note of a lane without a cursor (nothing was left to read when it went idle): what is parked
  --   there needs one
  strange := array(
    select u.lane from (select u.lane from unnest(noted) u (lane)
     where (select k.lane from headgate.cursor k where k.consumer = c.id and k.lane = u.lane
             limit 1) is null
       -- (of those that were discovered take_discovered knows where they begin)
       and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
             limit 1) is null
     limit headgate.room_for_locks(n)) u
     where pg_try_advisory_xact_lock(c.id, (u.lane & 2147483647)::int));
  if strange <> '{}' then
    g := headgate.hold_gatherer(c);
    if g.consumer is not null then
      -- (again, now that it is known where the gatherer is: who has moved it there may have left
      -- word of them since)
      strange := array(
        select u.lane from unnest(strange) u (lane)
         where (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
                 limit 1) is null);
      -- while the gatherer is in the middle of a span, that span is still unread there
      perform headgate.add_lanes(c, g, strange, null, p_now, g.pos < g.to_hi or g.late is not null);
      held := held || array(
        select u.lane from unnest(strange) u (lane)
         where (select k.next_at from headgate.cursor k where k.consumer = c.id and k.lane = u.lane
                 limit 1) = p_now);
    end if;
  end if;
  -- point: noted lanes are woken
  delete from headgate.wake w where w.ctid = any(array(
    select x.place from unnest(held) u (lane) cross join lateral (
      select w.ctid as place from headgate.wake w
       where w.consumer = c.id and w.lane = u.lane and w.key is null limit 1000
         for update skip locked) x));
end $$;

-- note_asleep(consumer, lanes, newest tick): leaves notes for those of the lanes that a claim has
-- put to sleep, unless it sees that they have read all there is (null: it does not look). The
-- gatherer may have met them since, out of its sight: a claim with a fixed snapshot does not see
-- where it is, nor who is moving it. Writes wake.
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

-- room_for_locks(n) -> how many of n more lanes this transaction may hold by advisory locks. The
-- memory for locks is one for all sessions, and lasts when none has more than
-- max_locks_per_transaction of them.
create or replace function headgate.room_for_locks(n int) returns int
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select greatest(0, least(n, current_setting('max_locks_per_transaction')::int - (
    select count(*)::int from pg_locks l
     where l.pid = pg_backend_pid() and l.locktype = 'advisory')))
$$;

-- add_lanes(consumer, gatherer, lanes, names, now, unread) -> those of the lanes that got no cursor
-- here, but from others: these may be undone, or idle again, having read less than the gatherer's
-- span. `unread`: they read the span that the gatherer is in; otherwise they have read all of it.
-- Lanes that a user's open transaction has just made are not waited for. The caller moves the
-- gatherer, or holds it FOR KEY SHARE and the lanes by an advisory lock each. Writes cursor.
create or replace function headgate.add_lanes(c headgate.consumer, g headgate.cursor,
                                              p_lanes bigint[], p_names text[], p_now timestamptz,
                                              p_unread boolean)
returns bigint[] language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off set lock_timeout = '10ms' as $$
declare
  left_out bigint[] := '{}';
  part bigint[];
  held bigint[];
  added bigint[];
begin
  for i in 1 .. cardinality(p_lanes) by 1000 loop  -- what has to be repeated is not much
    part := p_lanes[i : i + 999];
    held := '{}';
    added := '{}';
    for try in 1 .. 2 loop
      begin
        with i as (
          insert into headgate.cursor (consumer, lane, turn, first_seq, from_tick, from_snap,
                                       from_lo, to_tick, to_base, to_snap, to_lo, to_hi, pos, late,
                                       next_at, max_concurrency, release_interval, name)
          select c.id, u.lane, '-infinity', g.first_seq, g.from_tick, g.from_snap, g.from_lo,
                 g.to_tick, g.to_base, g.to_snap, g.to_lo, g.to_hi,
                 case when not p_unread then g.to_hi
                      when g.late is not null then lower(g.late) - 1
                      else
                        greatest(g.from_lo, g.first_seq - 1) end,
                        case when p_unread then g.late end,
                 p_now, h.max_concurrency, h.release_interval, u.name
            from unnest(part, p_names[i : i + 999]) u (lane, name) left
              join headgate.channel h on h.consumer = c.id and h.lane = u.lane
           where u.lane <> all(held)
          on conflict (consumer, lane) do nothing returning lane)
        select coalesce(array_agg(i.lane), '{}') into added from i;
        exit;
      exception when lock_not_available then
        held := headgate.lanes_held(c.id, part);
      end;
    end loop;
    if cardinality(added) < cardinality(part) then
      left_out := left_out || array(select unnest(part) except select unnest(added));
    end if;
  end loop;
  return left_out;
end $$;

-- lanes_held(consumer id, lanes) -> those that other transactions hold by advisory locks.
create or replace function headgate.lanes_held(p_consumer int, p_lanes bigint[]) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  numbers bigint[] := array(
    select l.objid::bigint from pg_locks l
     where l.locktype = 'advisory' and l.classid::bigint = p_consumer
       and l.pid is distinct from pg_backend_pid()
       and l.database = (select d.oid from pg_database d where d.datname = current_database()));
begin
  return array(select u from unnest(p_lanes) u where u & 2147483647 = any(numbers));
end $$;

-- with_cursor(consumer id, lanes) -> those of the lanes that have a cursor. Each is looked up:
-- joined, this would read all the consumer's cursors.
create or replace function headgate.with_cursor(p_consumer int, p_lanes bigint[]) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
begin
  return array(
    select u.lane from unnest(p_lanes) u (lane) cross join lateral (
      select from headgate.cursor k where k.consumer = p_consumer and k.lane = u.lane limit 1) k);
end $$;

-- take_discovered(consumer, now, n) -> the lanes that need a note when they go to sleep
-- (note_asleep): gives up to n of those that were discovered a cursor, from one chosen by chance
-- on, or leaves a note for those that have one by now. Whoever moves the gatherer meanwhile sees
-- these lanes as discovered and knows by the advisory locks (note_taken) that they are being taken,
-- unless it has looked already: then it holds the gatherer, and the lanes need a note from here.
-- Locks each lane by an advisory lock, the gatherer FOR KEY SHARE (SKIP LOCKED); writes cursor,
-- wake, discovered.
create or replace function headgate.take_discovered(c headgate.consumer, p_now timestamptz, n int)
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  start bigint := headgate.any_lane();
  mine bigint[];
  done bigint[];
  g headgate.cursor;
  is_moving boolean;
begin
  n := headgate.room_for_locks(n);
  mine := array(
    select x.lane from (
      select d.lane from headgate.discovered d where d.consumer = c.id and d.lane >= start
       order by d.lane limit n + 1000) x
     where pg_try_advisory_xact_lock(c.id, (x.lane & 2147483647)::int) limit n);
  if cardinality(mine) < n then
    mine := mine || array(
      select x.lane from (
        select d.lane from headgate.discovered d where d.consumer = c.id and d.lane < start
         order by d.lane limit n + 1000) x
       where pg_try_advisory_xact_lock(c.id, (x.lane & 2147483647)::int)
         limit n - cardinality(mine));
  end if;
  if mine = '{}' then return mine; end if;
  mine := array(select distinct u from unnest(mine) u);
  -- point: discovered lanes are locked
  begin
    perform from headgate.cursor k where k.consumer = c.id and k.lane = -1 for no key update nowait;
    raise exception using errcode = 'HG0LG';  -- which lets go of it
  exception
    when sqlstate 'HG0LG' then is_moving := headgate.has_fixed_snapshot();
    when lock_not_available or serialization_failure then is_moving := true;
  end;
  g := headgate.hold_gatherer(c);
  if g.consumer is null then return '{}'; end if;  -- the consumer is being moved
  -- point: discovered lanes are held
  insert into headgate.wake (consumer, lane) select c.id, u
    from unnest(headgate.with_cursor(c.id, mine)) u;
  perform headgate.add_discovered(c, g, mine, p_now);
  done := headgate.with_cursor(c.id, mine);
  -- point: discovered lanes have cursors
  delete from headgate.discovered x where x.consumer = c.id and x.lane = any(done);
  return case when is_moving then mine else '{}' end;
end $$;

-- add_discovered(consumer, gatherer, lanes, now): gives those of the lanes a cursor that were
-- discovered. The caller holds the gatherer FOR KEY SHARE, and the lanes by an advisory lock each.
-- Writes cursor.
create or replace function headgate.add_discovered(c headgate.consumer, g headgate.cursor,
                                                   p_lanes bigint[], p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare s record;
begin
  -- the first word of a lane counts: what came later it reads after that
  for s in
    select min(x.first_seq) as first_seq, x.from_tick, x.to_tick, min(x.to_base) as to_base,
           min(x.from_lo) as from_lo, min(x.to_lo) as to_lo,
           min(x.to_hi) as to_hi, (array_agg(x.from_snap))[1] as from_snap,
           (array_agg(x.to_snap))[1] as to_snap, x.late, min(x.at) as at,
           array_agg(x.lane) as lanes, array_agg(x.name) as names
      from unnest(p_lanes) u (lane) cross join lateral (
        select d.* from headgate.discovered d where d.consumer = c.id and d.lane = u.lane
         order by d.to_base, d.at limit 1) x
     group by x.from_tick, x.to_tick, x.late
  loop
    g.first_seq := s.first_seq;
    g.from_tick := s.from_tick;
    g.from_snap := s.from_snap;
    g.from_lo := s.from_lo;
    g.to_tick := s.to_tick;
    g.to_base := s.to_base;
    g.to_snap := s.to_snap;
    g.to_lo := s.to_lo;
    g.to_hi := s.to_hi;
    g.late := s.late;
    perform headgate.add_lanes(c, g, s.lanes, s.names, least(s.at, p_now), true);
  end loop;
end $$;

-- discovered_lanes(consumer id, lane) -> the lanes that were discovered and have no cursor yet, or
-- that one alone, as the cursors that they will have: for who asks what is unread.
create or replace function headgate.discovered_lanes(p_consumer int, p_lane bigint default null)
returns setof headgate.cursor
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  d headgate.discovered;
  k headgate.cursor;
begin
  for d in
    -- (each is looked up: joined, by what the planner knows of these tables, it would be each with
    -- each)
    select distinct on (x.lane) x.* from headgate.discovered x
     where x.consumer = p_consumer
       and (select o.lane from headgate.cursor o where o.consumer = p_consumer and o.lane = x.lane
             limit 1) is null
       and x.lane between coalesce(p_lane, -9223372036854775808) and coalesce(p_lane,
           9223372036854775807)
     order by x.lane, x.to_base, x.at
  loop
    k.consumer := d.consumer;
    k.lane := d.lane;
    k.name := d.name;
    k.next_at := d.at;
    k.turn := '-infinity';
    k.first_seq := d.first_seq;
    k.from_tick := d.from_tick;
    k.from_lo := d.from_lo;
    k.from_snap := d.from_snap;
    k.to_tick := d.to_tick;
    k.to_base := d.to_base;
    k.to_lo := d.to_lo;
    k.to_hi := d.to_hi;
    k.to_snap := d.to_snap;
    k.late := d.late;
    k.delivered := 0;
    k.mark_delivered := 0;
    k.redelivered := 0;
    k.pos := case when d.late is not null then lower(d.late) - 1
                  else greatest(d.from_lo, d.first_seq - 1) end;
    return next k;
  end loop;
end $$;

-- noted_lanes(consumer id) -> idle named lanes that there is a note for, or that were discovered
-- before they had a cursor.
create or replace function headgate.noted_lanes(p_consumer int) returns setof headgate.cursor
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select k.*
    from (select w.lane from headgate.wake w
           where w.consumer = p_consumer and w.lane >= 144115188075855872
                   union
                   select x.lane from headgate.discovered x where x.consumer = p_consumer) w
    join headgate.cursor k on k.consumer = p_consumer and k.lane = w.lane and k.next_at is null
$$;

-- told_lanes(consumer id) -> named lanes that may have something unread and do not look so, as
-- cursors: noted ones, and those that were discovered and have no cursor yet. For who asks what is
-- unread.
create or replace function headgate.told_lanes(p_consumer int) returns setof headgate.cursor
language sql stable set search_path = pg_catalog, pg_temp as $$
  select k.* from headgate.discovered_lanes(p_consumer) k union all select k.*
    from headgate.noted_lanes(p_consumer) k
$$;

-- expire(consumer, now, most) -> how many deliveries past their deadline were taken apart (at most
-- 100 a call): where lanes are named, and everywhere those whose deadline was moved nearer, of
-- which
-- a lane's sweep_at does not know. With `most`, only until so many messages may be handed out
--   again:
-- what a longer transaction takes apart nobody else gets before its end. Locks deliveries (SKIP
-- LOCKED); writes delivery, parked, wake.
create or replace function headgate.expire(
  c headgate.consumer, p_now timestamptz, p_most int default null) returns int
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  d headgate.delivery;
  n int := 0;
  back int := 0;  -- so many messages come again
begin
  loop
    for d in select * from headgate.delivery x
              where x.consumer = c.id and (x.lane >= 144115188075855872 or x.is_watched)
                and x.deadline <= p_now
              order by x.deadline limit case when p_most is null then 100 else 1 end
                for update skip locked loop
      if p_most is not null then
        select back + count(*) into back
          from headgate.in_flight_of(d) f cross join unnest(f.attempts, f.seqs) u (attempt, seq)
         -- (the others become dead letters)
         where coalesce(u.attempt, 1) < coalesce(c.max_deliver, 2147483647);
      end if;
      perform headgate.end_delivery(c, d);
      n := n + 1;
    end loop;
    exit when p_most is null or d.id is null or back >= p_most or n >= 100;
  end loop;
  return n;
end $$;

-- forget_lanes(consumer) -> how many idle lanes lost their cursor: what the gatherer has passed and
-- nobody used for a minute. At most 10,000 a call, and every ten seconds, for it looks at all of
-- them. Locks the gatherer and idle cursors (SKIP LOCKED); writes cursor.
create or replace function headgate.forget_lanes(c headgate.consumer) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare g headgate.cursor; n int; total bigint; again bigint;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
     for no key update skip locked;
  if not found or g.pos < g.to_hi or g.late is not null
     or g.mark_at > clock_timestamp() - interval '10 seconds' then
    return 0;
  end if;
  -- lanes that were full when their limits were changed, and have nothing in flight whose ack could
  -- wake them
  insert into headgate.wake (consumer, lane)
    select c.id, k.lane from headgate.cursor k
     where k.consumer = c.id and k.lane >= 0 and k.next_at = 'infinity'
       and not exists (select from headgate.delivery d where d.consumer = c.id and d.lane = k.lane);
  with idle as (
    select k.consumer, k.lane from headgate.cursor k
     where k.consumer = c.id and k.lane >= 0 and k.next_at is null
       and k.turn < clock_timestamp() - interval '1 minute'
       -- all that it has read the gatherer has passed (one on a private tick has read more than its
       -- base tells)
       and ((k.to_tick = k.to_base and k.to_base <= g.to_base)
            or pg_snapshot_xmax(k.to_snap) <= pg_snapshot_xmin(g.to_snap))
       and not exists (select from headgate.delivery d where d.consumer = c.id and d.lane = k.lane)
       and not exists (select from headgate.parked p where p.consumer = c.id and p.lane = k.lane)
       and not exists (select from headgate.wake w where w.consumer = c.id and w.lane = k.lane)
       and not exists (select from headgate.discovered x
                        where x.consumer = c.id and x.lane = k.lane)
       and not k.discards
     limit 10000 for update skip locked),
  gone as (delete from headgate.cursor k using idle i
           where k.consumer = i.consumer and k.lane = i.lane returning k.delivered, k.redelivered)
  select count(*), coalesce(sum(delivered), 0), coalesce(sum(redelivered), 0) into n, total, again
    from gone;
  -- (the gatherer has no rate: here its mark only says when this was last done)
  update headgate.cursor k set delivered = k.delivered + total, redelivered = k.redelivered + again,
         mark_at = case when n < 10000 then clock_timestamp() else k.mark_at end
   where k.consumer = c.id and k.lane = -1;
  return n;
end $$;
