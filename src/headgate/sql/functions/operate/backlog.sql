-- What waits in each named lane (channel or key) of a consumer. Nothing here locks or writes.
--
-- A page of channels is found in two steps. First a look at the log from where the consumer is,
-- once for all lanes: the whole of it when that is short, and otherwise a sample (see
-- backlog_windows). It says which lanes there are and about how much waits in each; by that they
-- are ranked. Then, of the lanes of the page alone, what waits is counted, up to a bound. So a page
-- costs about the same whatever waits, and its figures are counted unless they say otherwise.
-- Why so: docs/adr/0019-backlog-per-channel.md.

-- channel_backlog(stream, consumer, sort, max, after, channel) -> the channels (or keys, by the
-- stream's lanes) of a consumer with what waits in them, also those that it has not come to yet.
--   sort      'waiting' (most first), 'oldest' (the one that waits longest first), or 'name'
--   after     the `position` of the last row of the page before
--   channel   this one alone: no row when nothing is known of it
-- waiting is what is unread and passes the filter, and what is parked; in_flight is not part of it.
-- parked and delayed are parts of it: delayed is parked until a time that has not come.
-- exact: waiting was counted; otherwise it is an estimate. complete: everything that the consumer
-- has still to read was looked at; otherwise the order, and which channels without a cursor are
-- shown at all, come from a sample. Locks and writes nothing.
create or replace function headgate.channel_backlog(
  stream text, consumer text, sort text default 'waiting', max int default 100,
  after text default null, channel text default null)
returns table (
  name text, state text, waiting bigint, exact boolean, oldest timestamptz,
  in_flight bigint, parked bigint, delayed bigint, max_concurrency int, release_interval interval,
  delivered bigint, served_at timestamptz, complete boolean, "position" text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  here headgate.backlog_look;
begin
  perform headgate.check_channel_backlog(sort, max, after);
  if s.lane_by = 'hash' then return; end if;  -- no lane has a name
  if channel is not null then
    return query
      select x.* from headgate.one_backlog(c, s, channel) x;
    return;
  end if;
  here := headgate.look_at_backlog(c, s);
  return query
    select x.* from headgate.count_backlog(
      c, s, here, headgate.rank_backlog(c, s, here, sort, max, after), sort, 20000) x;
exception when undefined_table or internal_error then
  -- (the snapshot of this call may still show the stream; the catalog tells)
  if headgate.is_gone(s.id) then
    perform headgate.fail('HG001', format('stream "%s" was dropped just now', s.name),
      'list the streams: select name from headgate.streams');
  end if;
  raise;
end $$;

-- check_channel_backlog(sort, max, after): HG010 for what makes no sense.
create or replace function headgate.check_channel_backlog(p_sort text, p_max int, p_after text)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_sort is null or p_sort not in ('waiting', 'oldest', 'name') then
    perform headgate.fail('HG010', format('channels cannot be sorted by "%s"', p_sort),
      'sort by waiting, oldest or name');
  end if;
  if p_max is null or p_max not between 0 and 10000 then
    perform headgate.fail('HG010', format('max %s is not possible', coalesce(p_max::text, 'null')),
      'choose 0 to 10,000, and go on with after => the position of the last row');
  end if;
  if p_after !~ ('^[0-9]{1,18}:' || (
       case when p_sort = 'name' then '(=|$)' else '[0-9]{1,18}$' end)) then
    perform headgate.fail('HG010', format('"%s" is not a position', left(p_after, 100)),
      'give the position of the last row of the page before, which was sorted in the same way');
  end if;
end $$;

-- count_backlog(consumer, stream, look, lanes, sort, budget) -> the rows of channel_backlog for
-- these lanes: counted, as long as that takes no more than a share of `budget` messages each.
create or replace function headgate.count_backlog(
  c headgate.consumer, s headgate.stream, here headgate.backlog_look,
  p_lanes headgate.backlog_lane[], p_sort text, p_budget int)
returns table (
  name text, state text, waiting bigint, exact boolean, oldest timestamptz,
  in_flight bigint, parked bigint, delayed bigint, max_concurrency int, release_interval interval,
  delivered bigint, served_at timestamptz, complete boolean, "position" text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off as $$
declare
  g headgate.cursor;
  bound int := greatest(50, p_budget / greatest(cardinality(p_lanes), 1));
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  return query execute format($q$
    with discovered as materialized (
      select d.* from unnest($3) l (lane, name, unread, parked, rank)
       cross join lateral headgate.discovered_lanes(($1).id, l.lane) d),
    counted as (
      %2$s)
    select coalesce(x.name, case when x.lane >= {NAMED_LANES} then (
             select m.name from %1$s m where m.seq = x.first limit 1) end),
           case when x.next_at = 'infinity' then 'full'
                when x.next_at > clock_timestamp() then 'waiting'
                when x.next_at is not null or x.unread_now > 0 then 'ready'
                else 'idle' end,
           x.unread_now + x.parked_now, x.exact,
           (select m.created_at from %1$s m where m.seq = x.first limit 1),
           x.in_flight, x.parked_now, x.delayed, x.max_concurrency, x.release_interval, x.delivered,
           nullif(x.served_at, '-infinity'), ($2).complete,
           -- where the page ends is told by its last row, whichever lane that is
           l.lane || ':' || case when $5 <> 'name' then l.rank::text
                                 else coalesce('=' || l.name, '') end
      from (select x.*, row_number() over (order by
                     case $5 when 'waiting' then -(x.unread_now + x.parked_now)
                             when 'oldest' then x.first end, x.nth) as shown
              from counted x) x
      join unnest($3) with ordinality l (lane, name, unread, parked, rank, nth) on l.nth = x.shown
     order by x.shown $q$,
    headgate.stored_sql(s.id, case s.lane_by when 'channel' then 'm.seq, m.created_at, m.channel'
                                             else 'm.seq, m.created_at, m.key' end || ' as name'),
    headgate.counted_backlog_sql(s))
    using c, here, p_lanes, bound, p_sort, g;
end $$;

-- counted_backlog_sql(stream) -> the SQL of what count_backlog counts of each lane of $3: of up to
-- $4 messages that are unread, and of up to $4 that are parked. ($1: consumer; $2: look; $6:
-- gatherer.)
create or replace function headgate.counted_backlog_sql(s headgate.stream) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($q$
    select l.*, case when k.lane = l.lane then k.next_at end as next_at,
           case when k.lane = l.lane then k.served_at end as served_at,
           case when k.lane = l.lane then k.delivered - k.redelivered else 0 end as delivered,
           coalesce(h.max_concurrency, ($1).max_concurrency) as max_concurrency,
           coalesce(h.release_interval, ($1).release_interval) as release_interval,
           case when u.looked <= $4 then u.hits else greatest(u.hits, l.unread) end as unread_now,
           case when p.looked <= $4 then p.looked
                else greatest(p.looked, l.parked) end as parked_now,
           case when p.looked <= $4 then p.delayed
                else p.delayed * greatest(p.looked, l.parked) / p.looked end as delayed,
           u.looked <= $4 and p.looked <= $4 as exact,
           least(u.first, p.first) as first, f.in_flight
      from unnest($3) with ordinality l (lane, name, unread, parked, rank, nth)
     cross join lateral (
       select y.* from (
         (select 1 as o, k.* from headgate.cursor k
           where k.consumer = ($1).id and k.lane = l.lane limit 1)
         union all
         select 2, d.* from discovered d where d.lane = l.lane
         union all
         select 3, ($6).*) y
        order by y.o limit 1) k
     cross join lateral greatest(%2$s, ($2).lowest) r (start)
     cross join lateral (
       select count(*) as looked, count(*) filter (where x.hit) as hits,
              min(x.seq) filter (where x.hit) as first from (
         select m.seq, %3$s and (($1).pattern is null or coalesce(m.key ~ ($1).pattern, false))
                       %4$s as hit
           from headgate.message_%1$s m
          where (m.lane, m.seq) > (l.lane, r.start) and (m.lane, m.seq) < (l.lane + 1, 0)
          order by m.lane, m.seq limit $4 + 1) x) u
     cross join lateral (
       select count(*) as looked, min(x.seq) as first,
              count(*) filter (where x.visible_at > clock_timestamp()
                                 and x.visible_at < 'infinity') as delayed from (
         select p.seq, p.visible_at from headgate.parked p
          where p.consumer = ($1).id and p.lane = l.lane
          order by p.seq limit $4 + 1) x) p
     cross join lateral (
       select coalesce(sum(cardinality(d.seqs) - (
                select count(*) from headgate.departed x
                 where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id)), 0)
                ::bigint as in_flight
         from headgate.delivery d where d.consumer = ($1).id and d.lane = l.lane) f
      left join lateral (
        select h.* from headgate.channel h
         where h.consumer = ($1).id and h.lane = l.lane limit 1) h on true $q$,
    s.id, headgate.read_up_to_sql('k', s.id::text), headgate.unread_sql('k'),
    headgate.newest_only(s, 'm'))
$$;

-- one_backlog(consumer, stream, channel) -> the row of channel_backlog for this channel, if
-- anything is known of it. A sample is looked at only when there is more than can be counted.
create or replace function headgate.one_backlog(
  c headgate.consumer, s headgate.stream, p_channel text)
returns table (
  name text, state text, waiting bigint, exact boolean, oldest timestamptz,
  in_flight bigint, parked bigint, delayed bigint, max_concurrency int, release_interval interval,
  delivered bigint, served_at timestamptz, complete boolean, "position" text)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  l headgate.backlog_lane;
  here headgate.backlog_look;
  r record;
begin
  l := (headgate.named_lane(p_channel), p_channel, 0, 0, 0)::headgate.backlog_lane;
  here.lowest := lower(headgate.log_ranges(s.id)) - 1;
  here.complete := true;
  select x.* into r from headgate.count_backlog(c, s, here, array[l], 'name', 10000) x;
  if not r.exact then
    here := headgate.look_at_backlog(c, s);
    here.complete := true;
    select x.* into r from headgate.count_backlog(
      c, s, here, headgate.rank_backlog(c, s, here, 'name', 1, null, l.lane), 'name', 10000) x;
  end if;
  if r.waiting > 0 or r.in_flight > 0
     or exists (select from headgate.cursor k where k.consumer = c.id and k.lane = l.lane)
     or exists (select from headgate.channel h where h.consumer = c.id and h.lane = l.lane) then
    return query
      select p_channel, r.state, r.waiting, r.exact, r.oldest, r.in_flight, r.parked, r.delayed,
             r.max_concurrency, r.release_interval, r.delivered, r.served_at, r.complete,
             r."position";
  end if;
end $$;
