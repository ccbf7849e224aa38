-- tell_what_fits: `fit`, those of `raw` that pass the filter and were not discarded, each with
-- whether it is delayed, whether its key flies, and whether something of its key is parked. (What
-- is handed out is carried along: estimates are off here, and joins of CTEs turn quadratic.)
-- Needs: flying and any_parked.
fit as materialized (
  select r.*, case when c.ordered then r.key end as held,
         coalesce(r.deliver_at > t0, false) as delayed,
         coalesce(c.ordered and r.key in (select unnest(flying)), false) as flies,
         any_parked
         and (select p.seq from headgate.parked p
               where p.consumer = c.id and p.lane = l.lane and p.key is not null
                 and (p.key, p.seq) >= (r.key, 0) and (p.key, p.seq) < (r.key, r.seq)
               order by p.key, p.seq limit 1) is not null as blocked
    from raw r where (c.pattern is null or r.key ~ c.pattern){and_newest}
     and (not l.discards
          or (select z.seq from headgate.discarded z where z.consumer = c.id and z.seq = r.seq
               limit 1) is null))
