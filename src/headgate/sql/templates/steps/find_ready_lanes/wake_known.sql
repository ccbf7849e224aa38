-- wake_known: makes lanes due that have a cursor; of those that others hold it leaves notes. Those
-- that are on this tick already have nothing to be told, and are needed by others.
-- Locks: cursors (SKIP LOCKED).
-- Writes: cursor, wake.
if cardinality(known) > direct then
  insert into headgate.wake (consumer, lane) select c.id, u from unnest(known[direct + 1 :]) u;
  known := known[: direct];
end if;
if known <> '{}' then
  select coalesce(array_agg(h.lane), '{}'), array_agg(h.place) into held, places
    from unnest(known) u (lane) cross join lateral (
    select k.lane, k.ctid as place from headgate.cursor k
     where k.consumer = c.id and k.lane = u.lane limit 1 for no key update skip locked) h;
  update headgate.cursor k
     set next_at
       = headgate.when_due(p_now, k.served_at, coalesce(k.release_interval, c.release_interval),
                                                           few is not null
                                                           or direct is not null)
   where k.ctid = any(places) and (few is not null or k.to_base < g.to_base)
     and (k.next_at is null or (k.next_at > p_now and k.next_at < 'infinity'));
  if few is null and cardinality(held) < cardinality(known) then
    insert into headgate.wake (consumer, lane) select c.id, u.lane
      from (select unnest(known) except select unnest(held)) u (lane);
  end if;
end if;
