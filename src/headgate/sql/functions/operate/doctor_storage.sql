-- What the doctor looks at of storage: streams that are full or in too many tables, segments that
-- cannot be removed, archives. As in operate/doctor.sql nothing writes, scans a backlog, or waits.

-- examine_storage(patience): streams that are full, and segments that cannot be removed, and why.
create or replace function headgate.examine_storage(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  return query select e.* from headgate.examine_full() e;
  return query select e.* from headgate.examine_segments() e;
  return query select e.* from headgate.examine_removals(p_patience) e;
  return query select e.* from headgate.examine_unacked() e;
end $$;

-- examine_full(): streams that are full, as of now.
create or replace function headgate.examine_full()
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream;
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
end $$;

-- examine_removals(patience): emptied or old segments that cannot go, and who has used the tables
-- of their stream in a transaction that is still open.
create or replace function headgate.examine_removals(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  g record;  -- how many segments wait
  who text;
begin
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
end $$;

-- examine_unacked(): streams that keep messages until they are acked, and which consumer holds the
-- oldest segment.
create or replace function headgate.examine_unacked()
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  g record;  -- the segments that stay
  f record;  -- the consumer that is behind
begin
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
