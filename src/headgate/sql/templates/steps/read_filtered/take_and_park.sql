-- take_and_park: of `fit`, in `sorted`, some wait: those that are delayed, and those behind a
-- delayed one, one in flight or a parked one of their key. `taken` is handed out, `g` says how far
-- this goes, and what waits up to there is parked.
-- Writes: parked.
sorted as materialized (
  select f.*, f.delayed
      or (f.held is not null
          and bool_or(f.delayed or f.flies or f.blocked) over (partition by f.held
              order by f.seq)) as waits
    from fit f
   where not crowded
      or f.seq < coalesce((select min(f2.seq) from fit f2 where f2.flies), f.seq + 1)),
taken as materialized (
  select s.seq, s.held, s.key, s.data, s.headers, s.created_at, s.channel
    from sorted s where not s.waits order by s.seq limit want),
g as materialized (  -- how far this goes; null: to the end of the span (or of its late part)
  select case when (select count(*) from taken) >= want then (select max(x.seq) from taken x)
              when crowded and exists (select from fit f where f.flies)
                then (select min(f.seq) - 1 from fit f where f.flies)
              when (select count(*) from raw) >= chunk
                then (select max(r.seq) from raw r) end as stop),
p as (
  insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
    select c.id, l.lane, s.seq, s.held, 0,
           case when s.delayed then s.deliver_at
                when s.flies and not s.blocked
                     and row_number() over (partition by s.held order by s.seq) = 1
                  then t0 + interval '50 milliseconds'
                else 'infinity' end,
           case when s.delayed then 'delayed' else 'blocked' end
      from sorted s, g where s.waits and (g.stop is null or s.seq <= g.stop))
