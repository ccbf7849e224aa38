-- The doctor's look at sources of tables.

-- examine_tables(patience): sources that are not read, keep much of their database's log, fall
-- behind, or have tables that are not read.
create or replace function headgate.examine_tables(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with s as materialized (
    select p.*, 'source ' || p.name as subject, clock_timestamp() - p.since as lasting,
           pg_size_pretty(p.retained_bytes) as size,
           coalesce(
             format(' Its slot keeps %s of that database''s log.',
                    pg_size_pretty(p.retained_bytes)), '') as kept
      from headgate.postgres_sources() p)
  select 'problem', s.subject, format('Source "%s" is lost: %s.', s.name, s.error), s.hint
    from s where s.state = 'lost'
  union all
  select 'problem', s.subject,
         format('Source "%s" cannot be read since %s: %s.%s', s.name, date_trunc('second', s.since),
                s.error, s.kept),
         s.hint
    from s where s.state = 'failing' and s.lasting > p_patience
  union all
  select 'warning', s.subject, format('Nobody reads source "%s".%s', s.name, s.kept),
         'Run `headgate up`: it reads sources unless it is told not to.'
    from s where s.state in ('waiting', 'starting') and s.lasting > p_patience
  union all
  select 'warning', s.subject,
         format(
           'Source "%s" is paused, and its slot keeps %s of that database''s log, which grows until the disk '
                'is full.', s.name, s.size),
         format('Resume it: `headgate source resume %1$s`. Or remove it (headgate source remove %1$s): then its '
                'slot goes, too; headgate source edit %1$s --drop-size … limits what it keeps.', s.name)
    from s where s.state = 'paused' and s.retained_bytes > s.warn_bytes
  union all
  select 'warning', s.subject,
         format('The slot of source "%s" keeps %s of that database''s log, though it is read.',
                s.name, s.size),
         'See whether the stream takes what comes (its lag), and whether a transaction is open there for long: the log '
         'is kept from its beginning on.'
    from s where s.state = 'reading' and s.retained_bytes > s.warn_bytes
  union all
  select 'warning', s.subject,
         format('Source "%s" is %s behind its database.', s.name, date_trunc('second', s.lag)),
         format('Much is written there at once, or this database is slow: see its rate, '
                '`headgate source show %s`.', s.name)
    from s where s.state = 'reading' and s.lag > p_patience and s.retained_bytes <= s.warn_bytes
  union all
  select e.* from s, headgate.examine_tables_of(s.name, s.problems) e
$$;

-- examine_tables_of(source, problems) -> what keeps tables of a source from being read: these
-- problems, and backfills that failed.
create or replace function headgate.examine_tables_of(p_source text, p_problems text[])
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', 'source ' || p_source, format('Source "%s": %s.', p_source, x.problem),
         case when x.problem like '%replica identity%'
              then format('Give it a primary key or REPLICA IDENTITY FULL at once, or take it out: name '
                          'the others, headgate source edit %s --table ….', p_source)
              when x.problem like '%is not in the publication%' or x.problem like '%is gone%'
              then format('Say which tables it has: headgate source edit %s --table …; rows that changed '
                          'meanwhile come with a backfill.', p_source)
              else format('See how it goes on: `headgate source show %s`.', p_source) end
    from unnest(p_problems) x (problem)
  union all
  select 'warning', 'source ' || p_source,
         format('The rows of %s, of source "%s", could not be read: %s.', b.table_name, p_source,
                b.error),
         format('Once that is mended, ask again: `headgate source backfill %s --table ''%s''`.', p_source,
                replace(b.table_name, '''', '''"''"'''))
    from headgate.source_backfills(p_source) b
   where b.state = 'failed' and b.error <> 'it was cancelled'
     and b.finished_at > clock_timestamp() - interval '7 days'
$$;
