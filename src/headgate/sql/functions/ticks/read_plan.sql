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
  pattern text := headgate.filter_pattern(filter);
  lo bigint := greatest(pos, (since->>'lo')::bigint);
  first bigint;
  ending bigint;
  n int;
  selected text;
  ranges int8range[];
  rest text;
  unknown text;
  few constant int := 4;
  parts int := 1;  -- ranges of seqs into which the tasks of each range of lanes are cut
  most_parts constant int := 1024;
  part_ranges int8range[];
begin
  if rows_per_task < 1 then
    perform headgate.fail('HG010', format('%s rows in a task are not possible', rows_per_task),
      'choose at least 1');
  end if;
  if start ? 'pos' and (start->>'tick') <> ("end"->>'tick') then
    perform headgate.fail('HG011', 'these two marks do not make a span',
                          'the mark to read up to comes from headgate.next_mark(stream, start)');
  end if;
  select c into unknown from unnest(columns) c
   where c <> all(array['seq', 'key', 'data', 'headers', 'channel', 'lane', 'created_at', 'tick'])
     limit 1;
  if found then
    perform headgate.fail('HG010', format('a message has no column "%s"', unknown),
                          'choose of seq, key, data, headers, channel, lane, created_at and tick');
  end if;
  select string_agg(case c when 'headers' then 'm.headers::text as headers'
                         when 'lane' then 'm.lane::bigint as lane'
                           when 'tick' then format('%s::bigint as tick', "end"->>'tick') else
                             format('m.%I', c) end, ', ' order by ord)
    into selected
      from unnest(
        coalesce(columns,
                 array['seq', 'key', 'data', 'headers', 'channel', 'lane', 'created_at', 'tick']))
                   with ordinality u (c, ord);
  rest := format('pg_visible_in_snapshot(m.xid, %L)', "end"->>'snap')
       -- nothing is visible in that one
       || case
         when since->>'snap' <> '3:3:' then
           format(' and not pg_visible_in_snapshot(m.xid, %L)', since->>'snap') else '' end
       || case when pattern is not null then format(' and m.key ~ %L', pattern) else '' end;
  -- what late transactions left below lies in ranges of its own, which come first
  select array_agg(
    int8range(greatest(pos, lower(r) - 1), least(upper(r) - 1, (since->>'lo')::bigint, upto), '(]')
      order by lower(r)) into ranges
    from unnest(late) r where upper(r) - 1 > pos and lower(r) <= upto;
  -- which lanes there are: all of one layout, or, while layouts overlap, everything in one task,
  -- because a key is in both
  if s.lane_by = 'hash' then
    select min(y.base), max(y.base + y.lanes), count(*) into first, ending, n from headgate.layout y
     where y.stream = s.id and (y.end_seq is null or y.end_seq > least(lo, lower(late) - 1) + 1);
    if n > 1 then lanes_per_task := ending - first; end if;
    n := least(coalesce(ceil((ending - first)::numeric / lanes_per_task), tasks, 1),
               ending - first);
  else
    first := {NAMED_LANES};
    ending := 576460752303423488;
    n := least(coalesce(ceil(s.lanes::numeric / lanes_per_task), tasks, 1), 1024);
  end if;
  n := greatest(n, 1);
  if rows_per_task is not null and lo < upto then
    parts := least(ceil((upto - lo)::numeric / rows_per_task / n), most_parts);
  end if;
  for i in 0 .. n - 1 loop
    lanes := int8range(first + ((ending - first)::numeric * i / n)::bigint,
                       first + ((ending - first)::numeric * (i + 1) / n)::bigint);
    -- with those of messages without a name, which lie below
    if s.lane_by <> 'hash' and i = 0 then lanes := int8range(null, upper(lanes)); end if;
    for part in 0 .. parts - 1 loop
      task := i * parts + part;
      part_ranges := case when part = 0 then ranges end;
      if lo < upto then
        part_ranges := part_ranges || int8range(
          lo + ((upto - lo)::numeric * part / parts)::bigint,
          lo + ((upto - lo)::numeric * (part + 1) / parts)::bigint, '(]');
      end if;
      -- Few tasks read the log in its own order and pass over each other's messages, which is twice
      -- as fast as going through the lanes one by one; many would pass over too much.
      select string_agg(
        format(
          '(select %s from headgate.read_%s m where %sm.seq >= %s and m.seq < %s and %s order by m.seq)',
                               selected, s.id, c.condition, lower(r.seqs), upper(r.seqs), rest),
                                      ' union all ' order by c.ord, r.ord) into query
        from unnest(part_ranges) with ordinality r (seqs, ord), (
          select format('m.lane = %s and ', l), l
            from generate_series(lower(lanes), upper(lanes) - 1) l
              where s.lane_by = 'hash' and n > few
          union all
          select case when not lower_inf(lanes) then format('m.lane >= %s and ', lower(lanes))
                      else
                        '' end || format('m.lane < %s and ', upper(lanes)), 0
                          where s.lane_by <> 'hash' or n <= few) c (condition, ord);
      query := coalesce(query,
                        format('select %s from headgate.read_%s m where false', selected, s.id));
      return next;
    end loop;
  end loop;
end $$;
