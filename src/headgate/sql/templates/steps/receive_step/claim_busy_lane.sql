-- claim_busy_lane: the fast claim, of a lane with work left in its span, or of one that nobody has
-- looked at for a moment, that waited longest.
-- Gives: r at a lane to be read, or to be checked.
-- Locks: a cursor (SKIP LOCKED).
select k.lane, k.pos, k.to_hi, k.from_snap, k.to_snap, k.expires_at, k.delivered,
       case
         when k.pos >= k.to_hi or k.late is not null or k.discards
           or coalesce(k.expires_at <= r.t0, false)
                 or k.rate_since < r.t0 - interval '10 seconds'
                 or coalesce((
                      select p.visible_at from headgate.parked p
                       where p.consumer = r.consumer and p.lane = k.lane
                       order by p.visible_at limit 1) <= r.t0, false) then 'check'
            when k.to_hi - k.pos > {LONG_SPAN} then 'long'
            else 'read' end
  into r.lane, r.pos, r.hi, r.from_snap, r.to_snap, r.expires_at, r.delivered, r.step
  from headgate.cursor k
 where k.consumer = r.consumer
   and (k.pos < k.to_hi or k.served_at < r.t0 - interval '20 milliseconds')
   and (r.tried is null or k.lane <> all(r.tried))
 order by k.served_at limit 1 for no key update skip locked;
-- point: a busy lane is claimed
if r.step = 'long' and not p_lets_go then
  r.hi := headgate.end_of_read(p_stream, r.pos, r.hi);
  r.step := 'read';
end if;
