-- What discard does to messages, by where they are: unread, in flight or parked. What holds is at
-- the head of read/discard.sql.

-- discard_these(consumer, stream, seqs, alone, until) -> how many of the messages were discarded,
-- the first of those in lanes that this transaction could not add any more, and how many, of those
-- before it, another open transaction has in hand. They go from unread to in flight to parked, so
-- that is the order in which they are looked for, and what has moved meanwhile is looked for again.
-- Needs: the caller holds the consumer in place.
-- Locks: as discard.
-- Writes: as discard.
create or replace function headgate.discard_these(
  c headgate.consumer, s headgate.stream, p_seqs bigint[], p_alone boolean, until timestamptz,
  out gone int, out held int, out later bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  rest bigint[] := p_seqs;
  unread bigint[];
  lanes bigint[];
  names text[];
  flying bigint[];
  waiting bigint[];
  n int;
begin
  gone := 0;
  for i in 1 .. 6 loop
    select array_agg(u.seq order by u.seq),
           array_agg(u.seq order by u.seq) filter (where u.state = 'available'),
           array_agg(u.lane order by u.seq) filter (where u.state = 'available'),
           array_agg(u.name order by u.seq) filter (where u.state = 'available'),
           array_agg(u.seq order by u.seq) filter (where u.state = 'delivered'),
           array_agg(u.seq order by u.seq) filter (where u.state = 'parked')
      into rest, unread, lanes, names, flying, waiting from headgate.unfinished(c, s, rest) u;
    held := coalesce(cardinality(rest), 0);
    exit when rest is null or i = 6 or (i > 2 and clock_timestamp() > until);
    -- point: it is known where the messages to discard are
    later := null;
    if unread is not null then
      select x.gone, x.later into n, later
        from headgate.discard_unread(c, s, unread, lanes, names, until, p_alone) x;
      gone := gone + n;
    end if;
    -- point: what is unread is discarded
    if flying is not null then gone := gone + headgate.discard_flying(c, flying, until); end if;
    -- point: what is in flight is discarded
    if waiting is not null then gone := gone + headgate.discard_parked(c, waiting); end if;
  end loop;
  if later is not null then held := (select count(*) from unnest(rest) u where u < later); end if;
end $$;

-- discard_unread(consumer, stream, seqs, lanes, names, until, alone) -> how many of these unread
-- messages, each in its lane, were discarded, and the first of those in lanes that this transaction
-- could not add any more. Waits no longer than `until` for lanes that others hold.
-- Locks: cursors FOR NO KEY UPDATE (SKIP LOCKED), and as give_cursors.
-- Writes: discarded, cursor.
create or replace function headgate.discard_unread(
  c headgate.consumer, s headgate.stream, p_seqs bigint[], p_lanes bigint[], p_names text[],
  p_until timestamptz,
  p_alone boolean, out gone int, out later bigint)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  wanted bigint[] := array(select distinct u from unnest(p_lanes) u order by u);
  held bigint[] := '{}';
  strange bigint[];
  no_room boolean := false;
begin
  loop
    held := held
      || headgate.hold_lanes(c, array(select unnest(wanted) except select unnest(held) order by 1));
    exit when cardinality(held) >= cardinality(wanted);
    if s.lane_by <> 'hash' then
      strange := array(select unnest(wanted) except
                       select unnest(headgate.with_cursor(c.id, wanted)) order by 1);
      if strange <> '{}' and headgate.give_cursors(c, strange, array(
           select min(u.name) from unnest(p_lanes, p_names) u (lane, name)
             join unnest(strange) x (lane) using (lane)
            group by u.lane order by u.lane), p_alone) > 0 then
        continue;
      end if;
      no_room := strange <> '{}' and headgate.room_for_locks(1) < 1;
    end if;
    exit when clock_timestamp() > p_until or no_room;
    perform pg_sleep(0.005);
  end loop;
  -- point: lanes to discard from are held
  execute format($q$
    with gone as (
      insert into headgate.discarded (consumer, seq, lane)
        select k.consumer, m.seq, k.lane
          from headgate.message_%1$s m join headgate.cursor k on k.consumer = $1 and k.lane = m.lane
         where m.seq = any($2) and k.lane in (select unnest($3)) and %2$s
        on conflict (consumer, seq) do update set at = excluded.at, lane = excluded.lane
        returning lane),
    -- also those that have it: a receive with a fixed snapshot, which does not see the new rows, is
    -- told by that
    flagged as (
      update headgate.cursor k set discards = true from (select distinct g.lane from gone g) g
       where k.consumer = $1 and k.lane = g.lane)
    select count(*) from gone $q$, s.id, headgate.unread_sql('k')) into gone
     using c.id, p_seqs, held;
  -- point: unread messages are discarded
  if no_room then
    select min(u.seq) into later from unnest(p_seqs, p_lanes) u (seq, lane)
     where u.lane in (select unnest(wanted) except
                      select unnest(headgate.with_cursor(c.id, wanted)));
  end if;
end $$;

-- hold_lanes(consumer, lanes) -> those of the lanes whose cursors nobody else holds: now they are
-- held.
-- Locks: cursors FOR NO KEY UPDATE (SKIP LOCKED, which waits after all when a newer version of the
-- row has to be locked, too: then none is got).
create or replace function headgate.hold_lanes(c headgate.consumer, p_lanes bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
begin
  return array(
    select h.lane from unnest(p_lanes) u (lane) cross join lateral (
      select k.lane from headgate.cursor k where k.consumer = c.id and k.lane = u.lane limit 1
         for no key update skip locked) h);
exception when lock_not_available then
  return '{}';
end $$;

-- give_cursors(consumer, lanes, names, alone) -> how many of these named lanes, which have no
-- cursor, got one here.
-- Locks: the gatherer as who moves it does, when `alone`; otherwise, or when another holds it, FOR
-- KEY SHARE (SKIP LOCKED), and each lane by an advisory lock, as many as a transaction may.
-- Writes: cursor, discovered.
create or replace function headgate.give_cursors(c headgate.consumer, p_lanes bigint[],
                                                 p_names text[], p_alone boolean) returns int
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  g headgate.cursor;
  mine bigint[] := p_lanes;
  told bigint[];
  done bigint[];
begin
  if p_alone then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
       for no key update skip locked;
  end if;
  if g.consumer is null then
    mine := array(
      select u from unnest(p_lanes) u where pg_try_advisory_xact_lock(c.id, (u & 2147483647)::int)
       limit headgate.room_for_locks(cardinality(p_lanes)));
    if mine = '{}' then return 0; end if;
    g := headgate.hold_gatherer(c);
    if g.consumer is null then return 0; end if;
  end if;
  -- point: lanes to discard from are to get cursors
  -- The look comes after the gatherer: where it stands, and what was discovered up to there.
  mine := array(select unnest(mine) except select unnest(headgate.with_cursor(c.id, mine)));
  told := array(
    select u from unnest(mine) u
     where (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u
             limit 1) is not null);
  perform headgate.add_discovered(c, g, told, clock_timestamp());
  mine := array(select unnest(mine) except select unnest(told));
  -- while the gatherer is in the middle of a span, that span is still unread there
  perform headgate.add_lanes(c, g, array_agg(u.lane), array_agg(u.name), clock_timestamp(),
                             g.pos < g.to_hi or g.late is not null)
     from unnest(p_lanes, p_names) u (lane, name) where u.lane in (select unnest(mine))
       having count(*) > 0;
  done := headgate.with_cursor(c.id, mine || told);
  delete from headgate.discovered x where x.consumer = c.id and x.lane = any(done);
  return cardinality(done);
end $$;

-- discard_flying(consumer, seqs, until) -> how many of these messages were taken out of their
-- deliveries and discarded.
-- Locks: as take_out.
-- Writes: delivery, departed, discarded, wake.
create or replace function headgate.discard_flying(c headgate.consumer, p_seqs bigint[],
                                                   p_until timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  a record;
  d headgate.delivery;
  n int := 0;
begin
  for a in
    select f.lane, f.delivery, array_agg(f.seq) as seqs from headgate.in_flight f
     where f.consumer = c.id and f.seq in (select unnest(p_seqs))
     group by f.lane, f.delivery order by f.lane, f.delivery
  loop
    d := headgate.take_out(c, a.lane, a.delivery, a.seqs, p_until);
    continue when d.id is null or d.seqs = '{}';
    -- point: what is to be discarded is taken out
    perform headgate.note_discarded(c, d.seqs);
    if c.ordered then perform headgate.wake_keys(c, d.lane, d.keys); end if;
    if d.lane >= {UNNAMED_LANES} then perform headgate.wake_lane(c, d.lane); end if;
    n := n + cardinality(d.seqs);
  end loop;
  return n;
end $$;

-- discard_parked(consumer, seqs) -> how many of these parked messages were discarded. One that
-- another transaction is handing out or changing at this moment is passed over.
-- Locks: parked rows (SKIP LOCKED).
-- Writes: parked, wake, discarded.
create or replace function headgate.discard_parked(c headgate.consumer, p_seqs bigint[]) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare gone bigint[];
begin
  with held as materialized (
    select p.lane, p.seq from headgate.parked p
     where p.consumer = c.id and p.seq in (select unnest(p_seqs)) for update skip locked),
  gone as (
    delete from headgate.parked p using held h
     where p.consumer = c.id and p.lane = h.lane and p.seq = h.seq returning p.lane, p.key, p.seq),
  notes as (
    insert into headgate.wake (consumer, lane, key)
      select distinct c.id, g.lane, g.key from gone g
       where g.key is not null or g.lane >= {UNNAMED_LANES})
  select coalesce(array_agg(g.seq), '{}') into gone from gone g;
  -- point: what was parked is to be noted as discarded
  perform headgate.note_discarded(c, gone);
  return cardinality(gone);
end $$;
