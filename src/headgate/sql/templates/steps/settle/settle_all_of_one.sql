-- settle_all_of_one: ack_ids that begin and end like those of one delivery, if they are all of it.
-- Gives: d, when they are; l and i, its lane and id; given, named.
-- Locks: a delivery (SKIP LOCKED).
-- Writes: delivery.
l := split_part(prefix, '.', 1); i := split_part(prefix, '.', 2);
delete from headgate.delivery x where x.ctid = (
  select y.ctid from headgate.delivery y
   where y.consumer = c.id and y.lane = l and y.id = i and y.xmax = '0'::xid
     and y.is_split is null
     and cardinality(y.seqs) = n
     and string_to_array(prefix || array_to_string(y.seqs, ' ' || prefix), ' ') = p_acks
     for update skip locked)
  returning x.* into d;
if d.id is not null then
  given := n;
  named := array[l || '.' || i];
end if;
