-- Listings of many: what every consumer or stream is asked for one by one reads its own log, which
-- takes most of a millisecond. So a listing counts where that is not too much, and shows what
-- maintenance saw in the last five minutes for the others, and says so
-- (docs/adr/0020-listings-of-many.md):
--   1. A consumer that has read everything, and has nothing in flight or parked, is known by its
--      cursors and the last seq: nothing is read, and the answer is exact.
--   2. The first 50 others of a statement are counted.
--   3. Of the rest, those with a sample that is young enough get its figures, moved on by what was
--      sent and handed out since; `sampled_at` says when it was taken. Those without are counted.

-- may_count() -> whether this statement may count once more: the first fifty times.
create or replace function headgate.may_count() returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  statement text := statement_timestamp()::text;
  had text := current_setting('headgate.counted', true);
  n int := case when left(had, length(statement)) = statement
                then substr(had, length(statement) + 2)::int else 0 end;
begin
  if n >= 50 then return false; end if;
  perform set_config('headgate.counted', statement || ' ' || n + 1, true);
  return true;
end $$;

-- listed_consumer(consumer, dead stream id, start, base, delivered, is_held) -> consumer_facts and
-- dead_count as a listing shows them; sampled_at is null where they are of this moment.
--   start      what it has still to come to lies above, as far as its cursors tell; null: they do
--              not, because named lanes are awake
--   base       the lowest tick that its cursors stand on
--   is_held    it has something in flight or parked
-- Locks and writes nothing.
create or replace function headgate.listed_consumer(
  c headgate.consumer, p_dead int, p_start bigint, p_base bigint, p_delivered bigint,
  p_is_held boolean,
  out unread bigint, out exact boolean, out floor bigint, out oldest_unacked timestamptz,
  out dead bigint, out sampled_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare
  last bigint;
  newest headgate.tick;
  z headgate.consumer_sample;
begin
  last := coalesce(pg_sequence_last_value(to_regclass('headgate.seq_' || c.stream)), 0);
  if p_dead is null
     or pg_sequence_last_value(to_regclass('headgate.seq_' || p_dead)) is null then
    dead := 0;
  end if;
  if p_start >= last and not p_is_held and not exists (
       select from headgate.tick t
        where t.stream = c.stream and t.id > p_base and t.late is not null) then
    newest := headgate.newest_tick(c.stream);
    unread := 0;
    exact := true;
    floor := least(greatest(p_start, newest.lo), headgate.late_floor(c, newest));
    if dead is not null then return; end if;
  end if;
  select * into z from headgate.consumer_sample x
   where x.consumer = c.id and x.at > clock_timestamp() - interval '5 minutes';
  -- (when the fifty are used up, a call of may_count would cost as much as all this)
  if found and (current_setting('headgate.counted', true) = statement_timestamp() || ' 50'
                or not headgate.may_count()) then
    sampled_at := z.at;
    dead := coalesce(dead, z.dead);
    if unread is not null then return; end if;
    exact := false;
    floor := z.floor;
    oldest_unacked := z.oldest_unacked;
    unread := z.unread;
    if c.pattern is null then
      unread := greatest(0, unread - (p_delivered - z.delivered)
        + case when last > z.last_seq then headgate.used_seqs(c.stream, last)
                                           - headgate.used_seqs(c.stream, z.last_seq) else 0 end);
    end if;
    return;
  end if;
  if unread is null then
    select f.* into unread, exact, floor, oldest_unacked from headgate.consumer_facts(c) f;
  end if;
  dead := coalesce(dead, headgate.dead_count(c));
exception when undefined_table or internal_error then  -- it is being dropped
  if not headgate.is_gone(c.stream) then raise; end if;
  unread := 0;
  exact := false;
  floor := 0;
  oldest_unacked := null;
  dead := 0;
  sampled_at := null;
end $$;

-- listed_stream(stream) -> stream_facts as a listing shows them; sampled_at is null where they are
-- of this moment.
-- Locks: nothing.
-- Writes: nothing.
create or replace function headgate.listed_stream(
  s headgate.stream, out messages bigint, out exact boolean, out bytes bigint,
  out oldest timestamptz, out newest timestamptz, out last_seq bigint, out rate float8,
  out sampled_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare z headgate.stream_sample;
begin
  select * into z from headgate.stream_sample x
   where x.stream = s.id and x.at > clock_timestamp() - interval '5 minutes';
  if not found
     or (current_setting('headgate.counted', true) is distinct from statement_timestamp() || ' 50'
         and headgate.may_count()) then
    select f.* into messages, exact, bytes, oldest, newest, last_seq, rate
      from headgate.stream_facts(s.id) f;
    return;
  end if;
  last_seq := coalesce(pg_sequence_last_value(to_regclass('headgate.seq_' || s.id)), 0);
  rate := headgate.stream_rate(s.id, last_seq);
  sampled_at := z.at;
  bytes := z.bytes;
  oldest := z.oldest;
  newest := z.newest;
  messages := z.messages;
  exact := false;
  if last_seq > z.last_seq then
    messages := messages + headgate.used_seqs(s.id, last_seq)
      - headgate.used_seqs(s.id, z.last_seq);
  end if;
exception when undefined_table or internal_error then  -- it is being dropped
  if not headgate.is_gone(s.id) then raise; end if;
  messages := 0;
  exact := false;
  bytes := 0;
  last_seq := 0;
  sampled_at := null;
end $$;

-- take_samples(time) -> how many samples were taken, for about so long, but 20 consumers and 10
-- streams at least: of those whose last one is the oldest, unless it is younger than ten seconds.
-- So 3,000 consumers take 150 calls at most, and fewer where most have read everything. None, where
-- there are not more of them than a listing may count. One process at a time; rows that somebody
-- has deleted and not committed are passed over.
-- Locks: the advisory lock (0, -3) (skip) and samples (SKIP LOCKED).
-- Writes: consumer_sample, stream_sample.
create or replace function headgate.take_samples(p_time interval) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  seen headgate.consumer_sample[] := '{}';
  f record;
  until timestamptz := clock_timestamp() + p_time * 2 / 3;
  has_consumers boolean := (select count(*) from headgate.consumer) > 50;
  has_streams boolean := (select count(*) from headgate.stream) > 50;
begin
  if not (has_consumers or has_streams) or not pg_try_advisory_xact_lock(0, -3) then
    return 0;
  end if;
  if has_consumers then
    for f in
        select x as consumer, d.id as dead, headgate.last_seq(x.stream) as last_seq, k.*
          from (select x.id, z.at from headgate.consumer x
                  left join headgate.consumer_sample z on z.consumer = x.id
                 where z.at is null or z.at < clock_timestamp() - interval '10 seconds'
                 order by z.at nulls first, x.id limit 100) y
          join headgate.consumer x on x.id = y.id
          join headgate.consumer_position k on k.consumer_id = x.id
          left join headgate.stream d on d.dead_of = x.stream
         order by y.at nulls first, y.id loop  -- again: a join keeps no order
      exit when clock_timestamp() > until and cardinality(seen) >= 20;
      perform set_config('headgate.counted', '', true);  -- counted, as long as there is time
      seen := seen || (
        select ((f.consumer).id, clock_timestamp(), l.unread, l.exact, l.floor, l.oldest_unacked,
                l.dead, f.last_seq, f.delivered)::headgate.consumer_sample
          from headgate.listed_consumer(
                 f.consumer, f.dead, f.start, f.base, f.delivered,
                 f.in_flight > 0 or f.parked > 0) l);
    end loop;
    with held as (
      select z.consumer from headgate.consumer_sample z join unnest(seen) s using (consumer)
         for update of z skip locked)
    update headgate.consumer_sample z
       set at = s.at, unread = s.unread, exact = s.exact, floor = s.floor,
           oldest_unacked = s.oldest_unacked, dead = s.dead, last_seq = s.last_seq,
           delivered = s.delivered
      from held h join unnest(seen) s using (consumer) where z.consumer = h.consumer;
    insert into headgate.consumer_sample
      select s.* from unnest(seen) s
       where not exists (select from headgate.consumer_sample z where z.consumer = s.consumer);
    delete from headgate.consumer_sample z where z.consumer in (
      select y.consumer from headgate.consumer_sample y
       where not exists (select from headgate.consumer x where x.id = y.consumer)
       limit 1000 for update skip locked);
  end if;
  return cardinality(seen)
         + case when has_streams then headgate.take_stream_samples(p_time / 3) else 0 end;
end $$;

-- take_stream_samples(time) -> the part of take_samples that is about streams. The caller is the
-- only one who takes samples.
-- Locks: samples (SKIP LOCKED).
-- Writes: stream_sample.
create or replace function headgate.take_stream_samples(p_time interval) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  id int;
  seen headgate.stream_sample[] := '{}';
  until timestamptz := clock_timestamp() + p_time;
begin
  for id in select x.id from headgate.stream x left join headgate.stream_sample z on z.stream = x.id
             where z.at is null or z.at < clock_timestamp() - interval '10 seconds'
             order by z.at nulls first, x.id limit 200 loop
    exit when clock_timestamp() > until and cardinality(seen) >= 10;
    seen := seen || (
      select (id, clock_timestamp(), f.messages, f.exact, coalesce(f.bytes, 0), f.oldest, f.newest,
              f.last_seq)::headgate.stream_sample
        from headgate.stream_facts(id) f);
  end loop;
  with held as (
    select z.stream from headgate.stream_sample z join unnest(seen) s using (stream)
       for update of z skip locked)
  update headgate.stream_sample z
     set at = s.at, messages = s.messages, exact = s.exact, bytes = s.bytes, oldest = s.oldest,
         newest = s.newest, last_seq = s.last_seq
    from held h join unnest(seen) s using (stream) where z.stream = h.stream;
  insert into headgate.stream_sample
    select s.* from unnest(seen) s
     where not exists (select from headgate.stream_sample z where z.stream = s.stream);
  delete from headgate.stream_sample z where z.stream in (
    select y.stream from headgate.stream_sample y
     where not exists (select from headgate.stream x where x.id = y.stream)
     limit 1000 for update skip locked);
  return cardinality(seen);
end $$;

-- forget_sample(consumer id): what was seen of the consumer says nothing any more. One that is
-- being taken at this moment is left.
-- Locks: the sample (SKIP LOCKED).
-- Writes: consumer_sample.
create or replace function headgate.forget_sample(p_consumer int) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
  delete from headgate.consumer_sample z where z.consumer in (
    select y.consumer from headgate.consumer_sample y where y.consumer = p_consumer
       for update skip locked)
$$;
