-- How an ordered consumer goes over from the lanes of one layout to those of the next. What holds
-- is at the head of lanes/layouts.sql.

-- advance(consumer, layout, newest, next) -> whether all cursors of a layout have come to the tick
-- `newest`. Without `next` only those that have nothing to read on the way are moved, and the
-- others left to receive; with it, what they find is parked in the lanes of `next`.
-- Locks: the layout's cursors (SKIP LOCKED).
-- Writes: cursor, parked.
create or replace function headgate.advance(c headgate.consumer, y headgate.layout,
                                            newest headgate.tick, next headgate.layout)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare k headgate.cursor; was headgate.cursor; held int;
begin
  -- all or none: a feeding cursor that fell behind the others would let the next layout run ahead
  -- of it
  select count(*) into held from (
    select from headgate.cursor x
     where x.consumer = c.id and x.lane >= y.base and x.lane < y.base + y.lanes order by x.lane
       for update skip locked) h;
  if held = 0
     or held < (select count(*) from headgate.cursor x
                 where x.consumer = c.id and x.lane >= y.base and x.lane < y.base + y.lanes) then
    return false;  -- a claim is going on, or another worker has just retired the layout
  end if;
  -- point: the cursors of a layout are held
  for k in select * from headgate.cursor x
    where x.consumer = c.id and x.lane >= y.base and x.lane < y.base + y.lanes order by x.lane loop
    if k.pos < k.to_hi or k.late is not null then
      if exists (select from headgate.in_span(c.stream, k, 1)) then return false; end if;
      k.pos := k.to_hi;
      k.late := null;
      update headgate.cursor x set pos = k.pos, late = null
       where x.consumer = c.id and x.lane = k.lane;
    end if;
    loop
      was := k;
      k := headgate.next_span(k, newest);
      exit when k.to_tick = was.to_tick;
      if next.base is not null then
        insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
          select c.id, headgate.lane_in(next, case when c.ordered then m.key end, m.seq), m.seq,
                 case when c.ordered then m.key end, 0,
                 greatest(m.deliver_at, now()),
                 case when m.deliver_at > now() then 'delayed' else 'blocked' end
            from headgate.in_span(c.stream, k) m where c.pattern is null or m.key ~ c.pattern;
      elsif exists (select from headgate.in_span(c.stream, k, 1)) then
        return false;
      end if;
      k.pos := k.to_hi;
      k.late := null;
      update headgate.cursor x
         set from_tick = k.from_tick, from_snap = k.from_snap, from_lo = k.from_lo,
             to_tick = k.to_tick, to_base = k.to_base,
             to_snap = k.to_snap, to_lo = k.to_lo, to_hi = k.to_hi, pos = k.pos
       where x.consumer = c.id and x.lane = k.lane;
    end loop;
    -- it stands on that tick or a later one, unless next_span refused a private tick
    if k.to_tick <> newest.id and newest.id <> newest.base and newest.base < k.to_base then
      return false;
    end if;
  end loop;
  return true;
end $$;

-- in_flight_in(consumer, layout) -> whether anything of a layout is in flight.
create or replace function headgate.in_flight_in(c headgate.consumer, y headgate.layout)
returns boolean
language sql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select exists (select from headgate.delivery d
                  where d.consumer = c.id and d.lane >= y.base and d.lane < y.base + y.lanes)
$$;

-- holds_parked(consumer, layout) -> whether nobody else has any of the parked messages of a layout
-- in hand: now they are held. Who acks one late, makes it due or discards it in a transaction that
-- is open is not waited for.
-- Locks: parked rows (SKIP LOCKED).
create or replace function headgate.holds_parked(c headgate.consumer, y headgate.layout)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare held bigint;
begin
  select count(*) into held from (
    select from headgate.parked p
     where p.consumer = c.id and p.lane >= y.base and p.lane < y.base + y.lanes
       for update skip locked) x;
  return held = (
    select count(*) from headgate.parked p
     where p.consumer = c.id and p.lane >= y.base and p.lane < y.base + y.lanes);
end $$;

-- move_parked(consumer, layout, next): gives the parked messages of a layout to the lanes of the
-- next one.
-- Needs: the caller holds the cursors of the layout, in which nothing is in flight, and its parked
-- messages.
-- Writes: parked, wake.
create or replace function headgate.move_parked(c headgate.consumer, y headgate.layout,
                                                next headgate.layout) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  -- the first of each key that waited for an ack or its note asks again
  update headgate.parked p set lane = headgate.lane_in(next, p.key, p.seq),
         visible_at = case when f.first and p.reason = 'blocked' then least(p.visible_at, now())
                           else p.visible_at end
    from (select q.lane, q.seq, q.key is not null
             and row_number() over (partition by q.key order by q.seq) = 1 as first
            from headgate.parked q
              where q.consumer = c.id and q.lane >= y.base and q.lane < y.base + y.lanes) f
   where p.consumer = c.id and p.lane = f.lane and p.seq = f.seq;
  delete from headgate.wake w
   where w.consumer = c.id and w.lane >= y.base and w.lane < y.base + y.lanes;
end $$;

-- retire(consumer, layout, next): removes the cursors of a layout, which the caller holds and is
-- done with; the next one is free.
-- Locks: cursors of the next layout (SKIP LOCKED).
-- Writes: cursor.
create or replace function headgate.retire(c headgate.consumer, y headgate.layout,
                                           next headgate.layout) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare total bigint; again bigint;
begin
  with gone as (delete from headgate.cursor k
                where k.consumer = c.id and k.lane >= y.base and k.lane < y.base + y.lanes
                  returning k.delivered, k.redelivered)
  select coalesce(sum(g.delivered), 0), coalesce(sum(g.redelivered), 0) into total, again
    from gone g;
  -- one that is locked at this moment frees itself (next_gated)
  with free as materialized (
    select k.lane from headgate.cursor k
     where k.consumer = c.id and k.lane >= next.base and k.lane < next.base + next.lanes
       order by k.lane for no key update skip locked),
  heir as materialized (  -- the first of them goes on counting
    select f.lane, case when f.lane = min(f.lane) over () then 1 else 0 end as share from free f)
  update headgate.cursor k
     set gate = null, delivered = k.delivered + h.share * total,
         redelivered = k.redelivered + h.share * again,
         mark_delivered = k.mark_delivered + h.share * (total - again),
         earlier_delivered = k.earlier_delivered + h.share * (total - again)
    from heir h where k.consumer = c.id and k.lane = h.lane;
end $$;

-- move_to_next_layout(consumer, newest) -> the second oldest layout that the consumer has cursors
-- in, and the tick up to which that one may be read (null: not at all). Does what can be done now
-- for the consumer to go over from old layouts to newer ones. Inside a transaction that was open
-- already it only looks.
-- Locks: cursors of old layouts (SKIP LOCKED).
-- Writes: cursor, parked.
create or replace function headgate.move_to_next_layout(
  c headgate.consumer, newest headgate.tick, out base int, out tick headgate.tick)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  y headgate.layout;
  next headgate.layout;
  k headgate.cursor;
  ends boolean;
  may_lock boolean := statement_timestamp() - now() < interval '2 milliseconds';
begin
  loop
    base := null; tick := null;
    select * into y from headgate.layouts_of(c) limit 1;
    select * into next from headgate.layouts_of(c) offset 1 limit 1;
    exit when not found;
    base := next.base;
    ends := coalesce(newest.base >= y.end_tick, false);
    select * into k from headgate.cursor x where x.consumer = c.id and x.lane = y.base;
    if k.gate = 'feeds' then
      if may_lock and headgate.advance(c, y, newest, next) then
        tick := newest;
        exit when not ends;
        perform headgate.retire(c, y, next);
        continue;
      end if;
      -- another worker is at it: as far as these cursors came
      exit when (select count(distinct x.to_tick) from headgate.cursor x
                  where x.consumer = c.id and x.lane >= y.base and x.lane < y.base + y.lanes) > 1;
      tick.stream := c.stream;
      tick.id := k.to_tick;
      tick.base := k.to_base;
      tick.lo := k.to_lo;
      tick.hi := k.to_hi;
      tick.snap := k.to_snap;
      exit;
    end if;
    exit when not may_lock or not (c.ordered or ends);
    -- looked at before anything is locked, and again when no claim can be going on
    exit when headgate.in_flight_in(c, y)
      or exists (select from headgate.cursor x
                  where x.consumer = c.id and x.lane >= y.base and x.lane < y.base + y.lanes
                                                  and (x.pos < x.to_hi or x.late is not null)
                                                  and exists (select
                                                                from headgate.in_span(c.stream, x,
                                                                    1)));
    exit when not headgate.advance(c, y, newest, null);
    exit when headgate.in_flight_in(c, y);
    -- point: nothing of a layout is in flight
    exit when not headgate.holds_parked(c, y);
    perform headgate.move_parked(c, y, next);
    if ends then
      perform headgate.retire(c, y, next);
    else
      update headgate.cursor x set gate = 'feeds'
       where x.consumer = c.id and x.lane >= y.base and x.lane < y.base + y.lanes;
      tick := newest;
      exit;
    end if;
  end loop;
end $$;

-- next_gated(consumer, cursor, newest) -> the cursor, which the caller holds and which has a gate,
-- at the beginning of its next span; unchanged when there is none yet or it must wait.
-- Locks: as move_to_next_layout.
-- Writes: as move_to_next_layout.
create or replace function headgate.next_gated(c headgate.consumer, l headgate.cursor,
                                               newest headgate.tick) returns headgate.cursor
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare was bigint; k headgate.cursor; g record; y headgate.layout;
begin
  select * into y from headgate.layout x where x.stream = c.stream and x.base <= l.lane
   order by x.base desc limit 1;
  select x.delivered into was from headgate.cursor x where x.consumer = c.id and x.lane = l.lane;
  select * into g from headgate.move_to_next_layout(c, newest);
  select * into k from headgate.cursor x where x.consumer = c.id and x.lane = l.lane;
  if not found or k.gate = 'feeds' then return l; end if;
  l.delivered := l.delivered + k.delivered - was;
  if k.gate = 'waits'
     and not exists (select from headgate.cursor x where x.consumer = c.id and x.lane < y.base) then
    update headgate.cursor x set gate = null where x.consumer = c.id and x.lane = l.lane;
    k.gate := null;
  end if;
  l.gate := k.gate;
  if k.gate is null then return headgate.next_span(l, newest); end if;
  if y.base = g.base and (g.tick).id is not null then return headgate.next_span(l, g.tick); end if;
  return l;
end $$;

-- parking_lane(consumer, lane, key, seq) -> where a message of a lane is parked: in that lane, or,
-- when the consumer has left it behind, in the lane of its key in the oldest layout that it still
-- reads.
create or replace function headgate.parking_lane(c headgate.consumer, p_lane bigint, p_key text,
                                                 p_seq bigint) returns bigint
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select case
    when exists (select from headgate.cursor k
                  where k.consumer = c.id and k.lane = p_lane and k.gate is distinct from 'feeds')
                    then p_lane
    else coalesce((
      select headgate.lane_in(y, case when c.ordered then p_key end, p_seq)
        from headgate.layouts_of(c) y
       where y.base > p_lane
         and exists (select from headgate.cursor k
                      where k.consumer = c.id and k.lane = y.base
                        and k.gate is distinct from 'feeds')
       order by y.base limit 1), p_lane) end
$$;
