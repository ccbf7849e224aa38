-- spans_of_lanes: `s`, the usual lanes that are held, each with the span that it is to read: the
-- one that it is in, or the next one.
s as materialized (
  select k.lane, h.nth, h.place, rooms[h.nth] as room, shares[h.nth] as share, k.delivered,
         k.next_at,
         coalesce(k.release_interval, c.release_interval) as pace,
         case when v.moves then k.to_tick else k.from_tick end as from_tick,
         case when v.moves then k.to_snap else k.from_snap end as from_snap,
         case when v.moves then k.to_lo else k.from_lo end as from_lo,
         case when v.moves then newest.id else k.to_tick end as to_tick,
         case when v.moves then newest.base else k.to_base end as to_base,
         case when v.moves then newest.snap else k.to_snap end as to_snap,
         case when v.moves then newest.lo else k.to_lo end as to_lo,
         case when v.moves then newest.hi else k.to_hi end as to_hi,
         case when v.moves then greatest(k.to_lo, k.first_seq - 1) else k.pos end as pos
    from unnest(places) with ordinality h (place, nth) join headgate.cursor k on k.ctid = h.place
   cross join lateral (select k.pos >= k.to_hi and k.to_base < newest.id as moves) v
   where not slows[h.nth])
