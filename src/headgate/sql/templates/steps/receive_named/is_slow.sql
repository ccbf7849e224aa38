-- is_slow: whether a lane needs serve_lane_<stream id>: a filter, delays, messages that were
-- discarded or of late transactions, a span that does not simply end at the newest tick, something
-- parked, or a note of a key.
c.pattern is not null
{if upsert} or true
or k.has_delayed or k.late is not null or k.discards
or (k.pos >= k.to_hi
    and (k.to_tick <> k.to_base or newest.id <> newest.base or k.to_base <= special))
or k.lane = any(noted)
or (select p.seq from headgate.parked p
     where p.consumer = c.id and p.lane = k.lane order by p.visible_at, p.seq limit 1) is not null
