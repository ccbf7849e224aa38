-- What a call of receive may take, where lanes are hashed: what it asks for, and what its consumer
-- lets it have.

-- check_call(batch_size, ack_wait): fails when what is asked for is not possible. In a transaction
-- with a fixed snapshot it sees to it that nobody is waited for.
create or replace function headgate.check_call(n int, p_ack_wait interval) returns void
language plpgsql as $$
begin
  if n is null or n not between 1 and 10000 then
    perform headgate.fail('HG010',
                          format('a batch of %s messages is not possible',
                                 coalesce(n::text, 'null')),
      'ask for 1 to 10,000 messages');
  end if;
  if p_ack_wait is not null then perform headgate.check_ack_wait(p_ack_wait); end if;
  if headgate.has_fixed_snapshot() then
    perform headgate.sees_small_tables();
    -- SKIP LOCKED waits after all where the version that this snapshot sees is not the newest, and
    -- another holds that
    perform set_config('lock_timeout', '200ms', true);
  end if;
end $$;

-- apply_limits(call) -> the call, as far as its consumer lets it: paused, max_ack_pending, leases.
-- What has expired out of turn is seen to.
-- Locks: as room_in_flight.
-- Writes: as expire_named_lanes.
create or replace function headgate.apply_limits(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
begin
  r.step := null;
  if c.paused then return r; end if;
  -- in an open transaction only what is in a lane that it claims (claim_any): nobody else gets it
  -- before its end. Where that is not known, no more than it may hand out.
  if r.has_watched and not r.lets_go and (not r.busy or r.open is not true) then
    perform headgate.expire_named_lanes(c, r.t0, case when r.open is not false then r.asked end);
  end if;
  if c.max_ack_pending is not null then
    r.want := least(r.asked, headgate.room_in_flight(c, r.t0));
    if r.want <= 0 then return r; end if;
  end if;
  if c.leased then r.tried := headgate.unleased_lanes(c, r.worker, r.t0); end if;
  r.step := 'claim';
  return r;
end $$;

-- room_in_flight(consumer, now) -> how many more messages may be in flight at once. One claim at a
-- time, so that each counts what the one before it took, until that has committed. A transaction
-- that stays open would hold the other workers up, so nobody waits for one: what it takes is
-- counted from its commit on, and may exceed the limit. Whoever passes one by takes the next of
-- four locks, so that they still come one at a time. That it stays open is asked of the holder:
-- whether a call itself is part of a longer transaction is only a guess, and wrong on a busy
-- machine. Who does not get its turn within a second gets nothing.
-- Locks: advisory locks of the consumer's.
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
  perform headgate.expire_hashed_lanes(c, p_now);  -- what has expired is in flight no more
  -- point: what is in flight is to be counted
  select c.max_ack_pending - coalesce(sum(cardinality(d.seqs) - (
           select count(*) from headgate.departed x
            where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id)), 0) into room
              from headgate.delivery d where d.consumer = c.id;
  return room;
end $$;
