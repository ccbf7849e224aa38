-- know_gatherer: now that the lanes are held, how far the gatherer is.
-- Gives: g_base, newest, special.
select k.to_base into g_base from headgate.cursor k where k.consumer = c.id and k.lane = -1;
if g_base > newest.base then
  newest := headgate.newest_tick({stream});
  select coalesce(max(t.id), 0) into special from headgate.tick t
   where t.stream = {stream} and (t.late is not null or t.bridge_to is not null);
end if;
-- point: a rotation knows the gatherer
