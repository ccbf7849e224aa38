-- say_when_due: when to look at the lane again; and its rate.
-- Writes: cursor. when to look at the lane again
select min(x.at) into sleeps
  from (select p.visible_at as at from headgate.parked p
         where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) x;
update headgate.cursor k set
  served_at = case when total > 0 then t else k.served_at end, delivered = was + total,
  redelivered = k.redelivered + again,
  has_delayed = sleeps is not null or (l.has_delayed and l.pos < l.to_hi),
  next_at = case
    when total >= room and total > 0 or (is_strict and total > 0) then 'infinity'
    when l.pos < l.to_hi or l.late is not null or (l.to_base < g_base and not is_done) then
      case when total > 0 then t + coalesce(k.release_interval, c.release_interval, interval '0')
           when is_strict and sleeps is not null then sleeps
           when l.pos > was_pos or l.pos >= l.to_hi then t
           -- nothing may pass at present: not in a tight loop
           else least(sleeps, t + interval '20 milliseconds') end
    when total > 0 then
      greatest(sleeps, t + coalesce(k.release_interval, c.release_interval, interval '0'))
    else sleeps end
 where k.consumer = c.id and k.lane = l.lane;
if l.rate_since < t - interval '10 seconds' then
  perform headgate.move_marks(c.id, l.lane, t);
end if;
