-- hold_lanes: claims the lanes that are due, those that waited longest first. A lane costs more
-- than a message, so that in batches of 20 and more each lane gives two, in those of 100 and more
-- ten, if it has them. What is held stays where it is: the statements below find the rows again by
-- their place, which is cheaper than carrying them along.
-- Gives: places, t1.
-- Locks: cursors (SKIP LOCKED).
t1 := clock_timestamp();
select array_agg(x.place) into places from (
  select k.ctid as place from headgate.cursor k
   where k.consumer = c.id and k.next_at <= t1 and k.next_at < 'infinity'
     and (mine is null or k.lane % {lanes} = any(mine))
   order by k.next_at, k.lane
     limit case when is_first then ceil(n::float8 / least(10, greatest(1, n / 10)))
                else want end for no key update skip locked) x;
-- point: a rotation holds lanes
is_first := false;
-- now that they are held: has one changed hands, or is another worker not done with it?
if c.leased and places is not null then
  select array_agg(h.place order by h.nth) into places
    from unnest(places) with ordinality h (place, nth)
      join headgate.cursor k on k.ctid = h.place
   where headgate.may_claim(c, k.lane, p_worker);
end if;
