-- Named lanes that have no cursor yet: how they get one, and those of which there is only word in
-- `discovered`. What holds is at the head of lanes/lanes.sql.

-- add_lanes(consumer, gatherer, lanes, names, now, unread) -> those of the lanes that got no cursor
-- here, but from others: these may be undone, or idle again, having read less than the gatherer's
-- span. `unread`: they read the span that the gatherer is in; otherwise they have read all of it.
-- Lanes that a user's open transaction has just made are not waited for.
-- Needs: the caller moves the gatherer, or holds it FOR KEY SHARE and the lanes by an advisory lock
-- each.
-- Writes: cursor.
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
          insert into headgate.cursor (consumer, lane, served_at, first_seq, from_tick, from_snap,
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
-- Locks: each lane by an advisory lock, the gatherer FOR KEY SHARE (SKIP LOCKED).
-- Writes: cursor, wake, discovered.
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
-- discovered.
-- Needs: the caller holds the gatherer FOR KEY SHARE, and the lanes by an advisory lock each.
-- Writes: cursor.
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
    k.served_at := '-infinity';
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
           where w.consumer = p_consumer and w.lane >= {UNNAMED_LANES}
                   union
                   select x.lane from headgate.discovered x where x.consumer = p_consumer) w
    join headgate.cursor k on k.consumer = p_consumer and k.lane = w.lane and k.next_at is null
$$;

-- hidden_lanes(consumer id) -> named lanes that may have something unread and do not look so, as
-- cursors: noted ones, and those that were discovered and have no cursor yet. For who asks what is
-- unread.
create or replace function headgate.hidden_lanes(p_consumer int) returns setof headgate.cursor
language sql stable set search_path = pg_catalog, pg_temp as $$
  select k.* from headgate.discovered_lanes(p_consumer) k union all select k.*
    from headgate.noted_lanes(p_consumer) k
$$;
