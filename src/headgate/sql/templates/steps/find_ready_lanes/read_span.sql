-- read_span: the lanes that the gatherer meets, with their names: those of what late transactions
-- left below the span; those of its next messages; or some that are found by going from lane to
-- lane.
-- Gives: lanes, names, n, last.
if g.late is not null then  -- what late transactions left below the span
  select array_agg(x.lane), array_agg(x.name) into lanes, names from (
    select m.lane, min({lane_name}) as name from unnest(g.late) r
      join headgate.message_{stream} m on m.seq >= lower(r) and m.seq < upper(r)
     where m.seq <= g.from_lo and pg_visible_in_snapshot(m.xid, g.to_snap)
       and not pg_visible_in_snapshot(m.xid, g.from_snap)
       and (c.pattern is null or m.key ~ c.pattern) group by m.lane) x;
else
  -- few of a long span: by chance, from lane to lane
  if few is not null and g.to_hi - g.pos > {LONG_SPAN} then
    select array_agg(x.lane), array_agg(x.name) into lanes, names
      from headgate.lanes_ahead_{stream}(g, g.pos, headgate.any_lane(),
                                         least(few * 4 + 50, 500)) x
     where (select k.lane from headgate.cursor k
             where k.consumer = c.id and k.lane = x.lane
               and (k.next_at <= p_now or k.next_at = 'infinity' or k.to_tick = g.to_tick)
                 limit 1) is null;
  end if;
  if lanes is null then
    select array_agg(x.lane) filter (where x.fits), array_agg(x.name) filter (where x.fits),
           coalesce(sum(x.n), 0), max(x.last)
      into lanes, names, n, last from (
      select y.lane, min(y.name) as name, bool_or(y.fits) as fits, count(*) as n,
             max(y.seq) as last from (
        select m.lane, {lane_name} as name, m.seq, c.pattern is null
            or coalesce(m.key ~ c.pattern, false) as fits
          from headgate.message_{stream} m
         where m.seq > g.pos and m.seq <= g.to_hi
           and pg_visible_in_snapshot(m.xid, g.to_snap)
           and not pg_visible_in_snapshot(m.xid, g.from_snap)
         order by m.seq limit 100000) y group by y.lane) x;
  end if;
  if n >= 100000 and few is null then
    select lanes || array_agg(x.lane), names || array_agg(x.name) into lanes, names
      from headgate.lanes_ahead_{stream}(g, last, 0, 2000) x
        where x.lane <> all(coalesce(lanes, '{}'));
  end if;
end if;
