-- park_delayed: `stop`, how far this goes, and what is delayed up to there is parked.
-- Writes: parked.
stop as materialized (
  select coalesce(
    (select min(g.seq) - 1 from log g
      where g.deliver_at is null and g.seq <> all(array(select x.seq from taken x))),
                  case when (select count(*) from raw) < want + 20 then l.to_hi
                       else (select max(r.seq) from raw r) end) as at),
p as (
  insert into headgate.parked (consumer, lane, seq, attempt, visible_at, reason)
    select c.id, l.lane, g.seq, 0, g.deliver_at, 'delayed' from log g, stop
     where g.deliver_at is not null and g.seq <= stop.at
       and g.seq <> all(array(select x.seq from taken x)))
