-- Leased lanes: in a leased consumer each lane belongs to one worker at a time, so that it can keep
-- state for its lanes.
--
-- A worker joins, and is seen again (heartbeat) about three times in the consumer's lease_time;
-- when that has passed without, it counts as dead: its lanes are free and what it had in flight
-- comes again. What is leased is a slot: a lane, or, of lanes by key or channel, which come and go,
-- all lanes with the same remainder modulo the stream's lanes. A slot is held while its row in
-- `lease` names a worker that is alive; all others are free.
--
-- Why no two workers that are alive have messages of one lane in hand: whoever claims from a lane
-- holds its cursor, and looks, after it got that lock, whether the slot is its own and nobody else
-- has a delivery in the lane (may_claim). A slot may therefore change hands at any moment; its new
-- worker begins once the old one has settled what it had. The row with slot -1 is the lock under
-- which slots are shared out. Nobody waits for it long: without it a worker keeps what it has and
-- takes what is free, and the shares are made even later.

-- find_leased(stream, consumer, worker) -> the consumer's row; HG010 when it is not leased, or that
-- is no name of a worker.
create or replace function headgate.find_leased(p_stream text, p_consumer text, p_worker text)
returns headgate.consumer
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(p_stream, p_consumer);
begin
  if not c.leased then
    perform headgate.fail('HG010',
                          format(
                            'consumer "%s" is not leased: its workers share all lanes and need not join', p_consumer),
      'receive right away, or make a consumer with leased => true');
  end if;
  if p_worker is null or p_worker = '' or length(p_worker) > 200 then
    perform headgate.fail('HG010',
                          'a worker of a leased consumer has a name of 1 to 200 characters',
      'choose one that no other worker has, such as the names of the machine and the process');
  end if;
  return c;
end $$;

-- slots_of(consumer) -> what its workers share: the lanes that it has cursors for, or the
-- remainders of lanes by key or channel.
create or replace function headgate.slots_of(c headgate.consumer) returns setof bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if (select s.lane_by from headgate.stream s where s.id = c.stream) = 'hash' then
    return query select k.lane from headgate.cursor k where k.consumer = c.id and k.lane >= 0
      order by k.lane;
  else
    return query select g from headgate.stream s, generate_series(0::bigint, s.lanes - 1) g
      where s.id = c.stream;
  end if;
end $$;

-- ensure_slots(consumer): a row in lease for each slot, and for no other. May wait for a
-- transaction that does the same.
-- Locks: rows of slots that are no more (SKIP LOCKED).
-- Writes: lease.
create or replace function headgate.ensure_slots(c headgate.consumer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare slots bigint[] := array(select headgate.slots_of(c)) || -1::bigint; known bigint[];
begin
  known := array(select l.slot from headgate.lease l where l.consumer = c.id);
  if not known @> slots then
    insert into headgate.lease (consumer, slot) select c.id, s from unnest(slots) s
     where s <> all(known) order by s on conflict do nothing;
  end if;
  if not slots @> known then
    delete from headgate.lease l using (
      select x.slot from headgate.lease x where x.consumer = c.id and x.slot <> all(slots)
         for update skip locked) gone
     where l.consumer = c.id and l.slot = gone.slot;
  end if;
end $$;

-- join_workers(stream, consumer, worker) -> the slots leased to the worker now. To be called when
-- it starts; then `heartbeat`.
-- Locks: as heartbeat does.
-- Writes: as heartbeat does.
create or replace function headgate.join_workers(stream text, consumer text, worker text)
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return headgate.share_out(headgate.find_leased(stream, consumer, worker), worker);
end $$;

-- heartbeat(stream, consumer, worker) -> the slots leased to the worker now. To be called about
-- three times in the consumer's lease_time. Gives back what is above the worker's share, highest
-- slots first, and takes what is free up to it. A worker that was not seen for too long joins
-- again; while another call is just taking it for dead, it has none. Waits a moment for other
-- heartbeats, never for long; inside a longer transaction what it changes counts from the commit
-- on.
-- Writes: worker, lease; of workers that are dead, delivery, parked, cursor.
create or replace function headgate.heartbeat(stream text, consumer text, worker text)
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  return headgate.share_out(headgate.find_leased(stream, consumer, worker), worker);
end $$;

-- leave_workers(stream, consumer, worker) -> how many slots are free now. What the worker has in
-- flight stays its own until it is settled or its deadline passes. Fails with lock_not_available
-- when a heartbeat of the same worker does not end.
-- Locks: the worker's row; its slots (SKIP LOCKED).
-- Writes: worker, lease.
create or replace function headgate.leave_workers(stream text, consumer text, worker text)
returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s' as $$
declare c headgate.consumer := headgate.find_leased(stream, consumer, worker); n int;
begin
  delete from headgate.worker w where w.consumer = c.id and w.name = leave_workers.worker;
  with mine as (select l.slot from headgate.lease l
                 where l.consumer = c.id and l.worker = leave_workers.worker for update skip locked)
  update headgate.lease l set worker = null, since = clock_timestamp() from mine
   where l.consumer = c.id and l.slot = mine.slot;
  get diagnostics n = row_count;
  return n;
exception when lock_not_available then
  perform headgate.fail('55P03',
                        format('worker "%s" of consumer "%s" is held by an open transaction',
                               worker, c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- share_of(consumer, worker, now) -> how many slots this worker is to have: slots / workers, and
-- one more for those that joined first while the division leaves a rest, so that nobody has more
-- than ceil(slots / workers) and nobody has nothing while another has two more.
create or replace function headgate.share_of(c headgate.consumer, p_worker text,
                                             p_now timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  alive int;
  rank int;
  slots int;
begin
  select count(*), count(*) filter (where (w.joined_at, w.name) < (me.joined_at, me.name))
    into alive, rank
    from headgate.worker w, headgate.worker me
   where w.consumer = c.id and w.until > p_now and me.consumer = c.id and me.name = p_worker;
  select count(*) into slots from headgate.lease l where l.consumer = c.id and l.slot >= 0;
  return slots / alive + case when rank < slots % alive then 1 else 0 end;
end $$;

-- share_out(consumer, worker) -> the slots leased to the worker: as many as share_of says. See
-- heartbeat.
create or replace function headgate.share_out(c headgate.consumer, p_worker text) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  now timestamptz;
  patience text := least(250, ceil(extract(epoch from c.lease_time) * 250))::int || 'ms';
  is_even boolean := true;
  was text := current_setting('lock_timeout');
  share int;
  mine bigint[];
  given bigint[];
begin
  perform set_config('lock_timeout', patience, true);
  if not headgate.renew_worker(c, p_worker) then
    perform set_config('lock_timeout', was, true); return '{}';
  end if;
  begin
    perform from headgate.lease l where l.consumer = c.id and l.slot = -1 for update;
    perform headgate.ensure_slots(c);
  exception when lock_not_available then
    is_even := false;
  end;
  perform set_config('lock_timeout', was, true);
  -- point: shares are held
  now := clock_timestamp();
  perform headgate.expire_workers(c, now);
  -- all this has taken so long that it counts as dead itself: its next heartbeat joins again
  if not exists (select from headgate.worker w
                  where w.consumer = c.id and w.name = p_worker and w.until > now) then
    return '{}';
  end if;
  mine := array(select l.slot from headgate.lease l
                 where l.consumer = c.id and l.slot >= 0 and l.worker = p_worker order by l.slot);
  if is_even then
    share := headgate.share_of(c, p_worker, now);
    if cardinality(mine) > share then
      given := mine[share + 1 :];
      mine := mine[: share];
      -- (one that another transaction is taking at this moment is given already)
      with held as (select l.slot from headgate.lease l
                     where l.consumer = c.id and l.slot = any(given) and l.worker = p_worker
                       for update skip locked)
      update headgate.lease l set worker = null, since = now from held
       where l.consumer = c.id and l.slot = held.slot;
    end if;
  end if;
  if share is null or cardinality(mine) < share then
    with free as (
      select l.slot from headgate.lease l
       where l.consumer = c.id and l.slot >= 0
         and not exists (select from headgate.worker w
                          where w.consumer = c.id and w.name = l.worker and w.until > now)
       order by l.slot limit share - cardinality(mine) for update skip locked),
    taken as (
      update headgate.lease l set worker = p_worker, since = now from free
       where l.consumer = c.id and l.slot = free.slot returning l.slot)
    select mine || coalesce(array_agg(t.slot order by t.slot), '{}') into mine from taken t;
  end if;
  -- point: slots are shared out
  return array(select s from unnest(mine) s order by s);
end $$;

-- renew_worker(consumer, worker) -> whether the worker counts as alive for another lease_time.
-- False while another call takes it for dead, or has it join, at this moment: it has no lanes then.
-- While it is alive, only a call of the same worker can be in the way, which is waited for up to a
-- third of the lease_time: 55P03 then, because without being renewed it must not go on as if it
-- were.
-- Needs: the caller has set lock_timeout.
-- Locks: the worker's row.
-- Writes: the worker's row.
create or replace function headgate.renew_worker(c headgate.consumer, p_worker text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare give_up timestamptz := clock_timestamp() + least(c.lease_time / 3, interval '5 seconds');
begin
  loop
    begin
      insert into headgate.worker as w (consumer, name, until)
      values (c.id, p_worker, clock_timestamp() + c.lease_time)
        on conflict (consumer, name) do update set
          joined_at = case when w.until <= clock_timestamp() then clock_timestamp()
                           else w.joined_at end,
          seen_at = clock_timestamp(), until = clock_timestamp() + c.lease_time;
      return true;
    exception when lock_not_available then
      if not exists (select from headgate.worker w
                      where w.consumer = c.id and w.name = p_worker and w.until > clock_timestamp())
                        then
        return false;
      end if;
      if clock_timestamp() > give_up then
        perform headgate.fail('55P03',
                              format('another call of the worker "%s" does not end', p_worker),
          'repeat the call; no two workers may have the same name');
      end if;
    end;
  end loop;
end $$;

-- expire_workers(consumer, now) -> how many dead workers were found. Frees their slots and parks
-- what they had in flight: else that would wait for its deadline. Their rows stay a while, lest a
-- claim that was under way is overlooked.
-- Locks: workers, slots, deliveries and cursors with SKIP LOCKED; what it did not get, the next
-- call finds again.
-- Writes: worker, lease, delivery, parked, cursor.
create or replace function headgate.expire_workers(c headgate.consumer, p_now timestamptz)
returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare dead text[]; lanes bigint[];
begin
  if not exists (select from headgate.worker w where w.consumer = c.id and w.until <= p_now) then
    return 0;
  end if;
  -- a row that is locked is being renewed at this moment
  dead := array(select w.name from headgate.worker w where w.consumer = c.id and w.until <= p_now
                 order by w.name limit 100 for update skip locked);
  with gone as (select l.slot from headgate.lease l where l.consumer = c.id and l.worker = any(dead)
                   for update skip locked)
  update headgate.lease l set worker = null, since = p_now from gone
   where l.consumer = c.id and l.slot = gone.slot;
  with gone as (
    select d.lane, d.id from headgate.delivery d
     where d.consumer = c.id and d.worker = any(dead) and d.deadline > p_now
       for no key update skip locked)
  -- (watched: a lane that is held at this moment is not swept below, nor before its expires_at)
  update headgate.delivery d set deadline = p_now, is_watched = true from gone
   where d.consumer = c.id and d.lane = gone.lane and d.id = gone.id;
  lanes := array(select distinct d.lane from headgate.delivery d
                  where d.consumer = c.id and d.worker = any(dead) and d.deadline <= p_now);
  if lanes <> '{}' then
    with held as (select k.lane from headgate.cursor k
                   where k.consumer = c.id and k.lane = any(lanes) order by k.lane
                     for no key update skip locked)
    update headgate.cursor k set expires_at = p_now from held
     where k.consumer = c.id and k.lane = held.lane;
    perform headgate.expire_hashed_lanes(c, p_now);
  end if;
  delete from headgate.worker w
   where w.consumer = c.id and w.name = any(dead)
     and w.until < p_now - greatest(c.lease_time, interval '10 seconds');
  return cardinality(dead);
end $$;

-- leased_slots(consumer, worker, now) -> the slots that the worker may claim from: its own, except
-- those in which another worker has messages in flight. HG012 when it has not joined, or was not
-- seen for too long.
create or replace function headgate.leased_slots(c headgate.consumer, p_worker text,
                                                 p_now timestamptz) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare modulus bigint := headgate.slot_modulus(c); taken bigint[];
begin
  if not exists (select from headgate.worker w
                  where w.consumer = c.id and w.name = p_worker and w.until > p_now) then
    perform headgate.fail('HG012',
                          format(
                            'worker "%s" has not joined the leased consumer "%s", or was not seen for its lease_time', coalesce(p_worker, 'null'), c.name),
      'call headgate.join_workers(stream, consumer, worker) first, and headgate.heartbeat(…) three times in the lease_time');
  end if;
  -- (a delivery whose last messages were settled by two at once has nothing in flight, and stays
  -- until its deadline)
  taken := array(select case when modulus is null then d.lane else d.lane % modulus end
                   from headgate.delivery d
                  where d.consumer = c.id and d.worker is distinct from p_worker
                    and d.deadline > p_now
                    and cardinality(d.seqs) > (
                      select count(*) from headgate.departed x
                       where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id));
  return array(select l.slot from headgate.lease l
                where l.consumer = c.id and l.slot >= 0 and l.worker = p_worker
                  and l.slot <> all(taken) order by l.slot);
end $$;

-- unleased_lanes(consumer, worker, now) -> the lanes that the worker may not claim from, of streams
-- with hashed lanes. HG012 as leased_slots.
create or replace function headgate.unleased_lanes(c headgate.consumer, p_worker text,
                                                   p_now timestamptz) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare mine bigint[] := headgate.leased_slots(c, p_worker, p_now);
begin
  return array(select k.lane from headgate.cursor k
                where k.consumer = c.id and k.lane <> all(mine));
end $$;

-- may_claim(consumer, lane, worker) -> whether the worker may take messages of the lane now.
-- Needs: the caller holds the lane's cursor and has taken expired deliveries apart; one that is
-- left, whatever its deadline, is being extended or settled.
create or replace function headgate.may_claim(c headgate.consumer, p_lane bigint, p_worker text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare modulus bigint := headgate.slot_modulus(c);
begin
  return exists (select from headgate.lease l
                   join headgate.worker w on w.consumer = c.id and w.name = l.worker
                  where l.consumer = c.id
                    and l.slot = case when modulus is null then p_lane else p_lane % modulus end
                    and l.worker = p_worker and w.until > clock_timestamp())
     and not exists (select from headgate.in_flight f
                      where f.consumer = c.id and f.lane = p_lane
                        and f.worker is distinct from p_worker);
end $$;
