-- settle_many: of ack_ids of several deliveries, those that name all of one.
-- Gives: settled, given, acked, whole, named.
-- Locks: deliveries (SKIP LOCKED).
-- Writes: delivery, wake.
with g as materialized (
  select y.prefix, y.ids, y.is_whole, split_part(y.prefix, '.', 1)::bigint as lane,
         split_part(y.prefix, '.', 2)::bigint as id
    from (select case when u like '%.%.%' then rtrim(u, '0123456789')
            else u || '.' end as prefix, array_agg(u) as ids,
                 bool_and(u not like '%.%.%') as is_whole
            from unnest(p_acks) u group by 1 offset 0) y
   where case
     when translate(y.prefix, '0123456789', '') = '..'
       and (cardinality(y.ids) = 1 or not y.is_whole)
              then length(split_part(y.prefix, '.', 1)) between 1 and 18
              and length(split_part(y.prefix, '.', 2)) between 1 and 18
              else false end),
gone as (
  delete from headgate.delivery x
   using (select h.place, g.is_whole, cardinality(g.ids) as given from g cross join lateral (
            select y.ctid as place from headgate.delivery y
             where y.consumer = c.id and y.lane = g.lane and y.id = g.id and y.xmax = '0'::xid
               and y.is_split is null
               and (g.is_whole
                    or string_to_array(g.prefix || array_to_string(y.seqs, ' ' || g.prefix),
                                       ' ') = g.ids)
             limit 1 for update skip locked) h offset 0) h
   where x.ctid = h.place
   returning x, h.given, h.is_whole)
select array_agg(x.x), coalesce(sum(x.given), 0), coalesce(sum(cardinality((x.x).seqs)), 0),
       coalesce(array_agg((x.x).lane || '.' || (x.x).id), '{}'),
       coalesce(array_agg((x.x).lane || '.' || (x.x).id) filter (where not x.is_whole), '{}')
  into settled, given, acked, whole, named from gone x;
if settled is not null then
  if c.ordered then perform headgate.wake_keys_of(c, settled); end if;
  perform headgate.leave_lane_wakes(c,
                              array(select distinct u.lane from unnest(settled) u
                                     where u.lane >= {UNNAMED_LANES}));
end if;
