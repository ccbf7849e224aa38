-- tell_lanes_apart: which of the lanes are known, strange, to be left to others, or were discovered
-- before. In one look: a lane that gets its cursor from another transaction between two would be
-- neither known nor strange, and that one may put it to sleep. Each is looked up, and whether it
-- goes in now is said with it: joins are nested loops here, over whatever the planner takes for
-- small.
-- Gives: known, strange, later, told.
-- Locks: strange lanes by advisory locks.
-- Writes: wake.
if direct is not null then direct := headgate.room_for_locks(direct); end if;
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
