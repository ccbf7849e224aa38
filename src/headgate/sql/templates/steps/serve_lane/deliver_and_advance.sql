-- deliver_and_advance: makes the delivery of what is `taken`, and moves the cursor.
-- Writes: delivery, cursor.
d as (
  insert into headgate.delivery (consumer, lane, seqs, attempts, deadline, delivered_at, worker)
    select c.id, l.lane, array_agg(x.seq order by x.due, x.seq),
           array_agg(x.attempt order by x.due, x.seq), deadline, t, p_worker
      from taken x having count(*) > 0 returning l.lane || '.' || id || '.' as prefix),
u as (update headgate.cursor k set pos = stop.at,
             redelivered = k.redelivered + (select count(*) from taken x where x.attempt > 1)
        from stop where k.consumer = c.id and k.lane = l.lane)
