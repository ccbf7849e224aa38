-- Maintenance: one bounded step of everything that keeps the engine lean. Safe to run from many
-- processes at once.

-- maintain() -> what was done, one row a task. Of many streams and consumers it looks at some, and
-- later calls at the others (operate/turns.sql): at 32 streams at least, as many more as 25
-- milliseconds allow, and so at 96 consumers. So each has its turn after streams / 32 and consumers
-- / 96 calls at most.
-- Locks: what it works on with SKIP LOCKED; never waits.
-- Writes: whatever is due.
create or replace function headgate.maintain() returns table (task text, subject text, done bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  n bigint;
  open boolean := headgate.in_user_transaction();
  freed boolean;  -- some stream's storage: one kind of table lock a call
begin
  perform headgate.need_read_committed('maintain');
  -- ticks first: they must be made before this transaction has an id
  if not open then
    return query select 'tick', m.stream, m.tick from headgate.make_ticks(200) m;
  end if;
  return query select * from headgate.maintain_streams();
  -- point: streams are maintained
  return query select * from headgate.maintain_consumers(open);
  -- these keep tables locked until the end of this call, so they come last, and not both
  if not open then
    perform headgate.take_samples(interval '15 milliseconds');
    perform headgate.note_history();
    -- for the doctor, who says when nobody maintains; now and then, so that the row stays small
    with mine as (select u.ctid from headgate.maintenance_run u
                   where u.at < clock_timestamp() - interval '10 seconds' for update skip locked)
    update headgate.maintenance_run u set at = clock_timestamp() from mine where u.ctid = mine.ctid;
    n := headgate.collect_staging();
    if n > 0 then return query select 'collect staging', ''::text, n; end if;
    return query select * from headgate.free_storage();
    freed := found;
  end if;
  if not open and not freed then
    return query select 'rewrite', r.name, r.pages from headgate.rewrite_small() r;
  end if;
end $$;

-- maintain_streams() -> what was done in the streams whose turn it is: ticks are thinned out, what
-- is out of date forgotten, room for messages made.
-- Locks: their rows (SKIP LOCKED).
-- Writes: tick, message_id, layout, newest, attempt, segment, the log.
create or replace function headgate.maintain_streams()
returns table (task text, subject text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  n bigint;
  began timestamptz := clock_timestamp();
  ids int[] := array(select x.id from headgate.stream x order by x.id);
  left_over int := cardinality(ids);
  part int[];  -- whose turn it is
begin
  while left_over > 0 loop
    part := headgate.next_turns('stream', ids, least(left_over, 32));
    left_over := left_over - cardinality(part);
    return query select * from headgate.prepare_storage(part);
    for s in select * from headgate.stream x where x.id = any(part) order by x.id
              for no key update skip locked loop
      if headgate.has_old_ticks(s) then
        n := headgate.thin_ticks(s.id, 20000);
        if n > 0 then return query select 'thin ticks', s.name, n; end if;
      end if;
      with old as (
        select m.ctid from headgate.message_id m
         where m.stream = s.id and m.at < clock_timestamp() - s.dedup_window
         order by m.at limit 10000 for update skip locked)
      delete from headgate.message_id m using old where m.ctid = old.ctid;
      get diagnostics n = row_count;
      if n > 0 then return query select 'forget message ids', s.name, n; end if;
      n := headgate.tidy_layouts(s);
      if n > 0 then return query select 'lanes', s.name, n; end if;
      n := headgate.remove_superseded(s);
      if n > 0 then return query select 'superseded versions', s.name, n; end if;
      n := headgate.forget_newest(s);
      if n > 0 then return query select 'forget newest', s.name, n; end if;
      n := headgate.trim_attempts(s);
      if n > 0 then return query select 'forget attempts', s.name, n; end if;
      if headgate.segments_end(s.id)
         <= headgate.last_seq(s.id) + headgate.seqs_ahead(s) * 3 / 4 then
        perform headgate.ensure_segments(s.id, 0);
        return query select 'segments', s.name, 1::bigint;
      end if;
    end loop;
    exit when clock_timestamp() > began + interval '25 milliseconds';
  end loop;
end $$;

-- maintain_consumers(open) -> what was done for the consumers whose turn it is: deadlines that have
-- passed, what is left of messages that are done, lanes and workers that are gone. In a transaction
-- that is open already nothing that would hold others up.
create or replace function headgate.maintain_consumers(p_open boolean)
returns table (task text, subject text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer;
  n bigint;
  began timestamptz := clock_timestamp();
  ids int[] := array(select x.id from headgate.consumer x order by x.id);
  left_over int := cardinality(ids);
  part int[];  -- whose turn it is
begin
  while left_over > 0 loop
    part := headgate.next_turns('consumer', ids, least(left_over, 96));
    left_over := left_over - cardinality(part);
    for c in select * from headgate.consumer x where x.id = any(part) order by x.id loop
      if exists (select from headgate.delivery d where d.consumer = c.id) then
        n := headgate.expire_hashed_lanes(c, clock_timestamp());
        if n > 0 then return query select 'sweep', c.name, n; end if;
      end if;
      n := headgate.forget_departed(c);
      if n > 0 then return query select 'forget departed', c.name, n; end if;
      n := headgate.pass_discarded(c);
      if n > 0 then return query select 'pass discarded', c.name, n; end if;
      if not p_open and headgate.move_gatherer(c) then
        return query select 'gather', c.name, 1::bigint;
      end if;
      n := headgate.forget_lanes(c);
      if n > 0 then return query select 'forget idle lanes', c.name, n; end if;
      if c.leased and not p_open then
        n := headgate.expire_workers(c, clock_timestamp());
        if n > 0 then return query select 'expire workers', c.name, n; end if;
      end if;
    end loop;
    exit when clock_timestamp() > began + interval '15 milliseconds';
  end loop;
end $$;

-- prepare_storage(stream ids) -> what was done in these streams, or in all: segments are ended and
-- closed, kept messages that nobody needs deleted.
-- Locks: no table that others need.
-- Writes: segment, preserved_<stream id>, stream.
create or replace function headgate.prepare_storage(p_streams int[] default null)
returns table (task text, subject text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  n bigint;
  now_full boolean;
begin
  p_streams := coalesce(p_streams, array(select x.id from headgate.stream x));
  for s in select * from headgate.stream x where x.id = any(p_streams) order by x.id
            for key share skip locked loop  -- not those that are being dropped
    n := headgate.end_segment(s);
    if n > 0 then return query select 'end segment', s.name, n; end if;
    n := headgate.close_segments(s);
    if n > 0 then return query select 'close segments', s.name, n; end if;
    n := headgate.tidy_preserved(s);
    if n > 0 then return query select 'forget kept', s.name, n; end if;
    n := headgate.tidy_discarded(s);
    if n > 0 then return query select 'forget discarded', s.name, n; end if;
    now_full := headgate.is_full(s);
    if now_full <> s.is_full then
      update headgate.stream x set is_full = now_full
       where x.id
         = (select y.id from headgate.stream y where y.id = s.id for no key update skip locked);
    end if;
  end loop;
end $$;

-- free_storage() -> what was done: of one stream, segments are compacted and emptied, or their
-- empty tables dropped, these first when there are many; or tables of a stream that was dropped.
-- The other streams have their turn in later calls: 64 of them are looked at, and as many more as
-- 10 milliseconds allow, until there is one with something to do.
-- Locks: such tables ACCESS EXCLUSIVE until the end of the transaction: to be called last.
-- Writes: segment, stream, parked, loss.
create or replace function headgate.free_storage()
returns table (task text, subject text, done bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  n bigint;
  compacted bigint;
  ids int[] := array(select x.id from headgate.stream x order by x.id);
  turn int[];
  began timestamptz := clock_timestamp();
begin
  return query select 'drop segments', r.name, r.done from headgate.drop_remains() r;
  if found then return; end if;
  for i in 1 .. cardinality(ids) loop
    exit when i > 64 and clock_timestamp() > began + interval '10 milliseconds';
    -- one turn at a time: the call ends with the first stream that something was done in
    turn := headgate.next_turns('storage', ids, 1);
    select x.* into s from headgate.stream x where x.id = turn[1] for key share skip locked;
    continue when not found;
    compacted := 0;
    if (select count(*) from headgate.segment g
         where g.stream = s.id and g.state = 'dropped') >= 16 then
      n := headgate.drop_emptied(s.id);
      if n > 0 then return query select 'drop segments', s.name, n; end if;
      exit when n > 0;
    end if;
    if s.retain <> 'forever' and s.compacted_at < clock_timestamp() - s.compact_every then
      update headgate.stream x set compacted_at = clock_timestamp()
       where x.id
         = (select y.id from headgate.stream y where y.id = s.id for no key update skip locked);
      compacted := headgate.compact_segments(s);
      if compacted > 0 then return query select 'compact', s.name, compacted; end if;
    end if;
    exit when compacted > 0;
    n := headgate.remove_segments(s);
    if n > 0 then return query select 'remove segments', s.name, n; end if;
    exit when n > 0;
    n := headgate.drop_emptied(s.id);
    if n > 0 then return query select 'drop segments', s.name, n; end if;
    exit when n > 0;
  end loop;
end $$;

-- rewrite_small() -> name and former size in pages of the small hot tables that were rewritten.
-- While somebody holds an old snapshot, vacuum can remove nothing that was updated since, and these
-- tables would grow without end and slow everybody down. The live rows are put into an emptied
-- table instead, which takes milliseconds and depends on no snapshot. Gives up at once when it does
-- not get the lock.
-- Locks: the table ACCESS EXCLUSIVE; run it outside longer transactions.
-- Writes: these tables, what was in them.
create or replace function headgate.rewrite_small() returns table (name text, pages bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t text;
  rel regclass;
  rows text;
  live bigint;
  was text := current_setting('lock_timeout');
begin
  foreach t in array array['cursor', 'delivery', 'departed', 'wake', 'discovered', 'parked',
                           'worker', 'lease', 'consumer_sample', 'stream_sample'] loop
    rel := format('headgate.%I', t)::regclass;
    pages := pg_relation_size(rel) / 8192;
    -- the statistics are near enough to see that there is nothing to gain, without stopping anybody
    -- to count
    continue when pages <= headgate.pages_enough(pg_stat_get_live_tuples(rel));
    -- Whoever waits for the lock holds up all that come behind: wait only for those that are gone
    -- in a moment.
    continue when exists (
      select from pg_locks l left join pg_stat_activity a on a.pid = l.pid
       where l.locktype = 'relation' and l.relation = rel and l.granted
         and l.pid is distinct from pg_backend_pid()
         and l.database = (select d.oid from pg_database d where d.datname = current_database())
         and (l.pid is null or a.xact_start < clock_timestamp() - interval '100 milliseconds'));
    begin
      perform set_config('lock_timeout', '20ms', true);
      execute format('lock table headgate.%I in access exclusive mode', t);
      -- one scan; its end is for the case that the statistics know nothing, as after a crash
      execute format(
        'select count(*), array_agg(x)::text from (select * from headgate.%I limit 200001) x', t)
          into live, rows;
      -- TRUNCATE shows an empty table to older snapshots: harmless to a forgotten session, not to a
      -- dump that has begun
      if pages > headgate.pages_enough(live)
         and not exists (select from pg_stat_activity a
                          where a.datname = current_database() and a.application_name = 'pg_dump')
                            then
        execute format('truncate headgate.%I', t);
        execute format('insert into headgate.%1$I select (u).* from unnest($1::headgate.%1$I[]) u',
                       t) using rows;
        name := t;
        return next;
      end if;
    -- two who both want it are told so at once
    exception when lock_not_available or deadlock_detected then
      null;  -- the next call will do it
    end;
    perform set_config('lock_timeout', was, true);
  end loop;
end $$;

-- pages_enough(live rows) -> a hot table with no more pages than this is left alone. Rewriting many
-- rows takes a second or two, so that a larger table has to be the more bloated before it is worth
-- it; past 200,000 rows it never is.
create or replace function headgate.pages_enough(p_live bigint) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_live <= 20000 then 64 + p_live / 4 when p_live <= 200000 then p_live / 2
              else 9223372036854775807 end
$$;
