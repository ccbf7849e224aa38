-- The gatherer of named lanes: reads the log once for the whole consumer, and tells the lanes that
-- it meets. What holds is at the head of lanes/lanes.sql.

-- gather_template() -> the source of gather_<stream id>(consumer, newest tick, now, few): reads on
-- in the log for the whole consumer, up to 100,000 messages, and wakes the lanes it meets, making
-- cursors for those that have none; beyond these it looks which other lanes there are, lest one
-- tenant's burst hides the others. Inside a user's open transaction, or while another holds the
-- gatherer, `few` lanes are woken and the gatherer is left where it is: it and other lanes would be
-- held until the commit. `direct`: so many lanes it may hold, and of the others it leaves word.
-- Locks the gatherer's and idle lanes' cursors (SKIP LOCKED); writes cursor, wake, discovered.
create or replace function headgate.gather_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.gather_{stream}(c headgate.consumer, newest headgate.tick,
                                         p_now timestamptz, few int, direct int default null)
returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
  set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  g headgate.cursor;
  was headgate.cursor;
  lanes bigint[];
  names text[];
  known bigint[];
  strange bigint[];
  strange_names text[];
  told bigint[];
  later bigint[];
  later_names text[];
  held bigint[];
  places tid[];
  n bigint;
  last bigint;
begin
  if few is null then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
       for no key update skip locked;
  else
    g := headgate.hold_gatherer(c);
  end if;
  -- point: the gatherer is held
  if g.consumer is null then return; end if;
  was := g;
  if g.pos >= g.to_hi and g.late is null then
    g := headgate.next_span(g, newest);
    if g.to_tick = was.to_tick then return; end if;
  end if;
  if g.late is not null then  -- what late transactions left below the span
    select array_agg(x.lane), array_agg(x.name) into lanes, names from (
      select m.lane, min({name}) as name from unnest(g.late) r
        join headgate.message_{stream} m on m.seq >= lower(r) and m.seq < upper(r)
       where m.seq <= g.from_lo and pg_visible_in_snapshot(m.xid, g.to_snap)
         and not pg_visible_in_snapshot(m.xid, g.from_snap)
         and (c.pattern is null or m.key ~ c.pattern) group by m.lane) x;
  else
    -- few of a long span: by chance, from lane to lane
    if few is not null and g.to_hi - g.pos > 10000 then
      select array_agg(x.lane), array_agg(x.name) into lanes, names
        from headgate.lanes_ahead_{stream}(g, g.pos, headgate.any_lane(),
                                           least(few * 4 + 50, 500)) x
       where (select k.lane from headgate.cursor k
               where k.consumer = c.id and k.lane = x.lane
                 and (k.next_at <= p_now or k.next_at = 'infinity' or k.to_tick = g.to_tick)
                   limit 1) is null;
    end if;
    if lanes is null then
      select array_agg(x.lane) filter (where x.fits), array_agg(x.name) filter (where x.fits),
             coalesce(sum(x.n), 0), max(x.last)
        into lanes, names, n, last from (
        select y.lane, min(y.name) as name, bool_or(y.fits) as fits, count(*) as n,
               max(y.seq) as last from (
          select m.lane, {name} as name, m.seq, c.pattern is null
              or coalesce(m.key ~ c.pattern, false) as fits
            from headgate.message_{stream} m
           where m.seq > g.pos and m.seq <= g.to_hi
             and pg_visible_in_snapshot(m.xid, g.to_snap)
             and not pg_visible_in_snapshot(m.xid, g.from_snap)
           order by m.seq limit 100000) y group by y.lane) x;
    end if;
    if n >= 100000 and few is null then
      select lanes || array_agg(x.lane), names || array_agg(x.name) into lanes, names
        from headgate.lanes_ahead_{stream}(g, last, 0, 2000) x
          where x.lane <> all(coalesce(lanes, '{}'));
    end if;
  end if;
  -- point: the gatherer has read
  if few is not null then
    -- lanes without a cursor that no other such transaction has just made, idle ones, and those
    -- that wait for later
    few := headgate.room_for_locks(few);
    select array_agg(x.lane), array_agg(x.name) into lanes, names from (
      select y.* from (
        select u.* from unnest(lanes, names) u (lane, name)
         where (select k.lane from headgate.cursor k
                 where k.consumer = c.id and k.lane = u.lane
                   and (k.next_at <= p_now or k.next_at = 'infinity' or k.to_tick = g.to_tick)
                     limit 1) is null
           and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
                 limit 1) is null offset 0) y
       where pg_try_advisory_xact_lock(c.id, (y.lane & 2147483647)::int) limit few) x;
  end if;
  if lanes is not null then
    if direct is not null then direct := headgate.room_for_locks(direct); end if;
    -- In one look: a lane that gets its cursor from another transaction between two would be
    -- neither known nor strange, and that one may put it to sleep. Each is looked up, and whether
    -- it goes in now is said with it: joins are nested loops here, over whatever the planner takes
    -- for small.
    select coalesce(array_agg(x.lane) filter (
             where x.to_base is not null and (few is not null or x.to_base < g.to_base)), '{}'),
           coalesce(array_agg(x.lane) filter (where x.is_now), '{}'),
           array_agg(x.name) filter (where x.is_now),
           coalesce(array_agg(x.lane) filter (where x.is_strange and not x.is_now), '{}'),
           array_agg(x.name) filter (where x.is_strange and not x.is_now),
           coalesce(array_agg(x.lane) filter (where x.to_base is null and not x.is_strange), '{}')
      into known, strange, strange_names, later, later_names, told from (
      select y.*,
             case when y.is_strange then direct is null
               or (y.nth <= direct and pg_try_advisory_xact_lock(c.id, (y.lane & 2147483647)::int))
             else false end as is_now from (
        select z.*, count(*) filter (where z.is_strange) over (rows unbounded preceding) as nth
          from (
          select v.*, case when v.to_base is null then
                   -- what was discovered before begins further back, and reads on from there
                   (select x.lane from headgate.discovered x
                     where x.consumer = c.id and x.lane = v.lane limit 1) is null
                 else false end as is_strange from (
            select u.lane, u.name,
                   (select k.to_base from headgate.cursor k
                     where k.consumer = c.id and k.lane = u.lane limit 1) as to_base
              from unnest(lanes, names) u (lane, name) offset 0) v offset 0) z) y offset 0) x;
    -- point: the gatherer knows its lanes
    if told <> '{}' and few is null then perform headgate.note_taken(c, told); end if;
    -- Where the gatherer has been moved since, lanes that had read more than it may be forgotten by
    -- now: they are not to begin where it was.
    if few is not null and strange <> '{}' and not exists (
         select from headgate.cursor k where k.consumer = c.id and k.lane = -1
            and (k.to_tick, k.pos, k.late) is not distinct from (was.to_tick, was.pos, was.late))
              then
      return;
    end if;
    if cardinality(known) > direct then
      insert into headgate.wake (consumer, lane) select c.id, u from unnest(known[direct + 1 :]) u;
      known := known[: direct];
    end if;
    -- those that are on this tick already have nothing to be told, and are needed by others
    if known <> '{}' then
      select coalesce(array_agg(h.lane), '{}'), array_agg(h.place) into held, places
        from unnest(known) u (lane) cross join lateral (
        select k.lane, k.ctid as place from headgate.cursor k
         where k.consumer = c.id and k.lane = u.lane limit 1 for no key update skip locked) h;
      update headgate.cursor k
         set next_at
           = headgate.when_due(p_now, k.turn, coalesce(k.release_interval, c.release_interval),
                                                               few is not null
                                                               or direct is not null)
       where k.ctid = any(places) and (few is not null or k.to_base < g.to_base)
         and (k.next_at is null or (k.next_at > p_now and k.next_at < 'infinity'));
      if few is null and cardinality(held) < cardinality(known) then
        insert into headgate.wake (consumer, lane) select c.id, u.lane
          from (select unnest(known) except select unnest(held)) u (lane);
      end if;
    end if;
    -- point: known lanes are woken
    if strange <> '{}' then
      held := headgate.add_lanes(c, g, strange, strange_names,
                                 case when few is null and direct is null then p_now
                                      else '-infinity' end, true);
      select later || array_agg(u.lane), later_names || array_agg(u.name) into later, later_names
        from unnest(strange, strange_names) u (lane, name) where u.lane = any(held);
    end if;
    if later <> '{}' and few is null then
      insert into headgate.discovered (consumer, lane, name, at, first_seq, from_tick, from_lo,
                                       to_tick, to_base, to_lo, to_hi, from_snap, to_snap, late)
        select c.id, u.lane, u.name, p_now, g.first_seq, g.from_tick, g.from_lo, g.to_tick,
               g.to_base, g.to_lo, g.to_hi, g.from_snap, g.to_snap, g.late
          from unnest(later, later_names) u (lane, name);
    end if;
  end if;
  -- point: strange lanes have cursors
  if few is not null then return; end if;
  if g.late is not null then
    g.late := null; g.pos := g.from_lo;
  else
    g.pos := case when n < 100000 then g.to_hi else last end;
  end if;
  update headgate.cursor k
     set from_tick = g.from_tick, from_snap = g.from_snap, from_lo = g.from_lo, to_tick = g.to_tick,
         to_base = g.to_base,
         to_snap = g.to_snap, to_lo = g.to_lo, to_hi = g.to_hi, pos = g.pos, late = g.late,
         turn = p_now
   where k.consumer = c.id and k.lane = -1;
end $$;
$source$
$template$;

-- note_taken(consumer, lanes): of lanes that were seen to be discovered and without a cursor,
-- leaves notes for those that another transaction is just giving one, or has given one since: it
-- may have found the gatherer where it was before, and put the lane to sleep. One that takes a lane
-- later than this finds the gatherer held (take_discovered). Writes wake.
create or replace function headgate.note_taken(c headgate.consumer, p_lanes bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  taken bigint[] := p_lanes;
begin
  if not headgate.has_fixed_snapshot() then
    -- (take_discovered holds them; who holds nothing any more has committed, and is seen below)
    taken := headgate.lanes_held(c.id, p_lanes);
    taken := taken || array(
      select u.lane from unnest(p_lanes) u (lane)
       where u.lane <> all(taken)
         and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
               limit 1) is null);
  end if;
  insert into headgate.wake (consumer, lane) select c.id, u from unnest(taken) u;
end $$;

-- lanes_ahead_template() -> the source of lanes_ahead_<stream id>(gatherer, after, start, n) ->
-- lanes, with their names, that have messages of the gatherer's span above a seq: of n lanes of the
-- log from `start` on, found by going from lane to lane in the index.
create or replace function headgate.lanes_ahead_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.lanes_ahead_{stream}(g headgate.cursor, p_after bigint, p_start bigint,
                                              n int) returns table (lane bigint, name text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  first bigint;  -- of the segment that is looked at: those before need not be opened
  at bigint := p_start - 1;
  has_turned boolean := p_start <= 0;
begin
  select max(s.first_seq) into first from headgate.segment s
   where s.stream = {stream} and s.first_seq <= p_after + 1;
  for i in 1 .. n loop
    select m.lane, {name} into at, lanes_ahead_{stream}.name from headgate.message_{stream} m
     where m.lane > at and m.seq >= first and m.seq <= g.to_hi order by m.lane, m.seq limit 1;
    if not found then
      exit when has_turned;
      has_turned := true;
      at := -1;
      continue;
    end if;
    exit when has_turned and p_start > 0 and at >= p_start;
    lane := at;
    -- (in this order, so that no planner goes through the span by seq)
    if (select m.seq from headgate.message_{stream} m
         where (m.lane, m.seq) > (at, p_after) and (m.lane, m.seq) <= (at, g.to_hi)
           and m.seq > p_after and m.seq <= g.to_hi
           and pg_visible_in_snapshot(m.xid, g.to_snap)
           and not pg_visible_in_snapshot(m.xid, g.from_snap)
         order by m.lane, m.seq limit 1) is not null then
      return next;
    end if;
  end loop;
end $$;
$source$
$template$;

-- move_gatherer(consumer) -> whether the gatherer of a consumer with named lanes was moved on,
-- because nobody else did for a second: those who receive only inside longer transactions leave it
-- where it is. Locks and writes as gather_<stream id>.
create or replace function headgate.move_gatherer(c headgate.consumer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  newest headgate.tick := headgate.newest_tick(c.stream);
  was headgate.cursor;
  now headgate.cursor;
begin
  select * into was from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  if not found or was.turn > clock_timestamp() - interval '1 second'
     or not (was.pos < was.to_hi or was.late is not null or was.to_tick <> newest.id) then
    return false;
  end if;
  execute format('select headgate.gather_%s($1, $2, clock_timestamp(), null)', c.stream)
    using c, newest;
  select * into now from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  return (now.to_tick, now.pos, now.late) is distinct from (was.to_tick, was.pos, was.late);
end $$;
