-- The steps of a receive, where lanes are hashed. They are the same for all streams, so that a
-- session plans them once; what reads a stream's own tables is in receive_<stream id>, which calls
-- them (templates/receive.sql). Their plans are made with its settings, search_path among them: to
-- set that again costs some microseconds a call, and nobody else may call them (test_rights.py).
-- This is the hot path. A statement costs mostly by the nodes of its plan, even of those that never
-- run, so the usual case (a lane with work left in its span, no filter, no order) has statements of
-- its own. What is parked is looked up in the order of one index, so that no planner takes another
-- one: its statistics of small, fast-changing tables are never right, and a plan is kept for the
-- life of a session.
--
-- A receive claims lane after lane, the one that waited longest first, until the batch is full:
-- what is parked and due, then the log.
--   receive_step -> (a lane with work left) read
--                -> claim_with_care -> probe -> begin_spans -> read, read, …
--                                            -> claim_any -> tend_lane -> retry -> begin_span ->
--                                              read, sift

-- receive_step(call, got, stream id, its sequence, upsert, lets go, consumer, batch_size, worker,
-- acks, open, ack_wait) -> the call at the next step that receive_<stream id> has to do, after the
-- last one has handed out `got` messages. The first one, of a call that is null, finds the
-- consumer, relaxes the commit, makes a tick when one is needed, settles acks, and sees to limits.
-- (A call that is `cold` is at its beginning, too: see receive_cold.) Each claims a lane, when the
-- call has none: of those with work left the one that waited longest; the others are looked at now
-- and then, lest they starve. When the call `lets go`, a lane is a subtransaction, so that the
-- first one claims none, nor does one that ends a lane. Locks the stream's row and a cursor (SKIP
-- LOCKED); writes tick, and as settle, apply_limits and claim_with_care.
create or replace function headgate.receive_step(
  r headgate.receiving, got int, p_stream int, p_seqs regclass, p_upsert boolean, p_lets_go boolean,
  p_consumer text, n int,
  p_worker text, acks text[], p_open boolean, p_ack_wait interval) returns headgate.receiving
language plpgsql as $$
declare
  t0 timestamptz;
  c headgate.consumer;
  is_ordered boolean;
  is_limited boolean;  -- it is paused or leased, or has max_ack_pending
  is_odd boolean;  -- something about the call has to be looked at
  tick_hi bigint;
  tick_settled boolean;
  tick_is_old boolean;
  too_many boolean;  -- ticks were made lately
  dummy text;
begin
  if r.step is null and not p_lets_go
     and coalesce(current_setting('headgate.keeps_' || p_stream, true), '') <> 'y'
     and not headgate.keeps_plans(p_stream) then
    r.step := 'cold';
    return r;
  elsif r.step is null or r.step = 'cold' then
    t0 := clock_timestamp();
    -- (One statement, because one more costs more than its question. But few columns: each costs,
    -- in every node.)
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
    if cardinality(acks) > 0 then
      -- whole deliveries
      if not is_ordered and array_to_string(acks, ' ') ~ '^([0-9]{1,18}\.[0-9]{1,18}( |$))+$' then
        if cardinality(acks) = 1 then
          delete from headgate.delivery d
           where d.consumer = r.consumer and d.lane = split_part(acks[1], '.', 1)::bigint
             and d.id = split_part(acks[1], '.', 2)::bigint
             and d.xmax = '0'::xid and d.is_split is null;
        else  -- (as delete_deliveries says)
          delete from headgate.delivery d
           using (select split_part(a, '.', 1)::bigint as lane, split_part(a, '.', 2)::bigint as id
                    from unnest(acks) a offset 0) a
           where (d.consumer, d.lane, d.id) >= (r.consumer, a.lane, a.id)
             and (d.consumer, d.lane, d.id) <= (r.consumer, a.lane, a.id)
             and d.xmax = '0'::xid and d.is_split is null;
        end if;
        get diagnostics got = row_count;
        if got < cardinality(acks) then  -- the others: stale, or held by somebody
          select k.* into c from headgate.consumer k where k.id = r.consumer;
          perform headgate.settle_surely(c, acks);
        end if;
      else
        got := 0;
        if not is_ordered and not is_odd
           and acks[1] ~ '^[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}$' then
          delete from headgate.delivery d  -- all messages of one delivery, by their names
           where d.consumer = r.consumer and d.lane = split_part(acks[1], '.', 1)::bigint
             and d.id = split_part(acks[1], '.', 2)::bigint
             and d.xmax = '0'::xid and d.is_split is null
             and d.lane || '.' || d.id || '.'
               || array_to_string(d.seqs, ' ' || d.lane || '.' || d.id || '.')
                 = array_to_string(acks, ' ');
          get diagnostics got = row_count;
        end if;
        if got = 0 then
          select k.* into c from headgate.consumer k where k.id = r.consumer;
          select s.stale into got from headgate.settle(c, acks) s;
          if got > 0 then perform headgate.settle_surely(c, acks); end if;
        end if;
      end if;
    end if;
    -- point: a receive has settled its acks
    r.step := 'claim';
    if is_limited or r.has_watched or p_lets_go then
      r := headgate.apply_limits(headgate.know_call(r, n, p_worker, p_open, p_upsert, p_lets_go));
      if p_lets_go then return r; end if;
    end if;
  elsif r.step = 'read' and got > 0 then  -- the batch is not full yet
    r.want := r.want - got;
    r.step := case when clock_timestamp() <= r.t0 + interval '1 second' then 'claim' end;
    if p_lets_go then return r; end if;
  elsif r.step <> 'claim' then
    if r.asked is null then
      r := headgate.know_call(r, n, p_worker, p_open, p_upsert, p_lets_go);
    end if;
    r := headgate.end_step(r, got);
    if p_lets_go then return r; end if;
  end if;
  while r.step = 'claim' loop
    if r.begun is not null then
      select k.lane, k.pos, k.to_hi, k.from_snap, k.to_snap, k.sweep_at, k.delivered, 'read',
             nullif(r.begun[2:], '{}')
        into r.lane, r.pos, r.hi, r.from_snap, r.to_snap, r.sweep_at, r.delivered, r.step, r.begun
        from headgate.cursor k where k.consumer = r.consumer and k.lane = r.begun[1];
      return r;
    elsif r.busy and r.is_quick then
      select k.lane, k.pos, k.to_hi, k.from_snap, k.to_snap, k.sweep_at, k.delivered,
             case
               when k.pos >= k.to_hi or k.late is not null or k.discards
                 or coalesce(k.sweep_at <= r.t0, false)
                       or k.mark_at < r.t0 - interval '10 seconds'
                       or coalesce((
                            select p.visible_at from headgate.parked p
                             where p.consumer = r.consumer and p.lane = k.lane
                             order by p.visible_at limit 1) <= r.t0, false) then 'tend'
                  when k.to_hi - k.pos > 10000 then 'long'
                  else 'read' end
        into r.lane, r.pos, r.hi, r.from_snap, r.to_snap, r.sweep_at, r.delivered, r.step
        from headgate.cursor k
       where k.consumer = r.consumer
         and (k.pos < k.to_hi or k.turn < r.t0 - interval '20 milliseconds')
         and (r.tried is null or k.lane <> all(r.tried))
       order by k.turn limit 1 for no key update skip locked;
      -- point: a busy lane is claimed
      if r.step = 'long' and not p_lets_go then
        r.hi := headgate.end_of_read(p_stream, r.pos, r.hi);
        r.step := 'read';
      end if;
      if r.step = 'read' then return r; end if;
    else
      r.lane := null;
    end if;
    if r.asked is null then
      r := headgate.know_call(r, n, p_worker, p_open, p_upsert, p_lets_go);
    end if;
    r := headgate.claim_with_care(r);
    if p_lets_go then return r; end if;
  end loop;
  return r;
end $$;

-- tick_for(call, stream id, its sequence, open, tick_hi, tick_settled, too_many) -> the call, with
-- a tick that was made for it if anything can have changed since the newest one. Locks the stream's
-- row (SKIP LOCKED); writes tick.
create or replace function headgate.tick_for(
  r headgate.receiving, p_stream int, p_seqs regclass, p_open boolean, tick_hi bigint,
  tick_settled boolean, too_many boolean)
returns headgate.receiving
language plpgsql as $$
begin
  if not r.busy and too_many and pg_sequence_last_value(p_seqs) > tick_hi then
    -- another tick may be made then: what was sent since the last one is not to be missed
    perform pg_sleep(0.001);
    too_many := false;
  end if;
  if not r.busy and not too_many
     or r.busy and (not tick_settled or pg_sequence_last_value(p_seqs) > tick_hi) then
    r.newest := headgate.make_tick(p_stream, coalesce(p_open, headgate.is_open()));
    r.tick := (r.newest).id;
    if r.tick is null then perform headgate.consumer_is_missing(null, null); end if;
  end if;
  return r;
end $$;

-- know_call(call, batch_size, worker, open, upsert, lets go) -> the call, with all that is needed
-- off the plain path.
create or replace function headgate.know_call(
  r headgate.receiving, n int, p_worker text, p_open boolean, p_upsert boolean, p_lets_go boolean)
returns headgate.receiving
language plpgsql as $$
begin
  select k, n, p_worker, p_open, p_upsert, p_lets_go, not k.ordered and k.pattern is null, 0,
         coalesce(r.tried, '{}')
    into r.c, r.asked, r.worker, r.open, r.is_upsert, r.lets_go, r.is_plain, r.tries, r.tried
    from headgate.consumer k where k.id = r.consumer;
  return r;
end $$;

-- check_call(batch_size, ack_wait): fails when what is asked for is not possible. In a transaction
-- with a fixed snapshot it sees to it that nobody is waited for.
create or replace function headgate.check_call(n int, p_ack_wait interval) returns void
language plpgsql as $$
begin
  if n is null or n not between 1 and 10000 then
    perform headgate.fail('HG010',
                          format('a batch of %s messages is not possible',
                                 coalesce(n::text, 'null')),
      'ask for 1 to 10,000 messages');
  end if;
  if p_ack_wait is not null then perform headgate.check_ack_wait(p_ack_wait); end if;
  if headgate.has_fixed_snapshot() then
    perform headgate.sees_small_tables();
    -- SKIP LOCKED waits after all where the version that this snapshot sees is not the newest, and
    -- another holds that
    perform set_config('lock_timeout', '200ms', true);
  end if;
end $$;

-- apply_limits(call) -> the call, as far as its consumer lets it: paused, max_ack_pending, leases.
-- What has expired out of turn is seen to. Writes as expire; locks as room_in_flight.
create or replace function headgate.apply_limits(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
begin
  r.step := null;
  if c.paused then return r; end if;
  -- in an open transaction only what is in a lane that it claims (claim_any): nobody else gets it
  -- before its end. Where that is not known, no more than it may hand out.
  if r.has_watched and not r.lets_go and (not r.busy or r.open is not true) then
    perform headgate.expire(c, r.t0, case when r.open is not false then r.asked end);
  end if;
  if c.max_ack_pending is not null then
    r.want := least(r.asked, headgate.room_in_flight(c, r.t0));
    if r.want <= 0 then return r; end if;
  end if;
  if c.leased then r.tried := headgate.unleased_lanes(c, r.worker, r.t0); end if;
  r.step := 'claim';
  return r;
end $$;

-- claim_with_care(call) -> the call, with a lane that it holds now, and that may need more than
-- reading on: of a consumer that is ordered, filtered or leased, one with more to do than to read
-- on (which the call holds already), or one that has something behind its span, when no lane has
-- work left. Locks a cursor (SKIP LOCKED); writes as tend_lane.
create or replace function headgate.claim_with_care(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  r.lane_gave := 0;
  -- in order, lanes with nothing in flight first: there no key is taken
  if r.busy and not r.is_quick then
    select k.lane, 'tend' into r.lane, r.step from headgate.cursor k
     where k.consumer = r.consumer
       and (k.pos < k.to_hi or k.turn < r.t0 - interval '20 milliseconds')
       and k.lane <> all(r.tried)
     order by (r.c).ordered and exists (
                select from headgate.delivery d where d.consumer = r.consumer and d.lane = k.lane),
              k.turn
     limit 1 for no key update skip locked;
  end if;
  if r.lane is null then
    if r.ahead is null then
      select array_agg(k.lane), array_agg(k.to_lo), array_agg(9223372036854775807), 'probe'
        into r.probed, r.probed_from, r.probed_to, r.step from headgate.cursor k
       where k.consumer = r.consumer and k.lane <> all(r.tried) and k.to_tick <> r.tick;
      if r.probed is not null then return r; end if;
      r.ahead := '{}';
    end if;
    return headgate.claim_any(r);
  elsif r.step = 'tend' then
    select k into r.l from headgate.cursor k where k.consumer = r.consumer and k.lane = r.lane;
    return headgate.tend_lane(r);
  end if;
  r.hi := headgate.end_of_read((r.c).stream, r.pos, r.hi);
  r.step := 'read';
  return r;
end $$;

-- claim_any(call) -> the call, with the lane that waited longest of those with anything to do,
-- which it holds now. Locks a cursor (SKIP LOCKED); writes as tend_lane.
create or replace function headgate.claim_any(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  select k into r.l from headgate.cursor k
   where k.consumer = r.consumer and k.lane <> all(r.tried) and (
         k.pos < k.to_hi or k.late is not null or k.sweep_at <= r.t0
      or (r.lets_go and r.has_watched and exists (
           select from headgate.delivery d
            where d.consumer = r.consumer and d.lane = k.lane and d.is_watched
              and d.deadline <= r.t0))
      or (k.to_tick <> r.tick and k.lane = any(r.ahead))
      or k.to_base < (select max(t.id) from headgate.tick t
                       where t.stream = (r.c).stream and t.late is not null)
      or (select p.visible_at from headgate.parked p
           where p.consumer = r.consumer and p.lane = k.lane order by p.visible_at limit 1) <= r.t0
      or ((r.c).ordered and exists (
           select from headgate.wake w where w.consumer = r.consumer and w.lane = k.lane)))
   order by k.turn limit 1 for no key update skip locked;
  if found then
    r.lane := (r.l).lane;
    return headgate.tend_lane(r);
  end if;
  -- nothing to claim, or all of it locked by other claims at this instant: then try again rather
  -- than say "nothing"
  if r.want < r.asked or r.tries >= 8 or not exists (
       select from headgate.cursor k
        where k.consumer = r.consumer and k.lane <> all(r.tried)
          and (k.pos < k.to_hi or (k.to_tick <> r.tick and k.lane = any(r.ahead)))) then
    r.step := null;
    return r;
  end if;
  r.tries := r.tries + 1;
  perform pg_sleep(0.0005 * r.tries);
  r.ahead := null;  -- those others may be done with them
  r.step := 'claim';
  return r;
end $$;

-- tend_lane(call) -> the call, whose lane is to be looked at closely: what has expired there is
-- taken apart, and what is parked and due comes first. Writes cursor, delivery, parked, wake.
create or replace function headgate.tend_lane(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
  l headgate.cursor := r.l;
begin
  -- point: a lane is claimed
  if l.sweep_at <= r.t0 or (r.lets_go and r.has_watched) then
    l.sweep_at := headgate.take_apart(c, l.lane, r.t0);
    r.l := l;
  end if;
  -- it has changed hands, or another worker is not done with it
  if c.leased and not headgate.may_claim(c, l.lane, r.worker) then
    update headgate.cursor k set turn = r.t0, sweep_at = l.sweep_at
     where k.consumer = c.id and k.lane = l.lane;
    r.tried := r.tried || l.lane;
    r.step := case when r.lets_go then 'let go' else 'claim' end;
    return r;
  end if;
  -- point: a lane is swept
  if c.ordered then perform headgate.take_notes(c, l.lane, r.t0); end if;
  if r.is_upsert then perform headgate.forget_superseded(c, l.lane, r.t0); end if;
  if (select p.visible_at from headgate.parked p
       where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) <= r.t0 then
    r.step := 'retry';
    return r;
  end if;
  return headgate.begin_span(r);
end $$;

-- begin_span(call) -> the call, whose lane is to be read now: from where it is, or, when its span
-- is done, from the beginning of the next one. Writes cursor.
create or replace function headgate.begin_span(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
  l headgate.cursor := r.l;
  newest headgate.tick := r.newest;
  was_tick bigint := l.to_tick;
  moved boolean := false;
begin
  -- point: what is parked in a lane is served
  -- the span is done: begin the next one
  if l.pos >= l.to_hi and l.late is null and l.to_tick <> r.tick then
    if newest.id is null then  -- by now it may have been thinned out: then the one behind it
      select t.* into newest from headgate.tick t
       where t.stream = (r.c).stream and t.base = t.id and t.id >= r.tick order by t.id limit 1;
      r.newest := newest;
    end if;
    l := case when l.gate is null then headgate.next_span(l, newest)
              else headgate.next_gated(c, l, newest) end;
    moved := l.to_tick <> was_tick;
  end if;
  -- point: a lane has its span
  if moved then
    update headgate.cursor k
       set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo,
           to_tick = l.to_tick,
           to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos,
           late = l.late, turn = r.t0, sweep_at = l.sweep_at, delivered = l.delivered
     where k.consumer = c.id and k.lane = l.lane;
  end if;
  if l.mark_at < r.t0 - interval '10 seconds' then
    perform headgate.move_marks(c.id, l.lane, r.t0);
  end if;
  if r.want = 0 or (l.pos >= l.to_hi and l.late is null) then
    r.tried := r.tried || l.lane;
    if not moved then
      update headgate.cursor k set turn = r.t0, sweep_at = l.sweep_at, delivered = l.delivered
       where k.consumer = c.id and k.lane = l.lane;
    end if;
    r.step := case when r.want = 0 then null
                   when r.lets_go and r.lane_gave = 0 then 'let go'
                   else 'claim' end;
    return r;
  end if;
  r.pos := l.pos;
  r.hi := case when l.to_hi - l.pos > 10000 then headgate.end_of_read((r.c).stream, l.pos, l.to_hi)
               else l.to_hi end;
  r.from_snap := l.from_snap;
  r.to_snap := l.to_snap;
  r.sweep_at := l.sweep_at;
  r.delivered := l.delivered;
  if r.is_plain and l.late is null and not l.discards then
    r.step := 'read';
    return r;
  end if;
  return headgate.begin_sift(r);
end $$;

-- begin_spans(call) -> the call, which holds those of the lanes ahead that have a short new span
-- and nothing else to do, as many as the messages that it wants: they are read one after the other.
-- This is what the few fresh messages of a quiet stream need, for which to claim each lane by
-- itself (claim_any, tend_lane, begin_span) costs several times as much as to read it. Locks
-- cursors (SKIP LOCKED); writes cursor.
create or replace function headgate.begin_spans(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  newest headgate.tick := r.newest;
  lanes bigint[];
  oldest bigint;  -- of the ticks that these stand on
begin
  if newest.id is null then  -- (as in begin_span)
    select t.* into newest from headgate.tick t
     where t.stream = (r.c).stream and t.base = t.id and t.id >= r.tick order by t.id limit 1;
    r.newest := newest;
  end if;
  -- a private one, or one that came later
  if newest.base <> newest.id or newest.id <> r.tick then return r; end if;
  select array_agg(h.lane), min(h.to_base) into lanes, oldest
    from (select k.lane, k.to_base from headgate.cursor k
           where k.consumer = r.consumer and k.lane = any(r.ahead)
             and k.pos >= k.to_hi and k.late is null and not k.discards and k.gate is null
             and k.to_tick = k.to_base and k.to_tick < newest.id and k.to_lo >= newest.hi - 10000
             and (k.sweep_at is null or k.sweep_at > r.t0)
             and k.mark_at >= r.t0 - interval '10 seconds'
             and (select p.visible_at from headgate.parked p
                   where p.consumer = r.consumer and p.lane = k.lane
                   order by p.visible_at limit 1) <= r.t0 is not true
           order by k.turn limit r.want for no key update skip locked) h;
  -- (ticks that tell of late transactions or of a restore: next_span knows what to do)
  if lanes is null or exists (
       select from headgate.tick t
        where t.stream = newest.stream and t.id >= oldest
          and (t.late is not null or t.bridge_to is not null)) then
    return r;
  end if;
  -- point: several lanes are claimed
  update headgate.cursor k
     set from_tick = k.to_tick, from_snap = k.to_snap, from_lo = k.to_lo, to_tick = newest.id,
         to_base = newest.id, to_snap = newest.snap, to_lo = newest.lo, to_hi = newest.hi,
         pos = greatest(k.to_lo, k.first_seq - 1), turn = r.t0
   where k.consumer = r.consumer and k.lane = any(lanes);
  -- point: several lanes have their spans
  r.begun := lanes;
  return r;
end $$;

-- Rates. A cursor has two marks: how many messages its lane had handed out for the first time at
-- `mark_at` and at `earlier_at`. Whoever serves a lane moves them when the later one is ten seconds
-- old, at most that often, so that it costs nothing that is worth counting. A rate is taken from
-- the mark that is ten to twenty seconds old (view consumer_position); in a lane that nobody has
-- served for ten seconds it is 0.

-- marks_sql(time) -> what moves the marks of a cursor k, for an UPDATE. Where nobody has served the
-- lane in between, nothing was handed out in the ten seconds before.
create or replace function headgate.marks_sql(p_now text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format(
    'earlier_at = case when k.mark_at >= %1$s - interval ''10 seconds'' then k.earlier_at '
                      'when k.mark_at < %1$s - interval ''20 seconds'' then %1$s - interval ''10 seconds'' '
                      'else k.mark_at end, '
    'earlier_delivered = case when k.mark_at >= %1$s - interval ''10 seconds'' then k.earlier_delivered '
                             'when k.mark_at < %1$s - interval ''20 seconds'' then k.delivered - k.redelivered '
                             'else k.mark_delivered end, '
    'mark_at = case when k.mark_at >= %1$s - interval ''10 seconds'' then k.mark_at else %1$s end, '
    'mark_delivered = case when k.mark_at >= %1$s - interval ''10 seconds'' then k.mark_delivered '
                          'else k.delivered - k.redelivered end', p_now)
$$;

-- move_marks(consumer id, lane, now): moves the marks of a lane that the caller holds. Writes
-- cursor.
do $$ begin
  execute format(
    'create or replace function headgate.move_marks(p_consumer int, p_lane bigint, p_now timestamptz) '
    'returns void language sql volatile set search_path = pg_catalog, pg_temp as %L',
    format('update headgate.cursor k set %s where k.consumer = p_consumer and k.lane = p_lane',
           headgate.marks_sql('p_now')));
end $$;

-- end_of_read(stream id, from, to) -> up to where a long span is read at once: one segment at a
-- time, so that the others are not opened.
create or replace function headgate.end_of_read(p_stream int, p_from bigint, p_to bigint)
returns bigint
language plpgsql stable as $$
begin
  -- (none, when all beyond is being sent by a transaction that is open: nobody else sees its
  -- segments)
  return coalesce((
    select least(p_to, g.end_seq - 1) from headgate.segment g
     where g.stream = p_stream and g.end_seq > p_from + 1 order by g.id limit 1), p_to);
end $$;

-- begin_sift(call) -> the call, whose lane needs sift_<stream id>: a filter, keys in order, a late,
-- delayed or discarded message.
create or replace function headgate.begin_sift(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
  l headgate.cursor;
begin
  select k.* into l from headgate.cursor k where k.consumer = r.consumer and k.lane = r.lane;
  l.sweep_at := r.sweep_at;
  l.delivered := r.delivered;
  l.to_hi := r.hi;
  r.l := l;
  -- look ever further ahead while nothing fits
  r.chunk := case
    when r.chunk is null or r.chunk_gave or (c.ordered and r.chunk_lane <> r.lane) then
      case when c.pattern is null then r.want + 20 else r.want * 8 + 500 end
    else least(r.chunk * 4, 20000) end;
  r.chunk_lane := r.lane;
  r.step := 'sift';
  return r;
end $$;

-- deliver_again(call, seqs, attempts, keys) -> what the ack_ids of these messages begin with, which
-- were parked; null when there are none. Counts those that were handed out before. Writes delivery,
-- cursor.
create or replace function headgate.deliver_again(
  r headgate.receiving, p_seqs bigint[], p_attempts int[], p_keys text[]) returns text
language plpgsql as $$
declare
  delivery bigint;
  again int := (select count(*) from unnest(p_attempts) a where a > 1);
begin
  if p_seqs is null then return null; end if;
  -- (both at once, so that a mark never lies between them; end_retry writes the same `delivered`)
  if again > 0 then
    update headgate.cursor k
       set redelivered = k.redelivered + again, delivered = k.delivered + cardinality(p_seqs)
     where k.consumer = r.consumer and k.lane = r.lane;
  end if;
  insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at,
                                 worker)
    values (r.consumer, r.lane, p_seqs, p_attempts, case when (r.c).ordered then p_keys end,
            r.deadline,
            r.t0, r.worker) returning id into delivery;
  return r.lane || '.' || delivery || '.';
end $$;

-- end_step(call, got) -> the call, which has done a step: 'claim' when it goes on to another lane.
-- Writes as claim_any, begin_span.
create or replace function headgate.end_step(r headgate.receiving, got int)
returns headgate.receiving
language plpgsql as $$
begin
  if r.step = 'probe' then
    if r.ahead <> '{}' and r.is_quick and not r.is_upsert and not r.lets_go then
      r := headgate.begin_spans(r);
    end if;
    return case when r.begun is null then headgate.claim_any(r) else headgate.next_lane(r) end;
  end if;
  if r.step = 'look' then return headgate.end_look(r); end if;
  r.want := r.want - got;
  return case when r.step = 'retry' then headgate.end_retry(r, got)
              when r.step = 'sift' then headgate.end_sift(r, got)
              else headgate.begin_look(r) end;
end $$;

-- end_retry(call, got) -> the call, which has handed out what was parked in its lane.
create or replace function headgate.end_retry(r headgate.receiving, got int)
returns headgate.receiving
language plpgsql as $$
declare
  l headgate.cursor := r.l;
begin
  r.lane_gave := got;
  if got > 0 then
    l.delivered := l.delivered + got;
    l.sweep_at := least(l.sweep_at, r.deadline);
    r.l := l;
  end if;
  return headgate.begin_span(r);
end $$;

-- begin_look(call) -> the call, which found nothing in its lane that it could hand out at once: it
-- asks whether anything is left there. (That a lane has nothing is usual, and a sift costs more.)
create or replace function headgate.begin_look(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  r.probed := array[r.lane];
  r.probed_from := array[r.pos];
  r.probed_to := array[r.hi];
  r.step := 'look';
  return r;
end $$;

-- end_look(call) -> the call, which is at the end of its lane's span, or has to sift what is left
-- of it. Writes cursor.
create or replace function headgate.end_look(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  is_left boolean := r.ahead <> '{}';
begin
  r.ahead := null;
  if is_left then return headgate.begin_sift(r); end if;
  update headgate.cursor k
     set pos = r.hi, turn = r.t0, sweep_at = r.sweep_at, delivered = r.delivered
   where k.consumer = r.consumer and k.lane = r.lane;
  return headgate.next_lane(r);
end $$;

-- end_sift(call, got) -> the call, which has read its lane by sift_<stream id>.
create or replace function headgate.end_sift(r headgate.receiving, got int)
returns headgate.receiving
language plpgsql as $$
declare
  l headgate.cursor := r.l;  -- where it was
  k headgate.cursor;  -- where it is
begin
  r.chunk_gave := got > 0;
  if got = 0 then
    select x.* into k from headgate.cursor x where x.consumer = r.consumer and x.lane = r.lane;
    -- (what was parked on the way is read again. But the search of a filter through a long span
    -- goes on from where it is, and behind the end of an old span comes the next one: these stay.)
    if (k.pos > l.pos or k.late is distinct from l.late) is not true
       or r.lets_go and k.pos >= k.to_hi and k.late is null and k.to_tick = r.tick then
      r.tried := r.tried || r.lane;
      if r.lets_go and r.lane_gave = 0 then
        r.step := 'let go';
        return r;
      end if;
    end if;
  end if;
  return headgate.next_lane(r);
end $$;

-- next_lane(call) -> the call, which is done with its lane.
create or replace function headgate.next_lane(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  r.step := case
    when r.want > 0 and clock_timestamp() <= r.t0 + interval '1 second' then 'claim' end;
  return r;
end $$;
