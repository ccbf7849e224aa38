-- Reading the log by spans, without a consumer: for readers that keep their own position, such as
-- Spark.
--
-- A position is a mark: a JSON object that holds everything that is needed to read on from it, so
-- that ticks may be thinned out and the same two marks always give the same messages, for as long
-- as they are retained:
--   tick, snap, lo, hi   the tick that the mark stands on: what is visible in snap has been read
--   floor                nothing at or below is still to come
--   at                   when the tick was made
--   late                 where late transactions left messages at or below the lo of the mark
--     before (text of an int8multirange)
--   bridge_to               the mark to go on from, when the tick is a bridge from another cluster
--   pos, since           only in the middle of a span: of the span from the mark `since` to this
--     tick, what lies at or below pos has
--                        been read
--   end_floor            with pos: the floor at the end of the span
-- So a long span can be read in parts, and each part can be read again.

-- tick_mark(tick) -> the mark that stands on it.
create or replace function headgate.tick_mark(t headgate.tick) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp as $$
  select jsonb_strip_nulls(
    jsonb_build_object('tick', t.id, 'snap', t.snap::text, 'lo', t.lo, 'hi', t.hi, 'at', t.at,
    'floor', least(t.lo, (select min(f) from unnest(t.late_from) f)),
    'bridge_to',
    (select headgate.tick_mark(b) from headgate.tick b
      where b.stream = t.stream and b.id = t.bridge_to)))
$$;

-- nothing_read(seq) -> the mark from which everything at or above the seq is still to be read.
create or replace function headgate.nothing_read(p_seq bigint) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select jsonb_build_object('tick', 0, 'snap', '3:3:', 'lo', p_seq - 1, 'hi', p_seq - 1, 'floor',
                            p_seq - 1)
$$;

-- mark(stream, position) -> the mark at a position: 'beginning' (what is retained), 'latest' (or
-- 'end'), a seq ('seq:7' or '7': the first message to be read), a tick ('tick:7', or the one before
-- it that was kept), a time, or a mark as it is.
-- Writes: tick.
create or replace function headgate.mark(stream text, "position" text default 'latest')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  p text := mark.position;
  t headgate.tick;
  m jsonb;
begin
  if p in ('latest', 'end') then
    return headgate.tick_mark(headgate.fresh_tick(s.id));
  elsif p = 'beginning' then
    return headgate.nothing_read(coalesce(lower(headgate.log_ranges(s.id)), 1));
  elsif p ~ '^tick:[0-9]{1,18}$' then
    select * into t from headgate.tick k
     where k.stream = s.id and k.base = k.id and k.id <= substr(p, 6)::bigint order by k.id desc
       limit 1;
    if not found then
      perform headgate.fail('HG011',
                            format('stream "%s" has no tick as old as %s', s.name, substr(p, 6)),
                            'start at beginning');
    end if;
    return headgate.tick_mark(t);
  elsif p ~ '^\s*\{' then
    begin
      m := p::jsonb;
      perform (m->>'tick')::bigint, (m->>'snap')::pg_snapshot, (m->>'lo')::bigint,
      (m->>'hi')::bigint, (m->>'late')::int8multirange, (m->>'pos')::bigint,
              (m->>'floor')::bigint, (m->'since'->>'snap')::pg_snapshot;
      if num_nulls(m->>'tick', m->>'snap', m->>'lo', m->>'hi', m->>'floor') = 0
         and (m ? 'pos') = (m ? 'since') then
        return m;
      end if;
    exception when data_exception or syntax_error_or_access_rule_violation then
      null;
    end;
    perform headgate.fail('HG011', 'this is not a mark',
                          'give one as headgate.mark() or headgate.next_mark() returned it');
  end if;
  return headgate.nothing_read(headgate.target_seq(s.id, regexp_replace(p, '^seq:', '')));
end $$;

-- next_mark(stream, start, max_messages, until) -> the mark to read up to from `start`: the newest
-- tick, made now if anything can have changed, or the mark `until` when it is given; with
-- max_messages one before it, if there are more. The same mark: there is nothing to read.
-- Writes: tick.
create or replace function headgate.next_mark(stream text, start jsonb,
                                              max_messages bigint default null,
                                              until jsonb default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  since jsonb;
  target jsonb;
  bridge headgate.tick;
  late int8multirange;
  pos bigint;
  first bigint;
begin
  if max_messages < 1 then
    perform headgate.fail('HG010', format('%s messages at most are not possible', max_messages),
                          'choose at least 1');
  end if;
  if start ? 'pos' then  -- in the middle of a span: that one is finished first
    since := start->'since';
    target := headgate.whole_span(start);
    pos := (start->>'pos')::bigint;
    late := (start->>'late')::int8multirange;
  else
    since := coalesce(start->'bridge_to', start);
    target := case when until is null then headgate.tick_mark(headgate.fresh_tick(s.id))
                   else headgate.whole_span(until) end;
    select * into bridge from headgate.tick t
     where t.stream = s.id and t.id > (since->>'tick')::bigint and t.id < (target->>'tick')::bigint
       and t.bridge_to is not null order by t.id limit 1;
    if found then target := headgate.tick_mark(bridge); end if;
    if (target->>'tick')::bigint <= (since->>'tick')::bigint then return start; end if;
    if (since->>'tick')::bigint > 0 then
      late := headgate.late_between(s.id, (since->>'tick')::bigint, (target->>'tick')::bigint)
              * int8multirange(int8range(null, (since->>'lo')::bigint, '[]'));
    end if;
    -- the mark's tick is gone: thinned out, or rolled back with the transaction that made it, and
    -- then nobody knows of its late ones
    if (since->>'floor')::bigint < (since->>'lo')::bigint
       and not exists (select from headgate.tick t
                        where t.stream = s.id and t.id = (since->>'tick')::bigint) then
      late := coalesce(late, '{}') + headgate.became_visible(s.id, since, target);
    end if;
    target := target - 'late';
    if not isempty(late) then target := target || jsonb_build_object('late', late::text); end if;
    pos := least((since->>'lo')::bigint, lower(late) - 1);
  end if;
  if max_messages is not null and (target->>'hi')::bigint - pos > max_messages then
    execute format('select seq from headgate.message_%s where seq > $1 order by seq limit 1', s.id)
      into first using pos;
    pos := first + max_messages - 1;
    if pos < (target->>'hi')::bigint then
      return target || jsonb_build_object('pos', pos, 'since', since - 'late' - 'bridge_to' - 'at',
                                          'floor', least(pos, (target->>'floor')::bigint),
                                          'end_floor', target->'floor');
    end if;
  end if;
  return target;
end $$;

-- whole_span(mark) -> the mark at the end of its span, where it is in the middle of one.
create or replace function headgate.whole_span(p_mark jsonb) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select (p_mark || jsonb_build_object('floor', coalesce(p_mark->'end_floor', p_mark->'floor')))
         - 'pos' - 'since' - 'end_floor'
$$;

-- became_visible(stream id, start, end) -> the ranges of seqs between the floor and the lo of a
-- mark in which messages lie that are visible at the end and were not at the start.
create or replace function headgate.became_visible(p_stream int, p_start jsonb, p_end jsonb)
returns int8multirange
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare r int8multirange;
begin
  execute format($q$
    select range_agg(int8range(x.first, x.last, '[]')) from (
      select min(m.seq) as first, max(m.seq) as last from headgate.message_%s m
       where m.seq > $1 and m.seq <= $2
         and pg_visible_in_snapshot(m.xid, $4) and not pg_visible_in_snapshot(m.xid, $3)
       group by m.seq / 1000) x $q$, p_stream)
    into r
      using (p_start->>'floor')::bigint, (p_start->>'lo')::bigint, (p_start->>'snap')::pg_snapshot,
            (p_end->>'snap')::pg_snapshot;
  return coalesce(r, '{}');
end $$;

-- mark_before(start, end, seq) -> the mark of the same span that ends before a seq: for reading up
-- to a seq or a time.
create or replace function headgate.mark_before(p_start jsonb, p_end jsonb, p_seq bigint)
returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when p_seq > (p_end->>'hi')::bigint then p_end
              else
                p_end
                  || jsonb_build_object('pos', p_seq - 1, 'since',
                                        coalesce(p_start->'since', p_start->'bridge_to', p_start)
                                          - 'late' - 'bridge_to' - 'at',
                                               'floor', least(p_seq - 1, (p_end->>'floor')::bigint),
                                               'end_floor',
                                               coalesce(p_end->'end_floor', p_end->'floor')) end
$$;

-- end_mark(stream, start, position) -> the mark to read up to from `start`, for a position as in
-- headgate.mark(): a seq or a time is the first that is not read any more.
-- Writes: tick.
create or replace function headgate.end_mark(stream text, start jsonb,
                                             "position" text default 'latest') returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  p text := end_mark.position;
  upto jsonb;
begin
  if p in ('latest', 'end') or p ~ '^tick:' or p ~ '^\s*\{' then
    return headgate.next_mark(stream, start, null, headgate.mark(stream, p));
  elsif p = 'beginning' then
    return start;
  end if;
  upto := headgate.next_mark(stream, start);
  return headgate.mark_before(start, upto,
                              headgate.target_seq(s.id, regexp_replace(p, '^seq:', '')));
end $$;

-- unread_since(stream, mark) -> about how many messages are still to be read from there.
create or replace function headgate.unread_since(stream text, mark jsonb) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select greatest(headgate.used_seqs(s.id, headgate.last_seq(s.id))
                  - headgate.used_seqs(s.id,
                                       greatest(
                                         coalesce((mark->>'pos')::bigint, (mark->>'hi')::bigint),
                                         lower(headgate.log_ranges(s.id)) - 1)), 0)
    from headgate.find_stream(stream) s
$$;

-- reading_lag(stream, mark) -> about how many messages are still to be read from there, and for how
-- many seconds the first of them has been there; 0 when there are none.
create or replace function headgate.reading_lag(stream text, mark jsonb)
returns table (messages bigint, seconds float8)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  pos bigint := coalesce((mark->>'pos')::bigint, (mark->>'hi')::bigint);
begin
  messages := headgate.unread_since(stream, mark);
  execute format('select extract(epoch from clock_timestamp() - m.created_at)
                    from headgate.message_%s m where m.seq > $1 order by m.seq limit 1', s.id)
    into seconds using pos;
  seconds := greatest(coalesce(seconds, 0), 0);
  return next;
end $$;

-- chosen_streams(names, filter) -> the streams of these names, all of which there have to be, and
-- those whose name passes a filter as keys have it; dead letters only by name. With the id, which
-- tells a stream from another one that got its name later.
create or replace function headgate.chosen_streams(
  names text[] default null, filter text[] default null)
returns table (stream text, id int)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select f.name, f.id from unnest(names) n, headgate.find_stream(n) f
  union
  select s.name, s.id from headgate.stream s
   where s.dead_of is null and s.name ~ headgate.filter_pattern(filter)
  order by 1
$$;

-- removed_between(stream, start, end) -> the seqs between two marks whose segments are gone, null
-- when there are none: what retention removed before it was read. (What lies above the last message
-- that was removed was never used: its segment was closed early.) To be asked after reading. Where
-- the snapshot is fixed, and a segment went after it was taken, it raises a serialization failure.
create or replace function headgate.removed_between(stream text, start jsonb, "end" jsonb)
returns int8multirange
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  -- (what cannot be a range is not made one, not even where a plan works it out ahead)
  select case when headgate.sees_removals(s.id, y.seqs) then
           nullif(y.seqs - headgate.log_ranges(s.id)
                  - int8multirange(int8range(s.removed_to + 1, null)), '{}')
         end
    from headgate.find_stream(stream) s,
         lateral (
           select coalesce(start->'since', start->'bridge_to', start) as since,
                  coalesce((start->>'pos')::bigint, -1) as pos,
                  greatest(coalesce(("end"->>'pos')::bigint, ("end"->>'hi')::bigint), 0) as upto) x,
         lateral (
           select int8multirange(int8range(
                    least(greatest(x.pos, (x.since->>'lo')::bigint), x.upto) + 1, x.upto + 1))
                  + coalesce((removed_between."end"->>'late')::int8multirange
                             * int8multirange(int8range(least(x.pos, x.upto) + 1, x.upto + 1)),
                             '{}') as seqs) y
$$;
