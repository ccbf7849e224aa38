-- Attempts that failed: a row for each (table headgate.attempt), so that people see what became of
-- a message, and who had it. Rows are only ever inserted by those who settle and expire;
-- maintenance alone removes them.

-- note_attempts(consumer, delivery, seqs, dead, outcome, error): notes that these messages of a
-- delivery failed, and which of them (`dead`) became dead letters.
-- Writes: attempt.
create or replace function headgate.note_attempts(
  c headgate.consumer, d headgate.delivery, p_seqs bigint[], p_dead bigint[], p_outcome text,
  p_error text)
returns void language sql set search_path = pg_catalog, pg_temp set enable_hashjoin = on as $$
  insert into headgate.attempt (
      stream, consumer, seq, attempt, began, at, outcome, is_dead, worker, error)
    select c.stream, c.id, u.s, coalesce(u.a, 1), d.delivered_at,
           case when p_outcome = 'expired' then least(d.deadline, clock_timestamp())
                else clock_timestamp() end,
           p_outcome, y.s is not null, d.worker, left(p_error, 2000)
      from unnest(d.seqs, d.attempts) u (s, a)
      join unnest(p_seqs) x (s) on x.s = u.s
      left join unnest(p_dead) y (s) on y.s = u.s
$$;

-- trim_attempts(stream, per message, in all) -> how many rows about failed attempts were deleted,
-- at most 10,000 a call: the oldest ones of messages that have more than 20, and of the stream when
-- it has more than 100,000.
-- Needs: the caller holds the stream's row.
-- Locks: the rows (SKIP LOCKED).
-- Writes: attempt, stream.
create or replace function headgate.trim_attempts(
  s headgate.stream, p_per_message int default 20, p_in_all int default 100000) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  first bigint;
  last bigint;
  edge bigint;
  looked_to bigint;
  gone bigint[];
  n bigint;
begin
  select min(a.id), max(a.id) into first, last from headgate.attempt a where a.stream = s.id;
  if last is null then return 0; end if;
  -- messages of which something was noted since the last time
  with fresh as materialized (
    select a.id, a.consumer, a.seq from headgate.attempt a
     where a.stream = s.id and a.id > s.attempts_trimmed order by a.id limit 2000)
  select (select max(f.id) from fresh f),
         array(select o.id from (select distinct f.consumer, f.seq from fresh f) f
                cross join lateral (
                  select a.id from headgate.attempt a
                   where a.consumer = f.consumer and a.seq = f.seq
                   order by a.consumer desc, a.seq desc, a.id desc offset p_per_message) o
                limit 10000)
    into looked_to, gone;
  -- ids grow by one for each row of any stream, so that the rows of this one are no more than that
  if last - first >= p_in_all then
    select a.id into edge from headgate.attempt a
     where a.stream = s.id order by a.id desc offset p_in_all limit 1;
    gone := gone || array(
      select a.id from headgate.attempt a where a.stream = s.id and a.id <= edge
       order by a.id limit 10000 - cardinality(gone));
  end if;
  -- point: attempts to forget are found
  with held as (
    select a.id from headgate.attempt a
     where a.stream = s.id and a.id = any(gone) for update skip locked)
  delete from headgate.attempt a using held h where a.stream = s.id and a.id = h.id;
  get diagnostics n = row_count;
  if looked_to > s.attempts_trimmed then
    update headgate.stream t set attempts_trimmed = looked_to where t.id = s.id;
  end if;
  return n;
end $$;

-- attempts(stream, seq, consumer, max, before) -> failed attempts, the newest first: of one
-- message, of one consumer, or of the whole stream. `outcome`: nacked, or expired (its deadline
-- passed); is_dead: with it the message became a dead letter. Kept are the last 20 of a message and
-- the last 100,000 of a stream. `before` is the id to go on from.
create or replace function headgate.attempts(
  stream text, seq bigint default null, consumer text default null, max int default 100,
  before bigint default null) returns setof headgate.failed_attempt
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer;
begin
  if consumer is not null then c := headgate.find_consumer(stream, consumer); end if;
  perform headgate.check_max(attempts.max);
  if seq is not null then  -- a message has few: asked of each consumer
    return query
    select a.id, k.name, a.seq, a.attempt, a.began, a.at, a.outcome, a.is_dead, a.worker, a.error
      from headgate.consumer k join headgate.attempt a on a.consumer = k.id and a.seq = attempts.seq
     where k.stream = s.id and (c.id is null or k.id = c.id) and a.outcome in ('nacked', 'expired')
       and (before is null or a.id < before)
     order by a.id desc limit attempts.max;
  else
    return query
    select a.id, k.name, a.seq, a.attempt, a.began, a.at, a.outcome, a.is_dead, a.worker, a.error
      from headgate.attempt a join headgate.consumer k on k.id = a.consumer
     where a.stream = s.id and a.id < coalesce(before, 9223372036854775807)
       and (c.id is null or a.consumer = c.id) and a.outcome in ('nacked', 'expired')
     order by a.id desc limit attempts.max;
  end if;
end $$;
