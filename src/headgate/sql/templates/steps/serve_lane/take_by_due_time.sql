-- take_by_due_time: `raw`, the beginning of the span; `log`, that by the time when each was due;
-- `waits`, what is parked and due; and `taken`, what is handed out. Due times never fall along the
-- log, so that what is taken of it is its beginning, delayed messages apart.
raw as materialized (
  select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {channel} as channel
    from headgate.message_{stream} m
   where (m.lane, m.seq) > (l.lane, l.pos)
     {if not until_18} and (m.lane, m.seq) <= (l.lane, l.to_hi)
     and m.seq > l.pos and m.seq <= l.to_hi
     {if until_18} and m.lane = any(array[l.lane])
     and pg_visible_in_snapshot(m.xid, l.to_snap)
     and not pg_visible_in_snapshot(m.xid, l.from_snap)
   order by m.lane, m.seq limit want + 20),
log as materialized (
  select r.*, greatest(r.deliver_at, max(r.created_at) over (order by r.seq)) as due
    from raw r),
waits as materialized (
  select p.seq, p.attempt + 1 as attempt,
         case p.reason when 'released' then '-infinity' else p.visible_at end as due,
         p.ctid as place
    from headgate.parked p where p.ctid = any(due)),
taken as materialized (
  select x.* from (
    select g.seq, 1 as attempt, g.due, null::tid as place, g.key, g.data, g.headers, g.channel,
           g.created_at from log g where g.deliver_at is null or g.deliver_at <= t
    union all
    select w.seq, w.attempt, w.due, w.place, m.key, m.data, m.headers, {channel}, m.created_at
      from waits w
        join (select * from headgate.message_{stream} union all select *
                from headgate.preserved_{stream}) m on m.seq = w.seq) x
   order by x.due, x.seq limit want)
