-- Segments: the log's tables, each a range of seqs. They are attached ahead of need, closed when
-- nobody can write into them any more, and removed whole (storage/retention.sql). What ends early,
-- by size or age, leaves the rest of its range unused.

-- segments_end(stream id) -> messages with a seq below this have a segment.
create or replace function headgate.segments_end(p_stream int) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(
    (select end_seq from headgate.segment where stream = p_stream order by id desc limit 1), 1)
$$;

-- last_segment(stream id) -> the newest segment and where it ends, as it is now. A transaction with
-- a fixed snapshot does not see the rows of segments that were made since, though it writes into
-- them: it asks the catalogs, which show them.
create or replace function headgate.last_segment(p_stream int, out id int, out end_seq bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.has_fixed_snapshot() then
    select substring(p.relid::text from '_([0-9]+)$')::int,
           substring(pg_get_partition_constraintdef(p.relid) from 'seq < ''?([0-9]+)')::bigint
      into last_segment.id, last_segment.end_seq
      from pg_partition_tree(format('headgate.message_%s', p_stream)::regclass) p
     where p.isleaf and p.relid::text ~ '_[0-9]+_[0-9]+$'
     order by 1 desc limit 1;
  else
    select g.id, g.end_seq into last_segment.id, last_segment.end_seq
      from headgate.segment g where g.stream = p_stream order by g.id desc limit 1;
  end if;
  last_segment.id := coalesce(last_segment.id, 0);
  last_segment.end_seq := coalesce(last_segment.end_seq, 1);
end $$;

-- segment_growth(tables) -> how many times larger than usual segments are, in messages, bytes and
-- age, when a stream has so many tables: every statement that reads the log locks all of them.
-- Twice for each 25 above 100, so that a stream has a few hundred at most, whatever its settings
-- are.
create or replace function headgate.segment_growth(p_tables bigint) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (1::bigint << least(greatest(p_tables - 100, 0) / 25, 30)::int)
$$;

-- segment_tables(stream id) -> how many tables its messages are in, those of emptied segments too.
create or replace function headgate.segment_tables(p_stream int) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select count(*) from headgate.segment g where g.stream = p_stream
$$;

-- seqs_ahead(stream) -> room for so many messages is made ahead of need.
create or replace function headgate.seqs_ahead(s headgate.stream) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select greatest(s.segment_rows, 50000)
$$;

-- lock_segments(stream id) -> whether this transaction is now the one that may make segments, until
-- it ends. Never waits: who waits for this lock in a transaction that holds another stream's closes
-- a circle. Nor for the stream's row, which new segments refer to: set_lanes may be open.
-- Locks: the row FOR KEY SHARE (SKIP LOCKED), the parent SHARE UPDATE EXCLUSIVE (NOWAIT).
create or replace function headgate.lock_segments(p_stream int) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform from headgate.stream s where s.id = p_stream for key share skip locked;
  if not found then return false; end if;
  execute format('lock table only headgate.message_%s in share update exclusive mode nowait',
                 p_stream);
  return true;
exception when lock_not_available then
  return false;
end $$;

-- add_segments(stream id, seq): makes segments until there is one for this seq. A new table is made
-- apart and attached, which conflicts with no insert or read. Far ahead they are larger, so that
-- one call makes some dozens at most.
-- Needs: the caller holds the segment lock.
-- Writes: segment; DDL.
create or replace function headgate.add_segments(p_stream int, p_seq bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  last record;
  size bigint;
  part text;
  tables bigint := headgate.segment_tables(p_stream);
  least_size bigint := (p_seq - (headgate.last_segment(p_stream)).end_seq) / 64;
begin
  select * into s from headgate.stream where id = p_stream;
  loop
    select * into last from headgate.last_segment(p_stream);
    exit when last.end_seq > p_seq;
    size := greatest(least(s.segment_rows * headgate.segment_growth(tables), 1000000000),
                     s.segment_rows, least_size);
    part := format('message_%s_%s', p_stream, last.id + 1);
    execute format('create table headgate.%I (like headgate.message_%s including defaults, '
                   'constraint in_range check (seq >= %s and seq < %s)) '
                   'with (autovacuum_vacuum_insert_scale_factor = 0.2)',
                   part, p_stream, last.end_seq, last.end_seq + size);
    execute format(
      'alter table headgate.message_%s attach partition headgate.%I for values from (%s) to (%s)',
                   p_stream, part, last.end_seq, last.end_seq + size);
    execute format('alter table headgate.%I drop constraint in_range', part);
    insert into headgate.segment (stream, id, first_seq, end_seq)
      values (p_stream, last.id + 1, last.end_seq, last.end_seq + size);
    tables := tables + 1;
  end loop;
end $$;

-- segments_known(stream id) -> segments_end, as far as this session surely knows of it: one that
-- has locked the parent before takes no notice of what others attach to it, until it locks
-- something that is new to it.
-- Locks: the last segment's table ROW EXCLUSIVE.
create or replace function headgate.segments_known(p_stream int) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare last record;
begin
  select g.id, g.end_seq into last from headgate.segment g
   where g.stream = p_stream order by g.id desc limit 1;
  if found then
    execute format('lock table headgate.message_%s_%s in row exclusive mode', p_stream, last.id);
  end if;
  return last.end_seq;
end $$;

-- ensure_segments(stream id, n): room for n more messages and some ahead, unless another
-- transaction is making some. Never waits.
-- Locks: the parent SHARE UPDATE EXCLUSIVE (NOWAIT).
-- Writes: segment; DDL.
create or replace function headgate.ensure_segments(p_stream int, p_room bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.lock_segments(p_stream) then
    perform headgate.add_segments(
              p_stream, headgate.last_seq(p_stream) + p_room + headgate.seqs_ahead(s))
       from headgate.stream s where s.id = p_stream;
  end if;
end $$;

-- reach_segments(stream id, seq): a segment for this seq, which the caller has drawn. When there is
-- none yet it makes one, and some ahead; while another transaction holds the segment lock, it looks
-- again and again whether that one has made the room: for a second while nothing changes and that
-- one does nothing, or waits for room itself; for ten while it works. 55P03.
-- Locks: the parent SHARE UPDATE EXCLUSIVE (NOWAIT).
-- Writes: segment; DDL.
create or replace function headgate.reach_segments(p_stream int, p_seq bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  began timestamptz := clock_timestamp();
  changed timestamptz := began;  -- when others last made room
  known bigint;                  -- where the segments ended then
  last record;
  part text;
  maker record;
begin
  loop
    select * into last from headgate.last_segment(p_stream);
    if last.end_seq > p_seq then
      -- a lock that is new to this transaction makes it take notice of what others have attached
      select format('message_%s_%s', p_stream, g.id) into part from headgate.segment g
       where g.stream = p_stream and g.first_seq <= p_seq and g.end_seq > p_seq;
      if found then execute format('lock table headgate.%I in row exclusive mode', part); end if;
      return;
    end if;
    if headgate.lock_segments(p_stream) then
      perform headgate.add_segments(p_stream, p_seq + headgate.seqs_ahead(s))
         from headgate.stream s where s.id = p_stream;
      return;
    end if;
    if last.end_seq is distinct from known then
      known := last.end_seq;
      changed := clock_timestamp();
    end if;
    if clock_timestamp() > changed + interval '1 second' then
      select * into maker from headgate.segment_maker(p_stream);
      if not maker.is_working or clock_timestamp() > began + interval '10 seconds' then
        perform headgate.fail('55P03',
          format(
            'there is no room for seq %s of stream "%s" yet: another transaction has made some, '
                 'or changes the stream, and is still open%s', p_seq,
                 (select s.name from headgate.stream s where s.id = p_stream),
                 coalesce(' (session ' || maker.pid || ')', '')),
          'repeat the call once it has committed; who sends very many messages in a transaction '
          'calls headgate.make_room() before it');
      end if;
    end if;
    perform pg_sleep(0.002 + random() * 0.008);
  end loop;
end $$;

-- segment_maker(stream id) -> the session that holds the segment lock (null: none any more, or a
-- prepared transaction), and whether it is at work: neither idle in its transaction nor waiting, as
-- for another stream's room. Without one, whether the stream's row is to be had: locks it FOR KEY
-- SHARE (SKIP LOCKED).
-- Locks: the stream's row FOR KEY SHARE (SKIP LOCKED), when nobody holds the segment lock.
create or replace function headgate.segment_maker(p_stream int, out pid int, out is_working boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  select l.pid, l.pid is not null into segment_maker.pid, is_working from pg_locks l
   where l.locktype = 'relation' and l.relation = ('headgate.message_' || p_stream)::regclass
     and l.database = (select d.oid from pg_database d where d.datname = current_database())
     and l.mode in ('ShareUpdateExclusiveLock', 'AccessExclusiveLock') and l.granted
     and l.pid is distinct from pg_backend_pid()
   limit 1;
  if segment_maker.pid is not null then
    perform pg_stat_clear_snapshot();
    select coalesce(a.state = 'active' and a.wait_event is distinct from 'PgSleep', false)
      into is_working from pg_stat_activity a where a.pid = segment_maker.pid;
  end if;
  if is_working is null then  -- it has just ended; or it changes the stream
    perform from headgate.stream s where s.id = p_stream for key share skip locked;
    is_working := found;
  end if;
end $$;

-- segment_bytes(stream id, segment id) -> its size with indexes, 0 once its table is gone.
create or replace function headgate.segment_bytes(p_stream int, p_segment int) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(
    pg_total_relation_size(to_regclass(format('headgate.message_%s_%s', p_stream, p_segment))), 0)
$$;

-- stored_bytes(stream id) -> the size of its messages: segments that are begun and not removed, and
-- what compaction has kept. Closed segments as they were measured then, so that it is cheap enough
-- for each send.
create or replace function headgate.stored_bytes(p_stream int) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(sum(coalesce(g.bytes, headgate.segment_bytes(p_stream, g.id))), 0)::bigint
         + coalesce(pg_total_relation_size(to_regclass('headgate.preserved_' || p_stream)), 0)
    from headgate.segment g
      where g.stream = p_stream and g.state <> 'dropped'
        and g.first_seq <= headgate.last_seq(p_stream)
$$;

-- used_seqs(stream id, seq) -> how many seqs at or below were for messages, as far as closing early
-- tells. For estimates: what was removed counts as used, so only differences between two seqs of
-- the log mean something.
create or replace function headgate.used_seqs(p_stream int, p_seq bigint) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_seq - coalesce(sum(least(p_seq - (g.end_seq - 1 - g.skipped), g.skipped)), 0)::bigint
    from headgate.segment g
      where g.stream = p_stream and g.skipped > 0 and p_seq > g.end_seq - 1 - g.skipped
$$;

-- log_ranges(stream id) -> the seqs whose messages are in the log, as far as they were ever sent.
create or replace function headgate.log_ranges(p_stream int) returns int8multirange
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(range_agg(int8range(g.first_seq, g.end_seq)), '{}') from headgate.segment g
   where g.stream = p_stream and g.state <> 'dropped'
$$;

-- close_segments(stream) -> how many were closed: those that nobody can still write into, because
-- what is not committed, and what is still to be sent, lies above. At most 4 a call: their messages
-- are counted.
-- Locks: the segments' rows (SKIP LOCKED).
-- Writes: segment.
create or replace function headgate.close_segments(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  g headgate.segment;
  t headgate.tick := headgate.newest_tick(s.id);
  closed bigint := 0;
begin
  for g in select * from headgate.segment x
            where x.stream = s.id and x.state = 'open' and x.end_seq - 1 <= t.lo
              and not exists (select from unnest(t.late_from) f where f < x.end_seq - 1)
            order by x.id limit 4 for update skip locked loop
    -- point: a segment is being closed
    execute format(
      'select count(*), coalesce(max(created_at), clock_timestamp()) from headgate.message_%s_%s',
      s.id, g.id) into g.messages, g.last_at;
    update headgate.segment x
       set state = 'closed', closed_at = clock_timestamp(), messages = g.messages,
           last_at = g.last_at,
           bytes = headgate.segment_bytes(s.id, g.id)
     where x.stream = s.id and x.id = g.id;
    closed := closed + 1;
  end loop;
  return closed;
end $$;

-- age_to_close(stream) -> how old the first message of a segment may become; null: no age is too
-- much.
create or replace function headgate.age_to_close(s headgate.stream) returns interval
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(s.segment_age,
                  least(case
                    when s.retain_up_to is not null then
                      greatest(s.retain_up_to / 8, interval '1 second') end,
                         case when s.retain <> 'forever' then interval '1 hour' end))
$$;

-- end_segment(stream) -> how many seqs were left out: the rest of the segment that is being
-- written, when it is large or old enough (the more of them there are, the larger and older:
-- segment_growth). They are drawn like those of messages, and not set, because a sequence that is
-- set could go back behind a send that draws at the same moment. At most a million a call.
-- Locks: the segment's row (SKIP LOCKED) and, to make room, the parent SHARE UPDATE EXCLUSIVE
-- (NOWAIT).
-- Writes: segment; DDL.
create or replace function headgate.end_segment(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  g headgate.segment;
  first_at timestamptz;
  rest bigint;
  is_large boolean;
  growth bigint := headgate.segment_growth(headgate.segment_tables(s.id));
begin
  select * into g from headgate.segment x
   where x.stream = s.id and x.state = 'open' and x.first_seq <= headgate.last_seq(s.id)
     and x.end_seq - 1 > headgate.last_seq(s.id)
   order by x.id limit 1 for update skip locked;
  if not found then return 0; end if;
  -- (where age does not matter, its first message need not be looked for)
  is_large := headgate.segment_bytes(s.id, g.id)
              >= least(s.segment_bytes * growth::numeric, s.max_storage / 8);
  if not coalesce(is_large, false) and headgate.age_to_close(s) is null then return 0; end if;
  execute format('select created_at from headgate.message_%s_%s order by seq limit 1', s.id, g.id)
    into first_at;
  if first_at is null
     or not (coalesce(is_large, false)
             or coalesce(first_at < clock_timestamp() - headgate.age_to_close(s) * growth, false))
               then
    return 0;
  end if;
  if headgate.segments_end(s.id) < g.end_seq + headgate.seqs_ahead(s) then
    if not headgate.lock_segments(s.id) then return 0; end if;
    perform headgate.add_segments(s.id, g.end_seq + headgate.seqs_ahead(s));
  end if;
  -- point: a segment is being ended
  rest := least(g.end_seq - 1 - headgate.last_seq(s.id), 1000000);
  if rest <= 0 then return 0; end if;
  execute format('select count(nextval(%L)) from generate_series(1, $1)', 'headgate.seq_' || s.id)
    using rest;
  update headgate.segment x set skipped = x.skipped + rest where x.stream = s.id and x.id = g.id;
  return rest;
end $$;
