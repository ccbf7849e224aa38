-- deliver_and_advance: makes the delivery of what is `taken`, `d`, and moves the cursor to where
-- this goes.
-- Writes: delivery, cursor.
d as (
  insert into headgate.delivery (consumer, lane, seqs, keys, deadline, delivered_at, worker)
    select c.id, l.lane, array_agg(x.seq order by x.seq),
           case when c.ordered then array_agg(x.held order by x.seq) end, deadline, t0, p_worker
      from taken x having count(*) > 0 returning l.lane || '.' || id || '.' as prefix),
u as (
  update headgate.cursor k
     set pos = coalesce(g.stop, case when l.late is null then l.to_hi else l.from_lo end),
         late = case when g.stop is not null then l.late end, served_at = t0,
         expires_at = case when exists (select from taken) then least(l.expires_at, deadline)
                         else l.expires_at end,
         delivered = l.delivered + (select count(*) from taken)
    from g where k.consumer = c.id and k.lane = l.lane)
