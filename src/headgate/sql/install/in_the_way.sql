select l.virtualtransaction as tid, k.relkind = 'v' as is_view, coalesce(
         case when a.pid is not null then
           format('session %s (user %s, application "%s", %s%s)', a.pid, a.usename, a.application_name,
                  coalesce(a.state, nullif(a.backend_type, 'client backend'), 'state not shown'),
                  ', transaction open since ' || date_trunc('second', a.xact_start)) end,
         (select format('prepared transaction "%s" (user %s, since %s)', p.gid, p.owner, date_trunc('second', p.prepared))
            from pg_prepared_xacts p join pg_locks x on x.transactionid = p.transaction
           where x.locktype = 'transactionid' and x.virtualtransaction = l.virtualtransaction limit 1),
         'session ' || l.pid, 'a prepared transaction') as who
  from pg_locks l
  join pg_class k on k.oid = l.relation and k.relnamespace = to_regnamespace('headgate')
  left join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
   -- but not those of one stream alone; kept_<id>, which migration 28 renames, is in its way
   and k.relkind in ('r', 'v') and k.relname !~ '^((message|preserved|read)_[0-9]|log_)'
