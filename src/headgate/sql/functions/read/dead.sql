-- Dead letters: messages that failed max_deliver times, moved to the stream <stream>.dead with the
-- facts in their headers: failed_at, sent_at, attempts, last_error, source_stream, source_consumer,
-- source_seq, source_lane.

-- ensure_dead_stream(stream) -> the id of its dead-letter stream, made when missing. A stream that
-- somebody else has made under that name is left alone: then it is <stream>.dead-2, and so on.
-- Locks: as create_stream.
-- Writes: as create_stream.
create or replace function headgate.ensure_dead_stream(s headgate.stream) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d int;
  nth int := 1;
  dead text;
begin
  select id into d from headgate.stream where dead_of = s.id;
  if found then return d; end if;
  if s.dead_of is not null then
    perform headgate.fail('HG010', format('stream "%s" holds dead letters itself', s.name),
      'leave max_deliver out for consumers of a dead-letter stream');
  end if;
  loop
    dead := s.name || '.dead' || case when nth = 1 then '' else '-' || nth end;
    if exists (select from headgate.stream t where t.name = dead) then
      nth := nth + 1;
      continue;
    end if;
    begin
      -- whatever the source stream's limit is or was: a message must always be able to go there
      d := headgate.create_stream(dead, lanes => 4, max_message_bytes => 268435456);
      update headgate.stream set dead_of = s.id where id = d;
      perform headgate.index_dead(d);
      return d;
    -- just now, by somebody else: perhaps for this
    exception when sqlstate 'HG002' or unique_violation then
      select t.id into d from headgate.stream t where t.dead_of = s.id;
      if found then return d; end if;
      if headgate.has_fixed_snapshot() then raise; end if;  -- it cannot be seen here
    end;
  end loop;
end $$;

-- index_dead(stream id): dead letters are found by the message that they were. Cut off, so that no
-- header that somebody sends there by hand is too long for the index: names have at most 55
-- characters, seqs 19 digits. DDL.
create or replace function headgate.index_dead(p_stream int) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('create index on headgate.message_%s '
                 '(left(headers ->> ''source_consumer'', 60), left(headers ->> ''source_seq'', 20))', p_stream);
end $$;

-- append_dead(dead-letter stream, datas, keys, headers) -> seqs: what send_batch does, for the
-- engine's own letters, whatever their size.
-- Locks: as send_batch.
-- Writes: as send_batch.
create or replace function headgate.append_dead(
  d headgate.stream, p_datas text[], p_keys text[], p_headers jsonb[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  x xid8 := pg_current_xact_id();
  ending bigint := headgate.segments_known(d.id);
  seqs bigint[];
begin
  if d.max_storage is not null then perform headgate.check_room(d); end if;
  execute format('select headgate.append_%s($1, $2, $3, $4, $5, $6, null, null, $7)', d.id)
    into seqs using x, d.base, d.lanes, p_keys, p_datas, p_headers, ending;
  if (seqs[cardinality(seqs)] < ending) is not true then
    return headgate.append_beyond(d, x, p_keys, p_datas, p_headers, null, null, seqs);
  end if;
  return seqs;
end $$;

-- append_dead_letters(consumer, delivery, seqs, attempts, error): appends messages of a delivery to
-- the dead-letter stream.
-- Needs: the caller removes them here, in the same transaction.
create or replace function headgate.append_dead_letters(
  c headgate.consumer, d headgate.delivery, p_seqs bigint[], p_attempts int[], p_error text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream; dead headgate.stream; buried bigint[];
begin
  select * into s from headgate.stream where id = c.stream;
  select * into dead from headgate.stream where id = headgate.ensure_dead_stream(s);
  -- point: dead letters are to be sent
  execute format($q$
    select headgate.append_dead($1, array_agg(m.data order by m.seq),
                                array_agg(m.key order by m.seq),
             array_agg(case jsonb_typeof(m.headers) when 'object' then m.headers
                            else
                              '{}' end || case when %2$s is null then '{}'
                                               else
                                                 jsonb_build_object('source_channel', %2$s) end
                                                   || jsonb_build_object('failed_at',
                                                       clock_timestamp(), 'sent_at', m.created_at,
                                                       'attempts', u.a, 'last_error', $2,
               'source_stream', $3, 'source_consumer', $4, 'source_seq', m.seq, 'source_lane',
               m.lane) order by m.seq))
      from (select * from headgate.message_%1$s union all select * from headgate.preserved_%1$s) m
        join unnest($5, $6) u (s, a) on u.s = m.seq
    having count(*) > 0 $q$, s.id,
      case s.lane_by when 'channel' then 'm.channel' else 'null::text' end)
    into buried using dead, p_error, s.name, c.name, p_seqs, p_attempts;
  if coalesce(cardinality(buried), 0) < cardinality(p_seqs) then
    -- removed at this moment: with its segment, or, which is no loss, by a newer version of its key
    perform headgate.record_missing(c, array_agg(u.s), array_agg(u.k), 'removed while in flight')
       from unnest(d.seqs, d.keys) u (s, k) where u.s = any(p_seqs);
  end if;
end $$;

-- dead_seq(headers), dead_attempts(headers), dead_since(headers) -> what the headers of a dead
-- letter say; null when they say nothing that makes sense. (Before migration 23 anybody who may
-- send could write letters of their own.)
create or replace function headgate.dead_seq(p_headers jsonb) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when left(p_headers ->> 'source_seq', 20) ~ '^[0-9]{1,18}$'
              then (p_headers ->> 'source_seq')::bigint end
$$;

-- dead_attempts(headers) -> how often a dead letter was tried, if its headers say so.
create or replace function headgate.dead_attempts(p_headers jsonb) returns int
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when left(p_headers ->> 'attempts', 20) ~ '^[0-9]{1,9}$'
              then (p_headers ->> 'attempts')::int end
$$;

-- dead_since(headers) -> when a letter died, if its headers say a time.
create or replace function headgate.dead_since(p_headers jsonb) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare at timestamptz;
begin
  at := p_headers ->> 'failed_at';
  return case when at between '1970-01-01' and '9999-01-01' then at end;
exception when data_exception then
  return null;
end $$;

-- dead_letters(stream, consumer, max, after) -> the dead letters of a consumer, oldest first. `seq`
-- is their place in <stream>.dead. source_seq is null where the headers name no message.
create or replace function headgate.dead_letters(stream text, consumer text, max int default 100,
                                                 after bigint default 0)
returns table (seq bigint, key text, data text, headers jsonb, failed_at timestamptz, attempts int,
               last_error text, source_seq bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); d int;
begin
  perform headgate.check_max(max);
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return; end if;
  return query execute format($q$
    select m.seq, m.key, m.data,
           m.headers
             -
               '{failed_at,sent_at,attempts,last_error,source_stream,source_consumer,source_seq,source_lane,source_channel}'::text[],
           coalesce(headgate.dead_since(m.headers), m.created_at),
           coalesce(headgate.dead_attempts(m.headers), 0),
           m.headers ->> 'last_error', headgate.dead_seq(m.headers)
      from headgate.message_%s m where m.seq > $2 and m.headers ->> 'source_consumer' = $1
        order by m.seq limit $3 $q$, d)
    using c.name, after, max;
end $$;

-- take_dead(consumer, seqs, filter, max, restore) -> source_seq of dead letters that are removed
-- now: these seqs, those whose key passes the filter, or all. With `restore`, those whose message
-- is no longer in the log are put into preserved_<stream id>, with an id of a transaction that
-- every snapshot has seen: no cursor has still to come to them; letters that name no message of the
-- stream stay where they are.
create or replace function headgate.take_dead(c headgate.consumer, p_seqs bigint[], p_filter text[],
                                              p_max int, p_restore boolean) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d int; r bigint[]; pattern text := headgate.filter_pattern(p_filter);
  channels boolean := (select s.lane_by = 'channel' from headgate.stream s where s.id = c.stream);
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return '{}'; end if;
  execute format($q$
    with gone as (
      delete from headgate.message_%1$s m where m.seq in (
        select x.seq from headgate.message_%1$s x where x.headers ->> 'source_consumer' = $1
           and ($2 is null or x.seq = any($2)) and ($3 is null or x.key ~ $3)
           and (not $5 or headgate.dead_seq(x.headers) between 1 and $7)
         order by x.seq limit $4 for update skip locked)
      returning headgate.dead_seq(m.headers) as source, m.created_at, m.key, m.data, m.headers),
    restored as (
      insert into headgate.preserved_%2$s (seq, xid, created_at, lane, key, data%3$s, headers)
        select g.source, '2', g.created_at,
               case when left(g.headers ->> 'source_lane', 20) ~ '^[0-9]{1,18}$'
                    then (g.headers ->> 'source_lane')::bigint else $6 end, g.key, g.data%4$s,
               nullif(g.headers
                      -
                        '{failed_at,sent_at,attempts,last_error,source_stream,source_consumer,source_seq,source_lane,source_channel}'::text[], '{}')
          from gone g
            where $5 and not exists (select from headgate.message_%2$s m where m.seq = g.source)
        on conflict do nothing)
    select coalesce(array_agg(source), '{}')
      from gone $q$, d, c.stream, case when channels then ', channel' end,
           case when channels then $q$, g.headers ->> 'source_channel'$q$ end)
    into r
      using c.name, p_seqs, pattern, p_max, p_restore,
            (select min(k.lane) from headgate.cursor k where k.consumer = c.id and k.lane >= 0),
      headgate.last_seq(c.stream);
  return r;
end $$;

-- require_dead_choice(seqs, filter, max, all): HG010 unless some are chosen, or all are asked for
-- by name, and not both. Leaving everything out never means all.
create or replace function headgate.require_dead_choice(
  p_seqs bigint[], p_filter text[], p_max int, p_all boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if coalesce(p_all, false) = (p_seqs is not null or p_filter is not null or p_max is not null) then
    perform headgate.fail('HG010', 'it is not said which dead letters',
      'give seqs, filter or max (limit in Python and over HTTP), or ask for all by name '
      '("all" => true in SQL, all=True in Python, {"all": true} over HTTP, --all); not both');
  end if;
  perform headgate.check_max(p_max);
end $$;

-- redrive(stream, consumer, seqs, filter, max, all) -> how many dead letters were given back to the
-- consumer, as if never delivered: these seqs (of <stream>.dead), those whose key passes the
-- filter, the oldest `max` of them, or, asked for by name ("all" => true), all. HG010 when neither
-- is given, or both. What the consumer has still to come to, after a seek, or has again, is not
-- given twice. Of an upsert stream, one that a newer version of its key has superseded is counted
-- and dropped: it is a dead letter no more, and does not come again.
-- Locks: as hold_to_park and hold_done, and preserved_<stream id> ROW EXCLUSIVE.
-- Writes: parked, wake, attempt, the dead-letter stream.
create or replace function headgate.redrive(
  stream text, consumer text, seqs bigint[] default null, filter text[] default null,
  max int default null, "all" boolean default false)
returns int language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer); sources bigint[];
begin
  perform headgate.need_read_committed('redrive');
  perform headgate.require_dead_choice(seqs, filter, max, "all");
  perform headgate.hold_to_park(c, 'given back');
  perform headgate.lock_kept(c);
  perform headgate.hold_done(c, true);
  -- point: a redrive holds the consumer
  sources := headgate.take_dead(c, seqs, filter, max, true);
  -- point: dead letters are taken
  perform headgate.no_longer_discarded(c, sources);
  execute format($q$
    with back as (
      insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
        select ($1).id, headgate.parking_lane($1, m.lane, m.key, m.seq), m.seq,
               case when ($1).ordered then m.key end, 0, clock_timestamp(), 'redriven'
          from (select m.*, true as is_logged from headgate.message_%1$s m
                union all select m.*, false from headgate.preserved_%1$s m) m
         cross join lateral headgate.state_of($1, m.lane, m.seq, m.xid, m.key) x
         where m.seq = any($2)
           -- (what is only kept no reader comes to, wherever it is)
           and (x.state in ('done', 'skipped') or (x.state = 'available' and not m.is_logged))%2$s
        on conflict do nothing returning lane, seq),  -- another redrive gives the same message back
    told as (
      insert into headgate.attempt (stream, consumer, seq, attempt, at, outcome)
        select ($1).stream, ($1).id, b.seq, 0, clock_timestamp(), 'redriven' from back b)
    insert into headgate.wake (consumer, lane) select distinct ($1).id, b.lane from back b
     where b.lane >= {UNNAMED_LANES} $q$,
    c.stream, headgate.newest_only(headgate.find_stream(stream), 'm'))
    using c, sources;
  return cardinality(sources);
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03',
                        format(
                          'messages of consumer "%s" cannot be given back now: an open transaction moves it, or gives back the same ones', consumer),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- purge_dead(stream, consumer, seqs, filter, max, all) -> how many dead letters were thrown away;
-- chosen as in redrive.
create or replace function headgate.purge_dead(
  stream text, consumer text, seqs bigint[] default null, filter text[] default null,
  max int default null, "all" boolean default false)
returns int language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer);
begin
  perform headgate.require_dead_choice(seqs, filter, max, "all");
  return cardinality(headgate.take_dead(c, seqs, filter, max, false));
end $$;

-- lock_kept(consumer): keeps compaction of the consumer's stream, and tidy_preserved, off until the
-- end of the transaction. Waits for them for at most a second: 55P03.
-- Locks: preserved_<stream id> ROW EXCLUSIVE.
create or replace function headgate.lock_kept(c headgate.consumer) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
begin
  execute format('lock table headgate.preserved_%s in row exclusive mode', c.stream);
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03', 'a transaction that compacts the stream is open',
                        'repeat the call once it has ended');
end $$;

-- retry_now(stream, consumer, seqs, all) -> how many parked messages were made due at once: these,
-- or, asked for by name ("all" => true), all. HG010 when neither is given, or both. One that
-- another transaction is handing out or changing at this moment is passed over.
-- Locks: as hold_in_place, and the parked rows (SKIP LOCKED).
-- Writes: parked, wake.
create or replace function headgate.retry_now(
  stream text, consumer text, seqs bigint[] default null, "all" boolean default false) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  n int;
begin
  if (seqs is not null) = coalesce("all", false) then
    perform headgate.fail('HG010', 'it is not said which parked messages to retry',
      'give seqs, or ask for all by name ("all" => true in SQL, {"all": true} over HTTP); not both');
  end if;
  perform headgate.hold_in_place(c, 'made due');
  -- point: a retry holds the consumer
  with held as materialized (
    select p.lane, p.seq from headgate.parked p
     where p.consumer = c.id and (retry_now.seqs is null or p.seq = any(retry_now.seqs))
       and p.visible_at > clock_timestamp()
       for update skip locked),
  due as (
    update headgate.parked p set visible_at = clock_timestamp() from held h
     where p.consumer = c.id and p.lane = h.lane and p.seq = h.seq returning p.lane),
  notes as (insert into headgate.wake (consumer, lane) select distinct c.id, d.lane from due d
            where d.lane >= {UNNAMED_LANES})
  select count(*) into n from due;
  return n;
end $$;
