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
                              'tables', 'failures', 'storage', 'archives', 'upkeep', 'rights',
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

-- examine_storage(patience): streams that are full, and segments that cannot be removed, and why.
create or replace function headgate.examine_storage(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream; g record; f record; who text;
begin
  for s in select * from headgate.stream x where headgate.is_full(x) loop  -- as of now
    return query
      select 'problem', 'stream ' || s.name,
             format(
               'Stream "%s" is full: it has reached max_storage (%s), nothing in it may be removed yet%s, and sending fails.',
        s.name, pg_size_pretty(s.max_storage),
        coalesce(format(' (retain_at_least is %s)', s.retain_at_least), '')),
      format(
        'Give it more room: select headgate.alter_stream(%1$L, max_storage => %2$s); or keep messages for a shorter time (retain_at_least).', s.name,
        greatest(s.max_storage * 2, (
          select sum(pg_total_relation_size(i.inhrelid))::bigint * 3 / 2 from pg_inherits i
           where i.inhparent = to_regclass('headgate.message_' || s.id))));
  end loop;
  return query select e.* from headgate.examine_segments() e;
  -- who has used the tables of a stream in a transaction that is still open: emptied or old
  -- segments cannot go
  for s in select * from headgate.stream x
    where x.retain_up_to is not null
      or exists (select from headgate.segment e where e.stream = x.id and e.state = 'dropped') loop
    select count(*) filter (where e.state = 'dropped') as emptied,
           count(*) filter (where e.state = 'closed'
                            and e.last_at < clock_timestamp() - s.retain_up_to - p_patience
                            and headgate.in_archives(e)) as overdue
      into g from headgate.segment e where e.stream = s.id;
    continue when g.emptied = 0 and g.overdue = 0;
    select string_agg(distinct l.pid::text, ', ') into who
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
     where l.locktype = 'relation' and l.granted and l.pid <> pg_backend_pid()
       and a.xact_start < clock_timestamp() - p_patience
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
       and (l.relation = to_regclass('headgate.message_' || s.id)
            or l.relation in (select i.inhrelid from pg_inherits i
                               where i.inhparent = to_regclass('headgate.message_' || s.id)));
    return query select case when g.overdue > 0 then 'warning' else 'note' end, 'stream ' || s.name,
      format('Of stream "%s", %s wait to be removed: %s.', s.name,
             concat_ws(' and ',
                       case
                         when g.overdue > 0 then
                           format('%s segments older than retain_up_to (%s)', g.overdue,
                                  s.retain_up_to) end,
                       case when g.emptied > 0 then format('%s emptied segments', g.emptied) end),
             coalesce('open transactions use them, of sessions ' || who,
                      'no session holds them, maintenance will do it')),
      case when who is null then 'Run maintenance: `headgate up`, a worker, or hg.maintenance().'
           else 'End these sessions'' transactions.' end;
  end loop;
  for s in select * from headgate.stream x where x.retain = 'until_acked' loop
    select count(*) as segments, min(e.first_seq) as first_seq,
           (array_agg(e.end_seq order by e.id))[1] as end_seq,
           sum(
             pg_total_relation_size(
               to_regclass(format('headgate.message_%s_%s', e.stream, e.id)))) as bytes
      into g from headgate.segment e
        where e.stream = s.id and e.state <> 'dropped'
          and (e.state = 'closed' or e.end_seq <= headgate.last_seq(s.id));
    continue when g.segments = 0;
    select c.name, c.paused, x.floor,
           (select min(p.seq) from headgate.parked p where p.consumer = c.id) as parked,
           (select min(x.seq) from headgate.in_flight x where x.consumer = c.id) as flying into f
      from headgate.consumer c cross join lateral (select headgate.floor_of(c) as floor
             where (select count(*)
                      from (select from headgate.cursor k where k.consumer = c.id limit 20001) k)
                        <= 20000) x
     where c.stream = s.id order by x.floor limit 1;
    if not found then
      return query
        select 'note', 'stream ' || s.name,
               format(
                 'Stream "%s" keeps messages until they are acked, and no consumer tells: %s segments (%s) stay.', s.name, g.segments, pg_size_pretty(g.bytes)),
        format(
          'Make its consumers, or limit it: select headgate.alter_stream(%L, retain_up_to => ''7 days'');', s.name);
    elsif f.floor < g.end_seq - 1 then
      return query
        select case when g.segments >= 4 then 'warning' else 'note' end, 'stream ' || s.name,
        format(
          'Consumer "%s" holds the oldest of %s segments (%s) of stream "%s": everything up to seq %s is done for it, %s.', f.name, g.segments, pg_size_pretty(g.bytes), s.name, f.floor,
               case when f.parked = f.floor + 1 then format('but message %s is parked', f.parked)
                    when f.flying = f.floor + 1 then format('but message %s is in flight', f.flying)
                    when f.paused then 'and it is paused' else 'and the rest is not read' end),
        case
          when f.parked = f.floor + 1 then
            format(
              'Retry or give it up: select headgate.retry_now(%1$L, %2$L, array[%3$s]); or headgate.discard(%1$L, %2$L, array[%3$s]); compaction moves it out of the way by itself.', s.name, f.name, f.parked)
             when f.paused then
               format(
                 'Resume it, or drop it: select headgate.resume(%1$L, %2$L); or headgate.drop_consumer(%1$L, %2$L);', s.name, f.name)
             else
               format(
                 'Let it catch up with more workers, or, when it is not needed: select headgate.drop_consumer(%L, %L);', s.name, f.name) end;
    end if;
  end loop;
end $$;

-- examine_segments(): streams in so many tables that every statement that reads them takes long,
-- and locks more than the server may have room for; and streams that were dropped and whose tables
-- are still there.
create or replace function headgate.examine_segments()
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', 'stream ' || s.name,
         format(
           'Stream "%s" has %s segments. Whoever reads it locks all of them, so that a receive '
                'takes long, and a few open transactions can use up the server''s locks '
                '(max_locks_per_transaction, now %s): above 300 are too many.',
                s.name, g.tables, current_setting('max_locks_per_transaction')),
         format(
           'Make larger ones from now on: select headgate.alter_stream(%L, segment_rows => %s, '
                'segment_bytes => %s%s); those that there are go when retention removes them. Until '
                'then: alter system set max_locks_per_transaction = %s; and restart the server.',
                s.name, least(s.segment_rows * 16, 1000000000),
                greatest(s.segment_bytes, least(s.segment_bytes, 1073741824) * 16),
                coalesce(', segment_age => ' || quote_literal(headgate.age_to_close(s) * 16), ''),
                greatest(current_setting('max_locks_per_transaction')::int, g.tables / 2))
    from headgate.stream s
   cross join lateral (select headgate.segment_tables(s.id) as tables) g
   where g.tables > 300
  union all
  select 'note', 'stream ' || d.name,
         format('Stream "%s" was dropped %s ago; %s of its tables are still there.',
                d.name, date_trunc('second', clock_timestamp() - d.at),
                (select count(*) from pg_inherits i
                  where i.inhparent = to_regclass('headgate.dropped_' || d.stream))),
         'Maintenance drops them, some at a time: `headgate up`, a worker, or hg.maintenance().'
    from headgate.dropped_stream d
$$;

-- examine_archives(patience): segments that only wait for an archive which does not go on, or which
-- there is not.
create or replace function headgate.examine_archives(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with waiting as (
    select s.name as stream, a.name, a.at, a.floor, count(*) as segments, sum(g.bytes) as bytes,
           min(g.closed_at) as since
      from headgate.stream s
        join headgate.segment g on g.stream = s.id and g.state = 'closed' and g.messages > 0
      left join headgate.archive a on a.stream = s.id
     where s.retain = 'until_archived' and g.end_seq - 1 > coalesce(a.floor, -1)
       group by s.name, a.name, a.at, a.floor)
  select 'note', 'stream ' || w.stream,
         format(
           'Stream "%s" keeps messages until they are archived, and there is no archive: %s segments (%s) stay.', w.stream, w.segments, pg_size_pretty(w.bytes)),
         format(
           'Run a pipeline of the kind archive (`headgate pipeline new archive.toml --kind archive --stream %s`), or do without: select headgate.alter_stream(%L, retain => ''until_acked'');', w.stream, w.stream)
    from waiting w where w.name is null and w.since < clock_timestamp() - p_patience
  union all
  select 'warning', format('archive %s/%s', w.stream, w.name),
         format(
           'Archive "%s" of stream "%s" has not gone on since %s, and %s segments (%s) wait for it: it has everything up to seq %s.', w.name, w.stream,
                date_trunc('second', w.at), w.segments, pg_size_pretty(w.bytes), w.floor),
         format(
           'Run its pipeline (`headgate pipeline status` says what became of it), or, when it is not needed: select headgate.drop_archive(%L, %L);', w.stream, w.name)
    from waiting w
      where w.name is not null and greatest(w.at, w.since) < clock_timestamp() - p_patience
$$;

-- examine_upkeep(patience): whether maintenance runs, and whether the database has moved here from
-- another cluster.
create or replace function headgate.examine_upkeep(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare last timestamptz; expired bigint; ids bigint;
begin
  if not headgate.at_home() then
    return query
      select 'problem', 'database',
             'This database was restored from a dump and is not set up for its new place yet: receiving inside transactions fails.',
      'Call headgate.maintain() once, outside a transaction; the first receive or `headgate up` does it too.';
  end if;
  select u.at into last from headgate.upkeep u;
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
