-- serve_by_due_time: what is parked and due, and the log, in one statement by the time when they
-- were due.
-- Gives: total, l.
-- Locks: parked (SKIP LOCKED).
-- Writes: delivery, parked, loss, cursor.
due := array(
  select p.ctid from headgate.parked p
   where p.consumer = c.id and p.lane = l.lane and p.visible_at <= t
   order by p.visible_at, p.seq limit want for update skip locked);  -- as hold_parked says
return query
with
{step serve_lane/take_by_due_time},
{step serve_lane/park_delayed},
{step serve_lane/settle_parked},
{step serve_lane/deliver_and_advance}
select d.prefix || x.seq, x.seq, x.key, x.data, x.headers, x.channel, x.attempt, x.created_at
  from d, taken x order by x.due, x.seq;
get diagnostics got = row_count;
total := total + got;
select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
