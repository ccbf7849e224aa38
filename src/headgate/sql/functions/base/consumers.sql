-- Consumers: named readers of a stream with their own progress.

-- drop_consumer(stream, name): removes a consumer and its progress. Its dead letters stay. 55P03
-- when an open transaction has something of it in hand for longer than a second.
-- Locks: as hold_consumer.
-- Writes: as remove_consumer.
create or replace function headgate.drop_consumer(stream text, name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s' as $$
declare c headgate.consumer := headgate.find_consumer(stream, name);
begin
  perform headgate.need_read_committed('drop_consumer');
  perform headgate.hold_consumer(c, 'dropped');
  perform headgate.remove_consumer(c);
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03',
                        format('consumer "%s" cannot be dropped now: an open transaction uses it',
                               name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- remove_consumer(consumer): what drop_consumer does once nobody is in its way.
-- Needs: the caller holds the consumer.
-- Writes: all its tables.
create or replace function headgate.remove_consumer(c headgate.consumer) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  delete from headgate.consumer where id = c.id;
  delete from headgate.cursor where consumer = c.id;
  delete from headgate.delivery where consumer = c.id;
  delete from headgate.departed where consumer = c.id;
  delete from headgate.parked where consumer = c.id;
  delete from headgate.wake where consumer = c.id;
  delete from headgate.discovered where consumer = c.id;
  delete from headgate.channel where consumer = c.id;
  delete from headgate.lease where consumer = c.id;
  delete from headgate.worker where consumer = c.id;
  delete from headgate.loss where consumer = c.id;
  delete from headgate.discarded where consumer = c.id;
  delete from headgate.attempt where consumer = c.id;
  perform headgate.forget_sample(c.id);
end $$;

-- pause(stream, consumer): it receives nothing until it is resumed; what is in flight can still be
-- acked.
-- Locks: its row FOR NO KEY UPDATE.
-- Writes: consumer.
create or replace function headgate.pause(stream text, consumer text) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
  select headgate.hold_settings(headgate.find_consumer($1, $2));
  update headgate.consumer set paused = true where id = (headgate.find_consumer($1, $2)).id
$$;

-- resume(stream, consumer): a paused consumer receives again.
-- Locks: its row FOR NO KEY UPDATE.
-- Writes: consumer, push.
create or replace function headgate.resume(stream text, consumer text) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
  select headgate.hold_settings(headgate.find_consumer($1, $2));
  update headgate.push set note = null
   where consumer = (headgate.find_consumer($1, $2)).id and note is not null;
  update headgate.consumer set paused = false where id = (headgate.find_consumer($1, $2)).id
$$;
