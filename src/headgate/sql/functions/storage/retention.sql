-- Retention: whole segments are removed, oldest first, when their messages are too old, take too
-- much room, or are done for every consumer. A segment is emptied with TRUNCATE, which needs a lock
-- on that one table alone; its empty table goes later, when nobody happens to use the stream.
-- Nothing here waits for a user's open transaction, and nobody waits for this.

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

-- empty_segment(segment, how, first) -> whether it was emptied; false when somebody uses it at this
-- moment. Only the first one in a transaction is waited for: who holds one and queues for another
-- closes a circle with a reader of both. `how` says what is made sure first: 'done', that no
-- consumer needs it any more; 'compacted', that what is parked or in flight is kept elsewhere; any
-- other word is the reason for which messages are removed, read or not, and what consumers lose is
-- counted.
-- Locks: the segment's table ACCESS EXCLUSIVE and preserved_<stream id> SHARE ROW EXCLUSIVE: to be
-- called last in a transaction, and not where the snapshot is fixed.
-- Writes: segment, stream, preserved_<stream id>, newest, loss.
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
      perform headgate.preserve_unfinished(g);
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
    execute format('lock table headgate.preserved_%s in share row exclusive mode nowait', g.stream);
    if p_how = 'compacted' then
      perform headgate.preserve_unfinished(g);
    elsif p_how <> 'done' then
      -- what a consumer has read here in the meantime is not lost: counted again, while it waits
      perform headgate.record_loss(l.consumer, g.first_seq, g.end_seq - 1, l.messages, p_how)
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
-- were given up, and so lost; at most 10,000 a call, in lanes that nobody is claiming.
-- Locks: cursors (SKIP LOCKED).
-- Writes: parked, wake, loss.
create or replace function headgate.give_up_parked(g headgate.segment, p_reason text) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  l record;
  n bigint;
  total bigint := 0;
  first bigint;
  last bigint;
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
        from gone x where x.key is not null or l.lane >= {UNNAMED_LANES})
    select count(*), min(x.seq), max(x.seq) into n, first, last from gone x;
    if n > 0 then perform headgate.record_loss(l.consumer, first, last, n, p_reason); end if;
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
-- does not have. To be called last in a transaction.
-- Locks: the segments' rows (SKIP LOCKED) and tables.
-- Writes: segment, parked, loss.
create or replace function headgate.remove_segments(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  g headgate.segment;
  how text;
  removed bigint := 0;
  asked int := 0;
  began timestamptz;
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
-- when nobody uses the stream at this moment. To be called last in a transaction.
-- Locks: the parent ACCESS EXCLUSIVE.
-- Writes: segment; DDL.
create or replace function headgate.drop_emptied(p_stream int) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  k int;
  n bigint;
  was text := current_setting('lock_timeout');
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
