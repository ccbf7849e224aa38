-- Looking without touching: the state of messages for a consumer, and how far consumers are. Nothing here locks or writes.

-- unread(cursor, seq, xid) -> whether the cursor has still to come to a message of its lane.
create or replace function headgate.unread(k headgate.cursor, p_seq bigint, p_xid xid8) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_seq >= k.first_seq and (p_seq > k.to_hi or (k.to_tick <> 0 and not pg_visible_in_snapshot(p_xid, k.from_snap) and (
           not pg_visible_in_snapshot(p_xid, k.to_snap) or (p_seq > k.pos and (p_seq > k.from_lo or k.late is not null)))))
$$;

-- read_up_to(stream id, cursor) -> what the cursor has still to come to lies above, as far as ticks tell.
create or replace function headgate.read_up_to(p_stream int, k headgate.cursor) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select greatest(k.first_seq - 1, least(k.pos, k.to_lo, lower(k.late) - 1, (
    select min(lower(t.late)) - 1 from headgate.tick t where t.stream = p_stream and t.id > k.to_base and t.late is not null)))
$$;

-- message_states(stream, seq) -> of one message, its state for each consumer: available, delivered, parked, done, or
-- skipped (its key does not pass the filter).
create or replace function headgate.message_states(stream text, seq bigint)
returns table (consumer text, state text, attempt int, visible_at timestamptz, worker text, reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  return query execute format($q$
    select c.name, x.state, x.attempt, x.visible_at, x.worker, x.reason, x.last_error
      from (select * from headgate.message_%1$s union all select * from headgate.kept_%1$s) m cross join headgate.consumer c cross join lateral headgate.state_of(c, m.lane, m.seq, m.xid, m.key) x
     where m.seq = $1 and c.stream = $2 order by c.name $q$, s.id) using message_states.seq, s.id;
end $$;

-- state_of(consumer, lane, seq, xid, key) -> the state of one message for one consumer. What waits behind its key is due at no
-- time that is known, which is null here: clients cannot read 'infinity'.
create or replace function headgate.state_of(c headgate.consumer, p_lane bigint, p_seq bigint, p_xid xid8, p_key text,
  out state text, out attempt int, out visible_at timestamptz, out worker text, out reason text, out last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare here bigint := headgate.parking_lane(c, p_lane, p_key, p_seq);
begin
  select 'parked', p.attempt, nullif(p.visible_at, 'infinity'), p.reason, p.last_error into state, attempt, visible_at, reason, last_error
    from headgate.parked p where p.consumer = c.id and p.lane = here and p.seq = p_seq;
  if found then return; end if;
  select 'delivered', coalesce(d.attempts[array_position(d.seqs, p_seq)], 1), d.deadline, d.worker into state, attempt, visible_at, worker
    from headgate.delivery d where d.consumer = c.id and d.lane = here and p_seq = any(d.seqs)
     and not exists (select from headgate.departed x where x.consumer = c.id and x.lane = here and x.delivery = d.id and x.seq = p_seq) limit 1;
  if found then return; end if;
  attempt := 0;
  state := case when c.pattern is not null and (p_key is null or p_key !~ c.pattern) then 'skipped'
                when (select headgate.unread(k, p_seq, p_xid) from headgate.cursor k where k.consumer = c.id and k.lane in (p_lane, -1)
                       order by k.lane desc limit 1) then 'available'
                else 'done' end;
end $$;

-- peek(stream, consumer, max, newest_first, states, before, after) -> messages with their state for the consumer, without
-- any effect. `states` keeps only messages in these states.
create or replace function headgate.peek(stream text, consumer text, max int default 10, newest_first boolean default false,
  states text[] default null, before bigint default null, after bigint default null)
returns table (seq bigint, key text, data text, headers jsonb, created_at timestamptz, state text, attempt int, visible_at timestamptz, worker text,
  reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); s headgate.stream := headgate.find_stream(stream);
begin
  return query execute format($q$
    select m.seq, m.key, m.data, m.headers, m.created_at, x.state, x.attempt, x.visible_at, x.worker, x.reason, x.last_error
      from (select * from headgate.message_%1$s union all select * from headgate.kept_%1$s) m
     cross join lateral headgate.state_of($1, m.lane, m.seq, m.xid, m.key) x
     where ($2 is null or m.seq < $2) and ($3 is null or m.seq > $3) and x.state <> 'skipped' and ($4 is null or x.state = any($4))%2$s
     order by m.seq %3$s limit $5 $q$, c.stream, headgate.newest_only(s, 'm'), case when newest_first then 'desc' else 'asc' end)
    using c, before, after, states, max;
end $$;

-- messages(stream, max, newest_first, filter, before, after) -> messages of a stream, whoever has read them.
create or replace function headgate.messages(stream text, max int default 10, newest_first boolean default false,
  filter text[] default null, before bigint default null, after bigint default null)
returns table (seq bigint, key text, data text, headers jsonb, deliver_at timestamptz, created_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream); pattern text := headgate.filter_pattern(filter);
begin
  return query execute format($q$
    select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at
      from (select * from headgate.message_%1$s union all select * from headgate.kept_%1$s) m
     where ($1 is null or m.seq < $1) and ($2 is null or m.seq > $2) and ($3 is null or m.key ~ $3)%2$s
     order by m.seq %3$s limit $4 $q$, s.id, headgate.newest_only(s, 'm'), case when newest_first then 'desc' else 'asc' end)
    using before, after, pattern, max;
end $$;

-- unread_count(consumer, n) -> how many messages the consumer has still to come to: counted when there are at most n (before
-- its filter), and otherwise an estimate (exact = false), so that a large backlog is never scanned: of each lane, as many as
-- would come if they went on as densely as the first n / lanes.
create or replace function headgate.unread_count(c headgate.consumer, n int default 10000, out count bigint, out exact boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare looked bigint; sample int;
begin
  if exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1) then
    select * into unread_count.count, unread_count.exact from headgate.unread_named(c, n);
    return;
  end if;
  execute format($q$
    select count(*), count(*) filter (where ($1).pattern is null or x.key ~ ($1).pattern) from (
      select m.key from headgate.cursor k cross join lateral (
        select m.key from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, headgate.read_up_to(%1$s, k)) and (m.lane, m.seq) < (k.lane + 1, 0) and headgate.unread(k, m.seq, m.xid)
         order by m.lane, m.seq limit $2 + 1) m
       where k.consumer = ($1).id limit $2 + 1) x $q$, c.stream)
    into looked, count using c, n;
  exact := looked <= n;
  if exact then return; end if;
  select greatest(n / s.lanes, 100) into sample from headgate.stream s where s.id = c.stream;
  execute format($q$
    select sum(case when x.looked < $2 then x.passed else x.passed * ($3 - u.used)::float8 / (headgate.used_seqs(%1$s, x.last) - u.used) end)::bigint
      from headgate.cursor k cross join lateral (
        select r.start, headgate.used_seqs(%1$s, r.start) as used from greatest(headgate.read_up_to(%1$s, k), $4) r (start)) u cross join lateral (
        select count(*) as looked, count(*) filter (where ($1).pattern is null or m.key ~ ($1).pattern) as passed, max(m.seq) as last from (
          select m.key, m.seq from headgate.message_%1$s m
           where (m.lane, m.seq) > (k.lane, u.start) and (m.lane, m.seq) < (k.lane + 1, 0) and headgate.unread(k, m.seq, m.xid)
           order by m.lane, m.seq limit $2) m) x
     where k.consumer = ($1).id $q$, c.stream)
    into count using c, sample, headgate.used_seqs(c.stream, headgate.last_seq(c.stream)), lower(headgate.log_ranges(c.stream)) - 1;
end $$;

-- unread_named(consumer, n) -> unread_count where lanes are named: what lanes that are awake have still to come to, and what the gatherer has.
-- The estimate: as many lanes as are awake, each like the first 200 of them.
create or replace function headgate.unread_named(c headgate.consumer, n int, out count bigint, out exact boolean)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare looked bigint; g headgate.cursor;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  execute format($q$
    select count(*), count(*) filter (where ($1).pattern is null or x.key ~ ($1).pattern) from (
      (select m.key from headgate.cursor k cross join lateral (
        select m.key from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, headgate.read_up_to(%1$s, k)) and (m.lane, m.seq) < (k.lane + 1, 0) and headgate.unread(k, m.seq, m.xid)
         order by m.lane, m.seq limit $2 + 1) m
       where k.consumer = ($1).id and k.lane >= 0 and k.next_at is not null limit $2 + 1)
      union all
      (select m.key from headgate.message_%1$s m
        where m.seq > headgate.read_up_to(%1$s, $3) and headgate.unread($3, m.seq, m.xid)
          and not exists (select from headgate.cursor k where k.consumer = ($1).id and k.lane = m.lane
                             and (k.next_at is not null or not headgate.unread(k, m.seq, m.xid))) limit $2 + 1)) x $q$, c.stream)
    into looked, count using c, n, g;
  exact := looked <= n;
  if exact then return; end if;
  execute format($q$
    select (coalesce(avg(x.n), 0) * (select count(*) from headgate.cursor k where k.consumer = ($1).id and k.lane >= 0 and k.next_at is not null))::bigint
      from (select * from headgate.cursor k where k.consumer = ($1).id and k.lane >= 0 and k.next_at is not null limit 200) k
     cross join lateral (select count(*) as n from (
        select from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, headgate.read_up_to(%1$s, k)) and (m.lane, m.seq) < (k.lane + 1, 0) and headgate.unread(k, m.seq, m.xid)
           and (($1).pattern is null or m.key ~ ($1).pattern) limit 1000) y) x $q$, c.stream) into count using c;
  count := greatest(n, count, headgate.last_seq(c.stream) - g.to_hi);
end $$;

-- floor_of(consumer) -> everything at or below is done for it.
create or replace function headgate.floor_of(c headgate.consumer) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare r bigint; newest headgate.tick := headgate.newest_tick(c.stream);
begin
  -- what retention has removed holds nobody; a lane without messages behind its cursor does not hold the floor; what late transactions may have written does
  execute format($q$
    select min(case when case when k.lane = -1 then exists (select from headgate.message_%1$s m where m.seq > u.start and headgate.unread(k, m.seq, m.xid))
                              when k.next_at is not null and k.pos < k.to_hi then true  -- there may be any number of such lanes: not looked at
                              else exists (select from headgate.message_%1$s m where (m.lane, m.seq) > (k.lane, u.start) and (m.lane, m.seq) < (k.lane + 1, 0)
                                                                                 and m.seq > u.start and headgate.unread(k, m.seq, m.xid)) end
                    then u.start else greatest(u.start, $2) end)
      from headgate.cursor k cross join lateral greatest(headgate.read_up_to(%1$s, k), $3) u (start)
     where k.consumer = $1 and (k.next_at is not null or k.lane < 144115188075855872) $q$, c.stream)
    into r using c.id, newest.lo, lower(headgate.log_ranges(c.stream)) - 1;
  return least(r, (select min(f) from unnest(newest.late_from) f), (select min(f.seq) - 1 from headgate.in_flight f where f.consumer = c.id),
                  (select min(p.seq) - 1 from headgate.parked p where p.consumer = c.id));
end $$;

-- stream_facts(stream id) -> count (estimated when large), bytes, oldest, newest, rate over the last seconds.
create or replace function headgate.stream_facts(p_stream int, out messages bigint, out exact boolean, out bytes bigint,
  out oldest timestamptz, out newest timestamptz, out last_seq bigint, out rate float8)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare t headgate.tick; n headgate.tick;
begin
  last_seq := headgate.last_seq(p_stream);
  execute format('select (select created_at from headgate.message_%1$s order by seq limit 1), (select created_at from headgate.message_%1$s order by seq desc limit 1), '
                 '(select count(*) from (select from headgate.message_%1$s limit 10001) x)', p_stream) into oldest, newest, messages;
  exact := messages <= 10000;
  if not exact then
    -- segments were counted as they closed; of those still written, all seqs that were drawn
    select greatest(stream_facts.messages, sum(coalesce(g.messages, greatest(least(last_seq + 1, g.end_seq) - g.first_seq - g.skipped, 0)))::bigint) into messages
      from headgate.segment g where g.stream = p_stream and g.state <> 'dropped';
  end if;
  select sum(pg_total_relation_size(i.inhrelid)) into bytes from pg_inherits i where i.inhparent = ('headgate.message_' || p_stream)::regclass;
  -- an estimate: sequence numbers that went by in about the last ten seconds
  n := headgate.newest_tick(p_stream);
  select * into t from headgate.tick k where k.stream = p_stream and k.at <= clock_timestamp() - interval '10 seconds' order by k.id desc limit 1;
  rate := case when t.id is null then null else greatest(headgate.used_seqs(p_stream, last_seq) - headgate.used_seqs(p_stream, t.hi), 0) / extract(epoch from clock_timestamp() - t.at) end;
end $$;

-- dead_count(consumer) -> how many dead letters it has.
create or replace function headgate.dead_count(c headgate.consumer) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare d int; n bigint := 0;
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if found then
    execute format('select count(*) from headgate.message_%s m where m.headers ->> ''source_consumer'' = $1', d) into n using c.name;
  end if;
  return n;
end $$;

-- oldest_unacked(consumer) -> when the oldest message that it has not finished was sent; null when there is none.
create or replace function headgate.oldest_unacked(c headgate.consumer) returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare r timestamptz;
begin
  if exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1) then  -- any number of lanes: the first one that may be unfinished
    if headgate.floor_of(c) >= headgate.last_seq(c.stream) then return null; end if;
    execute format('select m.created_at from headgate.message_%s m where m.seq > $1 order by m.seq limit 1', c.stream) into r using headgate.floor_of(c);
    return r;
  end if;
  execute format($q$
    select min(x.created_at) from (
      select m.created_at from headgate.cursor k cross join lateral (
        select m.created_at from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, headgate.read_up_to(($1).stream, k)) and (m.lane, m.seq) < (k.lane + 1, 0)
           and headgate.unread(k, m.seq, m.xid)
           and (($1).pattern is null or m.key ~ ($1).pattern) order by m.lane, m.seq limit 1) m where k.consumer = ($1).id
      union all
      select m.created_at from (select * from headgate.message_%1$s union all select * from headgate.kept_%1$s) m where m.seq = least(
        (select min(f.seq) from headgate.in_flight f where f.consumer = ($1).id),
        (select min(p.seq) from headgate.parked p where p.consumer = ($1).id))) x $q$, c.stream) into r using c;
  return r;
end $$;
