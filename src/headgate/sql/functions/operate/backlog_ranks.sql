-- Which named lanes of a consumer have something that waits, and about how much: the first step of
-- operate/backlog.sql.

-- look_at_backlog(consumer, stream) -> where the consumer is, and which part of the log to look at.
create or replace function headgate.look_at_backlog(c headgate.consumer, s headgate.stream)
returns headgate.backlog_look
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  r headgate.backlog_look;
  g headgate.cursor;
  behind record;  -- the lanes that are awake, or that there is word of
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  r.lowest := lower(headgate.log_ranges(s.id)) - 1;
  r.highest := headgate.last_seq(s.id);
  select min(least(k.pos, k.to_lo, lower(k.late) - 1)) as start, min(k.to_base) as base,
         min(k.first_seq) - 1 as floor
    into behind
    from (select k.pos, k.to_lo, k.late, k.to_base, k.first_seq from headgate.cursor k
           where k.consumer = c.id and k.lane >= 0 and k.next_at is not null
          union all
          select k.pos, k.to_lo, k.late, k.to_base, k.first_seq
            from headgate.noted_lanes(c.id) k
          union all
          select greatest(x.from_lo, x.first_seq - 1), x.to_lo, x.late, x.to_base, x.first_seq
            from headgate.discovered x where x.consumer = c.id) k;
  r.start := greatest(r.lowest, least(
    headgate.read_up_to(s.id, g),
    greatest(behind.floor, least(behind.start, (
      select min(lower(t.late)) - 1 from headgate.tick t
       where t.stream = s.id and t.id > behind.base and t.late is not null)))));
  select array_agg(w.low), array_agg(w.high), array_agg(w.weight)
    into r.lows, r.highs, r.weights
    from headgate.backlog_windows(r.start, r.highest) w;
  r.complete := r.highest - r.start <= 10000;
  return r;
end $$;

-- backlog_windows(low, high) -> the parts (low < seq <= high) to look at of what lies between these
-- seqs, and how many messages one that is met there stands for. Up to 10,000: all of it. Of more:
-- the first and the last 1,000, and between them, in bands that are eight times as long the
-- further back they lie, up to 384 short windows a band. A consumer of which one lane hangs far
-- behind still shows well what came lately. Where a window lies in its cell is drawn by a hash: at
-- even distances senders that take turns would be met always or never.
create or replace function headgate.backlog_windows(p_low bigint, p_high bigint)
returns table (low bigint, high bigint, weight float8)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  width constant int := 4;  -- seqs in a window
  edge constant int := 1000;
  top bigint := p_high - edge;
  bottom bigint;
  cell bigint;              -- one window lies in each: a power of two
begin
  if p_high <= p_low then return; end if;
  if p_high - p_low <= 10000 then
    return query select p_low, p_high, 1.0::float8;
    return;
  end if;
  return query values (p_low, p_low + edge, 1.0::float8), (top, p_high, 1.0);
  while top > p_low + edge loop
    bottom := greatest(p_low + edge, p_high - (p_high - top) * 8);
    cell := width;
    while (top - bottom) / cell > 384 loop cell := cell * 2; end loop;
    return query
      select greatest(x.at - 1, bottom), least(x.at - 1 + width, top), cell::float8 / width
        from (select n * cell
                     + (hashint8extended(n, cell) & 9223372036854775807) % (cell - width + 1) as at
                from generate_series(bottom / cell, top / cell) n) x
       where x.at - 1 + width > bottom and x.at <= top;
    top := bottom;
  end loop;
end $$;

-- seen_backlog(consumer, stream, look) -> the lanes of which that look meets something unread:
-- about how much, and the first message of it that was met.
create or replace function headgate.seen_backlog(
  c headgate.consumer, s headgate.stream, here headgate.backlog_look)
returns table (lane bigint, name text, unread float8, first bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set jit = off as $$
declare
  g headgate.cursor;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  return query execute format($q$
    with near as materialized (
      select m.*, w.weight
        from unnest(($2).lows, ($2).highs, ($2).weights) w (low, high, weight)
       cross join lateral (
         -- (the limit keeps a planner from reading the whole log for all windows at once)
         select m.lane, %2$s as name, m.seq, m.xid, m.key from headgate.message_%1$s m
          where m.seq > w.low and m.seq <= w.high
          order by m.seq limit 10000) m
       where ($1).pattern is null or m.key ~ ($1).pattern),
    lanes as materialized (select distinct m.lane from near m),
    discovered as materialized (%6$s)
    select m.lane, min(m.name), sum(m.weight), min(m.seq)
      from near m
      left join lateral (
        select * from headgate.cursor k
         where k.consumer = ($1).id and k.lane = m.lane limit 1) k on true
      left join discovered d on d.lane = m.lane
     where case when k.lane is not null then %3$s
                when d.lane is not null then %4$s
                else %5$s end
     group by m.lane $q$,
    s.id, case s.lane_by when 'channel' then 'm.channel' else 'm.key' end,
    headgate.unread_sql('k'), headgate.unread_sql('d'), headgate.unread_sql('($3)'),
    headgate.discovered_among_sql('lanes'))
    using c, here, g;
end $$;

-- rank_backlog(consumer, stream, look, sort, max, after, lane) -> the lanes of a page, as seen by
-- that look, in their order. With `lane`, that one alone.
create or replace function headgate.rank_backlog(
  c headgate.consumer, s headgate.stream, here headgate.backlog_look, p_sort text, p_max int,
  p_after text, p_lane bigint default null) returns headgate.backlog_lane[]
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_mergejoin = off set jit = off as $$
declare
  r headgate.backlog_lane[];
  share float8 := headgate.parked_share(c.id);  -- the part of what is parked that is looked at
  after_lane bigint := split_part(p_after, ':', 1)::bigint;
  after_rank bigint := case when p_sort <> 'name' then split_part(p_after, ':', 2)::bigint end;
  rank text := -- by which lanes are sorted, of y
      case p_sort when 'waiting' then '999999999999999999 - (y.unread + y.parked)::bigint'
                  when 'oldest' then 'coalesce(y.first, 999999999999999999)'
                  else '(y.name is null)::int::bigint' end;
  after_name text := substr(p_after, nullif(strpos(p_after, ':='), 0) + 2);  -- null: it has none
begin
  execute format($q$
    with %1$s,
    ranked as (
      select z.*, case when $4 = 'name' then z.name collate "C" end as rank_name
        from (select * from busy union all select y.*, %2$s as rank from idle y) z)
    select array_agg((z.lane, z.name, z.unread::bigint, z.parked::bigint, z.rank)
                     ::headgate.backlog_lane order by z.rank, z.rank_name, z.lane)
      from (select * from ranked z
             where ($8 is null or z.lane = $8)
               and ($6 is null or case
                     when $4 <> 'name' then (z.rank, z.lane) > ($5, $6)
                     when $7 is null then z.name is null and z.lane > $6
                     else z.name is null or (z.rank_name, z.lane) > ($7 collate "C", $6) end)
             order by z.rank, z.rank_name, z.lane limit $9) z $q$,
    headgate.seen_lanes_sql(p_sort, not here.complete, share, rank), rank)
    into r using c, here, share, p_sort, after_rank, after_lane, after_name, p_lane, p_max, s;
  return coalesce(r, '{}');
end $$;

-- seen_lanes_sql(sort, with furthest, share of parked, rank) -> the SQL (for a `with`) of the lanes
-- of rank_backlog: `busy`, in which something was met, and `idle`, if a page is not full without
-- them.
create or replace function headgate.seen_lanes_sql(
  p_sort text, p_with_furthest boolean, p_share float8, p_rank text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($q$
    seen as (
      select * from headgate.seen_backlog($1, $10, $2)
      %1$s),
    parked as (
      select p.lane, count(*) / $3 as parked, min(p.seq) as first
        from headgate.parked p %2$s
       where p.consumer = ($1).id and p.lane >= {UNNAMED_LANES}
       group by p.lane),
    busy as materialized (
      select y.*, %3$s as rank from (
        select x.lane, coalesce(min(x.name), (
                 select k.name from headgate.cursor k
                  where k.consumer = ($1).id and k.lane = x.lane limit 1)) as name,
               max(x.unread) as unread, max(x.parked) as parked, min(x.first) as first
          from (select y.lane, y.name, y.unread, 0.0::float8 as parked, y.first from seen y
                union all
                select p.lane, null, 0, p.parked, p.first from parked p) x
         group by x.lane) y),
    -- the others are looked for only when these do not fill the page
    idle as (
      select y.lane, min(y.name) as name, 0.0::float8 as unread, 0.0::float8 as parked,
             null::bigint as first
        from (select k.lane, k.name from headgate.cursor k
               where k.consumer = ($1).id and k.lane >= {UNNAMED_LANES}
              union all
              select h.lane, h.name from headgate.channel h where h.consumer = ($1).id
              union all
              select d.lane, d.name from headgate.discovered d where d.consumer = ($1).id) y
       where ($4 = 'name' or $9 > (
                select count(*) from busy z where $6 is null or (z.rank, z.lane) > ($5, $6)))
         and not exists (select from busy z where z.lane = y.lane)
       group by y.lane) $q$,
    -- what hangs far behind, and is not met in a sample
    case when p_sort = 'oldest' and p_with_furthest then
      'union all select x.lane, x.name, 0, x.first from headgate.furthest_behind($1, $2, $9) x' end,
    case when p_share < 1 then format('tablesample system (%s) repeatable (1)', p_share * 100) end,
    p_rank)
$$;

-- parked_share(consumer id) -> the share of the table `parked` to look at: all of it while the
-- consumer has at most 20,000 rows there.
create or replace function headgate.parked_share(p_consumer int) returns float8
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if (select count(*) from (
        select from headgate.parked p where p.consumer = p_consumer limit 20001) x) <= 20000 then
    return 1;
  end if;
  return (select least(1, 20000 / greatest(t.reltuples, pg_relation_size(t.oid) / 200, 20000))
            from pg_class t where t.oid = 'headgate.parked'::regclass);
end $$;

-- furthest_behind(consumer, look, n) -> of the lanes that are awake, the n (at least 200) that have
-- read least: the first message that they have still to come to.
create or replace function headgate.furthest_behind(
  c headgate.consumer, here headgate.backlog_look, n int)
returns table (lane bigint, name text, first bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  return query execute format($q$
    select k.lane, k.name, m.seq
      from (select * from headgate.cursor k
             where k.consumer = ($1).id and k.lane >= 0 and k.next_at is not null
             order by k.pos limit $3) k
     cross join lateral greatest(%2$s, ($2).lowest) r (start)
     cross join lateral (
       select x.seq from (
         select m.seq,
                %3$s and (($1).pattern is null or coalesce(m.key ~ ($1).pattern, false)) as hit
           from headgate.message_%1$s m
          where (m.lane, m.seq) > (k.lane, r.start) and (m.lane, m.seq) < (k.lane + 1, 0)
          order by m.lane, m.seq limit 100) x
        where x.hit order by x.seq limit 1) m $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.unread_sql('k'))
    using c, here, greatest(n, 200);
end $$;
