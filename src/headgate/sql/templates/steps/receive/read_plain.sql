-- read_plain: the hot statement. Reads a lane's span, of a consumer without filter and order, makes
-- the delivery and moves the cursor, all at once; or does nothing, when one of the messages is
-- delayed. receive_cold executes it, too. Rows are compared as (lane, seq), so that no planner
-- takes another index: its statistics are never right, and a plan is kept for the life of a
-- session. (Columns have no alias, and what is rare is elsewhere, because each word costs memory of
-- every session and stream.)
-- Needs: r, the call, which holds the lane's cursor.
-- Writes: delivery, cursor.
with m as materialized (
  select seq, key, data, headers, deliver_at, created_at from headgate.message_{stream}
   where (lane, seq) > (r.lane, r.pos)
     {if not until_18} and (lane, seq) <= (r.lane, r.hi)
     {if until_18} and lane = any(array[r.lane])
     and seq > r.pos and seq <= r.hi
     and pg_visible_in_snapshot(xid, r.to_snap)
     and not pg_visible_in_snapshot(xid, r.from_snap)
   order by lane, seq limit r.want),
d as (
  insert into headgate.delivery (consumer, lane, seqs, deadline, delivered_at, worker)
    select r.consumer, r.lane, array_agg(seq), r.deadline, r.t0, p_worker from m
    having count(*) > 0 and count(deliver_at) = 0
    returning r.lane || '.' || id || '.' as prefix, seqs),
u as (
  update headgate.cursor k
     set pos = case when cardinality(seqs) < r.want then r.hi else seqs[r.want] end,
         served_at = r.t0,
         expires_at = least(r.expires_at, r.deadline), delivered = r.delivered + cardinality(seqs)
    from d where k.consumer = r.consumer and k.lane = r.lane)
select prefix || seq, seq, key, data, headers, null::text, 1, created_at from d, m
