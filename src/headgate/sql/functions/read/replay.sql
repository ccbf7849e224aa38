-- Replay: a consumer gets chosen messages again and stays where it is. A replayed message is a
-- parked one that is due now (see read/parked.sql), so everything that holds for parked messages
-- holds for it: order by key, limits, leases, retention, compaction.
--
-- Only a message that is done for the consumer can be replayed (what it started behind, or was
-- moved past, is done). It stays done while this is at it:
-- a seek is kept off by the first cursor (hold_to_park), and whoever else gives back what is done,
-- redrive and other replays, by an advisory lock of the consumer (hold_done). So looking and
-- parking may be two statements.

-- hold_done(consumer, shared): keeps those who give back what is done for a consumer off until the
-- end of the transaction: replays everybody, redrives (shared) replays. Waits for at most a second:
-- 55P03.
-- Locks: (consumer, -2), advisory.
create or replace function headgate.hold_done(c headgate.consumer, p_shared boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  for i in 1 .. 200 loop
    if p_shared then
      if pg_try_advisory_xact_lock_shared(c.id, -2) then return; end if;
    elsif pg_try_advisory_xact_lock(c.id, -2) then
      return;
    end if;
    perform pg_sleep(0.005);
  end loop;
  perform headgate.fail('55P03',
    format('messages of consumer "%s" cannot be given back now: a transaction that does so is open',
           c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- replay(stream, consumer, seqs, from_seq, to_seq, from_time, to_time, filter) -> replayed,
-- not_found, passed_over, next_seq. Hands messages to a consumer again, as if never delivered, and
-- does not move it. What is given must all hold: these seqs; from_seq to to_seq; sent at from_time
-- or later, and before to_time; keys that pass the filter. HG010 when nothing is given. Passed over
-- is what does not pass the consumer's own filter, what it has in flight or parked already, what it
-- has not read yet (it comes anyway; one that was discarded meanwhile can be replayed once its lane
-- has been read past it, or it would overtake), and of an upsert stream what is not the newest
-- version. Not found are seqs whose messages are not in the log any more (of a range, seqs in those
-- parts of it that were removed). A dead letter of a message that is replayed is removed; discarded
-- ones come again. At most 10,000 messages are replayed and 100,000 looked at: if that was not all,
-- next_seq is the from_seq to go on with.
-- Locks: as hold_to_park and hold_done, and preserved_<stream id> ROW EXCLUSIVE.
-- Writes: parked, wake, discarded, attempt, the dead-letter stream.
create or replace function headgate.replay(
  stream text, consumer text, seqs bigint[] default null,
  from_seq bigint default null, to_seq bigint default null,
  from_time timestamptz default null, to_time timestamptz default null, filter text[] default null,
  out replayed int, out not_found bigint, out passed_over int, out next_seq bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  s headgate.stream := headgate.find_stream(stream);
  pattern text := headgate.filter_pattern(filter);
  low bigint;    -- the range that is looked at
  high bigint;
  r record;
begin
  perform headgate.need_read_committed('replay');
  perform headgate.check_replay(seqs, from_seq, to_seq, from_time, to_time, filter);
  if seqs = '{}' then
    replayed := 0; not_found := 0; passed_over := 0;
    return;
  end if;
  low := greatest(from_seq, 1, (select min(x) from unnest(seqs) x),
                  case when from_time is not null then headgate.sent_from(s.id, from_time) end);
  high := least(to_seq, headgate.last_seq(s.id), (select max(x) from unnest(seqs) x),
                headgate.sent_until(s.id, to_time));
  perform headgate.hold_to_park(c, 'replayed');
  perform headgate.lock_kept(c);
  perform headgate.hold_done(c, false);
  -- point: a replay holds the consumer
  r := headgate.replayable(c, s, low, high, seqs, from_time, to_time, pattern);
  -- point: a replay knows what is done
  perform headgate.park_again(c, r.seqs, 'replayed');
  perform headgate.drop_dead_letters(c, r.seqs);
  -- point: messages are replayed
  replayed := cardinality(r.seqs);
  passed_over := r.passed_over;
  next_seq := case when r.looked_to < high then r.looked_to + 1 end;
  not_found := case
    when seqs is not null then (
      select count(distinct x) from unnest(seqs) x
       where x >= coalesce(from_seq, x) and x <= coalesce(to_seq, x)
         and x <= coalesce(next_seq - 1, x)) - r.there
    when from_seq is not null or to_seq is not null then
      headgate.removed_seqs(s.id, low, coalesce(next_seq - 1, high)) end;
  not_found := coalesce(not_found, 0);
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03',
    format('messages of consumer "%s" cannot be replayed now: an open transaction is in the way',
           consumer),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- check_replay(…): HG010 for arguments of replay that choose nothing, or make no sense.
create or replace function headgate.check_replay(
  p_seqs bigint[], p_from_seq bigint, p_to_seq bigint, p_from_time timestamptz,
  p_to_time timestamptz, p_filter text[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(p_seqs, p_from_seq, p_to_seq, p_from_time, p_to_time, p_filter) = 0 then
    perform headgate.fail('HG010', 'it is not said which messages to replay',
      'give seqs, from_seq, to_seq, from_time, to_time or filter; from_seq => 1 means all');
  end if;
  if cardinality(p_seqs) > 10000 then
    perform headgate.fail('HG010', format('%s seqs are too many for a call', cardinality(p_seqs)),
      'give at most 10,000 a call, or a range: from_seq, to_seq');
  end if;
  if p_from_seq > p_to_seq or p_from_time > p_to_time then
    perform headgate.fail('HG010', 'the range to replay ends before it begins',
      'give the smaller seq or earlier time as from_seq or from_time');
  end if;
end $$;

-- sent_from(stream id, time) -> a seq below which nothing was sent at that time or later. (As in
-- target_seq: what had not committed then lies above the floor of the newest tick before.)
create or replace function headgate.sent_from(p_stream int, p_time timestamptz) returns bigint
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select coalesce((
    select least(t.lo, (select min(f) from unnest(t.late_from) f)) from headgate.tick t
     where t.stream = p_stream and t.at <= p_time and t.base = t.id
     order by t.id desc limit 1), 0) + 1
$$;

-- sent_until(stream id, time) -> a seq above which nothing was sent before that time; null: none is
-- known. Seqs are drawn before a message is written, and a tick reads how many were drawn shortly
-- before it is written itself: ten seconds are more than enough for that.
create or replace function headgate.sent_until(p_stream int, p_time timestamptz) returns bigint
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select greatest(t.hi, t.hi0) from headgate.tick t
   where t.stream = p_stream and t.at - interval '10 seconds' >= p_time and t.base = t.id
   order by t.id limit 1
$$;

-- removed_seqs(stream id, low, high) -> how many seqs from low to high lie in parts of the log that
-- were removed, without those whose messages were kept.
create or replace function headgate.removed_seqs(p_stream int, p_low bigint, p_high bigint)
returns bigint language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  gone int8multirange;
  kept bigint;
begin
  if p_high < p_low then return 0; end if;
  gone := int8multirange(int8range(p_low, p_high, '[]')) - headgate.log_ranges(p_stream);
  execute format('select count(*) from headgate.preserved_%s k where k.seq <@ $1', p_stream)
    into kept using gone;
  return coalesce((select sum(upper(x) - lower(x)) from unnest(gone) x), 0) - kept;
end $$;

-- replayable(consumer, stream, low, high, seqs, from_time, to_time, pattern) -> of the messages
-- that are chosen so: `seqs`, those that are done for the consumer and may be handed to it again,
-- at most 10,000; `passed_over`, how many others; `there`, how many messages there are of the seqs
-- asked for; `looked_to`, how far this looked. All seen in one snapshot.
create or replace function headgate.replayable(
  c headgate.consumer, s headgate.stream, p_low bigint, p_high bigint, p_seqs bigint[],
  p_from timestamptz, p_to timestamptz, p_pattern text,
  out seqs bigint[], out passed_over int, out there bigint, out looked_to bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set jit = off as $$
declare
  g headgate.cursor;         -- the gatherer, where lanes are named
  most int := 10000;         -- messages to replay
  budget int := 100000;      -- and to look at
  these text := case when p_seqs is not null then ' and m.seq = any($5)' else '' end;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  execute format($q$
    with discovered as materialized (select * from headgate.discovered_lanes(($1).id)),
    near as materialized (
      select * from (
        (select m.seq, m.lane, m.key, m.xid, m.created_at from headgate.message_%1$s m
          where m.seq >= $3 and m.seq <= $4%5$s order by m.seq limit %7$s)
        union all
        (select m.seq, m.lane, m.key, m.xid, m.created_at from headgate.preserved_%1$s m
          where m.seq >= $3 and m.seq <= $4%5$s order by m.seq limit %7$s)) m
       order by m.seq limit %7$s),
    asked as (
      select m.seq,
             p.seq is null and d.seq is null
               and (($1).pattern is null or coalesce(m.key ~ ($1).pattern, false))
               and not coalesce(
                 (select %2$s from headgate.cursor k
                   where k.consumer = ($1).id and k.lane = m.lane),
                 case when x.lane is not null then %8$s end, %3$s, false)%4$s as is_done
        from near m
        left join headgate.parked p
          on p.consumer = ($1).id and p.seq = m.seq and p.seq >= $3 and p.seq <= $4
        left join headgate.delivered_seqs($1, $3 - 1, $4 + 1) d on d.seq = m.seq
        left join discovered x on x.lane = m.lane
       where ($6 is null or m.created_at >= $6) and ($7 is null or m.created_at < $7)
         and ($8 is null or m.key ~ $8)),
    counted as (
      select a.seq, a.is_done, count(*) filter (where a.is_done) over (order by a.seq) as nth
        from asked a)
    select coalesce(array_agg(x.seq order by x.seq)
                      filter (where x.is_done and x.nth <= %6$s), '{}'),
           count(*) filter (where not x.is_done and x.nth < %6$s)
             -- (those behind the last one to replay are left to the next call, if there is one)
             + case when max(x.nth) > %6$s then 0
                    else count(*) filter (where not x.is_done and x.nth = %6$s) end,
           case when max(x.nth) > %6$s then max(x.seq) filter (where x.is_done and x.nth = %6$s)
                when (select count(*) from near) >= %7$s then (select max(m.seq) from near m)
                else $4 end
      from counted x $q$,
    s.id, headgate.ahead_sql('k'), headgate.ahead_sql('($2)'), headgate.newest_only(s, 'm'),
    these, most, budget, headgate.ahead_sql('x'))
    into seqs, passed_over, looked_to
    using c, g, p_low, p_high, p_seqs, p_from, p_to, p_pattern;
  if p_seqs is not null then there := headgate.how_many_there(s.id, p_seqs, looked_to); end if;
end $$;

-- how_many_there(stream id, seqs, to) -> how many messages there are of these seqs, up to the last.
create or replace function headgate.how_many_there(p_stream int, p_seqs bigint[], p_to bigint)
returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set jit = off as $$
declare
  there bigint;
begin
  execute format($q$
    select count(*) from (
      select m.seq from headgate.message_%1$s m where m.seq = any($1) and m.seq <= $2
      union
      select m.seq from headgate.preserved_%1$s m
       where m.seq = any($1) and m.seq <= $2) m $q$, p_stream)
    into there using p_seqs, p_to;
  return there;
end $$;

-- park_again(consumer, seqs, reason): parks messages that are done for a consumer, due now and as
-- if never delivered.
-- Needs: the caller holds the consumer in place, preserved_<stream id>, and what is done.
-- Writes: parked, wake, discarded, attempt.
create or replace function headgate.park_again(c headgate.consumer, p_seqs bigint[], p_reason text)
returns void language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = on set jit = off as $$
declare now timestamptz := clock_timestamp();
begin
  if p_seqs = '{}' then return; end if;
  perform headgate.no_longer_discarded(c, p_seqs);
  execute format($q$
    with back as (
      insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
        select ($1).id, headgate.parking_lane($1, m.lane, m.key, m.seq), m.seq,
               case when ($1).ordered then m.key end, 0, $3, $4
          from (select m.seq, m.lane, m.key from headgate.message_%1$s m where m.seq = any($2)
                union all
                select m.seq, m.lane, m.key from headgate.preserved_%1$s m where m.seq = any($2)) m
         order by m.seq
        on conflict do nothing returning lane, seq),
    told as (
      insert into headgate.attempt (stream, consumer, seq, attempt, at, outcome)
        select ($1).stream, ($1).id, b.seq, 0, $3, $4 from back b)
    insert into headgate.wake (consumer, lane)
      select distinct ($1).id, b.lane from back b where b.lane >= {UNNAMED_LANES} $q$, c.stream)
    using c, p_seqs, now, p_reason;
end $$;

-- drop_dead_letters(consumer, seqs): removes the dead letters of these messages of the stream, as
-- far as nobody else holds them.
-- Locks: the dead letters (SKIP LOCKED).
-- Writes: the dead-letter stream.
create or replace function headgate.drop_dead_letters(c headgate.consumer, p_seqs bigint[])
returns void language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare d int;
begin
  select s.id into d from headgate.stream s where s.dead_of = c.stream;
  if d is null or p_seqs = '{}' then return; end if;
  execute format($q$
    delete from headgate.message_%1$s m where m.seq = any(array(
      select x.seq from headgate.message_%1$s x
       where left(x.headers ->> 'source_consumer', 60) = $1
         and left(x.headers ->> 'source_seq', 20) = any($2) for update skip locked)) $q$, d)
    using c.name, array(select x::text from unnest(p_seqs) x);
end $$;
