-- deliver_shares: makes a delivery for each lane.
-- Writes: delivery.
d as (
  insert into headgate.delivery (consumer, lane, id, seqs, keys, deadline, delivered_at, worker)
    select c.id, r.lane, r.id, r.seqs[:r.n],
           case when c.ordered then array(select m.key from unnest(r.messages[:r.n]) m) end,
           deadline, t1, p_worker from r where r.n > 0 and not r.delayed
     {if keys} and not r.blocked
)
