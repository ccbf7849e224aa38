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
-- while a transaction is open that may write in the lanes before the last change.
-- Locks: the stream's row (for at most 2 seconds of waiting).
-- Writes: stream, layout, cursor.
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
  perform headgate.make_tick(s.id, headgate.in_user_transaction());
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
                               to_base, to_snap, to_lo, to_hi, pos, served_at, gate)
    select c.id, l.lane, (select max(k.first_seq) from headgate.cursor k where k.consumer = c.id),
           newest.id, newest.snap, newest.lo, newest.id, newest.base, newest.snap, newest.lo,
           newest.hi, newest.hi,
           clock_timestamp(), case when c.ordered then 'waits' end
      from headgate.consumer c, generate_series(fresh.base, fresh.base + fresh.lanes - 1) l (lane)
        where c.stream = s.id;
  -- point: new lanes have cursors
  update headgate.stream t set base = fresh.base, lanes = fresh.lanes where t.id = s.id;
end $$;

-- close_layouts(stream id) -> how many layouts were found to have ended.
-- Needs: the caller holds the stream's row, so that no public tick is made meanwhile.
-- Writes: layout.
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
-- consumer wait.
-- Needs: the caller holds the cursors.
-- Writes: cursor.
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

-- tidy_layouts(stream) -> how many layouts were closed, left behind by a consumer, or forgotten.
-- Needs: the caller holds the stream's row.
-- Writes: layout, cursor, parked.
create or replace function headgate.tidy_layouts(s headgate.stream) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare c headgate.consumer; n int; m int;
begin
  if s.base = 0 then return 0; end if;
  n := headgate.close_layouts(s.id);
  for c in select x.* from headgate.consumer x where x.stream = s.id order by x.id loop
    m := (select count(*) from headgate.layouts_of(c));
    continue when m < 2;
    perform headgate.move_to_next_layout(c, headgate.newest_tick(s.id));
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
