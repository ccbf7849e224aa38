-- Changing the number of hashed lanes. Each layout has lane numbers of its own, above those of the
-- layouts before it, so that no lane ever changes its meaning: a message lies in the lane where its
-- send put it, and consumers go over from the lanes of one layout to those of the next.
--
-- A send uses the layout that its statement sees. So of two messages of a key of which the second
-- was sent after the first had committed, or later in the same transaction, the second lies in the
-- same layout or a newer one, and is visible in no tick in which the first is not. (A transaction
-- with a fixed snapshot goes on in the layout it began with: it counts as having sent when it
-- began.)
--
-- An ordered consumer must not have one key in two lanes at once. Its cursors say what they do in
-- `gate`:
--   null      reads freely: the oldest layout that is not finished;
--   'waits'   reads nothing beyond the tick up to which the layout before it is finished;
--   'feeds'   a drained layout in which transactions from before the change may still write.
--     Nothing is handed out from
--             there: what appears is parked in the lane of its key in the next layout, before that
--               goes beyond the tick.
-- A layout is drained once its cursors have read everything up to the newest tick and nothing of it
-- is in flight; its parked messages then move to the next layout. It ends once nobody can write
-- there any more (close_layouts). A consumer without order reads all layouts at once, and just
-- forgets those that have ended when it is done with them.

-- lane_in(layout, key, seq) -> the lane of a key in a layout; without a key, one chosen by seq.
create or replace function headgate.lane_in(y headgate.layout, p_key text, p_seq bigint)
returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select y.base + case when p_key is null then p_seq % y.lanes
                       else (hashtextextended(p_key, 0) % y.lanes + y.lanes) % y.lanes end
$$;

-- set_lanes(stream, n): changes the number of lanes of a stream with hashed lanes, under traffic.
-- Messages sent from now on lie in the new lanes. 55P03 while something else changes the stream, or
-- while a transaction is open that may write in the lanes before the last change. Locks the
-- stream's row (for at most 2 seconds of waiting); writes stream, layout, cursor.
create or replace function headgate.set_lanes(stream text, n int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '2s' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  newest headgate.tick;
  fresh headgate.layout;
begin
  perform headgate.need_read_committed('set_lanes');
  perform headgate.check_lanes(coalesce(n, 0));
  if s.lane_by <> 'hash' then
    perform headgate.fail('HG010', format('stream "%s" has a lane for each %s', s.name, s.lane_by),
      'only the number of hashed lanes can be changed; here lanes come and go by themselves');
  end if;
  -- so that close_layouts has a new one to look at
  perform headgate.make_tick(s.id, headgate.is_open());
  begin
    -- FOR UPDATE, because a consumer that is being created holds FOR KEY SHARE and must get its
    -- lanes, too
    select * into s from headgate.stream t where t.id = s.id for update;
    perform 1 from headgate.consumer c where c.stream = s.id order by c.id for key share;
    perform headgate.hold_in_place(c, 'given other lanes') from headgate.consumer c
     where c.stream = s.id;
  exception when lock_not_available then
    perform headgate.fail('55P03',
                          format(
                            'stream "%s", or a consumer of it, is being changed by another transaction', set_lanes.stream),
      'repeat the call');
  end;
  -- point: set_lanes holds the stream
  if s.lanes = n then return; end if;
  perform headgate.close_layouts(s.id);
  if exists (select from headgate.layout y
              where y.stream = s.id and y.base < s.base and y.end_tick is null) then
    perform headgate.fail('55P03',
                          format(
                            'transactions from before the last change of the lanes of stream "%s" are still open', s.name),
      'repeat the call once they have ended; pg_stat_activity shows them (xact_start)');
  end if;
  -- point: old layouts are closed
  insert into headgate.layout (stream, base, lanes, since)
  values (s.id, s.base + s.lanes, n, pg_current_xact_id()) returning * into fresh;
  -- the new lanes are empty: any tick from before they can be used is a good start
  newest := headgate.newest_tick(s.id);
  insert into headgate.cursor (consumer, lane, first_seq, from_tick, from_snap, from_lo, to_tick,
                               to_base, to_snap, to_lo, to_hi, pos, turn, gate)
    select c.id, l.lane, (select max(k.first_seq) from headgate.cursor k where k.consumer = c.id),
           newest.id, newest.snap, newest.lo, newest.id, newest.base, newest.snap, newest.lo,
           newest.hi, newest.hi,
           clock_timestamp(), case when c.ordered then 'waits' end
      from headgate.consumer c, generate_series(fresh.base, fresh.base + fresh.lanes - 1) l (lane)
        where c.stream = s.id;
  -- point: new lanes have cursors
  update headgate.stream t set base = fresh.base, lanes = fresh.lanes where t.id = s.id;
end $$;

-- close_layouts(stream id) -> how many layouts were found to have ended. The caller holds the
-- stream's row, so that no public tick is made meanwhile. Writes layout.
create or replace function headgate.close_layouts(p_stream int) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  y headgate.layout;
  t headgate.tick := headgate.newest_tick(p_stream);
  changed xid8;
  n int := 0;
begin
  for y in select x.* from headgate.layout x join headgate.stream s on s.id = x.stream
            where s.id = p_stream and x.base < s.base and x.end_tick is null order by x.base loop
    if y.quiet_tick is null then
      -- A statement that saw this layout as the newest has a snapshot from before the change
      -- committed, in which the change was running: while one is left, more may be written, and by
      -- transactions that have no id yet.
      select min(x.since::text::bigint)::text::xid8 into changed from headgate.layout x
       where x.stream = p_stream and x.base > y.base;
      perform pg_stat_clear_snapshot();
      continue when exists (select from pg_stat_activity a
                             where a.datname = current_database() and a.backend_xmin is not null
                               and age(a.backend_xmin) >= age(changed::xid));
      -- Whoever wrote there has an id by now. This row gets a younger one: that of a
      -- subtransaction. (The bound of a later tick may be older: of the many that maintenance makes
      -- in a transaction.)
      begin
        update headgate.layout x set quiet_tick = t.id
         where x.stream = p_stream and x.base = y.base;
      exception when null_value_not_allowed then
        raise;  -- (nothing is caught: it is a subtransaction by having this clause)
      end;
    end if;
    -- In a tick in which everything that is older has ended, all of them have; and in a settled
    -- stream.
    if headgate.settled(t) or exists (
         select from headgate.layout x
          where x.stream = p_stream and x.base = y.base and x.quiet_tick < t.id
            and age(pg_snapshot_xmin(t.snap)::xid) < age(x.xmin)) then
      update headgate.layout x set end_tick = t.id, end_seq = t.hi + 1
       where x.stream = p_stream and x.base = y.base;
      n := n + 1;
    end if;
  end loop;
  return n;
end $$;

-- layouts_of(consumer) -> the layouts that the consumer has cursors in, oldest first.
create or replace function headgate.layouts_of(c headgate.consumer) returns setof headgate.layout
language sql stable set search_path = pg_catalog, pg_temp as $$
  select y.* from headgate.layout y
   where y.stream = c.stream
     and exists (select from headgate.cursor k
                  where k.consumer = c.id and k.lane >= y.base and k.lane < y.base + y.lanes)
   order by y.base
$$;

-- gate_lanes(consumer, seq, newest): after the cursors were placed at a seq (null: at the end),
-- removes those of layouts that end before it, and lets those of newer layouts of an ordered
-- consumer wait. The caller holds the cursors. Writes cursor.
create or replace function headgate.gate_lanes(c headgate.consumer, p_seq bigint,
                                               newest headgate.tick) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare first bigint;
begin
  select min(y.base) into first from headgate.layout y
   where y.stream = c.stream and (y.end_seq is null or y.end_seq > coalesce(p_seq, newest.hi + 1));
  delete from headgate.cursor k where k.consumer = c.id and k.lane < first;
  update headgate.cursor k set gate = null where k.consumer = c.id and k.gate is not null;
  if not c.ordered then return; end if;
  update headgate.cursor k set gate = 'waits' from headgate.layout y
   where k.consumer = c.id and y.stream = c.stream and y.base > first and k.lane >= y.base
     and k.lane < y.base + y.lanes;
  if p_seq <= newest.hi then
    -- an empty span behind which everything from that seq on is unread: to_tick 0
    update headgate.cursor k
       set to_tick = 0, to_base = 0, to_snap = '3:3:', to_lo = p_seq - 1, to_hi = p_seq - 1,
           pos = p_seq - 1
     where k.consumer = c.id and k.gate = 'waits';
  end if;
end $$;

-- in_span(stream id, cursor, n) -> the first n messages of the cursor's span that it has not read
-- and that were not discarded; null: all.
create or replace function headgate.in_span(p_stream int, k headgate.cursor, n int default null)
returns table (seq bigint, key text, deliver_at timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
begin
  return query execute format($q$
    select m.seq, m.key, m.deliver_at from headgate.message_%s m
     where (m.lane, m.seq) > (($1).lane, ($1).pos) and (m.lane, m.seq) <= (($1).lane, ($1).to_hi)
       and (($1).late is null or m.seq > ($1).from_lo or m.seq <@ ($1).late)
       and pg_visible_in_snapshot(m.xid, ($1).to_snap)
       and not pg_visible_in_snapshot(m.xid, ($1).from_snap) and %s
     order by m.lane, m.seq limit $2 $q$, p_stream, headgate.not_discarded_sql('($1)')) using k, n;
end $$;

-- advance(consumer, layout, newest, next) -> whether all cursors of a layout have come to the tick
-- `newest`. Without `next` only those that have nothing to read on the way are moved, and the
-- others left to receive; with it, what they find is parked in the lanes of `next`. Locks the
-- layout's cursors (SKIP LOCKED); writes cursor, parked.
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
-- is open is not waited for. Locks parked rows (SKIP LOCKED).
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
-- next one. The caller holds the cursors of the layout, in which nothing is in flight, and its
-- parked messages. Writes parked, wake.
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
-- done with; the next one is free. Writes cursor.
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

-- go_over(consumer, newest) -> the second oldest layout that the consumer has cursors in, and the
-- tick up to which that one may be read (null: not at all). Does what can be done now for the
-- consumer to go over from old layouts to newer ones. Inside a transaction that was open already it
-- only looks. Locks cursors of old layouts (SKIP LOCKED); writes cursor, parked.
create or replace function headgate.go_over(c headgate.consumer, newest headgate.tick, out base int,
                                            out tick headgate.tick)
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
-- at the beginning of its next span; unchanged when there is none yet or it must wait. Locks and
-- writes as go_over.
create or replace function headgate.next_gated(c headgate.consumer, l headgate.cursor,
                                               newest headgate.tick) returns headgate.cursor
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare was bigint; k headgate.cursor; g record; y headgate.layout;
begin
  select * into y from headgate.layout x where x.stream = c.stream and x.base <= l.lane
   order by x.base desc limit 1;
  select x.delivered into was from headgate.cursor x where x.consumer = c.id and x.lane = l.lane;
  select * into g from headgate.go_over(c, newest);
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

-- tidy_layouts(stream) -> how many layouts were closed, left behind by a consumer, or forgotten.
-- The caller holds the stream's row. Writes layout, cursor, parked.
create or replace function headgate.tidy_layouts(s headgate.stream) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare c headgate.consumer; n int; m int;
begin
  if s.base = 0 then return 0; end if;
  n := headgate.close_layouts(s.id);
  for c in select x.* from headgate.consumer x where x.stream = s.id order by x.id loop
    m := (select count(*) from headgate.layouts_of(c));
    continue when m < 2;
    perform headgate.go_over(c, headgate.newest_tick(s.id));
    n := n + m - (select count(*) from headgate.layouts_of(c));
  end loop;
  delete from headgate.layout y
   where y.stream = s.id and y.base < s.base
     and y.end_seq
       <= (select min(g.first_seq) from headgate.segment g
            where g.stream = s.id and g.state <> 'dropped')
     and not exists (select from headgate.cursor k join headgate.consumer x on x.id = k.consumer
                      where x.stream = s.id and k.lane >= y.base and k.lane < y.base + y.lanes);
  get diagnostics m = row_count;
  return n + m;
end $$;
