-- apply_limits: leaves when the consumer is paused or has no room.
-- Gives: want.
if c.paused then return; end if;
if c.max_ack_pending is not null then
  want := least(n, headgate.room_in_flight(c, t0));
  if want <= 0 then return; end if;
end if;
had := want;
