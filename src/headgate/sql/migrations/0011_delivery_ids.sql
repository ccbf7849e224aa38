-- Ids of deliveries that do not come back. A crash may take a sequence back to what was last written to disk, and a receive whose
-- commit was relaxed is then undone with it (docs/adr/0005): the next delivery would have the same number, and an ack of the old
-- one by its whole name would settle messages that another worker has. So a part of each id is drawn by chance.
alter table headgate.delivery
  alter id set default nextval('headgate.delivery_id') * 65536 + floor(random() * 65536)::bigint;

drop function if exists headgate.room_in_flight(headgate.consumer, timestamptz, boolean);  -- takes one less now
drop function if exists headgate.sees_removals(int);  -- takes one more
