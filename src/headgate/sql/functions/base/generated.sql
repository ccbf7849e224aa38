-- The functions that are generated for each stream (docs/adr/0002): templates/*.sql, of which each
-- is one function, and templates/steps/, of which they consist. In a template stand
--   {step receive/read_plain}  the lines of that step, as far to the right as this stands; words
--                              after its name are conditions that hold in it and in its own steps
--   {if upsert} …              a line that is left out where the condition does not hold
--   {if not upsert} …          and one that is left out where it does
--   {stream}                   a value of this stream: see fill
-- The condition until_18 holds on servers older than PostgreSQL 18. There an upper bound on a row,
-- (lane, seq) <= (…), does not end the scan of an index: the rest of the lane would be read, even
-- beside a bound that ends it. lane = any(array[…]) does, and no planner can join by it.

-- pasted(template, conditions) -> the template with its steps in place, and without the lines of
-- conditions that do not hold. An unknown name is an error that tells it.
create or replace function headgate.pasted(p_name text, p_holds text[]) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  source text := rtrim(headgate.templates() ->> p_name, E'\n');
  condition text;
  found text[];
  words text[];
begin
  if source is null then
    raise exception using errcode = 'XX000', message = format('there is no template "%s"', p_name);
  end if;
  if current_setting('server_version_num')::int < 180000 then
    p_holds := p_holds || 'until_18'::text;
  end if;
  foreach condition in array array['upsert', 'lets_go', 'keys', 'into', 'until_18'] loop
    continue when strpos(source, condition || '} ') = 0;
    source := replace(source, case when condition = any(p_holds) then '{if ' else '{if not ' end
                              || condition || '} ', '');
    source := regexp_replace(source, '^ *\{if (not )?' || condition || '\} .*\n?', '', 'gn');
  end loop;
  loop
    found := regexp_match(source, '^( *)[^\n]*?\{step ([^{}\n]+)\}', 'n');
    exit when found is null;
    words := string_to_array(found[2], ' ');
    source := replace(
      source, '{step ' || found[2] || '}',
      replace(headgate.pasted('steps/' || words[1], p_holds || words[2:]), E'\n',
              E'\n' || found[1]));
  end loop;
  return source;
end $$;

-- fill(template, stream) -> the source of one of the functions generated for a stream, with the
-- values of that stream in it. A name in braces that is unknown is an error that tells it.
create or replace function headgate.fill(p_template text, s headgate.stream) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  channels boolean := s.lane_by = 'channel';
  filled text := p_template;
  strange text;
  parts text[] := array[
    ['{stream}', s.id::text],
    ['{lanes}', s.lanes::text],
    ['{lane}', headgate.lane_sql(s)],
    ['{lane_name}', case when channels then 'm.channel' else 'm.key' end],
    ['{is_upsert}', s.one_message_per_key::text],
    -- order of keys is order of lanes
    ['{is_strict}', (s.lane_by = 'key' and not s.one_message_per_key)::text],
    ['{and_newest}', headgate.newest_only(s, 'r')
      || case when s.one_message_per_key
              then format(' and (select headgate.sees_removals(%s))', s.id) else '' end],
    ['{left_in_flight}', '(cardinality(d.seqs) - (select count(*) from headgate.departed x '
                         'where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id))'],
    ['{marks}', headgate.marks_sql('t1')],
    ['{channel}', case when channels then 'm.channel' else 'null::text' end],
    ['{channel_column}', case when channels then ', channel' else '' end],
    ['{channel_parameter}', case when channels then ', p_channels' else '' end],
    ['{channel_value}', case when channels then ', c' else '' end]];
begin
  for i in 1 .. array_length(parts, 1) loop
    filled := replace(filled, parts[i][1], parts[i][2]);
  end loop;
  strange := substring(filled from '\{[a-z][^{}]*\}');
  if strange is not null then
    raise exception using errcode = 'XX000',
      message = format('a template has %s, which nothing stands for', strange);
  end if;
  return filled;
end $$;

-- lane_sql(stream) -> SQL for the lane of a message with the key k and the channel c.
create or replace function headgate.lane_sql(s headgate.stream) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case s.lane_by
    when 'hash' then
      'p_base + coalesce((hashtextextended(k, 0) % p_lanes + p_lanes) % p_lanes, floor(random() * p_lanes))::int'
    when 'key' then
      format('case when k is null then {UNNAMED_LANES} + floor(random() * p_lanes)::bigint else %s end',
             headgate.named_lane_sql('k'))
    when 'channel' then
      format('case when c is null then {UNNAMED_LANES} else %s end',
             headgate.named_lane_sql('c')) end
$$;

-- stream_digest(stream) -> what of a stream its functions are made from: what `fill` looks at.
create or replace function headgate.stream_digest(s headgate.stream) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select concat_ws('/', s.lanes, s.lane_by, s.one_message_per_key)
$$;

-- stream_functions(stream id) -> the names of all functions that build_stream may have made: to be
-- found by the index on names, however many streams there are.
create or replace function headgate.stream_functions(p_stream int) returns name[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select array_agg((f || '_' || p_stream)::name)
    from unnest(array['append', 'append_drawn', 'move', 'receive', 'receive_open', 'retry',
                      'read_filtered', 'find_ready_lanes', 'lanes_ahead', 'serve_lane']) f
$$;

-- drop_stream_functions(stream id): removes what build_stream made.
create or replace function headgate.drop_stream_functions(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare f regprocedure;
begin
  for f in select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where n.nspname = 'headgate'
              and p.proname = any(headgate.stream_functions(p_stream)) loop
    execute 'drop function ' || f;
  end loop;
end $$;

-- build_stream(stream id): (re)makes the functions generated for one stream. Called by
-- create_stream and on each upgrade, which may hold tables that everybody needs while it does so
-- for all streams: what is there is replaced, and keeps its rights.
create or replace function headgate.build_stream(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  f record;
  source text;
  names name[] := headgate.stream_functions(p_stream);
  templates text[];
  sources text[];
  holds text[] := '{}';  -- the conditions that hold
begin
  select * into s from headgate.stream t where t.id = p_stream;
  if s.one_message_per_key then holds := '{upsert}'; end if;
  templates := array['append', 'append_drawn', 'move', 'read_filtered']
    || case when s.lane_by = 'hash' then array['retry', 'receive', 'receive_open']
       else array['lanes_ahead', 'find_ready_lanes', 'serve_lane', 'receive_named',
                  'receive_named_open'] end;
  sources := array(
    select headgate.fill(headgate.pasted(t, holds), s)
      from unnest(templates) with ordinality u (t, nth) order by nth);
  begin
    foreach source in array sources loop
      execute regexp_replace(source, 'create function', 'create or replace function');
    end loop;
    if (select count(*) from pg_proc p
         where p.pronamespace = 'headgate'::regnamespace and p.proname = any(names))
       <> cardinality(sources) then
      raise invalid_function_definition;
    end if;
  exception when invalid_function_definition then  -- they take or answer something else now
    perform headgate.drop_stream_functions(p_stream);
    foreach source in array sources loop
      execute source;
    end loop;
  end;
  for f in
    select p.oid::regprocedure as name, p.proacl is null as is_new,
           p.proname like 'receive%' as is_public from pg_proc p
            where p.pronamespace = 'headgate'::regnamespace and p.proname = any(names) loop
    if f.is_new then execute format('revoke all on function %s from public', f.name); end if;
    if f.is_public and to_regrole('headgate_consumer') is not null
       and not has_function_privilege('headgate_consumer', f.name, 'execute') then
      execute format('grant execute on function %s to headgate_consumer', f.name);
    end if;
  end loop;
end $$;
