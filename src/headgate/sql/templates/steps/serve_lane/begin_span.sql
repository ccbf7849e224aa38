-- begin_span: a lane without a share goes, a full one until it is woken; one whose span is done
-- begins the next one.
-- Gives: l, is_done.
-- Writes: cursor.
if share <= 0 then
  update headgate.cursor k
     set next_at = case when room <= 0 then 'infinity'::timestamptz else k.next_at end
       where k.consumer = c.id and k.lane = l.lane;
  return;
end if;
if l.pos >= l.to_hi and l.late is null and l.to_tick <> newest.id then
  -- the lane has seen more than the newest tick
  is_done := l.to_tick = (headgate.next_span(l, newest)).to_tick;
  l := headgate.next_span(l, newest);
  update headgate.cursor k
     set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo,
         to_tick = l.to_tick,
         to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos,
         late = l.late
   where k.consumer = c.id and k.lane = l.lane;
end if;
