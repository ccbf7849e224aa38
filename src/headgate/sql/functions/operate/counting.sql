-- Numbers that people see: what is unread, how far a consumer is, how large a stream.

-- unread_count(consumer, n) -> how many messages the consumer has still to come to: counted when
-- there are at most n (before its filter), and otherwise an estimate (exact = false), so that a
-- large backlog is never scanned: of each lane, as many as would come if they went on as densely as
-- the first n / lanes.
create or replace function headgate.unread_count(c headgate.consumer, n int default 10000,
                                                 out count bigint, out exact boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare looked bigint; sample int;
begin
  if exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1) then
    select * into unread_count.count, unread_count.exact from headgate.unread_named(c, n);
    return;
  end if;
  execute format($q$
    select count(*),
           count(*) filter (where (($1).pattern is null or x.key ~ ($1).pattern) and x.counts)
             from (
      select m.key, %4$s as counts from headgate.cursor k cross join lateral (
        select m.key, m.seq from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, %2$s) and (m.lane, m.seq) < (k.lane + 1, 0) and %3$s
         order by m.lane, m.seq limit $2 + 1) m
       where k.consumer = ($1).id limit $2 + 1) x $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.ahead_sql('k'),
    headgate.not_discarded_sql('k'))
    into looked, count using c, n;
  exact := looked <= n;
  if exact then return; end if;
  select greatest(n / s.lanes, 100) into sample from headgate.stream s where s.id = c.stream;
  execute format($q$
    select sum(case when x.looked < $2 then x.passed
                    else
                      x.passed
                        * ($3 - u.used)::float8 / (headgate.used_seqs(%1$s, x.last)
                                                   - u.used) end)::bigint
      from headgate.cursor k cross join lateral (
        select r.start, headgate.used_seqs(%1$s, r.start) as used
          from greatest(headgate.read_up_to(%1$s, k), $4) r (start)) u cross join lateral (
        select count(*) as looked, max(m.seq) as last,
               count(*) filter (where (($1).pattern is null or m.key ~ ($1).pattern)
                                and %3$s) as passed from (
          select m.key, m.seq from headgate.message_%1$s m
           where (m.lane, m.seq) > (k.lane, u.start) and (m.lane, m.seq) < (k.lane + 1, 0) and %2$s
           order by m.lane, m.seq limit $2) m) x
     where k.consumer = ($1).id $q$, c.stream, headgate.ahead_sql('k'),
           headgate.not_discarded_sql('k'))
    into count
      using c, sample, headgate.used_seqs(c.stream, headgate.last_seq(c.stream)),
            lower(headgate.log_ranges(c.stream)) - 1;
end $$;

-- unread_named(consumer, n) -> unread_count where lanes are named: what lanes that are awake have
-- still to come to, and what the gatherer has. Of both at most n are looked at; when there are
-- more, the answer is an estimate by a sample (see backlog_windows), which comes first where many
-- lanes are awake: what it finds is mostly far more than can be counted.
create or replace function headgate.unread_named(
  c headgate.consumer, n int, out count bigint, out exact boolean)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  looked bigint;
  ahead record;        -- what the gatherer has still to come to
  g headgate.cursor;
  s headgate.stream;
  here headgate.backlog_look;
  seen float8;         -- what the sample finds
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  select * into s from headgate.stream t where t.id = c.stream;
  if (select count(*) from (
        select from headgate.cursor k
         where k.consumer = c.id and k.lane >= 0 and k.next_at is not null
         limit n / 10 + 1) x) > n / 10 then
    here := headgate.look_at_backlog(c, s);
    if not here.complete then
      select sum(x.unread) into seen from headgate.seen_backlog(c, s, here) x;
    end if;
    if seen > n * 4.0 then  -- no sample is that wrong
      count := seen;
      exact := false;
      return;
    end if;
  end if;
  -- so many lanes have something that what is there is estimated anyway
  if (select count(*) from (
        select from headgate.discovered x where x.consumer = c.id limit n + 1) x) > n then
    exact := false;
  else
  execute format($q$
    select count(*),
           count(*) filter (where (($1).pattern is null or m.key ~ ($1).pattern) and m.counts)
      from (select m.key, %4$s as counts from (
              select k.* from headgate.cursor k
               where k.consumer = ($1).id and k.lane >= 0 and k.next_at is not null
              union all
              select k.* from headgate.told_lanes(($1).id) k) k
             cross join lateral (
               select m.key, m.seq from headgate.message_%1$s m
                where (m.lane, m.seq) > (k.lane, %2$s) and (m.lane, m.seq) < (k.lane + 1, 0)
                  and %3$s
                order by m.lane, m.seq limit $2 + 1) m
             limit $2 + 1) m $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.ahead_sql('k'),
    headgate.not_discarded_sql('k'))
    into looked, count using c, n;
  exact := looked <= n;
  end if;
  if exact then
    execute format($q$
      select count(*) as looked, count(*) filter (where
          (($1).pattern is null or m.key ~ ($1).pattern)
          and not exists (select from headgate.discovered x
                           where x.consumer = ($1).id and x.lane = m.lane)
          and not exists (select from headgate.wake w
                            join headgate.cursor k on k.consumer = w.consumer and k.lane = w.lane
                           where w.consumer = ($1).id and w.lane = m.lane)
          and not exists (select from headgate.cursor k
                           where k.consumer = ($1).id and k.lane = m.lane
                             and (k.next_at is not null or not %2$s))) as unread
        from (select m.seq, m.xid, m.lane, m.key from headgate.message_%1$s m
               where m.seq > $4 and %3$s
               order by m.seq limit $2 + 1) m $q$,
      c.stream, headgate.unread_sql('k'), headgate.unread_sql('($3)'))
      into ahead using c, n, g, headgate.read_up_to(c.stream, g);
    exact := ahead.looked <= n;
    count := count + ahead.unread;
  end if;
  if exact then return; end if;
  if seen is null then
    select sum(x.unread) into seen
      from headgate.seen_backlog(c, s, headgate.look_at_backlog(c, s)) x;
  end if;
  count := greatest(n, seen)::bigint;
end $$;

-- floor_of(consumer) -> everything at or below is done for it.
create or replace function headgate.floor_of(c headgate.consumer) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare r bigint; newest headgate.tick := headgate.newest_tick(c.stream);
begin
  -- What retention has removed holds nobody; a lane holds the floor only before the first message
  -- behind its cursor, and before the lo of the newest tick, above which one may still be
  -- committed; what late transactions may have written holds it. Of named lanes in the middle of a
  -- span there may be any number: their messages are not looked for.
  execute format($q$
    select least(
      (select greatest(least(x.lowest, (select min(lower(t.late)) - 1 from headgate.tick t
                                         where t.stream = %1$s and t.late is not null
                                           and t.id > x.base)), $3)
         from (select least(min(k.pos), min(k.to_lo), min(lower(k.late)) - 1) as lowest,
                 min(k.to_base) as base
                 from headgate.cursor k
                where k.consumer = $1 and k.lane >= 144115188075855872 and k.next_at is not null
                  and k.pos < k.to_hi) x
        where x.base is not null),
      (select min(least(m.seq - 1, greatest(u.start, $2)))
         from headgate.cursor k cross join lateral greatest(%2$s, $3) u (start)
         left join lateral (
           select m.seq from headgate.message_%1$s m
            where k.lane >= 0 and (m.lane, m.seq) > (k.lane, u.start)
              and (m.lane, m.seq) < (k.lane + 1, 0)
              and m.seq > u.start and %3$s order by m.lane, m.seq limit 1) m on true
        where k.consumer = $1 and k.lane >= 0
          and case when k.lane < 144115188075855872 then true
                   else k.next_at is not null and k.pos >= k.to_hi end),
      (select case when min(x.from_lo) is not null
                   then
                     greatest(min(greatest(least(x.from_lo, lower(x.late) - 1), x.first_seq - 1)),
                              $3) end
         from headgate.discovered x
        where x.consumer = $1
          and not exists (select from headgate.cursor o where o.consumer = $1 and o.lane = x.lane)),
      (select min(m.seq) - 1 from headgate.noted_lanes($1) k cross
         join lateral greatest(%2$s, $3) u (start)
        cross join lateral (
          select m.seq from headgate.message_%1$s m
           where (m.lane, m.seq) > (k.lane, u.start) and (m.lane, m.seq) < (k.lane + 1, 0) and %3$s
           order by m.lane, m.seq limit 1) m),
      (select least((select m.seq - 1 from headgate.message_%1$s m
                      where m.seq > u.start and %3$s
                        and (select z.seq from headgate.discarded z
                              where z.consumer = $1 and z.seq = m.seq limit 1) is null
                      order by m.seq limit 1), greatest(u.start, $2))
         from headgate.cursor k cross join lateral greatest(%2$s, $3) u (start)
        where k.consumer = $1 and k.lane = -1)) $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.unread_sql('k'))
    into r using c.id, newest.lo, lower(headgate.log_ranges(c.stream)) - 1;
  return least(r, headgate.late_floor(c, newest),
               (select min(f.seq) - 1 from headgate.in_flight f where f.consumer = c.id),
                  (select min(p.seq) - 1 from headgate.parked p where p.consumer = c.id));
end $$;

-- late_floor(consumer, newest tick) -> below which nothing can come any more from transactions that
-- are late, or null: there is none. What lies before the seq that the consumer starts at never
-- does.
create or replace function headgate.late_floor(c headgate.consumer, newest headgate.tick)
returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select greatest(min(f),
                  (select min(k.first_seq) - 1 from headgate.cursor k where k.consumer = c.id))
    from unnest(newest.late_from) f having count(*) > 0
$$;

-- consumer_facts(consumer) -> unread_count, floor_of and oldest_unacked at once: who lists
-- consumers asks for all of them, and planning a statement costs more than what it reads. Nothing,
-- when the stream is being dropped at this moment: one that goes does not spoil the list of the
-- others.
create or replace function headgate.consumer_facts(
  c headgate.consumer, out unread bigint, out exact boolean, out floor bigint,
  out oldest_unacked timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  newest headgate.tick;
  most bigint;       -- of a lane so many messages are counted
  longest bigint;    -- the most that one had
  held bigint;       -- the first message in flight or parked
  held_since timestamptz;
begin
  if exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1) then
    select u.count, u.exact into unread, exact from headgate.unread_count(c) u;
    floor := headgate.floor_of(c);
    oldest_unacked := headgate.first_sent_after(c.stream, floor);
    return;
  end if;
  newest := headgate.newest_tick(c.stream);
  select greatest(10000 / s.lanes, 100) into most from headgate.stream s where s.id = c.stream;
  execute format($q$
    select sum(x.passed)::bigint, max(x.looked),
           min(least(x.first - 1, greatest(r.start, $2))), min(x.oldest)
      from headgate.cursor k
     cross join lateral greatest(%2$s, $3) r (start)
     cross join lateral (
       select count(*) as looked, min(m.seq) as first,
              count(*) filter (where m.passes) as passed,
              (array_agg(m.created_at order by m.seq) filter (where m.passes))[1] as oldest
         from (select m.seq, m.created_at, ($1).pattern is null or m.key ~ ($1).pattern as passes
                 from headgate.message_%1$s m
                where (m.lane, m.seq) > (k.lane, r.start) and (m.lane, m.seq) < (k.lane + 1, 0)
                  and %3$s
                order by m.lane, m.seq limit $4 + 1) m) x
     where k.consumer = ($1).id $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.unread_sql('k'))
    into unread, longest, floor, oldest_unacked
    using c, newest.lo, lower(headgate.log_ranges(c.stream)) - 1, most;
  exact := true;
  if longest > most then
    select u.count, u.exact into unread, exact from headgate.unread_count(c) u;
  end if;
  held := least((select min(f.seq) from headgate.in_flight f where f.consumer = c.id),
                (select min(p.seq) from headgate.parked p where p.consumer = c.id));
  if held is not null then
    execute format($q$
      select m.created_at from (
        select m.seq, m.created_at from headgate.message_%1$s m
        union all
        select m.seq, m.created_at from headgate.kept_%1$s m) m
       where m.seq = $1 limit 1 $q$, c.stream) into held_since using held;
  end if;
  floor := least(floor, headgate.late_floor(c, newest), held - 1);
  oldest_unacked := least(oldest_unacked, held_since);
exception when undefined_table or internal_error then
  if not headgate.is_gone(c.stream) then raise; end if;
  unread := 0;
  exact := false;
  floor := 0;
  oldest_unacked := null;
end $$;

-- first_sent_after(stream id, seq) -> when the first message above this seq was sent, if there is
-- one.
create or replace function headgate.first_sent_after(p_stream int, p_seq bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare r timestamptz;
begin
  if p_seq >= headgate.last_seq(p_stream) then return null; end if;
  execute format(
    'select m.created_at from headgate.message_%s m where m.seq > $1 order by m.seq limit 1',
    p_stream)
    into r using p_seq;
  return r;
end $$;

-- is_gone(stream id) -> whether its log is not there (any more), whatever the snapshot of the
-- caller still shows.
create or replace function headgate.is_gone(p_stream int) returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select to_regclass(format('headgate.message_%s', p_stream)) is null
$$;

-- stream_rate(stream id, last seq) -> sequence numbers that went by a second in the last ten to
-- twenty seconds: an estimate. Ticks tell where there is one of that age. Where nobody made one,
-- the times of some messages do, so that what was sent before the window does not count.
create or replace function headgate.stream_rate(p_stream int, p_last bigint) returns float8
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  t headgate.tick;
  since timestamptz := clock_timestamp() - interval '10 seconds';
  low bigint;   -- at or below was sent before `since`
  high bigint;  -- above was sent after
begin
  select * into t from headgate.tick k
   where k.stream = p_stream and k.at <= since order by k.id desc limit 1;
  low := coalesce(t.hi, 0);
  if low >= p_last then return 0; end if;
  if t.at < since - interval '10 seconds' or t.id is null then
    high := p_last;
    -- sixteen looks each: what is left is a 4,096th of what was sent since the tick
    for i in 1 .. 3 loop
      execute format($q$
        select coalesce(max(x.seq) filter (where m.created_at < $3 or m.created_at is null), $1),
               coalesce(min(x.seq) filter (where m.created_at >= $3), $2)
          from (select $1 + ($2 - $1) * n / 16 as seq from generate_series(1, 16) n) x
          left join lateral (select m.created_at from headgate.message_%s m
                              where m.seq >= x.seq order by m.seq limit 1) m on true $q$, p_stream)
        into low, high using low, high, since;
      exit when high - low < 2 or high <= low;
    end loop;
    t.at := since;
    low := least(low, p_last);
  end if;
  return greatest(headgate.used_seqs(p_stream, p_last) - headgate.used_seqs(p_stream, low), 0)
         / extract(epoch from clock_timestamp() - t.at);
end $$;

-- stream_facts(stream id) -> count (estimated when large), bytes, oldest, newest, rate over the
-- last seconds. What compaction has kept counts.
create or replace function headgate.stream_facts(p_stream int, out messages bigint,
                                                 out exact boolean, out bytes bigint,
  out oldest timestamptz, out newest timestamptz, out last_seq bigint, out rate float8)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare kept bigint; kept_since timestamptz;
begin
  last_seq := headgate.last_seq(p_stream);
  execute format(
    'select (select created_at from headgate.message_%1$s order by seq limit 1), (select created_at from headgate.message_%1$s order by seq desc limit 1), '
                 '(select count(*) from (select from headgate.message_%1$s limit 10001) x)',
                 p_stream) into oldest, newest, messages;
  exact := messages <= 10000;
  if not exact then
    -- segments were counted as they closed; of those still written, all seqs that were drawn
    select greatest(stream_facts.messages,
                    sum(
                      coalesce(g.messages,
                               greatest(least(last_seq + 1, g.end_seq) - g.first_seq - g.skipped,
                                        0)))::bigint) into messages
      from headgate.segment g where g.stream = p_stream and g.state <> 'dropped';
  end if;
  select sum(pg_total_relation_size(i.inhrelid)) into bytes from pg_inherits i
   where i.inhparent = ('headgate.message_' || p_stream)::regclass;
  execute format('select (select count(*) from (select from headgate.kept_%1$s limit 10001) x), '
                 '(select created_at from headgate.kept_%1$s order by seq limit 1)', p_stream)
                   into kept, kept_since;
  if kept > 0 then
    if kept > 10000 then  -- as the last vacuum or analyze counted them
      exact := false;
      select greatest(kept, r.reltuples::bigint) into kept from pg_class r
       where r.oid = ('headgate.kept_' || p_stream)::regclass;
    end if;
    messages := messages + kept;
    oldest := least(oldest, kept_since);
    bytes := bytes + pg_total_relation_size(('headgate.kept_' || p_stream)::regclass);
  end if;
  rate := headgate.stream_rate(p_stream, last_seq);
exception when undefined_table or internal_error then  -- it is being dropped
  if not headgate.is_gone(p_stream) then raise; end if;
  messages := 0;
  exact := false;
  bytes := 0;
  last_seq := 0;
end $$;

-- dead_count(consumer) -> how many dead letters it has.
create or replace function headgate.dead_count(c headgate.consumer) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare d int; n bigint := 0;
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if found then
    execute format(
      'select count(*) from headgate.message_%s m where left(m.headers ->> ''source_consumer'', 60) = $1', d) into n using c.name;
  end if;
  return n;
exception when undefined_table or internal_error then  -- it is being dropped
  if not headgate.is_gone(d) then raise; end if;
  return 0;
end $$;

-- oldest_unacked(consumer) -> when the oldest message that it has not finished was sent; null when
-- there is none.
create or replace function headgate.oldest_unacked(c headgate.consumer) returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare r timestamptz;
begin
  -- any number of lanes: the first one that may be unfinished
  if exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1) then
    return headgate.first_sent_after(c.stream, headgate.floor_of(c));
  end if;
  execute format($q$
    select min(x.created_at) from (
      select m.created_at from headgate.cursor k cross join lateral (
        select m.created_at from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, headgate.read_up_to(($1).stream, k))
           and (m.lane, m.seq) < (k.lane + 1, 0)
           and headgate.unread(k, m.seq, m.xid)
           and (($1).pattern is null or m.key ~ ($1).pattern) order by m.lane, m.seq limit 1) m
             where k.consumer = ($1).id
      union all
      select m.created_at
        from (select * from headgate.message_%1$s union all select * from headgate.kept_%1$s) m
          where m.seq = least(
        (select min(f.seq) from headgate.in_flight f where f.consumer = ($1).id),
        (select min(p.seq) from headgate.parked p where p.consumer = ($1).id))) x $q$, c.stream)
          into r using c;
  return r;
end $$;
