-- read_span: `raw`, at most `chunk` messages of the lane's span, or of what late transactions left
-- below it.
-- Needs: the lane's cursor is held.
raw as materialized (
  (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {channel} as channel
     from headgate.message_{stream} m
    where l.late is null and (m.lane, m.seq) > (l.lane, l.pos)
      and m.seq > l.pos and m.seq <= l.to_hi
      {if not until_18} and (m.lane, m.seq) <= (l.lane, l.to_hi)
      {if until_18} and m.lane = any(array[l.lane])
      and pg_visible_in_snapshot(m.xid, l.to_snap)
      and not pg_visible_in_snapshot(m.xid, l.from_snap)
    order by m.lane, m.seq limit chunk)
  union all
  (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {channel} as channel
     from unnest(l.late) r cross join lateral (
       select * from headgate.message_{stream} m
        where (m.lane, m.seq) >= (l.lane, greatest(lower(r), l.pos + 1))
          {if not until_18} and (m.lane, m.seq) < (l.lane, upper(r))
          {if not until_18} and (m.lane, m.seq) <= (l.lane, l.from_lo)
          {if until_18} and m.lane = any(array[l.lane]) and m.seq < upper(r)
          {if until_18} and m.seq <= l.from_lo
          and pg_visible_in_snapshot(m.xid, l.to_snap)
          and not pg_visible_in_snapshot(m.xid, l.from_snap)
        order by m.lane, m.seq limit chunk) m
    where l.late is not null order by m.seq limit chunk))
