-- Receiving: claim what a worker may work on next. One call, one round trip, one transaction.

do $$ begin
  if to_regtype('headgate.received') is null then
    create type headgate.received as (
      ack_id text, seq bigint, key text, data text, headers jsonb, channel text, attempt int,
      created_at timestamptz);
  end if;
end $$;

-- receive(stream, consumer, batch_size, worker, acks, open, ack_wait) -> up to batch_size messages,
-- each with the ack_id to settle it by. First settles `acks` (ack_ids of messages or whole
-- deliveries that the worker has just finished), then claims. What it hands out is the worker's for
-- `ack_wait`, or the consumer's when that is null. Locks the cursors it claims (SKIP LOCKED) and,
-- making a tick, the stream's row; writes delivery, cursor, parked, tick. Inside a transaction that
-- is seen to have been open already it holds only the lanes that it took messages from; where lanes
-- are named, also some that it looked into. (The first statement after BEGIN is not told from one
-- alone, and holds what it looked into, too.)
create or replace function headgate.receive(
  stream text, consumer text, batch_size int default 1, worker text default null,
  acks text[] default null,
  open boolean default null, ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s int;
  claim text;
begin
  select t.id into s from headgate.stream t where t.name = receive.stream;
  if not found then s := (headgate.find_stream(receive.stream)).id; end if;
  if to_regclass('headgate.message_' || s) is null then
    perform headgate.stream_is_gone(receive.stream);
  end if;
  open := headgate.is_open() or open;
  claim := format('select * from headgate.receive_%s%s($1, $2, $3, $4, $5, $6)',
                  case when open then 'open_' else '' end, s);
  if current_setting('transaction_isolation') not in ('repeatable read', 'serializable') then
    return query execute claim using consumer, batch_size, worker, acks, open, ack_wait;
    return;
  end if;
  -- SKIP LOCKED may wait for a row that this snapshot sees an older version of: see check_call
  begin
    return query execute claim using consumer, batch_size, worker, acks, open, ack_wait;
  exception when lock_not_available then
    perform headgate.no_fixed_snapshot();
  end;
end $$;

-- room_in_flight(consumer, now) -> how many more messages may be in flight at once. One claim at a
-- time, so that each counts what the one before it took, until that has committed. A transaction
-- that stays open would hold the other workers up, so nobody waits for one: what it takes is
-- counted from its commit on, and may exceed the limit. Whoever passes one by takes the next of
-- four locks, so that they still come one at a time. That it stays open is asked of the holder:
-- whether a call itself is part of a longer transaction is only a guess, and wrong on a busy
-- machine. Who does not get its turn within a second gets nothing. Locks: advisory locks of the
-- consumer's.
create or replace function headgate.room_in_flight(c headgate.consumer, p_now timestamptz)
returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  slot int;
  room int;
  holder record;
  was text;
  began timestamptz := clock_timestamp();
  seen timestamptz;  -- when this holder was seen first
begin
  foreach slot in array array[-1, -3, -4, -5] loop
    was := null;
    loop
      exit when pg_try_advisory_xact_lock(c.id, slot);
      select l.virtualtransaction as name, a.state, clock_timestamp() - a.xact_start as age
        into holder
        from pg_locks l left join lateral pg_stat_get_activity(l.pid) a on true
       where l.locktype = 'advisory' and l.granted and l.objsubid = 2
         and l.classid = c.id::oid and l.objid = (4294967296 + slot)::oid
         and l.database = (select d.oid from pg_database d where d.datname = current_database());
      if holder.name is distinct from was then
        was := holder.name;
        seen := clock_timestamp();
      end if;
      if holder.name is not null and (case
           -- this role may not know
           when holder.state is null then clock_timestamp() > seen + interval '300 milliseconds'
           when holder.state like 'idle in transaction%' then
             holder.age > interval '300 milliseconds'
           else holder.age > interval '2 seconds' end) then
        slot := null;  -- it stays open
        exit;
      end if;
      if clock_timestamp() > began + interval '1 second' then return 0; end if;
      perform pg_sleep(0.002);
    end loop;
    exit when slot is not null;
  end loop;
  perform headgate.sweep(c, p_now);  -- what has expired is in flight no more
  -- point: what is in flight is to be counted
  select c.max_ack_pending - coalesce(sum(cardinality(d.seqs) - (
           select count(*) from headgate.departed x
            where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id)), 0) into room
              from headgate.delivery d where d.consumer = c.id;
  return room;
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
