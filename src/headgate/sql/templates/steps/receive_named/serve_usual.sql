-- serve_usual: moves the lanes that need nothing special on to their spans, reads each, makes its
-- delivery and moves its cursor. With `keys` lanes are left out of which a key is in flight.
-- Needs: the lanes are held, and rooms, shares, slows, flying.
-- Writes: delivery, cursor.
with
{step receive_named/spans_of_lanes},
{step receive_named/read_shares},
{step receive_named/advance_lanes},
{step receive_named/deliver_shares}
select r.lane || '.' || r.id || '.' || m.seq, m.seq, m.key, m.data, m.headers, {channel}, 1,
       m.created_at
  from r cross join lateral unnest(r.messages[:r.n]) m
 where not r.delayed
   {if keys} and not r.blocked
