-- How the messages between two marks are shared out among tasks.

-- has_channels(stream) -> whether its messages have channels: else that column is null in all of
-- them.
create or replace function headgate.has_channels(stream text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.lane_by = 'channel' from headgate.find_stream(stream) s
$$;

-- read_plan(stream, start, end, filter, columns, tasks, lanes_per_task, rows_per_task) -> for each
-- of the tasks that read the messages between two marks at once, the lanes that are its own and its
-- query on the view headgate.read_<stream id>. A task gives the messages of a lane in seq order,
-- and each key has all of its messages in one task, except those without a key. With rows_per_task
-- lanes in which more is to be read are shared out by ranges of seqs as well: those of a key then
-- lie in several tasks, in their order.
create or replace function headgate.read_plan(
  stream text, start jsonb, "end" jsonb, filter text[] default null, columns text[] default null,
  tasks int default null, lanes_per_task int default null, rows_per_task bigint default null)
returns table (task int, lanes int8range, query text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  since jsonb := coalesce(start->'since', start->'bridge_to', start);
  pos bigint := coalesce((start->>'pos')::bigint, 0);
  upto bigint := coalesce(("end"->>'pos')::bigint, ("end"->>'hi')::bigint);
  late int8multirange := ("end"->>'late')::int8multirange;
  lo bigint := greatest(pos, (since->>'lo')::bigint);
  shared record;           -- the lanes, and among how many tasks they are shared out
  selected text;
  condition text;
  ranges int8range[];      -- of seqs, below lo
  parts int := 1;          -- ranges of seqs into which the tasks of each range of lanes are cut
  most_parts constant int := 1024;
  few constant int := 4;   -- tasks that read the log in its own order
begin
  perform headgate.check_span(start, "end", rows_per_task);
  selected := headgate.plan_columns(columns, "end");
  condition := headgate.visible_between_sql(since, "end", headgate.filter_pattern(filter));
  -- what late transactions left below lies in ranges of its own, which come first
  select array_agg(
    int8range(greatest(pos, lower(r) - 1), least(upper(r) - 1, (since->>'lo')::bigint, upto), '(]')
      order by lower(r)) into ranges
    from unnest(late) r where upper(r) - 1 > pos and lower(r) <= upto;
  select * into shared
    from headgate.plan_lanes(s, least(lo, lower(late) - 1), tasks, lanes_per_task);
  if rows_per_task is not null and lo < upto then
    parts := least(ceil((upto - lo)::numeric / rows_per_task / shared.n), most_parts);
  end if;
  for i in 0 .. shared.n - 1 loop
    lanes := int8range(
      shared.first + ((shared.ending - shared.first)::numeric * i / shared.n)::bigint,
      shared.first + ((shared.ending - shared.first)::numeric * (i + 1) / shared.n)::bigint);
    -- with those of messages without a name, which lie below
    if s.lane_by <> 'hash' and i = 0 then lanes := int8range(null, upper(lanes)); end if;
    for part in 0 .. parts - 1 loop
      task := i * parts + part;
      query := headgate.plan_query(
        s, selected, condition, lanes, s.lane_by = 'hash' and shared.n > few,
        case when part = 0 then ranges else '{}' end
        || case when lo < upto then array[int8range(
             lo + ((upto - lo)::numeric * part / parts)::bigint,
             lo + ((upto - lo)::numeric * (part + 1) / parts)::bigint, '(]')] else '{}' end);
      return next;
    end loop;
  end loop;
end $$;

-- check_span(start, end, rows): HG010 / HG011 for arguments of read_plan that make no sense.
create or replace function headgate.check_span(p_start jsonb, p_end jsonb, p_rows bigint)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_rows < 1 then
    perform headgate.fail('HG010', format('%s rows in a task are not possible', p_rows),
      'choose at least 1');
  end if;
  if p_start ? 'pos' and (p_start->>'tick') <> (p_end->>'tick') then
    perform headgate.fail('HG011', 'these two marks do not make a span',
                          'the mark to read up to comes from headgate.next_mark(stream, start)');
  end if;
end $$;

-- plan_columns(columns, end) -> what is selected of a message: these columns, or (null) all; `tick`
-- is that of the mark at the end. HG010 for one that a message has not.
create or replace function headgate.plan_columns(p_columns text[], p_end jsonb) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  known constant text[] :=
    array['seq', 'key', 'data', 'headers', 'channel', 'lane', 'created_at', 'tick'];
  unknown text;
begin
  select c into unknown from unnest(p_columns) c where c <> all(known) limit 1;
  if found then
    perform headgate.fail('HG010', format('a message has no column "%s"', unknown),
                          'choose of seq, key, data, headers, channel, lane, created_at and tick');
  end if;
  return (
    select string_agg(
             case c when 'headers' then 'm.headers::text as headers'
                    when 'lane' then 'm.lane::bigint as lane'
                    when 'tick' then format('%s::bigint as tick', p_end->>'tick')
                    else format('m.%I', c) end, ', ' order by ord)
      from unnest(coalesce(p_columns, known)) with ordinality u (c, ord));
end $$;

-- visible_between_sql(start, end, pattern) -> the condition that a message m has become visible
-- between two marks, and that its key matches the pattern.
create or replace function headgate.visible_between_sql(p_start jsonb, p_end jsonb, p_pattern text)
returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('pg_visible_in_snapshot(m.xid, %L)', p_end->>'snap')
         || case when p_start->>'snap' <> '3:3:'  -- nothing is visible in that one
                 then format(' and not pg_visible_in_snapshot(m.xid, %L)', p_start->>'snap')
                 else '' end
         || case when p_pattern is not null then format(' and m.key ~ %L', p_pattern) else '' end
$$;

-- plan_lanes(stream, lo, tasks, lanes per task) -> the lanes (first <= lane < ending) in which
-- messages above lo may be, and among how many tasks they are shared out. While layouts overlap
-- that is one, because a key is in lanes of both.
create or replace function headgate.plan_lanes(
  s headgate.stream, p_lo bigint, p_tasks int, p_lanes_per_task int,
  out first bigint, out ending bigint, out n int)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if s.lane_by = 'hash' then
    select min(y.base), max(y.base + y.lanes), count(*) into first, ending, n
      from headgate.layout y
     where y.stream = s.id and (y.end_seq is null or y.end_seq > p_lo + 1);
    if n > 1 then p_lanes_per_task := ending - first; end if;
    n := least(coalesce(ceil((ending - first)::numeric / p_lanes_per_task), p_tasks, 1),
               ending - first);
  else
    first := {NAMED_LANES};
    ending := 576460752303423488;
    n := least(coalesce(ceil(s.lanes::numeric / p_lanes_per_task), p_tasks, 1), 1024);
  end if;
  n := greatest(n, 1);
end $$;

-- plan_query(stream, selected, condition, lanes, by lane, ranges) -> the query of one task: what
-- lies in these lanes and ranges of seqs. Few tasks read the log in its own order and pass over
-- each other's messages, which is twice as fast as going through the lanes one by one (by lane);
-- many would pass over too much.
create or replace function headgate.plan_query(
  s headgate.stream, p_selected text, p_condition text, p_lanes int8range, p_by_lane boolean,
  p_ranges int8range[]) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(
    string_agg(
      format('(select %s from headgate.read_%s m '
             'where %sm.seq >= %s and m.seq < %s and %s order by m.seq)',
             p_selected, s.id, c.condition, lower(r.seqs), upper(r.seqs), p_condition),
      ' union all ' order by c.ord, r.ord),
    format('select %s from headgate.read_%s m where false', p_selected, s.id))
    from unnest(p_ranges) with ordinality r (seqs, ord)
   cross join (
     select format('m.lane = %s and ', l), l
       from generate_series(lower(p_lanes), upper(p_lanes) - 1) l
      where p_by_lane
     union all
     select case when lower_inf(p_lanes) then ''
                 else format('m.lane >= %s and ', lower(p_lanes)) end
            || format('m.lane < %s and ', upper(p_lanes)), 0
      where not p_by_lane) c (condition, ord)
$$;
