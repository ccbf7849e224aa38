-- settle_one: one ack_id, of a delivery or of a message; leaves when that does not name all of a
-- delivery that nobody has touched. Without the rest, which costs more.
-- Gives: d; l and i, its lane and id; given, named.
-- Locks: a delivery (SKIP LOCKED).
-- Writes: delivery, or as settle_part.
l := split_part(p_acks[1], '.', 1);
i := split_part(p_acks[1], '.', 2);
s := array[nullif(split_part(p_acks[1], '.', 3), '')::bigint];
if s[1] is null then s := null; end if;
if not is_fixed then
  delete from headgate.delivery x where x.ctid = (
    select y.ctid from headgate.delivery y
     where y.consumer = c.id and y.lane = l and y.id = i and y.xmax = '0'::xid
       and y.is_split is null
       and (s is null or y.seqs = s) for update skip locked)
    returning x.* into d;
end if;
-- point: a delivery is to be settled
if d.id is null then
  select p.acked, p.stale into settle.acked, settle.stale
    from headgate.settle_part(c, l, i, s, 1, until) p;
  return;
end if;
given := 1;
if s is not null then named := array[l || '.' || i]; end if;
