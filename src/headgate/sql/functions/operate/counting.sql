-- How much is unread for a consumer.

-- unread_count(consumer, n) -> how many messages the consumer has still to come to: counted when
-- there are at most n (before its filter), and otherwise an estimate (exact = false), so that a
-- large backlog is never scanned: of each lane, as many as would come if they went on as densely as
-- the first n / lanes.
create or replace function headgate.unread_count(c headgate.consumer, n int default 10000,
                                                 out count bigint, out exact boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  looked bigint;
  sample int;
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
    select x.looked, x.hits into looked, count from headgate.unread_awake(c, n) x;
    exact := looked <= n;
  end if;
  if exact then
    select x.looked, x.hits into ahead from headgate.unread_gathered(c, g, n) x;
    exact := ahead.looked <= n;
    count := count + ahead.hits;
  end if;
  if exact then return; end if;
  if seen is null then
    select sum(x.unread) into seen
      from headgate.seen_backlog(c, s, headgate.look_at_backlog(c, s)) x;
  end if;
  count := greatest(n, seen)::bigint;
end $$;

-- unread_awake(consumer, n) -> of the lanes that are awake, or that there is word of: how many
-- messages were looked at (n + 1 at most), and how many of them are unread.
create or replace function headgate.unread_awake(
  c headgate.consumer, n int, out looked bigint, out hits bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  execute format($q$
    select count(*),
           count(*) filter (where (($1).pattern is null or m.key ~ ($1).pattern) and m.counts)
      from (select m.key, %4$s as counts from (
              select k.* from headgate.cursor k
               where k.consumer = ($1).id and k.lane >= 0 and k.next_at is not null
              union all
              select k.* from headgate.hidden_lanes(($1).id) k) k
             cross join lateral (
               select m.key, m.seq from headgate.message_%1$s m
                where (m.lane, m.seq) > (k.lane, %2$s) and (m.lane, m.seq) < (k.lane + 1, 0)
                  and %3$s
                order by m.lane, m.seq limit $2 + 1) m
             limit $2 + 1) m $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.ahead_sql('k'),
    headgate.not_discarded_sql('k'))
    into looked, hits using c, n;
end $$;

-- unread_gathered(consumer, gatherer, n) -> the same of what the gatherer has still to come to,
-- without the lanes that unread_awake looks at.
create or replace function headgate.unread_gathered(
  c headgate.consumer, g headgate.cursor, n int, out looked bigint, out hits bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
begin
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
    into looked, hits using c, n, g, headgate.read_up_to(c.stream, g);
end $$;

-- sent_at(stream id, seq) -> when a message was sent; null when it is gone.
create or replace function headgate.sent_at(p_stream int, p_seq bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare r timestamptz;
begin
  if p_seq is null then return null; end if;
  execute format($q$
    select m.created_at from %s m where m.seq = $1 limit 1 $q$,
    headgate.stored_sql(p_stream, 'm.seq, m.created_at')) into r using p_seq;
  return r;
end $$;

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
  held bigint;       -- the first message in flight or parked, if there is one
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
  held_since := headgate.sent_at(c.stream, held);
  floor := least(floor, headgate.late_floor(c, newest), held - 1);
  oldest_unacked := least(oldest_unacked, held_since);
exception when undefined_table or internal_error then
  if not headgate.is_gone(c.stream) then raise; end if;
  unread := 0;
  exact := false;
  floor := 0;
  oldest_unacked := null;
end $$;
