-- serve_due_parked: what is parked and due, where it comes before the log.
-- Gives: want, total, again.
-- Writes: as unpark; delivery.
if (select p.visible_at from headgate.parked p where p.consumer = c.id and p.lane = l.lane
     order by p.visible_at limit 1) <= t then
  select array_agg(p.seq), array_agg(p.attempt), array_agg(p.key)
    into back, back_attempts, back_keys
    from headgate.unpark(c, l.lane, want, t) p;
  -- point: what was parked in a named lane is to be looked up
  return query
  with m as materialized (
    select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at, {channel} as channel
      from unnest(back, back_attempts) p (seq, attempt)
      join (select * from headgate.message_{stream} union all select *
              from headgate.preserved_{stream}) m on m.seq = p.seq),
  d as (
    insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at,
                                   worker)
      select c.id, l.lane, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
             case when c.ordered then array_agg(m.key order by m.seq) end, deadline, t, p_worker
               from m having count(*) > 0
      returning l.lane || '.' || id || '.' as prefix)
  select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, m.channel, m.attempt, m.created_at
    from d, m order by m.seq;
  get diagnostics got = row_count;
  if got < cardinality(back) then
    perform headgate.record_missing(c, back, back_keys, 'removed while parked');
  end if;
  want := want - got; total := total + got;
  again := least(got, (select count(*) from unnest(back_attempts) a where a > 1));
end if;
