-- Segments: the log's tables, each a range of seqs. They are attached ahead of need, closed when nobody can write into them any
-- more, and removed whole (36_retention.sql). What ends early, by size or age, leaves the rest of its range unused.

-- segments_end(stream id) -> messages with a seq below this have a segment.
create or replace function headgate.segments_end(p_stream int) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce((select end_seq from headgate.segment where stream = p_stream order by id desc limit 1), 1)
$$;

-- ensure_segments(stream id, n): room for n more messages and some ahead. The new table is made apart and attached,
-- which conflicts with no insert or read. Locks the parent SHARE UPDATE EXCLUSIVE, and waits for that lock only when
-- there is little room left: other senders that looked at the same moment need some too. Writes segment; DDL.
create or replace function headgate.ensure_segments(p_stream int, p_room bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream; k int; first bigint; ending bigint; part text;
begin
  select * into s from headgate.stream where id = p_stream;
  begin
    execute format('lock table headgate.message_%s in share update exclusive mode nowait', p_stream);
  exception when lock_not_available then
    if headgate.segments_end(p_stream) > headgate.last_seq(p_stream) + p_room + greatest(s.segment_rows, 50000) / 4 then return; end if;
    execute format('lock table headgate.message_%s in share update exclusive mode', p_stream);
  end;
  while headgate.segments_end(p_stream) <= headgate.last_seq(p_stream) + p_room + greatest(s.segment_rows, 50000) loop
    k := coalesce((select max(id) from headgate.segment where stream = p_stream), 0) + 1;
    first := headgate.segments_end(p_stream);
    ending := first + s.segment_rows;
    part := format('message_%s_%s', p_stream, k);
    execute format('create table headgate.%I (like headgate.message_%s including defaults, constraint in_range check (seq >= %s and seq < %s)) '
                   'with (autovacuum_vacuum_insert_scale_factor = 0.2)', part, p_stream, first, ending);
    execute format('alter table headgate.message_%s attach partition headgate.%I for values from (%s) to (%s)',
                   p_stream, part, first, ending);
    execute format('alter table headgate.%I drop constraint in_range', part);
    insert into headgate.segment (stream, id, first_seq, end_seq) values (p_stream, k, first, ending);
  end loop;
end $$;

-- segment_bytes(stream id, segment id) -> its size with indexes, 0 once its table is gone.
create or replace function headgate.segment_bytes(p_stream int, p_segment int) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(pg_total_relation_size(to_regclass(format('headgate.message_%s_%s', p_stream, p_segment))), 0)
$$;

-- stored_bytes(stream id) -> the size of its messages: segments that are begun and not removed, and what compaction has kept.
-- Closed segments as they were measured then, so that it is cheap enough for each send.
create or replace function headgate.stored_bytes(p_stream int) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(sum(coalesce(g.bytes, headgate.segment_bytes(p_stream, g.id))), 0)::bigint
         + coalesce(pg_total_relation_size(to_regclass('headgate.kept_' || p_stream)), 0)
    from headgate.segment g where g.stream = p_stream and g.state <> 'dropped' and g.first_seq <= headgate.last_seq(p_stream)
$$;

-- used_seqs(stream id, seq) -> how many seqs at or below were for messages, as far as closing early tells. For estimates:
-- what was removed counts as used, so only differences between two seqs of the log mean something.
create or replace function headgate.used_seqs(p_stream int, p_seq bigint) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select p_seq - coalesce(sum(least(p_seq - (g.end_seq - 1 - g.skipped), g.skipped)), 0)::bigint
    from headgate.segment g where g.stream = p_stream and g.skipped > 0 and p_seq > g.end_seq - 1 - g.skipped
$$;

-- log_ranges(stream id) -> the seqs whose messages are in the log, as far as they were ever sent.
create or replace function headgate.log_ranges(p_stream int) returns int8multirange
language sql stable set search_path = pg_catalog, pg_temp as $$
  select coalesce(range_agg(int8range(g.first_seq, g.end_seq)), '{}') from headgate.segment g where g.stream = p_stream and g.state <> 'dropped'
$$;

-- close_segments(stream) -> how many were closed: those that nobody can still write into, because what is not committed, and
-- what is still to be sent, lies above. At most 4 a call: their messages are counted. Locks the segments' rows (SKIP LOCKED);
-- writes segment.
create or replace function headgate.close_segments(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare g headgate.segment; t headgate.tick := headgate.newest_tick(s.id); closed bigint := 0;
begin
  for g in select * from headgate.segment x
            where x.stream = s.id and x.state = 'open' and x.end_seq - 1 <= t.lo
              and not exists (select from unnest(t.late_from) f where f < x.end_seq - 1)
            order by x.id limit 4 for update skip locked loop
    execute format('select count(*), coalesce(max(created_at), clock_timestamp()) from headgate.message_%s_%s', s.id, g.id) into g.messages, g.last_at;
    update headgate.segment x set state = 'closed', closed_at = clock_timestamp(), messages = g.messages, last_at = g.last_at,
           bytes = headgate.segment_bytes(s.id, g.id)
     where x.stream = s.id and x.id = g.id;
    closed := closed + 1;
  end loop;
  return closed;
end $$;

-- age_to_close(stream) -> how old the first message of a segment may become; null: no age is too much.
create or replace function headgate.age_to_close(s headgate.stream) returns interval
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(s.segment_age, least(case when s.retain_up_to is not null then greatest(s.retain_up_to / 8, interval '1 second') end,
                         case when s.retain <> 'forever' then interval '1 hour' end))
$$;

-- end_segment(stream) -> how many seqs were left out: the rest of the segment that is being written, when it is large or old
-- enough. They are drawn like those of messages, and not set, because a sequence that is set could go back behind a send
-- that draws at the same moment. At most a million a call. Locks the segment's row (SKIP LOCKED) and, to make room, the
-- parent SHARE UPDATE EXCLUSIVE (NOWAIT); writes segment; DDL.
create or replace function headgate.end_segment(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare g headgate.segment; first_at timestamptz; rest bigint;
begin
  select * into g from headgate.segment x
   where x.stream = s.id and x.state = 'open' and x.first_seq <= headgate.last_seq(s.id) and x.end_seq - 1 > headgate.last_seq(s.id)
   order by x.id limit 1 for update skip locked;
  if not found then return 0; end if;
  execute format('select created_at from headgate.message_%s_%s order by seq limit 1', s.id, g.id) into first_at;
  if first_at is null or not (coalesce(first_at < clock_timestamp() - headgate.age_to_close(s), false)
       or headgate.segment_bytes(s.id, g.id) >= least(s.segment_bytes, s.max_storage / 8)) then
    return 0;
  end if;
  if headgate.segments_end(s.id) < g.end_seq + greatest(s.segment_rows, 50000) then
    begin
      execute format('lock table headgate.message_%s in share update exclusive mode nowait', s.id);
    exception when lock_not_available then
      return 0;
    end;
    perform headgate.ensure_segments(s.id, g.end_seq - headgate.last_seq(s.id));
  end if;
  rest := least(g.end_seq - 1 - headgate.last_seq(s.id), 1000000);
  if rest <= 0 then return 0; end if;
  execute format('select count(nextval(%L)) from generate_series(1, $1)', 'headgate.seq_' || s.id) using rest;
  update headgate.segment x set skipped = x.skipped + rest where x.stream = s.id and x.id = g.id;
  return rest;
end $$;
