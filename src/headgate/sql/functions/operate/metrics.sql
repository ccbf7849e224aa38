-- How the database is, in numbers for a monitor that asks every few seconds. The doctor says what
-- to do about them.

-- vitals() -> names, what they are about (null: the whole database) and values. Reads statistics
-- and sizes of a few small tables; of other roles' sessions the owner of the schema sees the ages
-- only as a member of pg_read_all_stats.
-- Locks: nothing.
-- Writes: nothing.
create or replace function headgate.vitals() returns table (name text, subject text, value float8)
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  with sessions as materialized (
    select a.xact_start, a.backend_xmin, a.backend_type, a.datname,
           a.pid <> pg_backend_pid() and a.datname = current_database()
           and a.backend_type <> 'autovacuum worker'
             and (a.backend_xmin is not null or a.backend_xid is not null) as holds
      from pg_stat_activity a),
  hot as (
    select r.name, format('headgate.%I', r.name)::regclass as rel
      from unnest(
        array['cursor', 'delivery', 'departed', 'parked', 'wake', 'discovered', 'worker', 'lease',
              'tick', 'message_id', 'stream', 'consumer', 'audit']) r (name))
  select 'sessions', null::text, count(*)::float8 from sessions s
   where s.backend_type = 'client backend'
  union all select 'max_connections', null, current_setting('max_connections')::float8
  union all select 'oldest_transaction_seconds', null, coalesce(greatest(
      (select max(extract(epoch from clock_timestamp() - s.xact_start)) from sessions s
        where s.holds),
      (select max(extract(epoch from clock_timestamp() - p.prepared)) from pg_prepared_xacts p
        where p.database = current_database())), 0)::float8
  union all
    select 'oldest_snapshot_transactions', null, coalesce(max(age(s.backend_xmin)), 0)::float8
      from sessions s where s.holds
  -- of all databases: the limit is the server's
  union all select 'wraparound_transactions', null, max(age(d.datfrozenxid))::float8
    from pg_database d
  union all select 'wraparound_multixacts', null, max(mxid_age(d.datminmxid))::float8
    from pg_database d
  union all select 'freeze_max_age', null, current_setting('autovacuum_freeze_max_age')::float8
  union all
    select 'multixact_freeze_max_age', null,
           current_setting('autovacuum_multixact_freeze_max_age')::float8
  union all
    select 'maintenance_seconds', null,
           greatest(extract(epoch from clock_timestamp() - u.at), 0)::float8
      from headgate.maintenance_run u
  union all select 'table_bytes', h.name, pg_table_size(h.rel)::float8 from hot h
  union all select 'table_dead_rows', h.name, pg_stat_get_dead_tuples(h.rel)::float8 from hot h
$$;
