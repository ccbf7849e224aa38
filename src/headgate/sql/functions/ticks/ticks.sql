-- Ticks: recorded snapshots of what has committed. A cursor reads the messages that are visible in
-- one tick and not in an earlier one, so commits that happen out of order are neither skipped nor
-- read twice.
--
-- What holds for every tick t:
--   1. nothing visible in t.snap lies above t.hi;
--   2. what is not visible in t.snap lies above t.lo, unless its transaction is one of t.late_xids;
--   3. a transaction with an id >= t.bound has only seqs above t.hi0 (the id was drawn after hi0
--     was read);
--   4. of public ticks (base = id) a higher id means a later snapshot: they are made one at a time,
--     under the stream's row;
--   5. messages of a late transaction at or below the lo of the ticks it was open in lie in the
--     `late` ranges of the first
--      public tick that finds it ended, or, once that was thinned out, in those of the first
--      public tick that is left behind it: late_between() finds them.
-- A private tick is made inside a transaction that the user had open already (it must not take the
-- stream's row, which it would hold until the commit, and its transaction id is too old for a
-- bound), or while such a transaction does hold the row. Nobody builds on it: it takes lo and the
-- late list over from its base, the newest public tick.

-- newest_tick(stream id) -> the newest public tick.
create or replace function headgate.newest_tick(p_stream int) returns headgate.tick
language sql stable set search_path = pg_catalog, pg_temp as $$
  select t from headgate.tick t where t.stream = p_stream and t.base = t.id order by t.id desc
   limit 1
$$;

-- lo_for(stream id, xid) -> a transaction with this id or a higher one has only seqs above.
create or replace function headgate.lo_for(p_stream int, p_xid xid8) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select t.hi0 from headgate.tick t where t.stream = p_stream and t.bound <= p_xid
   order by t.id desc limit 1
$$;

-- settled(tick) -> whether nothing can have changed since: no seq was drawn, and nothing was open
-- that had drawn one.
create or replace function headgate.settled(t headgate.tick) returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select t.hi = t.hi0 and pg_snapshot_xmin(t.snap) >= t.bound and headgate.last_seq(t.stream) = t.hi
$$;

-- tick(stream) -> the id of the newest tick, made now if anything can have changed. Never waits.
create or replace function headgate.tick(stream text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return (headgate.make_tick((headgate.find_stream(stream)).id, headgate.in_user_transaction())).id;
end $$;

-- make_tick(stream id, open, hi0) -> the newest tick, made now if anything can have changed; a
-- private one when `open`, or when the stream's row is held by another. When `open` is null: a
-- public one, however many were made lately, or none. A public tick needs a `hi0` from before this
-- transaction had an id: it reads it itself, or is given it by who did. So a transaction that has
-- an id already, whatever its caller says, gets a private one; and so does one with a fixed
-- snapshot, which may be older than the newest tick. A stream has one public tick a millisecond at
-- the most, but up to eight in a burst, so that the first message after a quiet moment waits for
-- nothing: at one a millisecond those so far reach to `paced_to`, which may lie eight milliseconds
-- ahead. (A second ahead, the clock was put back.) What the helpers ask (newest_tick, settled,
-- is_same_cluster, last_seq) is asked in place here: a call of each costs more than the question,
-- and this is on the way of every message of a quiet stream.
-- Locks: the stream's row (SKIP LOCKED).
-- Writes: tick.
create or replace function headgate.make_tick(p_stream int, p_open boolean,
                                              p_hi0 bigint default null)
returns headgate.tick
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
-- (a plan that is made while there are few ticks is kept)
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off as $$
declare
  last headgate.tick;
  hi0 bigint;   -- the last seq drawn before this transaction has an id, which a locked row gives it
  rows bigint;  -- of a segment
  is_fresh boolean := p_open is null;
  is_same_cluster boolean;
  log regclass := 'headgate.seq_' || p_stream;
begin
  p_open := not is_fresh and p_open;
  if (p_hi0 is null and pg_current_xact_id_if_assigned() is not null)
     or current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    if is_fresh then return headgate.newest_tick(p_stream); end if;
    p_open := true;
  end if;
  select k.* into last
    from headgate.tick k where k.stream = p_stream and k.base = k.id order by k.id desc limit 1;
  if not found then return null; end if;  -- the stream is being dropped
  is_same_cluster := (
    select h.own_table = 'headgate.cluster_identity'::regclass
           and h.xmin::text::bigint = (h.written_by::text::bigint & 4294967295)
      from headgate.cluster_identity h);
  begin
    hi0 := coalesce(p_hi0, pg_sequence_last_value(log), 0);
  exception when internal_error then  -- this waited for drop_stream, and the sequence is gone
    if to_regclass(format('headgate.seq_%s', p_stream)) is not null then raise; end if;
    return null;
  end;
  if is_same_cluster and last.hi = last.hi0 and pg_snapshot_xmin(last.snap) >= last.bound
     and coalesce(pg_sequence_last_value(log), 0) = last.hi then
    return last;
  end if;
  -- point: a tick has its hi0
  if not p_open then
    select segment_rows into rows from headgate.stream where id = p_stream
       for no key update skip locked;
    -- another call is making a tick; or a user's transaction made one and holds the row
    if not found then
      if is_fresh or not is_same_cluster
         or last.at > clock_timestamp() - interval '20 milliseconds' then
        return last;
      end if;
      p_open := true;
    end if;
  end if;
  -- point: a tick holds the row of the stream
  if not is_same_cluster and headgate.bridge_restore(p_open) then
    return headgate.newest_tick(p_stream);
  end if;
  return headgate.write_tick(p_stream, p_open, is_fresh, hi0, rows);
end $$;

-- write_tick(stream id, open, is fresh, hi0, rows) -> the tick that make_tick makes, or the newest
-- that there is: another one may just have been made, or there were too many lately. `rows`: of a
-- segment.
-- Needs: the caller holds the stream's row, unless the tick is a private one (open).
-- Writes: tick, segment.
create or replace function headgate.write_tick(
  p_stream int, p_open boolean, is_fresh boolean, p_hi0 bigint, p_rows bigint)
returns headgate.tick
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  last headgate.tick;
  t headgate.tick;
  log regclass := 'headgate.seq_' || p_stream;
begin
  select k.* into last
    from headgate.tick k where k.stream = p_stream and k.base = k.id order by k.id desc limit 1;
  if not found then return null; end if;
  if last.hi = last.hi0 and pg_snapshot_xmin(last.snap) >= last.bound
     and coalesce(pg_sequence_last_value(log), 0) = last.hi then
    return last;
  end if;
  t.hi0 := p_hi0;
  t.at := clock_timestamp();
  t.paced_to := interval '1 millisecond'
    + case when last.paced_to between t.at and t.at + interval '1 second' then last.paced_to
           else t.at end;
  if not p_open then
    if t.paced_to > t.at + interval '8 milliseconds' and not is_fresh
       and last.bridge_to is null then
      return last;
    end if;
    t.bound := pg_current_xact_id();
  end if;
  -- point: a tick has its bound
  t.snap := pg_current_snapshot();
  if pg_current_xact_id_if_assigned() < pg_snapshot_xmax(t.snap) then
    t.snap := headgate.snapshot_of_others();
  end if;
  -- point: a tick has its snapshot
  t.hi := coalesce(pg_sequence_last_value(log), 0);
  t.stream := p_stream;
  t.id := nextval('headgate.tick_id');
  t.base := case when p_open then last.id else t.id end;
  t.at := clock_timestamp();
  t.locks_checked_at := last.locks_checked_at;
  t := headgate.with_late(t, last, p_open);
  -- point: a tick knows who is late
  insert into headgate.tick select t.*;
  -- point: a tick is written
  if not p_open then
    -- (three quarters of what is made at a time: a new stream has that, and its first tick makes no
    -- tables)
    if (select g.end_seq from headgate.segment g where g.stream = p_stream order by g.id desc
         limit 1)
       <= t.hi + greatest(p_rows, 50000) * 3 / 4 then
      perform headgate.ensure_segments(p_stream, 0);
    end if;
    -- (often and few: somebody waits for this tick. As many as are made meanwhile, and some that
    -- were left)
    if t.id % 32 = 0 then perform headgate.thin_ticks(p_stream, 128); end if;
  end if;
  return t;
end $$;

-- with_late(tick, last public tick, open) -> the tick with what it says of late transactions: those
-- that are open and were late before, or are by now; where those that have ended left messages; and
-- its lo.
create or replace function headgate.with_late(t headgate.tick, last headgate.tick, p_open boolean)
returns headgate.tick
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  running xid8[];
  fresh_min xid8;  -- of those that are open and not late, the first
  old_bound xid8;  -- who is older is late
begin
  if last.late_xids is null and pg_snapshot_xmin(t.snap) = pg_snapshot_xmax(t.snap) then
    fresh_min := pg_snapshot_xmax(t.snap);  -- nothing is open, and nothing was late
  else
    running := array(select pg_snapshot_xip(t.snap));
    for i in 1 .. coalesce(cardinality(last.late_xids), 0) loop
      if last.late_xids[i] = any(running) or last.late_xids[i] >= pg_snapshot_xmax(t.snap) then
        t.late_xids := t.late_xids || last.late_xids[i];
        t.late_from := t.late_from || last.late_from[i];
      else
        t.late := coalesce(t.late, '{}')
                  + headgate.written_by(t.stream, last.late_xids[i], last.late_from[i], last.lo);
      end if;
    end loop;
    if isempty(t.late) then t.late := null; end if;
    if not p_open then
      -- transactions open for more than a second, or while 10,000 seqs went by, are late
      select k.bound into old_bound
        from headgate.tick k
       where k.stream = t.stream and k.bound is not null
         and (k.at <= t.at - interval '1 second' or k.hi0 <= t.hi0 - 10000)
       order by k.id desc limit 1;
      for i in 1 .. cardinality(running) loop
        if running[i] < old_bound and running[i] <> all(coalesce(t.late_xids, '{}')) then
          t.late_xids := t.late_xids || running[i];
          t.late_from := t.late_from || headgate.lo_for(t.stream, running[i]);
        end if;
      end loop;
      select coalesce(min(x::text::bigint)::text::xid8, pg_snapshot_xmax(t.snap)) into fresh_min
        from unnest(running) x where x <> all(coalesce(t.late_xids, '{}'));
    end if;
  end if;
  -- Of a public one: when nothing older than it is open, what comes lies above its own hi0.
  t.lo := case when p_open then last.lo
               when fresh_min >= t.bound then greatest(last.lo, t.hi0)
               else greatest(last.lo, headgate.lo_for(t.stream, fresh_min)) end;
  if not p_open and t.late_xids is not null
     and (t.locks_checked_at is null or t.locks_checked_at < t.at - interval '1 second') then
    t.late_from := headgate.raise_late_from(t.stream, t.late_xids, t.late_from, t.hi0);
    t.locks_checked_at := t.at;
  end if;
  return t;
end $$;

-- make_ticks(n) -> the streams, of up to n chosen by chance, that got a tick now because something
-- can have changed in them; 100 of them at most. By chance: whichever was chosen by its age could
-- be one that gets none, and would hide the others for good; and to draw a turn from a sequence may
-- give this transaction an id, which it must not have yet.
-- Locks: the streams' rows (SKIP LOCKED).
-- Writes: tick.
create or replace function headgate.make_ticks(n int) returns table (stream text, tick bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  chosen int[];
  hi0s bigint[];
  t headgate.tick;
begin
  if pg_current_xact_id_if_assigned() is not null or headgate.has_fixed_snapshot() then
    return;
  end if;
  -- point: streams are to get ticks
  -- all of them before the first tick gives this transaction an id
  select array_agg(y.id), array_agg(y.hi0) into chosen, hi0s
    from (select x.id, headgate.last_seq(x.id) as hi0
            from (select s.id from headgate.stream s order by random() limit n) x
           where not headgate.settled(headgate.newest_tick(x.id)) limit 100) y;
  if pg_current_xact_id_if_assigned() is not null then return; end if;
  for i in 1 .. coalesce(cardinality(chosen), 0) loop
    t := headgate.make_tick(chosen[i], false, hi0s[i]);
    return query select s.name, t.id from headgate.stream s where s.id = chosen[i];
  end loop;
end $$;

-- fresh_tick(stream id) -> a public tick in which everything is visible that had committed before
-- the call. A transaction that has written something cannot make one, nor can one with a fixed
-- snapshot, nor anybody while a user's transaction holds the stream's row: they get the newest
-- there is, the last of them after 2 seconds.
-- Locks: the stream's row.
-- Writes: tick.
create or replace function headgate.fresh_tick(p_stream int) returns headgate.tick
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t headgate.tick;
  began timestamptz := clock_timestamp();
  mine pg_snapshot := pg_current_snapshot();
begin
  if pg_current_xact_id_if_assigned() is not null then
    return headgate.newest_tick(p_stream);
  end if;
  loop
    t := headgate.make_tick(p_stream, null);
    if headgate.sees_all_of(t.snap, mine) or headgate.settled(t)
       or pg_current_xact_id_if_assigned() is not null
       or headgate.has_fixed_snapshot() or clock_timestamp() > began + interval '2 seconds' then
      return headgate.newest_tick(p_stream);
    end if;
    perform pg_sleep(0.001);  -- another call is making one, or has just made one
  end loop;
end $$;

-- written_by(stream id, xid, above, up to) -> the ranges of seqs in which an ended transaction left
-- messages.
create or replace function headgate.written_by(p_stream int, p_xid xid8, p_above bigint,
                                               p_up_to bigint) returns int8multirange
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare r int8multirange;
begin
  execute format(
    'select range_agg(int8range(lo, hi, ''[]'')) from (select min(seq) lo, max(seq) hi from headgate.message_%s '
                 'where xid = $1 and seq > $2 and seq <= $3 group by seq / 1000) x', p_stream)
    into r using p_xid, p_above, p_up_to;
  return coalesce(r, '{}');
end $$;

-- raise_late_from(stream id, xids, froms, hi0) -> froms, moved up to hi0 for transactions that are
-- running, hold no lock on the stream's table and so have written nothing yet. hi0 was read before
-- the locks are looked at.
create or replace function headgate.raise_late_from(p_stream int, p_xids xid8[], p_froms bigint[],
                                                    p_hi0 bigint) returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  writers bigint[];
  running xid8[];
begin
  -- A lock whose owner has no id here may be anybody's: its transaction is ending or being
  -- prepared, and the locks are not all read at one instant. It leaves a null, beside which nobody
  -- is known not to be a writer, and the next look tells.
  with locks as materialized (select locktype, relation, transactionid, virtualtransaction, mode,
                                database from pg_locks)
  select coalesce(array_agg(x.transactionid::text::bigint), '{}') into writers
    from locks r left
      join locks x on x.virtualtransaction = r.virtualtransaction and x.locktype = 'transactionid'
        and x.mode = 'ExclusiveLock'
   where r.locktype = 'relation' and r.relation = ('headgate.message_' || p_stream)::regclass
     and r.database = (select oid from pg_database where datname = current_database())
     and r.mode <> 'AccessShareLock';
  -- One that has ended since the tick's snapshot holds no lock either, whatever it wrote. Locks go
  -- after the end can be seen, so who is running in a snapshot from after the look had all its
  -- locks in it.
  running := array(select pg_snapshot_xip(pg_current_snapshot()));
  return (
    select array_agg(case
      when u.x = any(running)
        and (u.x::text::bigint & 4294967295) <> all(writers) then greatest(u.f, p_hi0) else u.f end
          order by u.ord)
      from unnest(p_xids, p_froms) with ordinality u (x, f, ord));
end $$;
