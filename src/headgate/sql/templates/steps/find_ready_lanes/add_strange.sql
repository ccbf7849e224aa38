-- add_strange: gives strange lanes a cursor, and leaves word of the others.
-- Writes: cursor, discovered.
if strange <> '{}' then
  held := headgate.add_lanes(c, g, strange, strange_names,
                             case when few is null and direct is null then p_now
                                  else '-infinity' end, true);
  select later || array_agg(u.lane), later_names || array_agg(u.name) into later, later_names
    from unnest(strange, strange_names) u (lane, name) where u.lane = any(held);
end if;
if later <> '{}' and few is null then
  insert into headgate.discovered (consumer, lane, name, at, first_seq, from_tick, from_lo,
                                   to_tick, to_base, to_lo, to_hi, from_snap, to_snap, late)
    select c.id, u.lane, u.name, p_now, g.first_seq, g.from_tick, g.from_lo, g.to_tick,
           g.to_base, g.to_lo, g.to_hi, g.from_snap, g.to_snap, g.late
      from unnest(later, later_names) u (lane, name);
end if;
