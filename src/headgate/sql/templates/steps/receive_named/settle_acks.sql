-- settle_acks: settles what the worker is done with, and wakes the lanes that were full.
-- Writes: as settle and wake_lanes.
keeps_keys := c.ordered and not {is_strict};
is_limited := (c.ordered and {is_strict}) or c.max_concurrency is not null
or c.release_interval is not null;
if cardinality(acks) > 0 then
  if array_to_string(acks, ' ') ~ '^([0-9]{1,18}\.[0-9]{1,18}( |$))+$' then  -- whole deliveries
    with gone as ({step delete_deliveries}
                  returning d.lane, case when keeps_keys then d end as d)
    select array_agg(distinct x.lane), count(*), case when keeps_keys then array_agg(x.d) end,
           exists (select from headgate.channel h where h.consumer = c.id)
      into freed, got, gone, has_channels from gone x;
    if gone is not null then perform headgate.wake_keys_of(c, gone); end if;
    -- the others: stale, or held by somebody
    if got < cardinality(acks) then perform headgate.settle_surely(c, acks); end if;
    if (is_limited or has_channels) and freed is not null then
      if open then
        insert into headgate.wake (consumer, lane) select c.id, u from unnest(freed) u;
      else
        perform headgate.wake_lanes(c, freed, t0);
      end if;
    end if;
  else
    select s.stale into got from headgate.settle(c, acks) s;
    if got > 0 then perform headgate.settle_surely(c, acks); end if;
  end if;
end if;
-- point: a rotation has settled its acks
