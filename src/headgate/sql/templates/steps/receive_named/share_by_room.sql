-- share_by_room: each lane that has room gives its share of the batch, one message when releases
-- are spaced.
-- Gives: rooms, shares, slows, and is_stale when limits have changed while a lane got its cursor.
select array_agg(y.room order by y.nth), array_agg(y.slow order by y.nth),
       array_agg(case when y.room <= 0 then 0 when y.pace > interval '0' then 1
                      else
                        least(y.room,
                              want / y.waiting + case when y.rank <= want % y.waiting then 1
                                                      else 0 end) end order by y.nth)
  , bool_or(y.is_stale) into rooms, slows, shares, is_stale from (
  select x.*, count(*) filter (where x.room > 0) over () as waiting,
         count(*) filter (where x.room > 0) over (order by x.nth) as rank from (
    select h.nth, coalesce(k.release_interval, c.release_interval) as pace,
           (has_channels or k.max_concurrency is not null or k.release_interval is not null)
           and (k.max_concurrency, k.release_interval) is distinct from (
             (select x.max_concurrency from headgate.channel x
               where x.consumer = c.id and x.lane = k.lane),
             (select x.release_interval from headgate.channel x
               where x.consumer = c.id and x.lane = k.lane)) as is_stale,
           case when c.ordered and {is_strict} and k.lane >= {NAMED_LANES} then
                  case when (
                    select d.id from headgate.delivery d
                     where d.consumer = c.id and d.lane = k.lane and {left_in_flight} > 0
                       order by d.id limit 1) is not null then 0 else 2147483647 end
                when coalesce(k.max_concurrency, c.max_concurrency) is null then 2147483647
                else coalesce(k.max_concurrency, c.max_concurrency) - coalesce((
                  select sum({left_in_flight}) from headgate.delivery d
                   where d.consumer = c.id and d.lane = k.lane), 0) end::int as room,
           {step receive_named/is_slow} as slow
      from unnest(places) with ordinality h (place, nth)
        join headgate.cursor k on k.ctid = h.place) x) y;
