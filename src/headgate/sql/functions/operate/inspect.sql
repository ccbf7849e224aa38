-- Looking without touching: the state of messages for a consumer, and how far consumers are.
-- Nothing here locks or writes.

-- not_discarded_sql(cursor, message) -> the condition that a message which the cursor has still to
-- come to was not discarded, for these aliases: see read/discard.sql.
create or replace function headgate.not_discarded_sql(p_cursor text, p_message text default 'm')
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(%1$s.discards is not true or (select z.seq from headgate.discarded z '
                'where z.consumer = %1$s.consumer and z.seq = %2$s.seq limit 1) is null)', p_cursor,
                p_message)
$$;

-- ahead_sql(cursor, message) -> the condition that the cursor has still to come to a message of its
-- lane, discarded or not, for these aliases. Written out where many messages are looked at: a call
-- for each would cost ten times as much.
create or replace function headgate.ahead_sql(p_cursor text, p_message text default 'm')
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  -- (+ 0: not a condition for an index, or a planner goes through the log by seq instead of by
  -- lane)
  select format('(%2$s.seq + 0 >= %1$s.first_seq and (%2$s.seq > %1$s.to_hi or (%1$s.to_tick <> 0 '
                'and not pg_visible_in_snapshot(%2$s.xid, %1$s.from_snap) '
                'and (not pg_visible_in_snapshot(%2$s.xid, %1$s.to_snap) '
                'or (%2$s.seq > %1$s.pos and (%2$s.seq > %1$s.from_lo or %1$s.late is not null))))))',
                p_cursor, p_message)
$$;

-- unread_sql(cursor, message) -> the same of a message that was not discarded.
create or replace function headgate.unread_sql(p_cursor text, p_message text default 'm')
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('(%s and %s)', headgate.ahead_sql(p_cursor, p_message),
                headgate.not_discarded_sql(p_cursor, p_message))
$$;

-- read_up_to_sql(cursor, stream) -> what the cursor has still to come to lies above, as far as
-- ticks tell.
create or replace function headgate.read_up_to_sql(p_cursor text, p_stream text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('greatest(%1$s.first_seq - 1, least(%1$s.pos, %1$s.to_lo, lower(%1$s.late) - 1, ('
                'select min(lower(t.late)) - 1 from headgate.tick t '
                'where t.stream = %2$s and t.id > %1$s.to_base and t.late is not null)))', p_cursor,
                p_stream)
$$;

-- unread(cursor, seq, xid) -> whether the cursor has still to come to a message of its lane, which
-- was not discarded. read_up_to(stream id, cursor) -> what the cursor has still to come to lies
-- above, as far as ticks tell.
do $$ begin
  execute format(
    'create or replace function headgate.unread(k headgate.cursor, p_seq bigint, p_xid xid8) '
                 'returns boolean language sql stable set search_path = pg_catalog, pg_temp as %L',
                 format('select %s from (select p_seq as seq, p_xid as xid) m',
                        headgate.unread_sql('k')));
  execute format('create or replace function headgate.read_up_to(p_stream int, k headgate.cursor) '
                 'returns bigint language sql stable set search_path = pg_catalog, pg_temp as %L',
                 'select ' || headgate.read_up_to_sql('k', 'p_stream'));
end $$;

-- dead_seqs(consumer, after, before) -> the messages between these seqs of which the consumer has a
-- dead letter. What others have written into the dead-letter stream by hand is passed over when it
-- makes no sense.
create or replace function headgate.dead_seqs(c headgate.consumer, p_after bigint, p_before bigint)
returns table (seq bigint, attempt int, last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare d int;
begin
  select s.id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return; end if;
  return query execute format($q$
    select distinct on (x.source) x.source, x.attempts, x.error from (
      select m.seq, m.headers ->> 'last_error' as error,
             case when left(m.headers ->> 'source_seq', 20) ~ '^[0-9]{1,18}$'
                  then (m.headers ->> 'source_seq')::bigint end as source,
             case when left(m.headers ->> 'attempts', 20) ~ '^[0-9]{1,9}$'
                  then (m.headers ->> 'attempts')::int end as attempts
        from headgate.message_%s m
       where left(m.headers ->> 'source_consumer', 60) = $1
         and ($2 is null or left(m.headers ->> 'source_seq', 20) = $2)) x
     where x.source > $3 and x.source < $4
     order by x.source, x.seq desc $q$, d)
    using c.name, case when p_before = p_after + 2 then (p_after + 1)::text end, p_after, p_before;
end $$;

-- delivered_seqs(consumer, after, before) -> the messages between these seqs that it has in flight.
create or replace function headgate.delivered_seqs(c headgate.consumer, p_after bigint,
                                                   p_before bigint)
returns table (seq bigint, attempt int, deadline timestamptz, worker text)
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select f.seq, f.attempt, f.deadline, f.worker from headgate.in_flight f
   where f.consumer = c.id and f.seq > p_after and f.seq < p_before
$$;

-- message_states(stream, seq) -> of one message, its state for each consumer: available, delivered,
-- parked, done, dead (it has a dead letter), discarded, or skipped (its key does not pass the
-- filter).
create or replace function headgate.message_states(stream text, seq bigint)
returns table (consumer text, state text, attempt int, visible_at timestamptz, worker text,
               reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  return query execute format($q$
    select c.name, coalesce(e.state, y.state), coalesce(e.attempt, x.attempt), x.visible_at,
           x.worker, x.reason,
           coalesce(e.last_error, x.last_error)
      from (select m.*, true as is_logged from headgate.message_%1$s m
            union all select m.*, false from headgate.kept_%1$s m) m
     cross join headgate.consumer c
     cross join lateral headgate.state_of(c, m.lane, m.seq, m.xid, m.key) x
     cross join lateral (
       select case when x.state = 'available' and not m.is_logged then 'done'
                   else x.state end) y (state)
      left join lateral headgate.end_of(c, m.seq) e on y.state = 'done'
     where m.seq = $1 and c.stream = $2 order by c.name $q$, s.id) using message_states.seq, s.id;
end $$;

-- state_of(consumer, lane, seq, xid, key) -> the state of one message for one consumer; dead and
-- discarded ones are done here, see end_of. What waits behind its key is due at no time that is
-- known, which is null here: clients cannot read 'infinity'.
create or replace function headgate.state_of(c headgate.consumer, p_lane bigint, p_seq bigint,
                                             p_xid xid8, p_key text,
  out state text, out attempt int, out visible_at timestamptz, out worker text, out reason text,
  out last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare here bigint := headgate.parking_lane(c, p_lane, p_key, p_seq);
begin
  select 'parked', p.attempt, nullif(p.visible_at, 'infinity'), p.reason, p.last_error
    into state, attempt, visible_at, reason, last_error
    from headgate.parked p where p.consumer = c.id and p.lane = here and p.seq = p_seq;
  if found then return; end if;
  select 'delivered', coalesce(d.attempts[array_position(d.seqs, p_seq)], 1), d.deadline, d.worker
    into state, attempt, visible_at, worker
    from headgate.delivery d where d.consumer = c.id and d.lane = here and p_seq = any(d.seqs)
     and not exists (select from headgate.departed x
                      where x.consumer = c.id and x.lane = here and x.delivery = d.id
                        and x.seq = p_seq) limit 1;
  if found then return; end if;
  attempt := 0;
  state := case when c.pattern is not null and (p_key is null or p_key !~ c.pattern) then 'skipped'
                when (select headgate.unread(k, p_seq, p_xid) from (
                        select k.* from headgate.cursor k
                         where k.consumer = c.id and k.lane in (p_lane, -1)
                        union all
                        select k.* from headgate.discovered_lanes(c.id, p_lane) k) k
                       order by k.lane desc limit 1) then 'available'
                else 'done' end;
end $$;

-- end_of(consumer, seq) -> how a message that is done for the consumer ended, if not by an ack:
-- dead, or discarded. No row otherwise.
create or replace function headgate.end_of(c headgate.consumer, p_seq bigint)
returns table (state text, attempt int, last_error text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'discarded', null::int, null::text from headgate.discarded x
   where x.consumer = c.id and x.seq = p_seq and x.at is not null
   union all
  (select 'dead', d.attempt, d.last_error from headgate.dead_seqs(c, p_seq - 1, p_seq + 1) d)
   limit 1
$$;

-- peek(stream, consumer, max, newest_first, states, before, after) -> messages with their state for
-- the consumer, without any effect: available, delivered, parked, done, dead or discarded. `states`
-- keeps only messages in these states. However long the log is, a call looks at about 20,000
-- messages at most: where that ends it (a filter that few keys pass, say), the last row has the
-- state 'more', a seq and nothing else: go on with after => that seq (before =>, newest first).
create or replace function headgate.peek(stream text, consumer text, max int default 10,
                                         newest_first boolean default false,
  states text[] default null, before bigint default null, after bigint default null)
returns table (seq bigint, key text, data text, headers jsonb, created_at timestamptz, state text,
               attempt int, visible_at timestamptz, worker text,
  reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  s headgate.stream := headgate.find_stream(stream);
  backward boolean := coalesce(newest_first, false);
  low bigint := greatest(coalesce(after, 0), 0);                 -- what is looked at lies above
  high bigint := coalesce(before, headgate.last_seq(s.id) + 1);  -- and below
  left_over bigint := coalesce(peek.max, 2147483647);            -- messages that may still be shown
  budget bigint := 20000;                                       -- and be looked at
  step bigint;
  shown bigint;
  -- the part of the log that a round looks at
  r record;
begin
  perform headgate.check_peek(peek.max, states);
  step := least(left_over * 2 + 100, 10000);
  if states && array['done'] and not states && array['available', 'discarded'] then
    high := least(high, headgate.read_below(c));
  end if;
  while left_over > 0 and low < high - 1 loop
    if budget <= 0 then
      state := 'more';
      seq := case when backward then high else low end;
      return next;
      return;
    end if;
    if states is null or 'done' = any(states) then
      r := headgate.next_messages(s.id, low, high, backward, step);
      step := least(step * 4, 10000);
    else
      r := headgate.next_candidates(c, s.id, states, low, high, backward,
                                    least(left_over, 1000)::int);
    end if;
    budget := budget - r.looked;
    return query select *
      from headgate.show_messages(c, s, r.above, r.below, r.seqs, states, backward, left_over);
    get diagnostics shown = row_count;
    left_over := left_over - shown;
    if backward then high := r.above + 1; else low := r.below - 1; end if;
  end loop;
end $$;

-- check_peek(max, states): HG010 for arguments of peek that make no sense.
create or replace function headgate.check_peek(p_max int, p_states text[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare wrong text;
begin
  perform headgate.check_max(p_max);
  select coalesce(x, 'null') into wrong from unnest(p_states) x
   where x is null
     or x not in ('available', 'delivered', 'parked', 'done', 'dead', 'discarded', 'skipped')
       limit 1;
  if found then
    perform headgate.fail('HG010', format('"%s" is not a state of a message', wrong),
      'states are available, delivered, parked, done, dead and discarded');
  end if;
end $$;

-- read_below(consumer) -> a seq below which everything lies that the consumer has come to. What a
-- lane has read is visible in the tick where its span begins, or is a part of the span.
create or replace function headgate.read_below(c headgate.consumer) returns bigint
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select 1 + greatest(
    (select max(case when k.pos >= k.to_hi then k.to_hi
                     else greatest(k.pos, coalesce((select t.hi from headgate.tick t
                                                     where t.stream = c.stream
                                                       and t.id >= k.from_tick
                                                     order by t.id limit 1), k.to_hi)) end)
       from headgate.cursor k where k.consumer = c.id),
    -- lanes that were left behind
    (select max(y.end_seq) from headgate.layout y where y.stream = c.stream),
    (select max(p.seq) from headgate.parked p where p.consumer = c.id),
    (select max(d.seq) from headgate.delivered_seqs(c, 0, 9223372036854775807) d))
$$;

-- next_messages(stream id, low, high, backward, n) -> the bounds of the next n messages of the log
-- between low and high. `seqs` is null: all of them.
create or replace function headgate.next_messages(p_stream int, p_low bigint, p_high bigint,
                                                  p_backward boolean, n bigint,
  out above bigint, out below bigint, out seqs bigint[], out looked bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare edge bigint;
begin
  execute format($q$
    select m.seq
      from (select seq from headgate.message_%1$s union all select seq from headgate.kept_%1$s) m
     where m.seq > $1 and m.seq < $2 order by m.seq %2$s offset $3 limit 1 $q$,
    p_stream, case when p_backward then 'desc' else 'asc' end)
    into edge using p_low, p_high, n - 1;
  above := case when p_backward then coalesce(edge - 1, p_low) else p_low end;
  below := case when p_backward then p_high else coalesce(edge + 1, p_high) end;
  looked := n;
end $$;

-- next_candidates(consumer, stream id, states, low, high, backward, n) -> seqs between low and high
-- among which all messages in these states are that lie between `above` and `below`: up to n of
-- each state, asked where such messages are known. 'done' is not among them: for these the log
-- itself is read.
create or replace function headgate.next_candidates(c headgate.consumer, p_stream int,
                                                    p_states text[],
  p_low bigint, p_high bigint, p_backward boolean, n int,
  out above bigint, out below bigint, out seqs bigint[], out looked bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  found bigint[];
  edges bigint[] := '{}';  -- where a search ended before it had everything
  u record;
  source record;
  edge bigint;
begin
  looked := 0;
  seqs := '{}';
  for source in select x.query from (values
      ('parked', 'select p.seq from headgate.parked p where p.consumer = ($1).id'),
      ('delivered', 'select d.seq from headgate.delivered_seqs($1, $2, $3) d'),
      ('dead', 'select d.seq from headgate.dead_seqs($1, $2, $3) d'),
      ('discarded',
       'select x.seq from headgate.discarded x where x.consumer = ($1).id and x.at is not null')) x
         (state, query)
     where x.state = any(p_states) loop
    execute format(
      'select array(select x.seq from (%s) x where x.seq > $2 and x.seq < $3 order by x.seq %s limit $4)',
                   source.query, case when p_backward then 'desc' else 'asc' end)
      into found using c, p_low, p_high, n;
    seqs := seqs || found;
    looked := looked + cardinality(found);
    edges := edges || found[n];
  end loop;
  if 'available' = any(p_states) then
    u := headgate.next_unread(c, p_stream, p_low, p_high, p_backward, n);
    seqs := seqs || u.seqs;
    looked := looked + u.looked;
    edges := edges || u.edge;
  end if;
  select case when p_backward then max(e) else min(e) end into edge from unnest(edges) e;
  above := case when p_backward then coalesce(edge - 1, p_low) else p_low end;
  below := case when p_backward then p_high else coalesce(edge + 1, p_high) end;
  seqs := array(select distinct x from unnest(seqs) x where x > above and x < below);
end $$;

-- discovered_among_sql(lanes) -> a select of what discovered_lanes() tells of the lanes of this CTE
-- alone, as far as unread_sql needs it: each is looked up, because all together may be very many.
create or replace function headgate.discovered_among_sql(p_lanes text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($q$
    select l.lane, x.consumer, x.first_seq, x.from_lo, x.from_snap, x.to_tick, x.to_snap, x.to_hi,
           x.late, null::boolean as discards,
           case when x.late is not null then lower(x.late) - 1
                else greatest(x.from_lo, x.first_seq - 1) end as pos
      from %s l
     cross join lateral (
       select * from headgate.discovered x
        where x.consumer = ($1).id and x.lane = l.lane
        order by x.to_base, x.at limit 1) x
     where (select o.lane from headgate.cursor o
             where o.consumer = ($1).id and o.lane = l.lane) is null
       and (select x.lane from headgate.discovered x
             where x.consumer = ($1).id limit 1) is not null $q$, p_lanes)
$$;

-- next_unread(consumer, stream id, low, high, backward, n) -> seqs between low and high that the
-- consumer has still to come to and would get: of each lane up to n. `edge`: the search ended
-- there; null: that is all.
create or replace function headgate.next_unread(c headgate.consumer, p_stream int, p_low bigint,
                                                p_high bigint,
  p_backward boolean, n int, out seqs bigint[], out edge bigint, out looked bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off as $$
declare
  g headgate.cursor;       -- the gatherer, where lanes are named
  lanes int;               -- lanes that may have something
  each bigint;             -- so much of a lane is looked at
  start bigint;            -- where the gatherer's part of the log begins
  more record;
  direction text := case when p_backward then 'desc' else 'asc' end;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  select count(*) into lanes from (
    (select from headgate.cursor k
      where k.consumer = c.id and k.lane >= 0 and (k.next_at is not null or g.lane is null)
        limit 1025)
    union all  -- (there may be word of lanes while none is awake)
    (select from headgate.discovered x where x.consumer = c.id and g.lane is not null limit 1025)
    union all
    (select from headgate.wake w where w.consumer = c.id and g.lane is not null limit 1025)) x;
  seqs := '{}';
  looked := 0;
  if lanes <= 1024 then
    each := greatest(50, 20000 / greatest(lanes, 1));
    looked := lanes * each;
    execute format($q$
      select coalesce(array_agg(x.seq) filter (where x.is_hit), '{}'),
             %4$s(x.seq) filter (where x.is_edge)
        from (select k.* from headgate.cursor k
               where k.consumer = ($1).id and k.lane >= 0 and (k.next_at is not null or $6)
              union all
              select k.* from headgate.told_lanes(($1).id) k where not $6) k
       cross join lateral greatest($2, %5$s) r (start)
       cross join lateral (
         select y.seq, y.is_hit, y.nth = $5 or row_number() over () = $4 as is_edge from (
           select m.seq, %2$s
              and (($1).pattern is null or coalesce(m.key ~ ($1).pattern, false)) as is_hit,
                  row_number() over () as nth
             from (select m.seq, m.xid, m.key from headgate.message_%1$s m
                    where (m.lane, m.seq) > (k.lane, r.start) and (m.lane, m.seq) < (k.lane, $3)
                    order by m.lane %3$s, m.seq %3$s limit $5) m) y
          where y.is_hit or y.nth = $5 limit $4) x $q$,
      p_stream, headgate.unread_sql('k'), direction, case when p_backward then 'max' else 'min' end,
      headgate.read_up_to_sql('k', p_stream::text))
      into seqs, edge using c, p_low, p_high, n, each, g.lane is null;
    if g.lane is null then return; end if;
    start := headgate.read_up_to(p_stream, g);
  else
    perform set_config('enable_hashjoin', 'on', true);  -- until the end of this function
    -- so many lanes are awake that the log itself is read, from where the first of them is
    select least(min(k.pos), min(k.to_lo), min(lower(k.late)) - 1, headgate.read_up_to(p_stream, g),
                 (
             select min(lower(t.late)) - 1 from headgate.tick t
              where t.stream = p_stream and t.late is not null))
      into start
      from (select k.pos, k.to_lo, k.late from headgate.cursor k
             where k.consumer = c.id and k.lane >= 0 and k.next_at is not null
            union all
            select k.pos, k.to_lo, k.late from headgate.cursor k  -- those that there is word of
             where k.consumer = c.id and k.lane >= 0 and k.next_at is null
               and k.lane in (select w.lane from headgate.wake w where w.consumer = c.id
                              union all
                              select x.lane from headgate.discovered x where x.consumer = c.id)
            union all
            select greatest(x.from_lo, x.first_seq - 1), x.to_lo, x.late
              from headgate.discovered x where x.consumer = c.id) k;
  end if;
  perform set_config('enable_hashjoin', 'on', true);  -- until the end of this function
  execute format($q$
    with near as materialized (
      select m.seq, m.lane, m.xid, m.key from headgate.message_%1$s m
       where m.seq > $3 and m.seq < $4 order by m.seq %4$s limit 5000),
    lanes as materialized (select distinct m.lane from near m),
    discovered as materialized (%5$s)
    select coalesce(array_agg(y.seq) filter (where y.is_hit), '{}') as seqs,
           case when count(*) = 5000 then %6$s(y.seq) end as edge, count(*) as looked from (
      select m.seq, (($1).pattern is null or coalesce(m.key ~ ($1).pattern, false)) and coalesce((
               select %2$s from headgate.cursor k where k.consumer = ($1).id and k.lane = m.lane),
               case when d.lane is not null then %7$s end, %3$s) as is_hit
        from near m left join discovered d on d.lane = m.lane) y $q$,
    p_stream, headgate.unread_sql('k'), headgate.unread_sql('($2)'), direction,
    headgate.discovered_among_sql('lanes'), case when p_backward then 'min' else 'max' end,
    headgate.unread_sql('d'))
    into more using c, g, greatest(p_low, start), p_high;
  seqs := seqs || more.seqs;
  looked := looked + more.looked;
  edge := case when p_backward then greatest(edge, more.edge) else least(edge, more.edge) end;
end $$;

-- show_messages(consumer, stream, above, below, seqs, states, backward, n) -> up to n messages
-- between above and below in these states: of these seqs, or (null) of all.
create or replace function headgate.show_messages(c headgate.consumer, s headgate.stream,
                                                  p_above bigint, p_below bigint,
  p_seqs bigint[], p_states text[], p_backward boolean, n bigint)
returns table (seq bigint, key text, data text, headers jsonb, created_at timestamptz, state text,
               attempt int,
  visible_at timestamptz, worker text, reason text, last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set jit = off as $$
declare
  g headgate.cursor;
  direction text := case when p_backward then 'desc' else 'asc' end;
  only_these text := case when p_seqs is not null then ' and m.seq = any($5)' else '' end;
begin
  if p_seqs = '{}' then return; end if;
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  -- first which, and only of these the data; a state that is asked of one table is one hash join
  return query execute format($q$
    with stored as materialized (
      select m.seq, m.lane, m.key, m.xid, true as is_logged from headgate.message_%1$s m
       where m.seq > $3 and m.seq < $4%5$s%6$s
      union all
      select m.seq, m.lane, m.key, m.xid, false from headgate.kept_%1$s m
       where m.seq > $3 and m.seq < $4%5$s%6$s),
    lanes as materialized (select distinct m.lane from stored m),
    discovered as materialized (%7$s),
    near as (
      select m.seq,
             case when p.seq is not null then 'parked'
                  when d.seq is not null then 'delivered'
                  when ($1).pattern is not null
                    and (m.key is null or m.key !~ ($1).pattern) then 'skipped'
                  -- (what is only kept no reader comes to, wherever it is)
                  when m.is_logged
                       and coalesce(
                         (select %2$s from headgate.cursor k
                           where k.consumer = ($1).id and k.lane = m.lane),
                                    case when y.lane is not null then %8$s end, %3$s, false) then
                                      'available'
                  when z.seq is not null then 'discarded'
                  when e.seq is not null then 'dead'
                  else 'done' end as state,
             p.attempt as parked_attempt, p.visible_at, p.reason, p.last_error as parked_error,
             d.attempt as delivered_attempt, d.deadline, d.worker, e.attempt as dead_attempt,
             e.last_error as dead_error
        from stored m
        left join discovered y on y.lane = m.lane
        left
          join headgate.parked p on p.consumer = ($1).id and p.seq = m.seq and p.seq > $3
            and p.seq < $4
        left join headgate.delivered_seqs($1, $3, $4) d on d.seq = m.seq
        left
          join headgate.discarded z on z.consumer = ($1).id and z.seq = m.seq and z.seq > $3
            and z.seq < $4
                                      and z.at is not null
        left join headgate.dead_seqs($1, $3, $4) e on e.seq = m.seq),
    chosen as materialized (
      select * from near x where x.state <> 'skipped' and ($6 is null or x.state = any($6))
       order by x.seq %4$s limit $7)
    select m.seq, m.key, m.data, m.headers, m.created_at, x.state,
           case x.state when 'parked' then x.parked_attempt
                when 'delivered' then x.delivered_attempt
                        when 'dead' then coalesce(x.dead_attempt, 0) else 0 end,
           case x.state when 'parked' then nullif(x.visible_at, 'infinity')
                when 'delivered' then x.deadline end,
           case x.state when 'delivered' then x.worker end,
           case x.state when 'parked' then x.reason end,
           case x.state when 'parked' then x.parked_error when 'dead' then x.dead_error end
      from chosen x join (
        select m.seq, m.key, m.data, m.headers, m.created_at from headgate.message_%1$s m
         where m.seq = any(array(select y.seq from chosen y))
        union all
        select m.seq, m.key, m.data, m.headers, m.created_at from headgate.kept_%1$s m
         where m.seq = any(array(select y.seq from chosen y))) m on m.seq = x.seq
     order by m.seq %4$s $q$,
    s.id, headgate.unread_sql('k'), headgate.unread_sql('($2)'), direction, only_these,
    headgate.newest_only(s, 'm'),
    headgate.discovered_among_sql('lanes'), headgate.unread_sql('y'))
    using c, g, p_above, p_below, p_seqs, p_states, n;
end $$;

-- messages(stream, max, newest_first, filter, before, after) -> messages of a stream, whoever has
-- read them.
create or replace function headgate.messages(stream text, max int default 10,
                                             newest_first boolean default false,
  filter text[] default null, before bigint default null, after bigint default null)
returns table (seq bigint, key text, data text, headers jsonb, deliver_at timestamptz,
               created_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  pattern text := headgate.filter_pattern(filter);
begin
  perform headgate.check_max(max);
  return query execute format($q$
    select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at
      from (select * from headgate.message_%1$s union all select * from headgate.kept_%1$s) m
     where ($1 is null or m.seq < $1) and ($2 is null or m.seq > $2)
       and ($3 is null or m.key ~ $3)%2$s
     order by m.seq %3$s
       limit $4 $q$, s.id, headgate.newest_only(s, 'm'),
         case when newest_first then 'desc' else 'asc' end)
    using before, after, pattern, max;
end $$;
