-- begin_call: finds the consumer, relaxes the commit, and makes a tick when one is needed. (One
-- statement, because one more costs more than its question. But few columns: each costs, in every
-- node.)
-- Gives: r; is_ordered, is_limited, is_odd.
-- Locks: the stream's row (SKIP LOCKED).
-- Writes: tick.
t0 := clock_timestamp();
select k.id, k.ordered, not k.ordered and k.pattern is null and not k.leased,
       k.paused or k.max_ack_pending is not null or k.leased,
       n is null or n not between 1 and 10000 or p_ack_wait is not null
         or current_setting('transaction_isolation') in ('repeatable read', 'serializable'),
       -- The caller says that this statement is a transaction of its own: relax its commit. See
       -- docs/adr/0005.
       case when not p_open then set_config('synchronous_commit', 'off', true) end,
       t0, t0 + k.ack_wait,
       t.id, t.hi, t.hi = t.hi0 and pg_snapshot_xmin(t.snap) >= t.bound,
       t.at not between t0 - interval '20 milliseconds' and t0 + interval '1 second',
       t.paced_to between t0 + interval '7 milliseconds' and t0 + interval '1 second',
       -- (no EXISTS, for which a planner may read the cursors of all consumers at once)
       (select l.lane from headgate.cursor l where l.consumer = k.id and l.pos < l.to_hi
         limit 1) is not null,
       (select d.id from headgate.delivery d
         where d.consumer = k.id and d.is_watched and d.deadline <= t0 order by d.deadline
           limit 1) is not null
  into r.consumer, is_ordered, r.is_quick, is_limited, is_odd, dummy, r.t0, r.deadline,
       r.tick, tick_hi, tick_settled, tick_is_old, too_many, r.busy, r.has_watched
  from headgate.consumer k
  left join lateral (
       select x.id, x.hi, x.hi0, x.snap, x.bound, x.at, x.paced_to from headgate.tick x
        where x.stream = k.stream and x.base = x.id order by x.id desc limit 1) t on true
 where k.stream = p_stream and k.name = p_consumer;
if not found then
  perform headgate.consumer_is_missing(
    (select s.name from headgate.stream s where s.id = p_stream), p_consumer);
elsif is_odd then
  perform headgate.check_call(n, p_ack_wait);
  r.deadline := coalesce(t0 + p_ack_wait, r.deadline);
end if;
-- point: a receive knows the consumer
r.want := n;
-- A tick must be made before this transaction has an id, so before anything is written. While
-- some lane has work left in its span there is no hurry.
if not r.busy or tick_is_old then
  r := headgate.tick_for(r, p_stream, p_seqs, p_open, tick_hi, tick_settled, too_many);
end if;
