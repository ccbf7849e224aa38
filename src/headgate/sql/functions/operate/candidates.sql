-- Which messages a look at a part of the log has to show: the next ones, or the next in some
-- states. Nothing here locks or writes.

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
      from %1$s m
     where m.seq > $1 and m.seq < $2 order by m.seq %2$s offset $3 limit 1 $q$,
    headgate.stored_sql(p_stream, 'm.seq'), case when p_backward then 'desc' else 'asc' end)
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
    select x.seqs, x.edge into seqs, edge
      from headgate.next_of_lanes(
        c, p_stream, p_low, p_high, p_backward, n, each, g.lane is null) x;
    if g.lane is null then return; end if;
    start := headgate.read_up_to(p_stream, g);
  else
    -- so many lanes are awake that the log itself is read, from where the first of them is
    start := headgate.first_awake(c, g, p_stream);
  end if;
  select * into more
    from headgate.next_of_log(c, g, p_stream, greatest(p_low, start), p_high, p_backward);
  seqs := seqs || more.seqs;
  looked := looked + more.looked;
  edge := case when p_backward then greatest(edge, more.edge) else least(edge, more.edge) end;
end $$;

-- next_of_lanes(consumer, stream id, low, high, backward, n, each, all) -> the part of next_unread
-- for lanes that are awake or that there is word of (all: for every lane): of each lane up to n,
-- found among `each` messages.
create or replace function headgate.next_of_lanes(
  c headgate.consumer, p_stream int, p_low bigint, p_high bigint, p_backward boolean, n int,
  p_each bigint, p_all boolean, out seqs bigint[], out edge bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    select coalesce(array_agg(x.seq) filter (where x.is_hit), '{}'),
           %4$s(x.seq) filter (where x.is_edge)
      from (select k.* from headgate.cursor k
             where k.consumer = ($1).id and k.lane >= 0 and (k.next_at is not null or $6)
            union all
            select k.* from headgate.hidden_lanes(($1).id) k where not $6) k
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
    p_stream, headgate.unread_sql('k'),
    case when p_backward then 'desc' else 'asc' end, case when p_backward then 'max' else 'min' end,
    headgate.read_up_to_sql('k', p_stream::text))
    into seqs, edge using c, p_low, p_high, n, p_each, p_all;
end $$;

-- first_awake(consumer, gatherer, stream id) -> what lanes that are awake, or that there is word
-- of, and the gatherer have still to come to lies above.
create or replace function headgate.first_awake(
  c headgate.consumer, g headgate.cursor, p_stream int) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_hashjoin = on as $$
declare start bigint;
begin
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
  return start;
end $$;

-- next_of_log(consumer, gatherer, stream id, low, high, backward) -> the part of next_unread for
-- the log itself: what is unread among the next 5,000 messages, and how many were looked at.
create or replace function headgate.next_of_log(
  c headgate.consumer, g headgate.cursor, p_stream int, p_low bigint, p_high bigint,
  p_backward boolean, out seqs bigint[], out edge bigint, out looked bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_hashjoin = on as $$
begin
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
    p_stream, headgate.unread_sql('k'), headgate.unread_sql('($2)'),
    case when p_backward then 'desc' else 'asc' end,
    headgate.discovered_among_sql('lanes'), case when p_backward then 'min' else 'max' end,
    headgate.unread_sql('d'))
    into seqs, edge, looked using c, g, p_low, p_high;
end $$;
