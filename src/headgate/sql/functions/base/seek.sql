-- Where a consumer stands: at the beginning, at the end, at a seq or a time.

-- seek(stream, consumer, target): moves the whole consumer to 'beginning', 'end', a seq or a time.
-- What was in flight or parked is forgotten, and so is what was discarded: it comes again from the
-- target on; acks of it are stale. 55P03 when an open transaction has something of it in hand for
-- longer than a second.
-- Locks: as hold_consumer.
-- Writes: cursor, delivery, departed, parked, wake, discovered, discarded.
create or replace function headgate.seek(stream text, consumer text, target text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  newest headgate.tick;
  had bigint[];
begin
  perform headgate.need_read_committed('seek');
  -- is it one?
  if target is distinct from 'end' then perform headgate.target_seq(c.stream, target); end if;
  -- a private one, at this very moment
  newest := headgate.make_tick(c.stream, headgate.in_user_transaction() or target = 'end');
  -- point: a seek has its tick
  perform headgate.hold_consumer(c, 'moved');
  had := headgate.reset_for_seek(c);
  delete from headgate.discarded x where x.consumer = c.id;
  -- point: a seek has forgotten
  perform headgate.position_cursors(c, target, newest);
  -- point: a seek has placed the cursors
  perform headgate.forget_sample(c.id);
  if target <> 'end' then
    perform headgate.park_preserved(c, had, headgate.target_seq(c.stream, target));
  end if;
end $$;

-- reset_for_seek(consumer) -> the seqs of what the consumer had in flight or parked and, as it
-- seeks, has no more.
-- Needs: the caller holds the consumer.
-- Writes: delivery, departed, parked, wake.
create or replace function headgate.reset_for_seek(c headgate.consumer) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare had bigint[];
begin
  had := array(
    select f.seq from headgate.in_flight f where f.consumer = c.id
    union all
    select p.seq from headgate.parked p where p.consumer = c.id);
  -- point: a seek knows what it forgets
  delete from headgate.delivery d where d.consumer = c.id;
  delete from headgate.departed x where x.consumer = c.id;
  delete from headgate.parked p where p.consumer = c.id;
  delete from headgate.wake w where w.consumer = c.id;
  delete from headgate.discovered x where x.consumer = c.id;
  return had;
end $$;

-- park_preserved(consumer, seqs, target): those of the messages at or above the target that are no
-- longer in the log wait for the consumer, which has been put there, as if never delivered.
-- Needs: the caller holds the consumer.
-- Writes: parked, wake.
create or replace function headgate.park_preserved(
  c headgate.consumer, p_seqs bigint[], p_target bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format($q$
    insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
      select ($1).id, headgate.parking_lane($1, k.lane, k.key, k.seq), k.seq,
             case when ($1).ordered then k.key end, 0, clock_timestamp(), 'redriven'
        from headgate.preserved_%s k where k.seq = any($2) and k.seq >= $3 $q$, c.stream)
          using c, p_seqs, p_target;
  insert into headgate.wake (consumer, lane)
    select distinct c.id, p.lane from headgate.parked p
     where p.consumer = c.id and p.lane >= {UNNAMED_LANES};
end $$;

-- position_cursors(consumer, target, newest): puts every cursor of a consumer at a target. Where
-- lanes are named that is the gatherer alone (see lanes/lanes.sql).
-- Writes: cursor.
create or replace function headgate.position_cursors(
  c headgate.consumer, p_target text, newest headgate.tick) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t headgate.tick;
  seq bigint;
  named boolean := (select s.lane_by <> 'hash' from headgate.stream s where s.id = c.stream);
begin
  if p_target = 'end' then
    seq := null;
  else
    seq := headgate.target_seq(c.stream, p_target);
    -- what was restored from another cluster is read up to its bridge first
    select * into t from headgate.tick k
     where k.stream = c.stream and k.bridge_to is not null and k.hi >= seq order by k.id limit 1;
    if found then newest := t; end if;
  end if;
  if named then delete from headgate.cursor k where k.consumer = c.id and k.lane >= 0; end if;
  insert into headgate.cursor as k (consumer, lane, first_seq, from_tick, from_snap, from_lo,
                                    to_tick, to_base, to_snap, to_lo, to_hi, pos, served_at)
    select c.id, lane, case when p_target ~ '^[0-9]+$' then seq else 0 end,
           coalesce(case when seq is null then newest.id end, 0),
           case when seq is null then newest.snap else '3:3:' end,
           case when seq is null then newest.lo when named then seq - 1 else 0 end, newest.id,
           newest.base, newest.snap, newest.lo, newest.hi,
           coalesce(seq - 1, newest.hi), clock_timestamp()
      from (select -1 as lane where named
            union all
            select generate_series(y.base, y.base + y.lanes - 1) from headgate.layout y
             where not named and y.stream = c.stream
               and (y.end_seq is null or y.end_seq > coalesce(seq, newest.hi + 1))) lanes
    on conflict (consumer, lane) do update
      set first_seq = excluded.first_seq, from_tick = excluded.from_tick,
          from_snap = excluded.from_snap, from_lo = excluded.from_lo,
      to_tick = excluded.to_tick, to_base = excluded.to_base, to_snap = excluded.to_snap,
      to_lo = excluded.to_lo,
      to_hi = excluded.to_hi, pos = excluded.pos, late = null, expires_at = null,
      served_at = excluded.served_at, discards = false;
  if not named then perform headgate.gate_lanes(c, seq, newest); end if;
end $$;

-- target_seq(stream id, target) -> the first seq at 'beginning', a seq, or a time; HG011 when it is
-- none of these.
create or replace function headgate.target_seq(p_stream int, p_target text) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  moment timestamptz;
  near bigint;
  seq bigint;
begin
  if p_target = 'beginning' then return 1; end if;
  begin
    if p_target ~ '^[0-9]+$' then return greatest(p_target::bigint, 1); end if;
    moment := p_target::timestamptz;
  exception when others then
    moment := null;
  end;
  if moment is null then
    perform headgate.fail('HG011',
                          format('"%s" is not a position in a stream', coalesce(p_target, 'null')),
      'say beginning, end, a seq, or a time such as 2026-01-31 12:00:00+00');
  end if;
  -- Above the floor of the newest tick before that time lies what was not committed then; the rest
  -- is older. (A message may have drawn its seq long before it was written, so what had been drawn
  -- at that time says nothing.)
  select least(t.lo, (select min(f) from unnest(t.late_from) f)) into near
    from headgate.tick t where t.stream = p_stream and t.at <= moment and t.base = t.id
      order by t.id desc limit 1;
  execute format(
    'select m.seq from %s m where m.seq > $1 and m.created_at >= $2 order by m.seq limit 1',
    headgate.stored_sql(p_stream, 'm.seq, m.created_at'))
    into seq using coalesce(near, 0), moment;
  return coalesce(seq, headgate.last_seq(p_stream) + 1);
end $$;
