-- The doctor: what is wrong with this database, in sentences that say what to do. Nothing here
-- writes, scans a backlog, or waits: counts are bounded, and what somebody holds locked, or the
-- owner may not see, is left out with a note.

-- doctor(patience) -> findings, the worst first. A `problem` wants something done now, a `warning`
-- soon, a `note` is good to know. What lasts longer than `patience` is reported, and sessions that
-- last twelve times as long are a problem. Reads only; waits for no lock longer than a moment.
create or replace function headgate.doctor(patience interval default '5 minutes')
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  return query select e.* from headgate.examine(patience) e
    order by array_position(array['problem', 'warning', 'note'], e.severity), e.subject, e.finding;
end $$;

-- examine(patience) -> the findings of every examination, in no order. One that fails becomes a
-- note, and the others go on.
create or replace function headgate.examine(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare part text;
begin
  foreach part in array array['sessions', 'slots', 'hot_tables', 'consumers', 'poison', 'pushes',
                              'tables', 'failures', 'storage', 'archives', 'maintenance', 'rights',
                              'settings', 'wraparound'] loop
    begin
      return query execute format('select * from headgate.examine_%s($1)', part) using p_patience;
    exception when others then
      return query
        select 'note', 'doctor',
               format('The examination of %s ended early: %s.', replace(part, '_', ' '), sqlerrm),
        'Ask again; when it persists, ask as a superuser or as the owner of the schema headgate.';
    end;
  end loop;
end $$;

-- examine_sessions(patience): transactions open for long, and which streams they have sent to.
-- Vacuum removes nothing that was dead after the oldest of them began, in any table of the
-- database.
create or replace function headgate.examine_sessions(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with locks as materialized (select l.* from pg_locks l),
  sent as (  -- a prepared transaction has no pid, but its id is locked
    select l.pid,
           (select x.transactionid from locks x
             where x.virtualtransaction = l.virtualtransaction and x.pid is not distinct from l.pid
                     and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock' limit 1) as xid,
           string_agg(format('"%s"', s.name), ', ' order by s.name) as streams
      from locks l join headgate.stream s on l.relation = to_regclass('headgate.message_' || s.id)
     where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
     group by l.pid, l.virtualtransaction),
  old as (
    select format('session %s', a.pid) as subject, a.xact_start as since, sent.streams,
           format('Session %s (user %s, application "%s", %s) has a transaction open', a.pid,
                  a.usename, a.application_name, a.state) as who,
           format('Commit or roll back there, or end it: select pg_terminate_backend(%s);%s', a.pid,
                  case
                    when a.state like 'idle in%' then
                      ' the setting idle_in_transaction_session_timeout does that by itself.' else
                        '' end) as advice
      from pg_stat_activity a left join sent on sent.pid = a.pid
     where a.datname = current_database() and a.pid <> pg_backend_pid()
       and (a.backend_xmin is not null or a.backend_xid is not null)
       and a.backend_type <> 'autovacuum worker' and a.query !~* '^\s*vacuum'
    union all
    select format('prepared transaction %s', p.gid), p.prepared, sent.streams,
           format('Prepared transaction "%s" (owner %s) is open', p.gid, p.owner),
           format(
             'End it, whoever forgot it: commit prepared %1$L; or rollback prepared %1$L; it outlives restarts.', p.gid)
      from pg_prepared_xacts p left join sent on sent.pid is null and sent.xid = p.transaction
        where p.database = current_database())
  select case when o.since < clock_timestamp() - p_patience * 12 then 'problem' else 'warning' end,
         o.subject,
         format('%s since %s, for %s.%s Nothing that died in any table since then can be vacuumed.',
                o.who,
                date_trunc('second', o.since), date_trunc('second', clock_timestamp() - o.since),
                ' It has sent to ' || o.streams
                  ||
                    ': these messages are delivered when it commits, and no segment they lie in is removed before.'),
         o.advice
    from old o where o.since < clock_timestamp() - p_patience
  union all
  select 'note', 'doctor',
         format(
           'The role %s, which owns these functions, does not see the sessions of other users: long transactions go unnoticed.', current_user),
         format('grant pg_read_all_stats to %I;', current_user)
   where not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
$$;

-- examine_slots(patience): replication slots that nobody reads, which keep write-ahead log or old
-- row versions.
create or replace function headgate.examine_slots(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select case
    when r.xmin is not null or r.kept > 1073741824
      or r.wal_status in ('unreserved', 'lost') then 'warning' else 'note' end,
         format('replication slot %s', r.slot_name),
         format('Replication slot "%s" is not in use and keeps %s of write-ahead log%s.',
                r.slot_name, pg_size_pretty(coalesce(r.kept, 0)),
                case
                  when r.xmin is not null then
                    format(', and row versions that died in the last %s transactions',
                           age(r.xmin)) else '' end),
         format('Start what reads it, or, when nobody will: select pg_drop_replication_slot(%L);',
                r.slot_name)
    from (select s.*,
            case
              when not pg_is_in_recovery() then
                pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint end as kept
                  from pg_replication_slots s) r
   where not r.active and not r.temporary
     and (r.database is null or r.database = current_database())
  union all  -- a standby that reports what it reads, with or without a slot
  select 'warning', format('standby %s', r.application_name),
         format(
           'The standby "%s" (session %s) reads with a snapshot that is %s transactions old: what died since then cannot be vacuumed here.',
                r.application_name, r.pid, age(r.backend_xmin)),
         'End the long query there, or turn hot_standby_feedback off.'
    from pg_stat_replication r where age(r.backend_xmin) > 1000000
$$;

-- examine_hot_tables(patience): tables that are updated all the time, grown far beyond what lives
-- in them; autovacuum.
create or replace function headgate.examine_hot_tables(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with t as (
    select r.name, format('headgate.%I', r.name)::regclass as rel,
           pg_stat_get_live_tuples(format('headgate.%I', r.name)::regclass) as live,
           pg_stat_get_dead_tuples(format('headgate.%I', r.name)::regclass) as dead
      from unnest(
        array['cursor', 'delivery', 'departed', 'parked', 'wake', 'discovered', 'worker', 'lease',
              'tick', 'message_id', 'stream', 'consumer']) r (name))
  select 'warning', 'table headgate.' || t.name,
         format('Table headgate.%s has %s dead rows beside %s live ones and takes %s.', t.name,
                t.dead, t.live, pg_size_pretty(pg_table_size(t.rel))),
         'Run maintenance (`headgate up`, a worker, or hg.maintenance()); where old transactions are listed here, end them first; then vacuum ' || t.rel || ';'
    from t where t.dead > 10000 and t.dead > 4 * t.live
  union all
  select 'problem', 'setting autovacuum',
         format(
           'The setting %s is off: dead rows pile up in every table, and transaction ids run out.',
           g.name),
         format('alter system set %s = on; select pg_reload_conf();', g.name)
    from pg_settings g where g.name in ('autovacuum', 'track_counts') and g.setting = 'off'
  union all
  select 'problem', 'table ' || k.oid::regclass,
         format('Autovacuum is turned off for table %s.', k.oid::regclass),
         format('alter table %s reset (autovacuum_enabled);', k.oid::regclass)
    from pg_class k cross join lateral pg_options_to_table(k.reloptions) o
   where k.relnamespace = 'headgate'::regnamespace and o.option_name = 'autovacuum_enabled'
     and o.option_value in ('false', 'off', 'no', '0')
     -- (written once, read once and dropped: see stage)
     and not exists (select from headgate.staging g where g.name = k.relname)
$$;

-- examine_failures(patience): messages that keep failing, dead letters, and messages that were
-- removed unread.
create or replace function headgate.examine_failures(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare dead record;
begin
  return query
  select 'warning', format('consumer %s/%s', s.name, c.name),
         format(
           '%s%s messages of consumer "%s" of stream "%s" have failed and wait for another attempt; the last error was: %s', p.failed,
                case when p.looked > 10000 then ' or more' else '' end, c.name, s.name,
                coalesce(p.last_error, 'none (their deadlines passed)')),
         format(
           'Look at headgate.parked_messages and the workers'' logs. After a fix: select headgate.retry_now(%1$L, %2$L, "all" => true); and set max_deliver, so that what cannot succeed becomes a dead letter.', s.name, c.name)
    from headgate.consumer c join headgate.stream s on s.id = c.stream cross join lateral (
      select count(*) as looked, count(*) filter (where p.attempt > 0) as failed,
             (
               array_agg(p.last_error
                         order by p.parked_at desc) filter (
                           where p.last_error is not null))[1] as last_error
        from (select * from headgate.parked p where p.consumer = c.id limit 10001) p) p
   where p.failed >= 1000;
  for dead in select d.id, o.name from headgate.stream d
    join headgate.stream o on o.id = d.dead_of loop
    return query execute format($q$
      select case when count(*) >= 100 then 'warning' else 'note' end,
             format('consumer %%s/%%s', $1, m.consumer),
             format(
               '%%s of the last 1,000 dead letters of stream "%%s" are from consumer "%%s", the last one of %%s; its error was: %%s', count(*), $1, m.consumer,
                    date_trunc('second', max(m.created_at)),
                    (array_agg(m.error order by m.seq desc))[1]),
             format(
               'Look at them: select * from headgate.dead_letters(%%1$L, %%2$L); then select headgate.redrive(%%1$L, %%2$L, "all" => true); or headgate.purge_dead in the same way.', $1, m.consumer)
        from (select m.seq, m.created_at, m.headers ->> 'source_consumer' as consumer,
                m.headers ->> 'last_error' as error
                from headgate.message_%s m order by m.seq desc limit 1000) m
                  where m.consumer is not null group by m.consumer $q$, dead.id) using dead.name;
  end loop;
  return query
  select case when max(l.at) > clock_timestamp() - interval '1 day' then 'problem' else 'note' end,
         format('consumer %s/%s', s.name, c.name),
         format(
           'Consumer "%s" of stream "%s" lost %s messages, which were removed before it was done with them, the last ones at %s (%s).', c.name, s.name,
                sum(l.messages), date_trunc('second', max(l.at)),
                (array_agg(l.reason order by l.at desc))[1]),
         'Make the consumer faster (more workers, larger batches), or keep messages longer: alter_stream with a larger retain_up_to, max_storage or retain_at_least.'
    from headgate.loss l join headgate.consumer c on c.id = l.consumer
      join headgate.stream s on s.id = c.stream group by s.name, c.name;
end $$;

-- examine_maintenance(patience): whether maintenance runs, and whether the database has moved here
-- from another cluster.
create or replace function headgate.examine_maintenance(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  last timestamptz;
  expired bigint;
  ids bigint;
begin
  if not headgate.is_same_cluster() then
    return query
      select 'problem', 'database',
             'This database was restored from a dump and is not set up for its new place yet: receiving inside transactions fails.',
      'Call headgate.maintain() once, outside a transaction; the first receive or `headgate up` does it too.';
  end if;
  select u.at into last from headgate.maintenance_run u;
  if last > clock_timestamp() - p_patience or not exists (select from headgate.stream) then
    return;
  end if;
  select count(*) into expired from headgate.delivery d
   where d.deadline < clock_timestamp() - p_patience;
  select count(*) into ids from headgate.stream s cross join lateral (
    select from headgate.message_id m
     where m.stream = s.id and m.at < clock_timestamp() - s.dedup_window - p_patience limit 1000) m;
  return query select case when expired > 0 then 'problem' else 'warning' end, 'maintenance',
    format('No maintenance has run since %s.%s%s', date_trunc('second', last),
           case
             when expired > 0 then
               format(' %s deliveries are past their deadline and not handed out again.',
                      expired) end,
           case
             when ids > 0 then
               format(' %s%s message ids could be forgotten.', ids,
                      case when ids >= 1000 then ' or more' else '' end) end),
    'Keep `headgate up`, a worker whose role may maintain (headgate_owner), or hg.maintenance() running, or call headgate.maintain() every second.';
end $$;
