-- Retention: whole segments are removed, oldest first, when their messages are too old, take too
-- much room, or are done for every consumer. A segment is emptied with TRUNCATE, which needs a lock
-- on that one table alone; its empty table goes later, when nobody happens to use the stream.
-- Nothing here waits for a user's open transaction, and nobody waits for this.

-- rest_of(segment) -> the consumers that are not done with a closed segment, all seen in one
-- snapshot: whether some of it is unread, and if not, how many of its messages are in flight and
-- parked.
create or replace function headgate.rest_of(g headgate.segment)
returns table (consumer int, name text, unread boolean, in_flight bigint, parked bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  -- lanes by key or channel: where a lane is idle or has no cursor, the gatherer (lane -1) has
  -- still to come to it, or it is read
  return query execute format($q$
    select * from (
      select c.id, c.name, u.unread,
             case
               when not u.unread then
                 (select count(*) from headgate.in_flight f
                   where f.consumer = c.id and f.seq >= $1 and f.seq < $2) end as in_flight,
             case
               when not u.unread then
                 (select count(*) from headgate.parked p
                   where p.consumer = c.id and p.seq >= $1 and p.seq < $2) end as parked
        from headgate.consumer c cross join lateral (select
             exists (select from headgate.cursor k cross
                       join lateral headgate.read_up_to(%1$s, k) r (start) cross join lateral (
                       select from headgate.message_%1$s_%2$s m
                        where m.lane = k.lane and m.seq > r.start
                          and headgate.unread(k, m.seq, m.xid) limit 1) m
                      where k.consumer = c.id and k.lane >= 0 and r.start < $2 - 1
                        and (k.next_at is not null or k.lane < 144115188075855872))
          or exists (select from headgate.told_lanes(c.id) k cross join lateral (
                       select from headgate.message_%1$s_%2$s m
                        where m.lane = k.lane and headgate.unread(k, m.seq, m.xid) limit 1) m)
          or exists (select from headgate.cursor k cross
                       join lateral headgate.read_up_to(%1$s, k) r (start) cross join lateral (
                       select from headgate.message_%1$s_%2$s m
                        where m.seq > r.start and headgate.unread(k, m.seq, m.xid)
                          and not exists (select from headgate.cursor o
                                           where o.consumer = k.consumer and o.lane = m.lane
                                             and not headgate.unread(o, m.seq, m.xid)) limit 1) m
                      where k.consumer = c.id and k.lane = -1 and r.start < $2 - 1) as unread) u
       where c.stream = %1$s) x
     where x.unread or x.in_flight > 0 or x.parked > 0 order by x.name $q$, g.stream, g.id)
    using g.first_seq, g.end_seq;
end $$;

-- unread_in(consumer, segment) -> how many messages there it has still to come to and would get.
create or replace function headgate.unread_in(c headgate.consumer, g headgate.segment)
returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  n bigint;
  behind boolean;
  s headgate.stream;
begin
  select bool_or(headgate.read_up_to(g.stream, k) < g.end_seq - 1) into behind
    from headgate.cursor k where k.consumer = c.id;
  if not behind then return 0; end if;
  select * into s from headgate.stream x where x.id = g.stream;
  execute format(
    'select count(*) from headgate.message_%s_%s m left join headgate.cursor k on k.consumer = $1 and k.lane = m.lane '
                 'left join headgate.discovered_lanes($1) x on x.lane = m.lane '
                 'left join headgate.cursor q on q.consumer = $1 and q.lane = -1 '
                 'where case when k.lane is not null then %s when x.lane is not null then %s when q.lane is not null then %s else false end '
                 'and ($2 is null or m.key ~ $2)%s',
                 g.stream, g.id, headgate.unread_sql('k'), headgate.unread_sql('x'),
                 headgate.unread_sql('q'), headgate.newest_only(s, 'm'))
    into n using c.id, c.pattern;
  return n;
end $$;

-- progress_in(consumer, segment) -> where the consumer is in it, as a digest: another one when it
-- has read on there, or wants other messages. Of a stream of newest messages it is another one each
-- time: which of them count changes with every send.
create or replace function headgate.progress_in(c headgate.consumer, g headgate.segment)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select coalesce(c.pattern, '') || case
      when (select s.one_message_per_key from headgate.stream s where s.id = g.stream) then
        clock_timestamp()::text else '' end
           || coalesce(
             md5(
               string_agg(format('%s %s %s %s', k.lane, k.first_seq, k.to_tick, k.pos), ','
                          order by k.lane)), '')
           || case when bool_or(k.discards) then (
                select count(*)::text from headgate.discarded z
                 where z.consumer = c.id and z.seq >= g.first_seq and z.seq < g.end_seq) else '' end
      from headgate.cursor k
        where k.consumer = c.id and headgate.read_up_to(g.stream, k) < g.end_seq - 1);
end $$;

-- losses_in(segment, consumers, progress, messages) -> what each consumer would lose if it were
-- removed now, and its progress. Of those that are where they were when this was asked before (the
-- other arguments), nothing is counted again.
create or replace function headgate.losses_in(
  g headgate.segment, p_consumers int[] default '{}', p_progress text[] default '{}',
  p_messages bigint[] default '{}')
returns table (consumer int, progress text, messages bigint)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.id, p.progress, coalesce(x.messages, headgate.unread_in(c, g))
    from headgate.consumer c
   cross join lateral (select headgate.progress_in(c, g) as progress offset 0) p
    left
      join unnest(p_consumers, p_progress, p_messages) x (consumer, progress,
                                                          messages) on x.consumer = c.id
                                                          and x.progress = p.progress
   where c.stream = g.stream
$$;

-- lose(consumer id, first seq, last seq, n, reason): records that n messages there were removed
-- before the consumer was done with them. Raises a serialization failure where the snapshot is
-- fixed: there the message may just be out of sight. Writes loss.
create or replace function headgate.lose(p_consumer int, p_first bigint, p_last bigint, n bigint,
                                         p_reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.no_fixed_snapshot();
  insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
  values (p_consumer, p_first, p_last, n, p_reason);
end $$;

-- lose_missing(consumer, seqs, keys, reason): those of the messages that are nowhere any more were
-- removed with their segment before the consumer was done with them: lost. Not so a version that a
-- newer one has superseded, and removed, since the caller looked for such. Raises as `lose` does.
-- Writes loss.
create or replace function headgate.lose_missing(
  c headgate.consumer, p_seqs bigint[], p_keys text[], p_reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  upserts boolean := (select s.one_message_per_key from headgate.stream s where s.id = c.stream);
begin
  execute format($q$
    select headgate.lose($1, min(x.seq), max(x.seq), count(*), $4)
      from unnest($2, $3) x (seq, key)
     where not exists (select from headgate.message_%1$s m where m.seq = x.seq)
       and not exists (select from headgate.kept_%1$s k where k.seq = x.seq)%2$s
    having count(*) > 0 $q$, c.stream,
    case when upserts then ' and not ' || headgate.superseded_sql(c.stream, 'x') else '' end)
    using c.id, p_seqs, p_keys, p_reason;
end $$;

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
-- empty. Locks them ACCESS SHARE, so that they stay as they are from now on.
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

-- without_removed(consumer, delivery, seqs) -> those whose messages still exist. The others failed
-- after retention had removed them: they are lost (lose_missing), and what waited behind them goes
-- on. Writes loss, wake.
create or replace function headgate.without_removed(c headgate.consumer, d headgate.delivery,
                                                    p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare there int8multirange := headgate.log_ranges(c.stream); gone bigint[];
begin
  if not exists (select from unnest(p_seqs) s where not s <@ there) then return p_seqs; end if;
  execute format(
    'select array_agg(s) from unnest($1) s where not s <@ $2 and not exists (select from headgate.kept_%s k where k.seq = s)', c.stream)
    into gone using p_seqs, there;
  if gone is null then return p_seqs; end if;
  perform headgate.lose_missing(c, array_agg(u.s), array_agg(u.k), 'removed while in flight')
     from unnest(d.seqs, d.keys) u (s, k) where u.s = any(gone);
  if c.ordered then
    perform headgate.leave_notes(c, d.lane,
                                 array(select u.k from unnest(d.seqs, d.keys) u (s, k)
                                        where u.s = any(gone)));
  end if;
  return array(select s from unnest(p_seqs) s where s <> all(gone));
end $$;

-- in_archives(segment) -> whether retention may remove a segment as far as archives are concerned:
-- every archive of its stream has all of it, and there is one; or the stream's retention does not
-- ask for that.
create or replace function headgate.in_archives(g headgate.segment) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select s.retain <> 'until_archived'
      or coalesce(g.end_seq - 1
                  <= (select min(a.floor) from headgate.archive a where a.stream = s.id), false)
    from headgate.stream s where s.id = g.stream
$$;

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

-- empty_segment(segment, how, first) -> whether it was emptied; false when somebody uses it at this
-- moment. Only the first one in a transaction is waited for: who holds one and queues for another
-- closes a circle with a reader of both. `how` says what is made sure first: 'done', that no
-- consumer needs it any more; 'compacted', that what is parked or in flight is kept elsewhere; any
-- other word is the reason for which messages are removed, read or not, and what consumers lose is
-- counted. Locks the segment's table ACCESS EXCLUSIVE and kept_<stream id> SHARE ROW EXCLUSIVE: to
-- be called last in a transaction, and not where the snapshot is fixed. Writes segment, stream,
-- kept_<stream id>, newest, loss.
create or replace function headgate.empty_segment(g headgate.segment, p_how text, p_first boolean)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  part text := format('message_%s_%s', g.stream, g.id);
  was text := current_setting('lock_timeout');
  last_seq bigint;
  readers int[];
  progress text[];
  lost bigint[];
begin
  -- before the work is done in vain
  if headgate.held_open(('headgate.' || part)::regclass) then return false; end if;
  begin
    if p_how = 'compacted' then
      perform headgate.keep_unfinished(g);
    elsif p_how <> 'done' then
      select array_agg(l.consumer), array_agg(l.progress), array_agg(l.messages)
        into readers, progress, lost from headgate.losses_in(g) l;
    end if;
    -- point: a segment is to be emptied
    perform set_config('lock_timeout', '20ms', true);
    perform headgate.note_newest(g);
    perform headgate.lock_briefly(part, p_first);
    -- From here on nobody can come to need it: whoever has read it has committed, and so has every
    -- seek or redrive, which hold this table ROW EXCLUSIVE until their end. What they did in the
    -- meantime is seen now.
    -- point: a segment is locked
    execute format('lock table headgate.kept_%s in share row exclusive mode nowait', g.stream);
    if p_how = 'compacted' then
      perform headgate.keep_unfinished(g);
    elsif p_how <> 'done' then
      -- what a consumer has read here in the meantime is not lost: counted again, while it waits
      perform headgate.lose(l.consumer, g.first_seq, g.end_seq - 1, l.messages, p_how)
         from headgate.losses_in(g, readers, progress, lost) l where l.messages > 0;
    end if;
    if p_how in ('done', 'compacted')
       and exists (select from headgate.rest_of(g) r where p_how = 'done' or r.unread) then
      raise exception using errcode = '55P03', message = format('%s is needed again', part);
    end if;
    if g.messages > 0 and not headgate.in_archives(g) then
      raise exception
        using errcode = '55P03', message = format('an archive that is new needs %s', part);
    end if;
    execute format('select max(seq) from headgate.%I', part) into last_seq;
    update headgate.stream t set removed_to = last_seq
     where t.id = g.stream and t.removed_to < last_seq;
    -- point: a segment is needed by nobody
    execute format('truncate headgate.%I', part);
    update headgate.segment x set state = 'dropped' where x.stream = g.stream and x.id = g.id;
    perform set_config('lock_timeout', was, true);
    return true;
  exception when lock_not_available or deadlock_detected then
    return false;
  end;
end $$;

-- give_up_parked(segment, reason) -> how many parked messages of a segment that is to be removed
-- were given up, and so lost; at most 10,000 a call, in lanes that nobody is claiming. Locks
-- cursors (SKIP LOCKED); writes parked, wake, loss.
create or replace function headgate.give_up_parked(g headgate.segment, p_reason text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare l record; n bigint; total bigint := 0; first bigint; last bigint;
begin
  for l in select distinct p.consumer, p.lane from headgate.parked p
    join headgate.consumer c on c.id = p.consumer
            where c.stream = g.stream and p.seq >= g.first_seq and p.seq < g.end_seq
              order by 1, 2 loop
    perform from headgate.cursor k where k.consumer = l.consumer and k.lane = l.lane
       for no key update skip locked;
    continue when not found
    and exists (select from headgate.cursor k where k.consumer = l.consumer and k.lane = l.lane);
    with gone as (
      delete from headgate.parked p where (p.consumer, p.lane, p.seq) in (
        select x.consumer, x.lane, x.seq from headgate.parked x
         where x.consumer = l.consumer and x.lane = l.lane and x.seq >= g.first_seq
           and x.seq < g.end_seq limit 10000 - total for update skip locked)
      returning p.seq, p.key),
    notes as (
      insert into headgate.wake (consumer, lane, key) select distinct l.consumer, l.lane, x.key
        from gone x where x.key is not null or l.lane >= 144115188075855872)
    select count(*), min(x.seq), max(x.seq) into n, first, last from gone x;
    if n > 0 then perform headgate.lose(l.consumer, first, last, n, p_reason); end if;
    total := total + n;
    exit when total >= 10000;
  end loop;
  return total;
end $$;

-- remove_segments(stream) -> how many segments were emptied, at most 8 a call: those without
-- messages, those whose last message is older than retain_up_to, the oldest ones while the stream
-- is above max_storage (none with a message younger than retain_at_least), and, of a stream that
-- keeps messages until they are acked or archived, those that are done for all consumers. At most 8
-- of these are asked about in a call, chosen by chance: one that is held for long must not hide
-- others. Of a stream that keeps messages until they are archived, nothing goes that an archive
-- does not have. To be called last in a transaction. Locks the segments' rows (SKIP LOCKED) and
-- tables; writes segment, parked, loss.
create or replace function headgate.remove_segments(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  g headgate.segment; how text; removed bigint := 0; asked int := 0; began timestamptz;
  has_consumers boolean := exists (select from headgate.consumer c where c.stream = s.id);
begin
  for g in select * from headgate.segment x where x.stream = s.id and x.state = 'closed'
            order by case s.retain when 'forever' then x.id else random() end
              for update skip locked loop
    how := case when g.messages = 0 then 'done'
                when not headgate.in_archives(g) then null
                when g.last_at < clock_timestamp() - s.retain_up_to then 'retain_up_to'
                when s.retain = 'until_acked' then case when has_consumers then 'done' end
                -- whoever comes later can have it from the archive
                when s.retain = 'until_archived' then 'done'
                -- while another process removes an older one, nobody knows yet whether this one has
                -- to go
                when g.last_at < clock_timestamp() - coalesce(s.retain_at_least, interval '0')
                     and g.id
                       = (select min(x.id) from headgate.segment x
                           where x.stream = s.id and x.state = 'closed')
                     and headgate.stored_bytes(s.id) > s.max_storage then 'max_storage' end;
    continue when how is null;
    if how = 'done' then
      asked := asked + 1;
      exit when asked > 8;
      continue when exists (select from headgate.rest_of(g));
    end if;
    -- holds cursors: the next call does the rest
    exit when how <> 'done' and headgate.give_up_parked(g, how) > 0;
    -- point: a segment is found done
    if not headgate.empty_segment(g, how, removed = 0) then
      continue;
    end if;
    removed := removed + 1;
    began := coalesce(began, clock_timestamp());
    -- others wait for what is locked
    exit when removed >= 8 or clock_timestamp() > began + interval '100 milliseconds';
  end loop;
  return removed;
end $$;

-- drop_emptied(stream id) -> how many tables of emptied segments were dropped, at most 16 a call,
-- when nobody uses the stream at this moment. To be called last in a transaction. Locks the parent
-- ACCESS EXCLUSIVE; writes segment; DDL.
create or replace function headgate.drop_emptied(p_stream int) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare k int; n bigint; was text := current_setting('lock_timeout');
begin
  select count(*) into n from headgate.segment g where g.stream = p_stream and g.state = 'dropped';
  if n = 0 then return 0; end if;
  begin
    perform set_config('lock_timeout', '20ms', true);
    perform headgate.lock_briefly('message_' || p_stream, n >= 8);
    -- point: the parent is locked
    n := 0;
    for k in select g.id from headgate.segment g where g.stream = p_stream and g.state = 'dropped'
      order by g.id limit 16 for update skip locked loop
      begin
        execute format('lock table headgate.message_%s_%s in access exclusive mode nowait',
                       p_stream, k);
        execute format('drop table headgate.message_%s_%s', p_stream, k);
        delete from headgate.segment g where g.stream = p_stream and g.id = k;
        n := n + 1;
      exception when lock_not_available or deadlock_detected then
        null;  -- autovacuum is at work on it
      end;
    end loop;
    perform set_config('lock_timeout', was, true);
    return n;
  exception when lock_not_available or deadlock_detected then
    return 0;
  end;
end $$;

-- is_full(stream) -> whether it is above max_storage and nothing may be removed: its oldest segment
-- holds messages younger than retain_at_least, or, where messages are kept until they are acked or
-- archived, no closed segment is.
create or replace function headgate.is_full(s headgate.stream) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if s.max_storage is null or headgate.stored_bytes(s.id) <= s.max_storage then
    return false;
  end if;
  if s.retain <> 'forever' then
    return not exists (select from headgate.segment g
                        where g.stream = s.id and g.state = 'closed' and headgate.in_archives(g)
                          and not exists (select from headgate.rest_of(g)))
        or (s.retain = 'until_acked'
            and not exists (select from headgate.consumer c where c.stream = s.id));
  end if;
  return s.retain_at_least is not null and coalesce((
    select g.state = 'open' or g.last_at > clock_timestamp() - s.retain_at_least
      from headgate.segment g
     where g.stream = s.id and g.state <> 'dropped' order by g.id limit 1), false);
end $$;

-- full_now(stream) -> is_full, for those who look.
create or replace function headgate.full_now(s headgate.stream) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select headgate.is_full(s)
$$;

-- check_room(stream): HG013 when it is full. Each send asks: one that fails cannot leave a mark for
-- the next.
create or replace function headgate.check_room(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.is_full(s) then
    perform headgate.fail('HG013',
                          format(
                            'stream "%s" is full: %s bytes are more than its max_storage, and nothing may be removed', s.name, headgate.stored_bytes(s.id)),
      case s.retain
           when 'until_acked' then
             'let its consumers catch up (what is acked is removed by maintenance), drop a consumer that is no longer needed, or raise max_storage'
                    when 'until_archived' then
                      'let its archives and consumers catch up (the view headgate.segments says who holds what), drop one that is no longer needed, or raise max_storage'
                    else 'raise max_storage, or lower retain_at_least' end);
  end if;
end $$;

-- kept_by(segment) -> why a closed segment is still there, or one that is full is not closed.
create or replace function headgate.kept_by(g headgate.segment) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  t headgate.tick;
  r record;
  part regclass := to_regclass(format('headgate.message_%s_%s', g.stream, g.id));
begin
  if g.state = 'open' then
    t := headgate.newest_tick(g.stream);
    select * into s from headgate.stream where id = g.stream;
    return case
      when g.end_seq - 1 <= t.hi0
        and (t.lo < g.end_seq - 1
             or exists (select from unnest(t.late_from) f where f < g.end_seq - 1))
                then 'an open transaction may still write into it'
                when s.max_storage is not null and headgate.stored_bytes(s.id) > s.max_storage
                then 'max_storage is reached, and only closed segments are removed' end;
  end if;
  if g.state = 'dropped' then
    return case
      when headgate.held_open(('headgate.message_' || g.stream)::regclass) then
        'emptied; an open transaction keeps its empty table'
                else 'emptied; maintenance drops its empty table' end;
  end if;
  select * into s from headgate.stream where id = g.stream;
  if g.messages > 0 and not headgate.in_archives(g) then
    return coalesce(
      (select format('archive %s does not have it yet', a.name) from headgate.archive a
        where a.stream = s.id order by a.floor, a.name limit 1),
                    'the stream has no archive yet');
  end if;
  if g.messages > 0 and coalesce(g.last_at >= clock_timestamp() - s.retain_up_to, true) then
    if s.retain <> 'forever' then
      select * into r from headgate.rest_of(g) limit 1;
      if found then
        return case when r.unread then format('consumer %s has not read it', r.name)
                    when r.in_flight > 0 then
                      format('consumer %s has %s of its messages in flight', r.name, r.in_flight)
                    else format('consumer %s has %s of its messages parked', r.name, r.parked) end;
      elsif s.retain = 'until_acked'
         and not exists (select from headgate.consumer c where c.stream = s.id) then
        return 'the stream has no consumer yet';
      end if;
    elsif s.max_storage is not null and headgate.stored_bytes(s.id) > s.max_storage then
      if g.last_at >= clock_timestamp() - s.retain_at_least then
        return format('retained at least until %s', g.last_at + s.retain_at_least);
      end if;
    elsif s.retain_up_to is not null then
      return format('retained until %s', g.last_at + s.retain_up_to);
    else
      return case when s.max_storage is null then 'the stream keeps its messages for ever'
                  else 'max_storage is not reached' end;
    end if;
  end if;
  return case when headgate.held_open(part) then 'an open transaction'
              else 'the next maintenance removes it' end;
end $$;
