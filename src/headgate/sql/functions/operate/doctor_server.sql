-- What the doctor looks at of the server: rights, settings, ids that run out. As in
-- operate/doctor.sql nothing writes or waits.

-- examine_rights(patience): roles that are missing or lack their rights, and rights that everybody
-- has.
create or replace function headgate.examine_rights(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with roles (role, functions) as (values
    ('headgate_producer', array['send', 'send_batch']),
    ('headgate_consumer', array['receive', 'ack', 'nack', 'release', 'extend', 'tick']),
    ('headgate_monitor', array['peek', 'messages', 'doctor']),
    ('headgate_owner', array['create_stream', 'create_consumer', 'maintain'])),
  owner as (select n.nspowner::regrole as name from pg_namespace n where n.nspname = 'headgate'),
  missing as (select r.role from roles r where to_regrole(r.role) is null)
  select 'warning', 'roles',
         format('These roles do not exist, so nobody can be given their rights: %s.',
                string_agg(m.role, ', ' order by m.role)),
         format(
           'As a role that may create roles: %s grant headgate_producer, headgate_consumer, headgate_monitor to headgate_owner; '
                'then, as %s, who owns the schema: `headgate migrate` (or apply headgate.install_sql()).',
                string_agg(format('create role %s nologin;', m.role), ' ' order by m.role),
                (select o.name from owner o))
    from missing m having count(*) > 0
  union all
  select 'problem', 'role headgate_owner',
         format('The role headgate_owner may not do what %s may.',
                string_agg(r.role, ', ' order by r.role)),
         format('As an administrator: grant %s to headgate_owner;',
                string_agg(r.role, ', ' order by r.role))
    from roles r where r.role <> 'headgate_owner' and to_regrole('headgate_owner') is not null
     and to_regrole(r.role) is not null and not pg_has_role('headgate_owner', r.role, 'member')
       having count(*) > 0
  union all
  select 'problem', 'role ' || n.role,
         format('The role %s may not call %s.', n.role,
                string_agg(format('headgate.%s', p.proname), ', ' order by p.proname)),
         case when count(*) >= cardinality(n.functions)
              then
                format(
                  'As %s, who owns the schema: `headgate migrate` (or apply headgate.install_sql()): it grants what is missing.',
                          (select o.name from owner o))
              else format('grant usage on schema headgate to %s; ', n.role)
                   || string_agg(
                     format('grant execute on function %s to %s;', p.oid::regprocedure, n.role), ' '
                       order by p.proname) end
    from roles n
    join pg_proc p on p.pronamespace = 'headgate'::regnamespace and p.proname = any(n.functions)
   where to_regrole(n.role) is not null
     and not (has_function_privilege(n.role, p.oid, 'execute')
              and has_schema_privilege(n.role, 'headgate', 'usage'))
   group by n.role, n.functions
  union all
  select e.* from headgate.examine_public_rights() e
$$;

-- examine_public_rights(): rights that everybody has.
create or replace function headgate.examine_public_rights()
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'problem', 'rights',
         format('Every role of this server may call %s functions of Headgate, such as %s.',
                count(*), min(p.oid::regprocedure::text)),
         'revoke all on all functions in schema headgate from public;'
    from pg_proc p
      where p.pronamespace = 'headgate'::regnamespace
        and has_function_privilege('public', p.oid, 'execute') having count(*) > 0
  union all
  select 'problem', 'rights',
         format('Every role of this server may use %s tables of Headgate, such as %s.', count(*),
                min(k.oid::regclass::text)),
         'revoke all on all tables in schema headgate from public;'
    from pg_class k where k.relnamespace = 'headgate'::regnamespace and k.relkind in ('r', 'p', 'v')
     and has_table_privilege('public', k.oid, 'select, insert, update, delete, truncate')
       having count(*) > 0
$$;

-- examine_settings(patience): settings of the server that put messages at risk, and limits that
-- come near.
create or replace function headgate.examine_settings(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'problem', 'setting ' || g,
         format('The setting %s is off: a crash of the machine can destroy the whole database.', g),
         format('alter system set %s = on; select pg_reload_conf();', g)
    from unnest(array['fsync', 'full_page_writes']) g where current_setting(g) = 'off'
  union all
  select 'warning', 'setting synchronous_commit',
         'The setting synchronous_commit is off: a crash can lose messages whose sending had been confirmed.',
         'Turn it on for this database and role; Headgate relaxes it by itself where nothing can be lost.' where current_setting('synchronous_commit') = 'off'
  union all
  select 'note', 'setting wal_level',
         'The setting wal_level is minimal: there can be no standby and no point-in-time backup.',
         'alter system set wal_level = replica; then restart the server.'
   where current_setting('wal_level') = 'minimal'
  union all
  select case when u.used >= u.most * 0.95 then 'problem' else 'warning' end,
         'setting max_connections', format('%s of %s connections are in use.', u.used, u.most),
         'Use a pooler or smaller pools (max_connections of headgate.connect), or raise the server''s max_connections.'
    from (
      select (select count(*) from pg_stat_activity a
               where a.backend_type = 'client backend') as used,
                 current_setting('max_connections')::int
                   - current_setting('superuser_reserved_connections')::int as most) u
   where u.used >= u.most * 0.8
$$;

-- xmin_holder() -> who holds back vacuum the most, in any database of this server: for how many
-- transactions, and how to end that.
create or replace function headgate.xmin_holder(out age int, out who text, out how text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select * from (
    select greatest(age(a.backend_xmin), age(a.backend_xid)) as age,
           format('session %s (user %s, database "%s")', a.pid, a.usename, a.datname) as who,
           format('End it: select pg_terminate_backend(%s);', a.pid) as how
      from pg_stat_activity a
     where a.pid <> pg_backend_pid() and a.backend_type <> 'autovacuum worker'
    union all
    select age(p.transaction),
           format('prepared transaction "%s" of database "%s"', p.gid, p.database),
           case when p.database = current_database()
                then format('End it: rollback prepared %L;', p.gid)
                -- nothing that a shell reads otherwise
                when p.database || p.gid ~ '^[A-Za-z0-9_.-]+$'
                then
                  format('End it: `psql -d %s -c "rollback prepared ''%s''"`.', p.database, p.gid)
                else format('End it, in that database: rollback prepared %L.', p.gid) end
      from pg_prepared_xacts p
    union all
    select greatest(age(r.xmin), age(r.catalog_xmin)),
           format('replication slot "%s"', r.slot_name),
           case when r.active
                then
                  format('End what lags behind there: select pg_terminate_backend(%s);',
                         r.active_pid)
                else format('Drop it, when nobody will read it: '
                            'select pg_drop_replication_slot(%L);', r.slot_name) end
      from pg_replication_slots r
    union all
    select age(r.backend_xmin), format('standby "%s"', r.application_name),
           'End the long query there, or turn hot_standby_feedback off.'
      from pg_stat_replication r) h
   where h.age is not null order by h.age desc limit 1
$$;

-- examine_wraparound(patience): databases of this server, all of them, whose transaction ids or
-- multixact ids were not frozen for twice as long as autovacuum should let them: it does not keep
-- up, or somebody holds it back. The limit of 2 billion is the server's, whichever database comes
-- near it.
create or replace function headgate.examine_wraparound(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with kind (what, age_setting, failsafe_setting) as (values
    ('transaction', 'autovacuum_freeze_max_age', 'vacuum_failsafe_age'),
    ('multixact', 'autovacuum_multixact_freeze_max_age', 'vacuum_multixact_failsafe_age')),
  old as (
    select d.datname, d.datallowconn, k.what, x.age,
           current_setting(k.age_setting)::bigint as enough,
           x.age > greatest(current_setting(k.failsafe_setting)::bigint,
                            2 * current_setting(k.age_setting)::bigint) as is_late
      from pg_database d cross join kind k
     cross join lateral (
       select case k.what when 'transaction' then age(d.datfrozenxid)
                          else mxid_age(d.datminmxid) end::bigint as age) x
     where x.age > 2 * current_setting(k.age_setting)::bigint),
  holder as (select * from headgate.xmin_holder())
  select case when o.is_late then 'problem' else 'warning' end, 'database ' || o.datname,
         format(
           'The oldest %s id in database "%s" is %s %ss old, although autovacuum freezes after %s; '
                'at about 2,000,000,000 the whole server stops writing.%s',
                o.what, o.datname, o.age, o.what, o.enough,
                ' It is held back by ' || h.who || ', for ' || h.age || ' transactions.'),
         coalesce(h.how || ' Then f', 'F') || 'reeze what is old: '
         || case when o.datname = current_database() then 'vacuum (freeze);'
                 when o.datname !~ '^[A-Za-z0-9_.-]+$' then 'vacuum (freeze), in that database.'
                 when o.datallowconn then format('`vacuumdb --freeze --dbname=%s`.', o.datname)
                 else
                   format('let people connect to it (alter database %1$I allow_connections true;), '
                             'then `vacuumdb --freeze --dbname=%1$s`.', o.datname) end
    from old o left join holder h on o.what = 'transaction' and h.age > o.enough
$$;
