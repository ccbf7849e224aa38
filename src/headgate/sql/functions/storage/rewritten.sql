-- Tables that are emptied or rewritten: who may be in the way, and fixed snapshots, to which they
-- then look empty.

-- no_fixed_snapshot(seq): raises a serialization failure in REPEATABLE READ and SERIALIZABLE.
-- TRUNCATE shows an empty table to older snapshots, in which the copy that compaction made does not
-- exist yet either. (The seq is what a query asks about: without one it would ask before it has
-- found anything.)
create or replace function headgate.no_fixed_snapshot(p_seq bigint default null) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.has_fixed_snapshot() then
    raise exception
      using errcode = '40001', message = 'a message was moved after this transaction began',
            hint = 'repeat the transaction';
  end if;
  return true;
end $$;

-- sees_small_tables(): raises a serialization failure when one of the small hot tables was
-- rewritten after this transaction's fixed snapshot was taken (rewrite_small): to that it looks
-- empty.
-- Locks: them ACCESS SHARE, so that they stay as they are from now on.
create or replace function headgate.sees_small_tables() returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  lock table headgate.delivery, headgate.departed, headgate.parked, headgate.wake,
  headgate.discovered, headgate.lease, headgate.worker
    in access share mode;
  -- the catalog in this snapshot, beside the file that the table has by now
  if exists (
       select from pg_class t
        where t.relnamespace = 'headgate'::regnamespace
          and t.relname in ('cursor', 'delivery', 'departed', 'parked', 'wake', 'discovered',
                            'lease', 'worker')
          and pg_relation_filenode(t.oid) is distinct from t.relfilenode) then
    perform headgate.no_fixed_snapshot();
  end if;
end $$;

-- held_open(table) -> whether a transaction that has been open for a while holds a lock on it.
create or replace function headgate.held_open(p_table regclass) returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select exists (
    select from pg_locks l left join pg_stat_activity a on a.pid = l.pid
     where l.locktype = 'relation' and l.relation = p_table
       and l.database = (select oid from pg_database where datname = current_database())
       and l.granted and l.pid is distinct from pg_backend_pid()
       and (l.pid is null or a.xact_start < clock_timestamp() - interval '100 milliseconds'))
$$;

-- lock_briefly(table, wait): locks it ACCESS EXCLUSIVE, or raises lock_not_available. Calls hold
-- such a table for an instant, so that trying again mostly does; with `wait` it queues in the end,
-- for 20 milliseconds, in which others queue behind it.
create or replace function headgate.lock_briefly(p_table text, p_wait boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.held_open(('headgate.' || p_table)::regclass) then
    raise exception
      using errcode = '55P03', message = format('an open transaction uses %s', p_table);
  end if;
  for i in 1 .. 20 loop
    begin
      execute format('lock table headgate.%I in access exclusive mode nowait', p_table);
      return;
    exception when lock_not_available or deadlock_detected then
      if i = 20 and not p_wait then raise; end if;
    end;
    perform pg_sleep(0.001);
  end loop;
  -- the caller has set lock_timeout
  execute format('lock table headgate.%I in access exclusive mode', p_table);
end $$;
