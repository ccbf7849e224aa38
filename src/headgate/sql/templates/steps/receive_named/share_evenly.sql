-- share_evenly: each lane gives its share of the batch, the first ones one more.
-- Gives: rooms, shares, slows, is_stale, and has_channels when limits were set meanwhile.
select array_agg(x.slow order by x.nth), bool_or(x.has_limits) into slows, has_channels from (
  -- (set since, or no more)
  select h.nth, k.max_concurrency is not null or k.release_interval is not null as has_limits,
         {step receive_named/is_slow} as slow
    from unnest(places) with ordinality h (place, nth)
      join headgate.cursor k on k.ctid = h.place) x;
n_lanes := cardinality(places);
rooms := array_fill(2147483647, array[n_lanes]);
shares := array_fill(want / n_lanes + 1, array[want % n_lanes])
  || array_fill(want / n_lanes, array[n_lanes - want % n_lanes]);
is_stale := false;
