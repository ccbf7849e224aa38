-- advance: moves the gatherer to where it has read.
-- Writes: cursor.
if g.late is not null then
  g.late := null; g.pos := g.from_lo;
else
  g.pos := case when n < 100000 then g.to_hi else last end;
end if;
update headgate.cursor k
   set from_tick = g.from_tick, from_snap = g.from_snap, from_lo = g.from_lo, to_tick = g.to_tick,
       to_base = g.to_base,
       to_snap = g.to_snap, to_lo = g.to_lo, to_hi = g.to_hi, pos = g.pos, late = g.late,
       served_at = p_now
 where k.consumer = c.id and k.lane = -1;
