-- Dead letters: messages that failed max_deliver times, moved to the stream <stream>.dead with the facts in their headers:
-- failed_at, attempts, last_error, source_stream, source_consumer, source_seq.

-- ensure_dead_stream(stream) -> the id of its dead-letter stream, made when missing.
create or replace function headgate.ensure_dead_stream(s headgate.stream) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare d int;
begin
  select id into d from headgate.stream where dead_of = s.id;
  if found then return d; end if;
  if s.dead_of is not null then
    perform headgate.fail('HG010', format('stream "%s" holds dead letters itself', s.name),
      'leave max_deliver out for consumers of a dead-letter stream');
  end if;
  -- whatever the source stream's limit is or was: a message must always be able to go there
  d := headgate.create_stream(s.name || '.dead', lanes => 4, max_message_bytes => 268435456, if_not_exists => true);
  update headgate.stream set dead_of = s.id where id = d;
  return d;
end $$;

-- bury(consumer, seqs, attempts, error): appends messages to the dead-letter stream. The caller removes them here, in the
-- same transaction.
create or replace function headgate.bury(c headgate.consumer, p_seqs bigint[], p_attempts int[], p_error text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream; dead text;
begin
  select * into s from headgate.stream where id = c.stream;
  select name into dead from headgate.stream where id = headgate.ensure_dead_stream(s);
  execute format($q$
    select headgate.send_batch($1, array_agg(m.data order by m.seq), array_agg(m.key order by m.seq),
             array_agg(case jsonb_typeof(m.headers) when 'object' then m.headers else '{}' end || jsonb_build_object('failed_at', clock_timestamp(), 'attempts', u.a, 'last_error', $2,
               'source_stream', $3, 'source_consumer', $4, 'source_seq', m.seq) order by m.seq))
      from headgate.message_%s m join unnest($5, $6) u (s, a) on u.s = m.seq having count(*) > 0 $q$, s.id)
    using dead, p_error, s.name, c.name, p_seqs, p_attempts;
end $$;

-- dead_letters(stream, consumer, max, after) -> the dead letters of a consumer, oldest first. `seq` is their place in
-- <stream>.dead.
create or replace function headgate.dead_letters(stream text, consumer text, max int default 100, after bigint default 0)
returns table (seq bigint, key text, data text, headers jsonb, failed_at timestamptz, attempts int, last_error text, source_seq bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); d int;
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return; end if;
  return query execute format($q$
    select m.seq, m.key, m.data, m.headers - '{failed_at,attempts,last_error,source_stream,source_consumer,source_seq}'::text[],
           (m.headers ->> 'failed_at')::timestamptz, (m.headers ->> 'attempts')::int, m.headers ->> 'last_error', (m.headers ->> 'source_seq')::bigint
      from headgate.message_%s m where m.seq > $2 and m.headers ->> 'source_consumer' = $1 order by m.seq limit $3 $q$, d)
    using c.name, after, max;
end $$;

-- take_dead(consumer, seqs, filter, max) -> source_seq, attempts of dead letters that are removed now: these seqs, those whose key
-- passes the filter, or all.
create or replace function headgate.take_dead(c headgate.consumer, p_seqs bigint[], p_filter text[], p_max int) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare d int; r bigint[]; pattern text := headgate.filter_pattern(p_filter);
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return '{}'; end if;
  execute format($q$
    with gone as (
      delete from headgate.message_%1$s m where m.seq in (
        select x.seq from headgate.message_%1$s x where x.headers ->> 'source_consumer' = $1
           and ($2 is null or x.seq = any($2)) and ($3 is null or x.key ~ $3) order by x.seq limit $4 for update skip locked)
      returning (m.headers ->> 'source_seq')::bigint as source)
    select coalesce(array_agg(source), '{}') from gone $q$, d)
    into r using c.name, p_seqs, pattern, p_max;
  return r;
end $$;

-- redrive(stream, consumer, seqs, filter, max) -> how many dead letters were given back to the consumer, as if never delivered:
-- these seqs (of <stream>.dead), those whose key passes the filter, or all. What the consumer has still to come to, after a
-- seek, or has again, is not given twice. Locks the cursors; writes parked.
create or replace function headgate.redrive(stream text, consumer text, seqs bigint[] default null, filter text[] default null, max int default null)
returns int language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); sources bigint[];
begin
  perform 1 from headgate.cursor k where k.consumer = c.id order by k.lane for update;
  sources := headgate.take_dead(c, seqs, filter, max);
  execute format($q$
    insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
      select ($1).id, headgate.parking_lane($1, m.lane, m.key, m.seq), m.seq, case when ($1).ordered then m.key end, 0, clock_timestamp(), 'redriven'
        from headgate.message_%s m cross join lateral headgate.state_of($1, m.lane, m.seq, m.xid, m.key) x
       where m.seq = any($2) and x.state in ('done', 'skipped') $q$, c.stream)
    using c, sources;
  return cardinality(sources);
end $$;

-- purge_dead(stream, consumer, seqs, filter, max) -> how many dead letters were thrown away; chosen as in redrive.
create or replace function headgate.purge_dead(stream text, consumer text, seqs bigint[] default null, filter text[] default null, max int default null)
returns int language sql security definer set search_path = pg_catalog, pg_temp as $$
  select cardinality(headgate.take_dead(headgate.find_consumer(stream, consumer), seqs, filter, max))
$$;

-- retry_now(stream, consumer, seqs) -> how many parked messages were made due at once: these, or all.
create or replace function headgate.retry_now(stream text, consumer text, seqs bigint[] default null) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); n int;
begin
  perform 1 from headgate.cursor k where k.consumer = c.id order by k.lane for update;
  update headgate.parked p set visible_at = clock_timestamp()
   where p.consumer = c.id and (retry_now.seqs is null or p.seq = any(retry_now.seqs)) and p.visible_at > clock_timestamp();
  get diagnostics n = row_count;
  return n;
end $$;

-- discard(stream, consumer, seqs) -> how many parked messages this consumer will never get again: these, or all. Those that
-- waited behind them go on.
create or replace function headgate.discard(stream text, consumer text, seqs bigint[] default null) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); n int;
begin
  perform 1 from headgate.cursor k where k.consumer = c.id order by k.lane for update;
  with gone as (
    delete from headgate.parked p where p.consumer = c.id and (discard.seqs is null or p.seq = any(discard.seqs)) returning p.lane, p.key),
  notes as (
    insert into headgate.wake (consumer, lane, key) select distinct c.id, g.lane, g.key from gone g where g.key is not null)
  select count(*) into n from gone;
  return n;
end $$;
