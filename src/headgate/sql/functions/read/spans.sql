-- The steps of a receive in which a lane goes on to its next span (from one tick to another).
-- (What is common to all steps: steps.sql.)

-- tick_for(call, stream id, its sequence, open, tick_hi, tick_settled, too_many) -> the call, with
-- a tick that was made for it if anything can have changed since the newest one.
-- Locks: the stream's row (SKIP LOCKED).
-- Writes: tick.
create or replace function headgate.tick_for(
  r headgate.receiving, p_stream int, p_seqs regclass, p_open boolean, tick_hi bigint,
  tick_settled boolean, too_many boolean)
returns headgate.receiving
language plpgsql as $$
begin
  if not r.busy and too_many and pg_sequence_last_value(p_seqs) > tick_hi then
    -- another tick may be made then: what was sent since the last one is not to be missed
    perform pg_sleep(0.001);
    too_many := false;
  end if;
  if not r.busy and not too_many
     or r.busy and (not tick_settled or pg_sequence_last_value(p_seqs) > tick_hi) then
    r.newest := headgate.make_tick(p_stream, coalesce(p_open, headgate.in_user_transaction()));
    r.tick := (r.newest).id;
    if r.tick is null then perform headgate.consumer_is_missing(null, null); end if;
  end if;
  return r;
end $$;

-- begin_span(call) -> the call, whose lane is to be read now: from where it is, or, when its span
-- is done, from the beginning of the next one.
-- Writes: cursor.
create or replace function headgate.begin_span(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
  l headgate.cursor := r.l;
  newest headgate.tick := r.newest;
  was_tick bigint := l.to_tick;
  moved boolean := false;
begin
  -- point: what is parked in a lane is served
  -- the span is done: begin the next one
  if l.pos >= l.to_hi and l.late is null and l.to_tick <> r.tick then
    if newest.id is null then  -- by now it may have been thinned out: then the one behind it
      select t.* into newest from headgate.tick t
       where t.stream = (r.c).stream and t.base = t.id and t.id >= r.tick order by t.id limit 1;
      r.newest := newest;
    end if;
    l := case when l.gate is null then headgate.next_span(l, newest)
              else headgate.next_gated(c, l, newest) end;
    moved := l.to_tick <> was_tick;
  end if;
  -- point: a lane has its span
  if moved then
    update headgate.cursor k
       set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo,
           to_tick = l.to_tick,
           to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos,
           late = l.late, served_at = r.t0, expires_at = l.expires_at, delivered = l.delivered
     where k.consumer = c.id and k.lane = l.lane;
  end if;
  if l.rate_since < r.t0 - interval '10 seconds' then
    perform headgate.move_marks(c.id, l.lane, r.t0);
  end if;
  if r.want = 0 or (l.pos >= l.to_hi and l.late is null) then
    r.tried := r.tried || l.lane;
    if not moved then
      update headgate.cursor k
         set served_at = r.t0, expires_at = l.expires_at, delivered = l.delivered
       where k.consumer = c.id and k.lane = l.lane;
    end if;
    r.step := case when r.want = 0 then null
                   when r.lets_go and r.lane_gave = 0 then 'let go'
                   else 'claim' end;
    return r;
  end if;
  r.pos := l.pos;
  r.hi := case when l.to_hi - l.pos > {LONG_SPAN}
                 then headgate.end_of_read((r.c).stream, l.pos, l.to_hi)
               else l.to_hi end;
  r.from_snap := l.from_snap;
  r.to_snap := l.to_snap;
  r.expires_at := l.expires_at;
  r.delivered := l.delivered;
  if r.is_plain and l.late is null and not l.discards then
    r.step := 'read';
    return r;
  end if;
  return headgate.begin_filtered(r);
end $$;

-- begin_spans(call) -> the call, which holds those of the lanes ahead that have a short new span
-- and nothing else to do, as many as the messages that it wants: they are read one after the other.
-- This is what the few fresh messages of a quiet stream need, for which to claim each lane by
-- itself (claim_any, check_lane, begin_span) costs several times as much as to read it.
-- Locks: cursors (SKIP LOCKED).
-- Writes: cursor.
create or replace function headgate.begin_spans(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  newest headgate.tick := r.newest;
  lanes bigint[];
  oldest bigint;  -- of the ticks that these stand on
begin
  if newest.id is null then  -- (as in begin_span)
    select t.* into newest from headgate.tick t
     where t.stream = (r.c).stream and t.base = t.id and t.id >= r.tick order by t.id limit 1;
    r.newest := newest;
  end if;
  -- a private one, or one that came later
  if newest.base <> newest.id or newest.id <> r.tick then return r; end if;
  select array_agg(h.lane), min(h.to_base) into lanes, oldest
    from (select k.lane, k.to_base from headgate.cursor k
           where k.consumer = r.consumer and k.lane = any(r.ahead)
             and k.pos >= k.to_hi and k.late is null and not k.discards and k.gate is null
             and k.to_tick = k.to_base and k.to_tick < newest.id
             and k.to_lo >= newest.hi - {LONG_SPAN}
             and (k.expires_at is null or k.expires_at > r.t0)
             and k.rate_since >= r.t0 - interval '10 seconds'
             and (select p.visible_at from headgate.parked p
                   where p.consumer = r.consumer and p.lane = k.lane
                   order by p.visible_at limit 1) <= r.t0 is not true
           order by k.served_at limit r.want for no key update skip locked) h;
  -- (ticks that tell of late transactions or of a restore: next_span knows what to do)
  if lanes is null or exists (
       select from headgate.tick t
        where t.stream = newest.stream and t.id >= oldest
          and (t.late is not null or t.bridge_to is not null)) then
    return r;
  end if;
  -- point: several lanes are claimed
  update headgate.cursor k
     set from_tick = k.to_tick, from_snap = k.to_snap, from_lo = k.to_lo, to_tick = newest.id,
         to_base = newest.id, to_snap = newest.snap, to_lo = newest.lo, to_hi = newest.hi,
         pos = greatest(k.to_lo, k.first_seq - 1), served_at = r.t0
   where k.consumer = r.consumer and k.lane = any(lanes);
  -- point: several lanes have their spans
  r.begun := lanes;
  return r;
end $$;

-- next_span(cursor, newest tick) -> the cursor at the beginning of its next span; unchanged when
-- there is none yet.
create or replace function headgate.next_span(l headgate.cursor, newest headgate.tick)
returns headgate.cursor
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare bridge headgate.tick; below int8multirange; s int := newest.stream;
begin
  -- Ticks that lie between may be bridges from another cluster, or tell where late transactions
  -- left messages.
  if exists (select from headgate.tick t
              where t.stream = s and t.id >= l.to_base
                and (t.late is not null or t.bridge_to is not null)) then
    select * into bridge from headgate.tick t
     where t.stream = s and t.id = l.to_tick and t.bridge_to is not null;
    if found then
      select t.id, t.id, t.snap, t.lo, t.hi into l.to_tick, l.to_base, l.to_snap, l.to_lo, l.to_hi
        from headgate.tick t where t.stream = s and t.id = bridge.bridge_to;
    end if;
    select * into bridge from headgate.tick t
     where t.stream = s and t.id > l.to_base and t.bridge_to is not null order by t.id limit 1;
    if found then newest := bridge; end if;
    -- (to_tick 0: a lane that was never read, and everything above to_lo lies ahead)
    if l.to_tick <> 0 then
      below := headgate.late_between(s, l.to_base, newest.id)
               * int8multirange(int8range(null, l.to_lo, '[]'));
    end if;
  end if;
  -- Spans only go forward: by now the cursor may stand on a tick later than the one that this claim
  -- found newest (another worker's, or a private one, whose id says nothing about its age). And
  -- never to a private one that builds on an older tick than the cursor does: its late ranges end
  -- at that tick's lo.
  if newest.id = l.to_tick or newest.base < l.to_base
     or (case when l.to_tick = l.to_base and newest.id = newest.base then newest.id < l.to_tick
       else pg_snapshot_xmax(newest.snap) < pg_snapshot_xmax(l.to_snap)
         or (pg_snapshot_xmax(newest.snap) = pg_snapshot_xmax(l.to_snap)
             and (select count(*) from pg_snapshot_xip(newest.snap)) > (select count(*)
                 from pg_snapshot_xip(l.to_snap))) end) then
    return l;
  end if;
  l.from_tick := l.to_tick; l.from_snap := l.to_snap; l.from_lo := l.to_lo;
  l.to_tick := newest.id;
  l.to_base := newest.base;
  l.to_snap := newest.snap;
  l.to_lo := newest.lo;
  l.to_hi := newest.hi;
  l.pos := greatest(l.from_lo, l.first_seq - 1);
  below := below * int8multirange(int8range(l.first_seq, null));
  if not isempty(below) then
    l.late := below;
    l.pos := lower(below) - 1;
  end if;
  return l;
end $$;

-- end_of_read(stream id, from, to) -> up to where a long span is read at once: one segment at a
-- time, so that the others are not opened.
create or replace function headgate.end_of_read(p_stream int, p_from bigint, p_to bigint)
returns bigint
language plpgsql stable as $$
begin
  -- (none, when all beyond is being sent by a transaction that is open: nobody else sees its
  -- segments)
  return coalesce((
    select least(p_to, g.end_seq - 1) from headgate.segment g
     where g.stream = p_stream and g.end_seq > p_from + 1 order by g.id limit 1), p_to);
end $$;
