-- settle_acks: settles what the worker is done with. The usual cases have statements of their own.
-- Needs: r, is_ordered, is_odd.
-- Locks: as settle.
-- Writes: as settle; delivery.
if cardinality(acks) > 0 then
  -- whole deliveries
  if not is_ordered and array_to_string(acks, ' ') ~ '^([0-9]{1,18}\.[0-9]{1,18}( |$))+$' then
    if cardinality(acks) = 1 then
      delete from headgate.delivery d
       where d.consumer = r.consumer and d.lane = split_part(acks[1], '.', 1)::bigint
         and d.id = split_part(acks[1], '.', 2)::bigint
         and d.xmax = '0'::xid and d.is_split is null;
    else  -- (as delete_deliveries says)
      delete from headgate.delivery d
       using (select r.consumer as consumer, split_part(a, '.', 1)::bigint as lane,
                     split_part(a, '.', 2)::bigint as id
                from unnest(acks) a offset 0) a
       where (d.consumer, d.lane, d.id) >= (r.consumer, a.lane, a.id)
         {if not until_18} and (d.consumer, d.lane, d.id) <= (r.consumer, a.lane, a.id)
         {if until_18} and d.consumer = any(array[a.consumer])
         {if until_18} and d.lane = any(array[a.lane]) and d.id = any(array[a.id])
         and d.xmax = '0'::xid and d.is_split is null;
    end if;
    get diagnostics got = row_count;
    if got < cardinality(acks) then  -- the others: stale, or held by somebody
      select k.* into c from headgate.consumer k where k.id = r.consumer;
      perform headgate.settle_surely(c, acks);
    end if;
  else
    got := 0;
    if not is_ordered and not is_odd
       and acks[1] ~ '^[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}$' then
      delete from headgate.delivery d  -- all messages of one delivery, by their names
       where d.consumer = r.consumer and d.lane = split_part(acks[1], '.', 1)::bigint
         and d.id = split_part(acks[1], '.', 2)::bigint
         and d.xmax = '0'::xid and d.is_split is null
         and d.lane || '.' || d.id || '.'
           || array_to_string(d.seqs, ' ' || d.lane || '.' || d.id || '.')
             = array_to_string(acks, ' ');
      get diagnostics got = row_count;
    end if;
    if got = 0 then
      select k.* into c from headgate.consumer k where k.id = r.consumer;
      select s.stale into got from headgate.settle(c, acks) s;
      if got > 0 then perform headgate.settle_surely(c, acks); end if;
    end if;
  end if;
end if;
