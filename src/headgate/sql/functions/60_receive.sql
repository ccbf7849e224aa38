-- Receiving: claim what a worker may work on next. One call, one round trip, one transaction.

do $$ begin
  if to_regtype('headgate.received') is null then
    create type headgate.received as (
      ack_id text, seq bigint, key text, data text, headers jsonb, channel text, attempt int, created_at timestamptz);
  end if;
end $$;

-- receive(stream, consumer, batch_size, worker, acks) -> up to batch_size messages, each with the ack_id to settle it by.
-- First settles `acks` (ack_ids of messages or whole deliveries that the worker has just finished), then claims.
-- Locks the cursors it claims (SKIP LOCKED) and, making a tick, the stream's row; writes delivery, cursor, parked, tick.
-- Inside a transaction that was open already it holds only the lanes that it took messages from.
create or replace function headgate.receive(stream text, consumer text, batch_size int default 1, worker text default null, acks text[] default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer; open boolean := headgate.is_open(); newest headgate.tick; busy boolean; resting boolean; want int := batch_size;
begin
  select k.* into c from headgate.consumer k join headgate.stream s on s.id = k.stream
   where s.name = receive.stream and k.name = receive.consumer;
  if not found then perform headgate.find_consumer(receive.stream, receive.consumer); end if;
  if want is null or want not between 1 and 10000 then
    perform headgate.fail('HG010', format('a batch of %s messages is not possible', coalesce(want::text, 'null')), 'ask for 1 to 10,000 messages');
  end if;
  -- A tick must be made before this transaction has an id, so before anything is written. While some lane has work left
  -- in its span there is no hurry.
  select bool_or(k.pos < k.to_hi), bool_or(k.pos >= k.to_hi) into busy, resting from headgate.cursor k where k.consumer = c.id;
  newest := headgate.newest_tick(c.stream);
  if resting and not c.paused and (not busy or newest.at < clock_timestamp() - interval '20 milliseconds') then
    newest := headgate.make_tick(c.stream, open);
  end if;
  if cardinality(acks) > 0 then perform headgate.settle(c, acks); end if;
  if c.paused then return; end if;
  if c.max_ack_pending is not null then
    perform 1 from headgate.consumer k where k.id = c.id for no key update;
    want := least(want, c.max_ack_pending - (select coalesce(sum(cardinality(d.seqs)), 0) from headgate.delivery d where d.consumer = c.id));
    if want <= 0 then
      perform headgate.sweep(c, clock_timestamp());
      return;
    end if;
  end if;
  return query execute format('select * from headgate.claim_%s($1, $2, $3, $4)', c.stream) using c, newest, want, worker;
end $$;

-- claim_template() -> the source of claim_<stream id>(consumer, newest tick, n, worker) -> messages. Claims lane after
-- lane, the one that waited longest first, until n messages are gathered: what is parked and due, then the log.
create or replace function headgate.claim_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.claim_{stream}(c headgate.consumer, newest headgate.tick, n int, p_worker text) returns setof headgate.received
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
  t0 timestamptz := clock_timestamp(); deadline timestamptz := t0 + c.ack_wait; want int := n; got int; chunk int;
  l headgate.cursor; l0 headgate.cursor; tried int[] := '{}'; tries int := 0;
  flying text[]; any_parked boolean; crowded boolean;
begin
  loop
    select k.* into l from headgate.cursor k
     where k.consumer = c.id and k.lane <> all(tried) and (
           k.pos < k.to_hi or k.late is not null or k.sweep_at <= t0
        or (k.to_tick <> newest.id and exists (select from headgate.message_{stream} m where m.lane = k.lane and m.seq > k.to_lo))
        or exists (select from headgate.parked p where p.consumer = c.id and p.lane = k.lane and p.visible_at <= t0)
        or (c.ordered and exists (select from headgate.wake w where w.consumer = c.id and w.lane = k.lane)))
     order by k.turn limit 1 for update skip locked;
    if not found then
      -- nothing to claim, or all of it locked by other claims at this instant: then try again rather than say "nothing"
      exit when want < n or tries >= 8 or not exists (
        select from headgate.cursor k where k.consumer = c.id and k.lane <> all(tried) and (
           k.pos < k.to_hi or (k.to_tick <> newest.id and exists (
             select from headgate.message_{stream} m where m.lane = k.lane and m.seq > k.to_lo))));
      tries := tries + 1;
      perform pg_sleep(0.0005 * tries);
      continue;
    end if;
    l0 := l;
    if l.sweep_at <= t0 then l.sweep_at := headgate.take_apart(c, l.lane, t0); end if;
    if c.ordered then perform headgate.take_notes(c, l.lane, t0); end if;
    if exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane and p.visible_at <= t0) then
      return query
      with p as materialized (select * from headgate.unpark(c, l.lane, want, t0)),
      m as materialized (
        select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at from p join headgate.message_{stream} m on m.seq = p.seq),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at, worker)
          select c.id, l.lane, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
                 case when c.ordered then array_agg(m.key order by m.seq) end, deadline, t0, p_worker from m having count(*) > 0
          returning id)
      select l.lane || '.' || d.id || '.' || m.seq, m.seq, m.key, m.data, m.headers, null::text, m.attempt, m.created_at
        from d, m order by m.seq;
      get diagnostics got = row_count;
      want := want - got;
      l.delivered := l.delivered + got;
      if got > 0 then l.sweep_at := least(l.sweep_at, deadline); end if;
    end if;
    -- the span: go on in it, or begin the next one
    if l.pos >= l.to_hi and l.late is null and l.to_tick <> newest.id then l := headgate.next_span(l, newest); end if;
    if want = 0 or (l.pos >= l.to_hi and l.late is null) then
      tried := tried || l.lane;
      if (l.to_tick, l.pos, l.sweep_at, l.delivered) is distinct from (l0.to_tick, l0.pos, l0.sweep_at, l0.delivered) then
        update headgate.cursor k set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo, to_tick = l.to_tick,
               to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos, late = l.late, turn = t0,
               sweep_at = l.sweep_at, delivered = l.delivered
         where k.consumer = c.id and k.lane = l.lane;
      end if;
    elsif not c.ordered and c.pattern is null and l.late is null then
      return query
      with m as materialized (
        select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at from headgate.message_{stream} m
         where m.lane = l.lane and m.seq > l.pos and m.seq <= l.to_hi
           and pg_visible_in_snapshot(m.xid, l.to_snap) and not pg_visible_in_snapshot(m.xid, l.from_snap)
         order by m.seq limit want),
      p as (
        insert into headgate.parked (consumer, lane, seq, attempt, visible_at, reason)
          select c.id, l.lane, m.seq, 0, m.deliver_at, 'delayed' from m where m.deliver_at > t0),
      g as materialized (
        select count(*) as n, max(m.seq) as hi, array_agg(m.seq) filter (where m.deliver_at is null or m.deliver_at <= t0) as seqs from m),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, deadline, delivered_at, worker)
          select c.id, l.lane, g.seqs, deadline, t0, p_worker from g where g.seqs is not null returning id),
      u as (
        update headgate.cursor k set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo, to_tick = l.to_tick,
               to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi,
               pos = case when g.n < want then l.to_hi else g.hi end, late = null, turn = t0,
               sweep_at = case when g.seqs is null then l.sweep_at else least(l.sweep_at, deadline) end,
               delivered = l.delivered + coalesce(cardinality(g.seqs), 0),
               mark_at = case when k.mark_at < t0 - interval '10 seconds' then t0 else k.mark_at end,
               mark_delivered = case when k.mark_at < t0 - interval '10 seconds' then k.delivered else k.mark_delivered end
          from g where k.consumer = c.id and k.lane = l.lane)
      select l.lane || '.' || d.id || '.' || m.seq, m.seq, m.key, m.data, m.headers, null::text, 1, m.created_at
        from d, m where m.deliver_at is null or m.deliver_at <= t0;
      get diagnostics got = row_count;
      want := want - got;
    else
      -- the same with a filter, with keys in order, and for what late transactions left below the span
      chunk := case when c.pattern is null then want + 20 else least(greatest(coalesce(chunk, 0) * 2, want * 4 + 100), 20000) end;
      any_parked := false; crowded := false;
      if c.ordered then
        any_parked := exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane);
        flying := array(select unnest(d.keys) from headgate.delivery d where d.consumer = c.id and d.lane = l.lane);
        -- keys in flight park the messages behind them, within bounds; past these the lane waits for an ack
        crowded := any_parked and flying <> '{}' and exists (
          select from headgate.parked p where p.consumer = c.id and p.lane = l.lane and p.visible_at = 'infinity' offset 1000 limit 1);
      end if;
      return query
      with raw as materialized (
        (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at from headgate.message_{stream} m
          where l.late is null and m.lane = l.lane and m.seq > l.pos and m.seq <= l.to_hi
            and pg_visible_in_snapshot(m.xid, l.to_snap) and not pg_visible_in_snapshot(m.xid, l.from_snap)
          order by m.seq limit chunk)
        union all
        (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at
           from unnest(l.late) r cross join lateral (
             select * from headgate.message_{stream} m
              where m.lane = l.lane and m.seq >= greatest(lower(r), l.pos + 1) and m.seq < upper(r) and m.seq <= l.from_lo
                and pg_visible_in_snapshot(m.xid, l.to_snap) and not pg_visible_in_snapshot(m.xid, l.from_snap)
              order by m.seq limit chunk) m
          where l.late is not null order by m.seq limit chunk)),
      fit as materialized (
        select r.seq, r.deliver_at, case when c.ordered then r.key end as held, coalesce(r.deliver_at > t0, false) as delayed,
               coalesce(c.ordered and r.key = any(flying), false) as flies,
               any_parked and exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane and p.key = r.key) as blocked
          from raw r where c.pattern is null or r.key ~ c.pattern),
      sorted as materialized (
        select f.*, f.delayed or (f.held is not null and bool_or(f.delayed or f.flies or f.blocked) over (partition by f.held order by f.seq)) as waits
          from fit f where not crowded or f.seq < coalesce((select min(f2.seq) from fit f2 where f2.flies), f.seq + 1)),
      taken as materialized (select s.seq, s.held from sorted s where not s.waits order by s.seq limit want),
      g as materialized (
        select case when (select count(*) from taken) >= want then (select max(x.seq) from taken x)
                    when crowded and exists (select from fit f where f.flies) then (select min(f.seq) - 1 from fit f where f.flies)
                    when (select count(*) from raw) >= chunk then (select max(r.seq) from raw r) end as stop),
      p as (
        insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
          select c.id, l.lane, s.seq, s.held, 0,
                 case when s.delayed then s.deliver_at
                      when s.flies and not s.blocked and row_number() over (partition by s.held order by s.seq) = 1 then t0 + interval '50 milliseconds'
                      else 'infinity' end,
                 case when s.delayed then 'delayed' else 'blocked' end
            from sorted s, g where s.waits and (g.stop is null or s.seq <= g.stop)),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, keys, deadline, delivered_at, worker)
          select c.id, l.lane, array_agg(x.seq order by x.seq), case when c.ordered then array_agg(x.held order by x.seq) end, deadline, t0, p_worker
            from taken x having count(*) > 0 returning id),
      u as (
        update headgate.cursor k set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo, to_tick = l.to_tick,
               to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi,
               pos = coalesce(g.stop, case when l.late is null then l.to_hi else l.from_lo end),
               late = case when g.stop is not null then l.late end, turn = t0,
               sweep_at = case when exists (select from taken) then least(l.sweep_at, deadline) else l.sweep_at end,
               delivered = l.delivered + (select count(*) from taken),
               mark_at = case when k.mark_at < t0 - interval '10 seconds' then t0 else k.mark_at end,
               mark_delivered = case when k.mark_at < t0 - interval '10 seconds' then k.delivered else k.mark_delivered end
          from g where k.consumer = c.id and k.lane = l.lane)
      select l.lane || '.' || d.id || '.' || r.seq, r.seq, r.key, r.data, r.headers, null::text, 1, r.created_at
        from d, taken x join raw r using (seq) order by r.seq;
      get diagnostics got = row_count;
      want := want - got;
      if want > 0 then  -- again with this lane only if that leads on
        select k.pos into l0.pos from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
        if crowded or (l0.pos >= l.to_hi and l.to_tick = newest.id) then tried := tried || l.lane; end if;
      end if;
    end if;
    exit when want <= 0 or clock_timestamp() > t0 + interval '200 milliseconds';
  end loop;
end $$;
$source$
$template$;

-- next_span(cursor, newest tick) -> the cursor at the beginning of its next span; unchanged when there is none yet.
create or replace function headgate.next_span(l headgate.cursor, newest headgate.tick) returns headgate.cursor
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare bridge headgate.tick; below int8multirange; s int := newest.stream;
begin
  -- Ticks that lie between may be bridges from another cluster, or tell where late transactions left messages.
  if exists (select from headgate.tick t where t.stream = s and t.id >= l.to_base and (t.late is not null or t.reborn is not null)) then
    select * into bridge from headgate.tick t where t.stream = s and t.id = l.to_tick and t.reborn is not null;
    if found then
      select t.id, t.id, t.snap, t.lo, t.hi into l.to_tick, l.to_base, l.to_snap, l.to_lo, l.to_hi
        from headgate.tick t where t.stream = s and t.id = bridge.reborn;
    end if;
    select * into bridge from headgate.tick t where t.stream = s and t.id > l.to_base and t.reborn is not null order by t.id limit 1;
    if found then newest := bridge; end if;
    select range_agg(t.late) * int8multirange(int8range(null, l.to_lo, '[]')) into below
      from headgate.tick t where t.stream = s and t.id > l.to_base and t.id <= newest.id and t.late is not null;
  end if;
  -- A private tick may be later than the newest public one: spans only go forward.
  if newest.id = l.to_tick or (l.to_tick <> l.to_base and (pg_snapshot_xmax(newest.snap) < pg_snapshot_xmax(l.to_snap)
       or (pg_snapshot_xmax(newest.snap) = pg_snapshot_xmax(l.to_snap)
           and (select count(*) from pg_snapshot_xip(newest.snap)) > (select count(*) from pg_snapshot_xip(l.to_snap))))) then
    return l;
  end if;
  l.from_tick := l.to_tick; l.from_snap := l.to_snap; l.from_lo := l.to_lo;
  l.to_tick := newest.id; l.to_base := newest.base; l.to_snap := newest.snap; l.to_lo := newest.lo; l.to_hi := newest.hi;
  l.pos := l.from_lo;
  if not isempty(below) then
    l.late := below;
    l.pos := lower(below) - 1;
  end if;
  return l;
end $$;
