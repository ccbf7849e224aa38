-- delete_deliveries: settles whole deliveries, those that nobody else holds or has held (xmax): for
-- the others there is settle_surely. Rows are found by their key, not by their place: one that is
-- extended meanwhile lies elsewhere. They are compared as a whole, or a planner joins by consumer
-- and reads all of its deliveries; where that does not end a scan (see base/generated.sql), with
-- arrays of the join's columns.
-- Writes: delivery.
delete from headgate.delivery d
 using (select c.id as consumer, split_part(a, '.', 1)::bigint as lane,
               split_part(a, '.', 2)::bigint as id
          from unnest(acks) a offset 0) a
 where (d.consumer, d.lane, d.id) >= (c.id, a.lane, a.id)
   {if not until_18} and (d.consumer, d.lane, d.id) <= (c.id, a.lane, a.id)
   {if until_18} and d.consumer = any(array[a.consumer])
   {if until_18} and d.lane = any(array[a.lane]) and d.id = any(array[a.id])
   and d.xmax = '0'::xid and d.is_split is null
