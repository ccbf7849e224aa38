-- open_call: finds the consumer, relaxes the commit, makes a tick when one is needed.
-- Gives: c, open, deadline, busy, has_watched, tick_id, and newest when it was made here.
-- Locks: the stream's row (SKIP LOCKED).
-- Writes: tick.
select k.* into c from headgate.consumer k where k.stream = {stream} and k.name = p_consumer;
if not found then
  perform headgate.consumer_is_missing(
    (select s.name from headgate.stream s where s.id = {stream}), p_consumer);
end if;
if n is null or n not between 1 and 10000 then
  perform headgate.fail('HG010',
                        format('a batch of %s messages is not possible',
                               coalesce(n::text, 'null')), 'ask for 1 to 10,000 messages');
end if;
-- The caller says that this statement is a transaction of its own: relax its commit. See
-- docs/adr/0005.
if not open then dummy := set_config('synchronous_commit', 'off', true); end if;
if p_ack_wait is not null then perform headgate.check_ack_wait(p_ack_wait); end if;
deadline := t0 + coalesce(p_ack_wait, c.ack_wait);
-- (has_fixed_snapshot, for less)
if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
  perform headgate.sees_small_tables();
  -- SKIP LOCKED waits after all where the version that this snapshot sees is not the newest, and
  -- another holds that
  dummy := set_config('lock_timeout', '200ms', true);
end if;
if open is null then open := headgate.in_user_transaction(); end if;
-- point: a rotation knows the consumer
-- A tick must be made before this transaction has an id, so before anything is written. While
-- some lane has work left in its span there is no hurry.
select t.id, t.at, t.hi, t.hi = t.hi0 and pg_snapshot_xmin(t.snap) >= t.bound,
       t.paced_to between t0 + interval '7 milliseconds' and t0 + interval '1 second',
       exists (select from headgate.cursor k
                where k.consumer = c.id and k.next_at <= t0 and k.next_at < 'infinity'),
       -- (asked here, because a statement of its own costs more than the question)
       (select d.id from headgate.delivery d
         where d.consumer = c.id and d.lane >= {UNNAMED_LANES} and d.deadline <= t0
           order by d.deadline limit 1) is not null
  into tick_id, tick_at, tick_hi, tick_settled, too_many, busy, has_watched
  from headgate.tick t where t.stream = {stream} and t.base = t.id order by t.id desc limit 1;
if not busy and too_many and pg_sequence_last_value('headgate.seq_{stream}') > tick_hi then
  -- another tick may be made then: what was sent since the last one is not to be missed
  perform pg_sleep(0.001);
  too_many := false;
end if;
if not busy and not too_many or busy
   and tick_at not between t0 - interval '20 milliseconds' and t0 + interval '1 second'
     and (not tick_settled or pg_sequence_last_value('headgate.seq_{stream}') > tick_hi) then
  newest := headgate.make_tick({stream}, coalesce(open, headgate.in_user_transaction()));
  tick_id := newest.id;
end if;
