-- choose_few: of these, lanes without a cursor that no other such transaction has just made, idle
-- ones, and those that wait for later.
-- Gives: lanes, names.
-- Locks: each lane by an advisory lock.
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
