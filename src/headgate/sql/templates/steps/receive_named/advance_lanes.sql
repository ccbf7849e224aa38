-- advance_lanes: moves the cursors, and says when each lane is due again. A lane with a delayed
-- message stays where it is, for serve_lane_<stream id>.
-- Writes: cursor.
u as (
  update headgate.cursor k
     set from_tick = r.from_tick, from_snap = r.from_snap, from_lo = r.from_lo, to_tick = r.to_tick,
         to_base = r.to_base,
         to_snap = r.to_snap, to_lo = r.to_lo, to_hi = r.to_hi, has_delayed = r.delayed,
         pos = case when r.delayed or r.share <= 0 then r.pos when r.more then r.seqs[r.n]
                    else r.to_hi end,
         served_at = case when r.delayed or r.n = 0 then k.served_at else t1 end,
         delivered = r.delivered + case when r.delayed then 0 else r.n end,
         {marks},
         next_at = case when r.room <= 0 then 'infinity'
                        when r.share <= 0 or r.delayed then r.next_at
                        when not r.more and r.to_base >= g_base then null
                        when r.n > 0
                          and (r.n >= r.room
                               or (c.ordered and {is_strict} and r.lane >= {NAMED_LANES})) then
                                 'infinity'
                        else
                          t1 + case when r.n > 0 and r.pace > interval '0' then r.pace
                                    else interval '0' end + r.nth * interval '1 microsecond' end
    from r where k.ctid = r.place
   {if keys} and not r.blocked
)
