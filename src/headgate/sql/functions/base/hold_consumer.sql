-- Keeping others off a consumer, or off what it is changed by. Nobody here queues for a lock that
-- an open transaction may hold: who does not get it within a second is told so (55P03).

-- hold_consumer(consumer, what): for moving or removing a consumer as a whole. Holds its cursors,
-- what is in flight and parked, its workers, and keeps compaction off, until the end of the
-- transaction. Never queues behind an open transaction: it tries to get everything in a moment,
-- again and again, holding nothing in between, and gives up after a second: 55P03, which says that
-- the consumer cannot be `what`.
-- Locks: preserved_<stream id> ROW EXCLUSIVE, and those rows FOR UPDATE.
create or replace function headgate.hold_consumer(c headgate.consumer, p_what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  was text := current_setting('lock_timeout');
  until timestamptz := clock_timestamp() + interval '1 second';
begin
  loop
    begin
      perform set_config('lock_timeout', '20ms', true);
      execute format('lock table headgate.preserved_%s in row exclusive mode', c.stream);
      -- twice: lanes that were made while the first one waited are out of its sight. From then on
      -- none is made.
      perform from headgate.cursor k where k.consumer = c.id order by k.lane for update;
      -- point: the cursors are held once
      perform from headgate.cursor k where k.consumer = c.id order by k.lane for update;
      perform from headgate.delivery d where d.consumer = c.id order by d.lane, d.id for update;
      perform from headgate.parked p where p.consumer = c.id order by p.lane, p.seq for update;
      perform from headgate.wake w where w.consumer = c.id order by w.lane for update;
      perform from headgate.discovered x where x.consumer = c.id order by x.lane for update;
      perform from headgate.lease l where l.consumer = c.id order by l.slot for update;
      perform from headgate.worker w where w.consumer = c.id order by w.name for update;
      -- point: the consumer is held
      perform set_config('lock_timeout', was, true);
      return;
    exception when lock_not_available or deadlock_detected then
      if clock_timestamp() > until then
        perform headgate.fail('55P03',
          format(
            'consumer "%s" cannot be %s now: an open transaction has received, settled or changed something of it', c.name, p_what),
          'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
      end if;
    end;
    perform pg_sleep(0.02 + random() * 0.03);  -- in which the others go on
  end loop;
end $$;

-- hold_in_place(consumer, what): keeps hold_consumer off until the end of the transaction, and
-- nobody else: for what adds to a consumer, or changes what is parked, and would be overlooked by a
-- seek. Waits for at most a second: 55P03, which says that the consumer's messages cannot be
-- `what`.
-- Locks: the first of its cursors that is to be had FOR KEY SHARE.
create or replace function headgate.hold_in_place(c headgate.consumer, p_what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  for i in 1 .. 200 loop
    perform from headgate.cursor k where k.consumer = c.id order by k.lane limit 1
      for key share skip locked;
    if found then return; end if;
    perform pg_sleep(0.005);
  end loop;
  perform headgate.fail('55P03',
                        format(
                          'messages of consumer "%s" cannot be %s now: a transaction that moves it is open', c.name, p_what),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- hold_to_park(consumer, what): as hold_in_place, for who parks messages: it keeps
-- move_to_next_layout off, too, which would overlook them in lanes that the consumer leaves behind.
-- That holds all lanes of the oldest layout, and only these: so the very first cursor, and no
-- other, is locked FOR KEY SHARE.
-- Locks: the very first of its cursors FOR KEY SHARE (SKIP LOCKED).
create or replace function headgate.hold_to_park(c headgate.consumer, p_what text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  for i in 1 .. 200 loop
    perform from headgate.cursor k
      where k.consumer = c.id
        and k.lane = (select min(f.lane) from headgate.cursor f where f.consumer = c.id)
        for key share skip locked;
    if found then return; end if;
    perform pg_sleep(0.005);
  end loop;
  perform headgate.fail('55P03',
    format('messages of consumer "%s" cannot be %s now: a transaction that moves it is open',
           c.name, p_what),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;
