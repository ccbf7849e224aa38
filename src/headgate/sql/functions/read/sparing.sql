-- Sessions that use thousands of streams. What sends to a stream and receives from it is planned
-- once in each session, and kept: some 0.4 MB a stream. A session does so for the first 150 streams
-- that it uses; of the others, which are cold, statements are planned anew each time
-- (docs/adr/0026).

-- keeps_plans(stream id) -> whether this session keeps plans of its own for what sends to a stream
-- and receives from it. It does for the first 150 streams that it uses, some 0.4 MB for each of
-- them; of others the statements are planned anew each time, which takes about half a millisecond,
-- so that a session that uses thousands of them fits into memory (docs/adr/0026). What it said is
-- remembered in settings of the session, on which nothing but speed depends.
create or replace function headgate.keeps_plans(p_stream int) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  said text := current_setting('headgate.keeps_' || p_stream, true);
  kept text := current_setting('headgate.kept', true);
begin
  if said is null or said not in ('y', 'n') then  -- ('' after a rollback)
    if kept is null or kept !~ '^[0-9]{1,9}$' then kept := '0'; end if;
    said := case when kept::int < 150 then 'y' else 'n' end;
    perform set_config('headgate.keeps_' || p_stream, said, false);
    perform set_config('headgate.kept', (kept::int + 1)::text, false);
  end if;
  return said = 'y';
end $$;

-- receive_cold(stream id, consumer, batch_size, worker, acks, open, ack_wait) -> what
-- receive_<stream id> answers, for a session that keeps plans of many other streams and none of
-- this one (keeps_plans): its statements are planned anew each time.
-- Locks: as that.
-- Writes: as that.
create or replace function headgate.receive_cold(
  p_stream int, p_consumer text, n int, p_worker text, acks text[], p_open boolean,
  p_ack_wait interval)
returns setof headgate.received
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  r headgate.receiving;
  got int;
  seqs regclass := 'headgate.seq_' || p_stream;
  is_upsert boolean := (select s.one_message_per_key from headgate.stream s where s.id = p_stream);
begin
  r.step := 'cold';
  loop
    r := headgate.receive_step(
      r, got, p_stream, seqs, is_upsert, false, p_consumer, n, p_worker, acks, p_open, p_ack_wait);
    if r.step = 'read' then
      return query execute headgate.cold_statement(
          headgate.pasted('steps/receive/read_plain', '{}'), p_stream)
        using r, p_worker;
      get diagnostics got = row_count;
      exit when got = r.want;
    elsif r.step in ('probe', 'look') then
      execute 'select ' || headgate.cold_statement(
          headgate.pasted('steps/receive/lanes_with_more', '{}'), p_stream)
        into r.ahead using r;
    elsif r.step in ('retry', 'filtered') then
      return query execute format('select * from headgate.retry_%s($1)', p_stream) using r;
      get diagnostics got = row_count;
    else
      exit;
    end if;
  end loop;
end $$;

-- cold_statement(statement, stream id) -> a step of receive_<stream id>, to be executed with the
-- call as $1 and the worker as $2.
create or replace function headgate.cold_statement(p_statement text, p_stream int) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select regexp_replace(
    replace(replace(p_statement, '{stream}', p_stream::text), 'p_worker', '$2'),
    '\mr\.', '($1).', 'g')
$$;

-- append_cold(stream, xid, keys, datas, headers, channels, delays, end) -> seqs: what
-- append_<stream id> does, for a session that keeps no plans of this stream (keeps_plans).
create or replace function headgate.append_cold(
  s headgate.stream, x xid8, keys text[], datas text[], headers jsonb[], channels text[],
  delays interval[], ending bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  names text[] := '{p_xid,p_base,p_lanes,p_keys,p_datas,p_headers,p_channels,p_delays,p_end}';
  statement text := headgate.fill(headgate.pasted('steps/append/insert_batch', '{}'), s);
  r bigint[];
begin
  for i in 1 .. cardinality(names) loop
    statement := replace(statement, names[i], '$' || i);
  end loop;
  execute statement into r using x, s.base, s.lanes, keys, datas, headers, channels, delays, ending;
  return r;
end $$;
