-- Dropping a stream: at once for everybody, its tables in steps.

-- drop_stream(name): removes a stream, its consumers, its messages and its dead letters. Of more
-- than 100 segments the rest is dropped by maintenance, in steps, because a transaction can hold
-- only so many locks; the stream is gone at once. Needs its tables and its sequence for itself, and
-- calls under way lock these in any order: it tries to get them all at once, again and again, for
-- up to 10 seconds, so that it neither ends in a deadlock nor holds anybody up for long. DDL,
-- ACCESS EXCLUSIVE.
create or replace function headgate.drop_stream(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(name);
  was text := current_setting('lock_timeout');
  until timestamptz := clock_timestamp() + interval '10 seconds';
begin
  loop
    begin
      perform headgate.outwait_vacuum(s.id);
      perform set_config('lock_timeout', '20ms', true);
      perform headgate.remove_stream(s);
      perform set_config('lock_timeout', was, true);
      return;
    exception when lock_not_available or deadlock_detected then
      if clock_timestamp() > until then
        perform headgate.fail('55P03',
                              format('stream "%s" is in use by an open transaction', s.name),
                              'wait until it has ended, or end it, and repeat the call');
      end if;
    end;
    perform pg_sleep(0.005 + random() * 0.02);
  end loop;
end $$;

-- outwait_vacuum(stream id): an autovacuum at work on the stream's messages or dead letters gives
-- way to who waits for its lock as long as deadlock_timeout says. What is locked for that is in
-- nobody else's way. SHARE UPDATE EXCLUSIVE.
create or replace function headgate.outwait_vacuum(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t regclass;
  held oid[];
begin
  perform set_config('lock_timeout',
                     extract(epoch from current_setting('deadlock_timeout')::interval) + 0.2 || 's',
                     true);
  held := array(select l.relation from pg_locks l
                 where l.mode = 'ShareUpdateExclusiveLock' and l.granted and l.locktype = 'relation'
                   and l.pid <> pg_backend_pid());
  for t in select p.relid from headgate.stream s cross
    join lateral pg_partition_tree(format('headgate.message_%s', s.id)::regclass) p
            where (s.id = p_stream or s.dead_of = p_stream)
              and p.isleaf and p.relid = any(held) loop
    execute format('lock table only %s in share update exclusive mode', t);
  end loop;
end $$;

-- remove_stream(stream): what drop_stream does once nobody is in its way.
-- Locks: its row and tables.
-- Writes: all its tables; DDL.
create or replace function headgate.remove_stream(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare d headgate.stream;
begin
  -- maintenance passes over a stream that is going
  perform from headgate.stream t where t.id = s.id for update;
  perform headgate.remove_consumer(c) from headgate.consumer c where c.stream = s.id;
  -- in the order in which all others open them, who would otherwise be waited for in vain: the
  -- sequence before the log, and a stream before its dead letters
  execute format('drop view headgate.%I, headgate.read_%s', 'log_' || s.name, s.id);
  -- it was; but there is no LOCK SEQUENCE
  execute format('alter sequence headgate.seq_%s owned by none', s.id);
  perform headgate.drop_staging(g.name) from headgate.staging g where g.stream = s.id;
  if headgate.segment_tables(s.id) <= 100 then
    execute format('drop table headgate.message_%1$s, headgate.preserved_%1$s', s.id);
    execute format('drop sequence headgate.seq_%s', s.id);
  else
    -- nobody is using it from here on; who waits to do so has to find that it is gone
    execute format('lock table only headgate.message_%s in access exclusive mode', s.id);
    execute format('alter table headgate.message_%1$s rename to dropped_%1$s', s.id);
    execute format('drop table headgate.preserved_%s', s.id);
    insert into headgate.dropped_stream (stream, name) values (s.id, s.name);
    perform headgate.drop_tables_of(s.id, 100);
  end if;
  select * into d from headgate.stream t where t.dead_of = s.id;
  if found then perform headgate.remove_stream(d); end if;
  perform headgate.drop_stream_functions(s.id);
  delete from headgate.tick where stream = s.id;
  delete from headgate.message_id where stream = s.id;
  delete from headgate.newest where stream = s.id;
  delete from headgate.stream where id = s.id;
end $$;

-- drop_tables_of(stream id, most) -> how many tables of a stream that was dropped are gone now:
-- segments, and in the end the log and its sequence. Those that autovacuum is at work on stay for
-- later.
-- Needs: the caller holds the parent ACCESS EXCLUSIVE.
-- Writes: dropped_stream; DDL.
create or replace function headgate.drop_tables_of(p_stream int, p_most int) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t regclass;
  n int := 0;
  log regclass := format('headgate.dropped_%s', p_stream)::regclass;
begin
  for t in select i.inhrelid::regclass from pg_inherits i
            where i.inhparent = log order by i.inhrelid limit p_most loop
    begin
      execute format('lock table %s in access exclusive mode nowait', t);
      execute format('drop table %s', t);
      n := n + 1;
    exception when lock_not_available then
      null;
    end;
  end loop;
  if not exists (select from pg_inherits i where i.inhparent = log) then
    execute format('drop table %s', log);
    execute format('drop sequence headgate.seq_%s', p_stream);
    delete from headgate.dropped_stream d where d.stream = p_stream;
    n := n + 1;
  end if;
  return n;
end $$;

-- drop_remains() -> of one stream that was dropped in steps, its name and how many of its tables
-- are gone now, at most 50 a call. Waits for nobody longer than a moment; to be called last in a
-- transaction.
-- Locks: them ACCESS EXCLUSIVE.
-- Writes: dropped_stream; DDL.
create or replace function headgate.drop_remains() returns table (name text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d headgate.dropped_stream;
  was text := current_setting('lock_timeout');
begin
  select * into d from headgate.dropped_stream x order by x.at limit 1 for update skip locked;
  if not found then return; end if;
  begin
    perform set_config('lock_timeout', '20ms', true);
    execute format('lock table only headgate.dropped_%s in access exclusive mode', d.stream);
    drop_remains.name := d.name;
    done := headgate.drop_tables_of(d.stream, 50);
    perform set_config('lock_timeout', was, true);
    if done > 0 then return next; end if;
  exception when lock_not_available or deadlock_detected then
    null;  -- whoever has read it is not done yet: the next call
  end;
end $$;
