-- find_flying_keys: which keys of these lanes are in flight, now that they are held, and before it
-- is asked what is parked: a message that is nacked at this moment is seen in flight, or parked, or
-- both, but never as neither. (One that has departed may be counted as in flight:
-- serve_lane_<stream id> looks closer.)
-- Gives: flying, noted.
select coalesce(array_agg(k.lane || ' ' || f.key), '{}') into flying
  from unnest(places) h (place) join headgate.cursor k on k.ctid = h.place
 cross join lateral (
   select d.keys from headgate.delivery d where d.consumer = c.id and d.lane = k.lane
    order by d.id offset 0) d
 cross join lateral unnest(d.keys) f (key)
 where f.key is not null;
if has_notes then
  noted := array(
    select k.lane from unnest(places) h (place) join headgate.cursor k on k.ctid = h.place
     where (select w.key from headgate.wake w
             where w.consumer = c.id and w.lane = k.lane and w.key is not null
               limit 1) is not null);
end if;
