-- read_shares: `r`, what each lane gives, of its share and one message more.
r as materialized (
  select s.*, x.*, coalesce(cardinality(x.seqs), 0) > s.share as more,
         least(coalesce(cardinality(x.seqs), 0), s.share) as n,
         nextval('headgate.delivery_id') * 65536 + floor(random() * 65536)::bigint as id
    from s cross join lateral (
      select array_agg((y.m).seq) as seqs, array_agg(y.m) as messages,
             coalesce(bool_or((y.m).deliver_at is not null), false) as delayed
             {if keys} , coalesce(bool_or(
             {if keys}     s.lane || ' ' || (y.m).key in (select unnest(flying))), false) as blocked
        from (select m from headgate.message_{stream} m
               where s.share > 0 and (m.lane, m.seq) > (s.lane, s.pos)
                 and m.seq > s.pos and m.seq <= s.to_hi
                 {if not until_18} and (m.lane, m.seq) <= (s.lane, s.to_hi)
                 {if until_18} and m.lane = any(array[s.lane])
                 and pg_visible_in_snapshot(m.xid, s.to_snap)
                 and not pg_visible_in_snapshot(m.xid, s.from_snap)
               order by m.lane, m.seq limit s.share + 1) y) x)
