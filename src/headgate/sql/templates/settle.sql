-- settle(consumer, ack_ids) -> how many messages were acked, how many ack_ids were stale. In
-- ordered consumers leaves a note for keys that have messages waiting. The usual case goes first,
-- in one statement: all of a delivery, by its own name or by those of its messages in their order,
-- and nobody else has touched it (xmax). Its messages are told by comparing text: to take each
-- ack_id apart costs more than all the rest.
-- Locks: as take_out.
-- Writes: delivery, departed, wake.
create or replace function headgate.settle(c headgate.consumer, p_acks text[], out acked int,
                                           out stale int)
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  until timestamptz := clock_timestamp() + interval '200 milliseconds';  -- for all that others hold
  is_fixed boolean := current_setting('transaction_isolation') in ('repeatable read',
      'serializable');
  n int := cardinality(p_acks);
  prefix text := rtrim(p_acks[1], '0123456789');  -- of the ack_ids of a delivery's messages
  a record;
  r record;
  d headgate.delivery;
  given int := 0;
  gone int;
  settled headgate.delivery[];
  whole text[] := '{}';  -- the deliveries that are settled
  named text[] := '{}';  -- of these, those whose messages were named
  l bigint;
  i bigint;
  s bigint[];
begin
  acked := 0; stale := 0;
  -- without the rest, which costs more
  if n = 1 and p_acks[1] ~ '^[0-9]{1,18}\.[0-9]{1,18}(\.[0-9]{1,18})?$' then
    {step settle/settle_one}
  -- of one, it seems
  elsif not is_fixed and starts_with(p_acks[n], prefix)
     and prefix ~ '^[0-9]{1,18}\.[0-9]{1,18}\.$' then
    {step settle/settle_all_of_one}
  end if;
  if d.id is not null then
    acked := cardinality(d.seqs);
    whole := array[l || '.' || i];
    if c.ordered then perform headgate.wake_keys(c, l, d.keys); end if;
    if l >= {UNNAMED_LANES} then perform headgate.leave_lane_wakes(c, array[l]); end if;
  elsif not is_fixed then
    {step settle/settle_many}
  end if;
  -- point: whole deliveries are settled
  -- (what had departed after all: who held it was gone before this looked, or a vacuum forgot that)
  if whole <> '{}' and exists (select from headgate.departed x where x.consumer = c.id) then
    gone := headgate.forget_departed_of(c, named);
    stale := gone;
    acked := acked - gone;
    acked := acked - headgate.forget_departed_of(c, whole);
  end if;
  if given >= n then return; end if;
  for a in select p.* from headgate.parse_acks(p_acks) p
    where p.lane || '.' || p.delivery <> all(whole) loop
    select p.* into r from headgate.settle_part(c, a.lane, a.delivery, a.seqs, a.given, until) p;
    acked := acked + r.acked;
    stale := stale + r.stale;
  end loop;
end $$;
