-- hold_gatherer: holds the gatherer, and begins its next span when this one is done; leaves when
-- there is nothing to read.
-- Gives: g, was.
-- Locks: the gatherer (SKIP LOCKED).
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
