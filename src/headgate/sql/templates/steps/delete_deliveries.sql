-- delete_deliveries: settles whole deliveries, those that nobody else holds or has held (xmax): for
-- the others there is settle_surely. Rows are found by their key, not by their place: one that is
-- extended meanwhile lies elsewhere. They are compared as a whole, or a planner joins by consumer
-- and reads all of its deliveries.
-- Writes: delivery.
delete from headgate.delivery d
 using (select split_part(a, '.', 1)::bigint as lane, split_part(a, '.', 2)::bigint as id
          from unnest(acks) a offset 0) a
 where (d.consumer, d.lane, d.id) >= (c.id, a.lane, a.id)
   and (d.consumer, d.lane, d.id) <= (c.id, a.lane, a.id)
   and d.xmax = '0'::xid and d.is_split is null
