-- Receiving: claim what a worker may work on next. One call, one round trip, one transaction.

do $$ begin
  if to_regtype('headgate.received') is null then
    create type headgate.received as (
      ack_id text, seq bigint, key text, data text, headers jsonb, channel text, attempt int, created_at timestamptz);
  end if;
end $$;

-- receive(stream, consumer, batch_size, worker, acks, open, ack_wait) -> up to batch_size messages, each with the ack_id to settle it by.
-- First settles `acks` (ack_ids of messages or whole deliveries that the worker has just finished), then claims.
-- What it hands out is the worker's for `ack_wait`, or the consumer's when that is null.
-- Locks the cursors it claims (SKIP LOCKED) and, making a tick, the stream's row; writes delivery, cursor, parked, tick.
-- Inside a transaction that is seen to have been open already it holds only the lanes that it took messages from; where lanes are named, also
-- some that it looked into. (The first statement after BEGIN is not told from one alone, and holds what it looked into, too.)
create or replace function headgate.receive(
  stream text, consumer text, batch_size int default 1, worker text default null, acks text[] default null,
  open boolean default null, ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s int;
begin
  select t.id into s from headgate.stream t where t.name = receive.stream;
  if not found then perform headgate.find_stream(receive.stream); end if;
  open := headgate.is_open() or open;
  return query execute format('select * from headgate.receive_%s%s($1, $2, $3, $4, $5, $6)',
                              case when open then 'open_' else '' end, s) using consumer, batch_size, worker, acks, open, ack_wait;
end $$;

-- receive_opening() -> how the receive_<stream id> of every stream begins: finds the consumer, and makes a tick when one is needed.
create or replace function headgate.receive_opening() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
  t0 timestamptz := clock_timestamp(); deadline timestamptz; want int := n; c headgate.consumer; busy boolean;
  newest headgate.tick; tick_id bigint; tick_at timestamptz; tick_hi bigint; tick_settled boolean; too_many boolean; dummy text;
  has_watched boolean;
begin
  select k.* into c from headgate.consumer k where k.stream = {stream} and k.name = p_consumer;
  if not found then perform headgate.find_consumer(s.name, p_consumer) from headgate.stream s where s.id = {stream}; end if;
  if n is null or n not between 1 and 10000 then
    perform headgate.fail('HG010', format('a batch of %s messages is not possible', coalesce(n::text, 'null')), 'ask for 1 to 10,000 messages');
  end if;
  -- The caller says that this statement is a transaction of its own: relax its commit. See docs/adr/0005.
  if not open then dummy := set_config('synchronous_commit', 'off', true); end if;
  if p_ack_wait is not null then perform headgate.check_ack_wait(p_ack_wait); end if;
  deadline := t0 + coalesce(p_ack_wait, c.ack_wait);
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then  -- (has_fixed_snapshot, for less)
    perform headgate.sees_small_tables();
    -- SKIP LOCKED waits after all where the version that this snapshot sees is not the newest, and another holds that
    dummy := set_config('lock_timeout', '200ms', true);
  end if;
  if open is null and {asks whether open} then open := headgate.is_open(); end if;
  -- point: a receive knows the consumer
  -- A tick must be made before this transaction has an id, so before anything is written. While some lane has work left
  -- in its span there is no hurry.
  select t.id, t.at, t.hi, t.hi = t.hi0 and pg_snapshot_xmin(t.snap) >= t.bound,
         t.paced_to between t0 + interval '7 milliseconds' and t0 + interval '1 second',
         exists (select from headgate.cursor k where k.consumer = c.id and {busy}),
         -- (asked here, because a statement of its own costs more than the question)
         (select d.id from headgate.delivery d
           where d.consumer = c.id and {watched} and d.deadline <= t0 order by d.deadline limit 1) is not null
    into tick_id, tick_at, tick_hi, tick_settled, too_many, busy, has_watched
    from headgate.tick t where t.stream = {stream} and t.base = t.id order by t.id desc limit 1;
  if not busy and too_many and pg_sequence_last_value('headgate.seq_{stream}') > tick_hi then
    perform pg_sleep(0.001);  -- another tick may be made then: what was sent since the last one is not to be missed
    too_many := false;
  end if;
  if not busy and not too_many or busy and tick_at not between t0 - interval '20 milliseconds' and t0 + interval '1 second'
       and (not tick_settled or pg_sequence_last_value('headgate.seq_{stream}') > tick_hi) then
    newest := headgate.make_tick({stream}, coalesce(open, headgate.is_open()));
    tick_id := newest.id;
  end if;
$source$
$template$;

-- delete_deliveries() -> the statement with which every receive_<stream id> settles whole deliveries, those that nobody else holds or has held (xmax):
-- for the others there is settle_surely. Rows are found by their key, not by their place: one that is extended meanwhile lies
-- elsewhere. They are compared as a whole, or a planner joins by consumer and reads all of its deliveries.
create or replace function headgate.delete_deliveries() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select $source$delete from headgate.delivery d
       using (select split_part(a, '.', 1)::bigint as lane, split_part(a, '.', 2)::bigint as id from unnest(acks) a offset 0) a
       where (d.consumer, d.lane, d.id) >= (c.id, a.lane, a.id) and (d.consumer, d.lane, d.id) <= (c.id, a.lane, a.id)
         and d.xmax = '0'::xid and d.is_split is null$source$
$$;

-- receive_template(open) -> the source of receive_<stream id>(consumer, batch_size, worker, acks, open, ack_wait), and with `open` of
-- receive_open_<stream id>, which lets go of the lanes that gave it nothing: there each lane is a subtransaction. A caller that knows
-- whether it is inside a longer transaction says so in `open`. Claims lane after lane, the
-- one that waited longest first, until the batch is full: what is parked and due, then the log. (Streams whose lanes are
-- keys or channels have the one in 62_rotate.sql.)
-- This is the hot path. A statement costs mostly by the nodes of its plan, even of those that never run, so the usual case
-- (a lane with work left in its span, no filter, no order) has statements of its own, and the rest is in sift_<stream id>.
-- Rows are compared as (lane, seq), and looked up in parked in the order of one index, so that no planner takes another one:
-- its statistics of small, fast-changing tables are never right, and a plan is kept for the life of a session.
create or replace function headgate.receive_template(p_open boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select replace(replace(replace(replace(replace($source$
create function headgate.receive_{open_}{stream}(p_consumer text, n int, p_worker text, acks text[], open boolean default null, p_ack_wait interval default null) returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  got int; of_lane int; tries int := 0; tried bigint[] := '{}';
  plain boolean; special boolean; moved boolean; chunk int; chunk_lane bigint; got_before boolean; was_tick bigint;
  l headgate.cursor; at_lane bigint; at_pos bigint; at_hi bigint; at_from pg_snapshot; at_to pg_snapshot; at_sweep_at timestamptz; at_delivered bigint;
{opening}
  plain := not c.ordered and c.pattern is null;
  if cardinality(acks) > 0 then
    if not c.ordered and array_to_string(acks, ' ') ~ '^([0-9]{1,18}\.[0-9]{1,18}( |$))+$' then  -- whole deliveries
      if cardinality(acks) = 1 then
        delete from headgate.delivery d
         where d.consumer = c.id and d.lane = split_part(acks[1], '.', 1)::bigint and d.id = split_part(acks[1], '.', 2)::bigint
           and d.xmax = '0'::xid and d.is_split is null;
      else
        {delete whole deliveries};
      end if;
      get diagnostics got = row_count;
      if got < cardinality(acks) then perform headgate.settle_surely(c, acks); end if;  -- the others: stale, or held by somebody
    else
      select s.stale into got from headgate.settle(c, acks) s;
      if got > 0 then perform headgate.settle_surely(c, acks); end if;
    end if;
  end if;
  -- point: a receive has settled its acks
  if c.paused then return; end if;
  if has_watched and (not busy or open is not true) then  -- in an open transaction, only what it may then hand out
    perform headgate.expire(c, t0);
  end if;
  if c.max_ack_pending is not null then
    want := least(n, headgate.room_in_flight(c, t0));
    if want <= 0 then return; end if;
  end if;
  if c.leased then tried := headgate.unleased_lanes(c, p_worker, t0); end if;
  loop
    {lane begins}
    at_lane := null;
    l := null;
    of_lane := 0;
    -- the lane that waited longest, of those with work left; the others are looked at now and then, lest they starve
    if busy and plain and not c.leased then
      select k.lane, k.pos, k.to_hi, k.from_snap, k.to_snap, k.sweep_at, k.delivered,
             k.pos >= k.to_hi or k.late is not null or k.discards or coalesce(k.sweep_at <= t0, false)
               or coalesce((select p.visible_at from headgate.parked p where p.consumer = c.id and p.lane = k.lane order by p.visible_at limit 1) <= t0, false)
        into at_lane, at_pos, at_hi, at_from, at_to, at_sweep_at, at_delivered, special
        from headgate.cursor k
       where k.consumer = c.id and (k.pos < k.to_hi or k.turn < t0 - interval '20 milliseconds') and k.lane <> all(tried)
       order by k.turn limit 1 for no key update skip locked;
    elsif busy then  -- in order, lanes with nothing in flight first: there no key is taken
      select k.lane, true into at_lane, special from headgate.cursor k
       where k.consumer = c.id and (k.pos < k.to_hi or k.turn < t0 - interval '20 milliseconds') and k.lane <> all(tried)
       order by c.ordered and exists (select from headgate.delivery d where d.consumer = c.id and d.lane = k.lane), k.turn limit 1 for no key update skip locked;
    end if;
    -- point: a busy lane is claimed
    if at_lane is null or special then
      if at_lane is not null then
        select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = at_lane;
      else
        select k.* into l from headgate.cursor k
         where k.consumer = c.id and k.lane <> all(tried) and (
               k.pos < k.to_hi or k.late is not null or k.sweep_at <= t0
            or (k.to_tick <> tick_id and exists (select from headgate.message_{stream} m where (m.lane, m.seq) > (k.lane, k.to_lo) and (m.lane, m.seq) < (k.lane + 1, 0) and m.seq > k.to_lo))
            or k.to_base < (select max(t.id) from headgate.tick t where t.stream = {stream} and t.late is not null)
            or (select p.visible_at from headgate.parked p where p.consumer = c.id and p.lane = k.lane order by p.visible_at limit 1) <= t0
            or (c.ordered and exists (select from headgate.wake w where w.consumer = c.id and w.lane = k.lane)))
         order by k.turn limit 1 for no key update skip locked;
      end if;
      if l.lane is null then
        -- nothing to claim, or all of it locked by other claims at this instant: then try again rather than say "nothing"
        exit when want < n or tries >= 8 or not exists (
          select from headgate.cursor k where k.consumer = c.id and k.lane <> all(tried) and (
             k.pos < k.to_hi or (k.to_tick <> tick_id and exists (
               select from headgate.message_{stream} m where (m.lane, m.seq) > (k.lane, k.to_lo) and (m.lane, m.seq) < (k.lane + 1, 0) and m.seq > k.to_lo))));
        tries := tries + 1;
        perform pg_sleep(0.0005 * tries);
        continue;
      end if;
      -- point: a lane is claimed
      if l.sweep_at <= t0 then l.sweep_at := headgate.take_apart(c, l.lane, t0); end if;
      if c.leased and not headgate.may_claim(c, l.lane, p_worker) then  -- it has changed hands, or another worker is not done with it
        update headgate.cursor k set turn = t0, sweep_at = l.sweep_at where k.consumer = c.id and k.lane = l.lane;
        tried := tried || l.lane;
        {lane gave nothing}
        continue;
      end if;
      -- point: a lane is swept
      if c.ordered then perform headgate.take_notes(c, l.lane, t0); end if;
      {upsert perform headgate.forget_superseded(c, l.lane, t0);}
      if (select p.visible_at from headgate.parked p where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) <= t0 then
        return query
        with p as materialized (select * from headgate.unpark(c, l.lane, want, t0)),
        m as materialized (
          select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at from p
            join (select * from headgate.message_{stream} union all select * from headgate.kept_{stream}) m on m.seq = p.seq),
        gone as (  -- removed by retention while they were in flight or being parked
          insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
            select c.id, p.first, p.last, p.n - m.n, 'removed while parked'
              from (select count(*) as n, min(p.seq) as first, max(p.seq) as last from p) p, (select count(*) as n from m) m
             where p.n > m.n and headgate.no_fixed_snapshot(p.n - m.n)),  -- (asked of both, so not before they are compared)
        d as (
          insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at, worker)
            select c.id, l.lane, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
                   case when c.ordered then array_agg(m.key order by m.seq) end, deadline, t0, p_worker from m having count(*) > 0
            returning l.lane || '.' || id || '.' as prefix)
        select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, null::text, m.attempt, m.created_at from d, m order by m.seq;
        get diagnostics got = row_count;
        want := want - got;
        of_lane := got;
        l.delivered := l.delivered + got;
        if got > 0 then l.sweep_at := least(l.sweep_at, deadline); end if;
      end if;
      -- point: what is parked in a lane is served
      moved := false;
      if l.pos >= l.to_hi and l.late is null and l.to_tick <> tick_id then  -- the span is done: begin the next one
        was_tick := l.to_tick;
        if newest.id is null then  -- by now it may have been thinned out: then the one behind it
          select t.* into newest from headgate.tick t
           where t.stream = {stream} and t.base = t.id and t.id >= tick_id order by t.id limit 1;
        end if;
        l := case when l.gate is null then headgate.next_span(l, newest) else headgate.next_gated(c, l, newest) end;
        moved := l.to_tick <> was_tick;
      end if;
      -- point: a lane has its span
      if moved then
        update headgate.cursor k set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo, to_tick = l.to_tick,
               to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos, late = l.late, turn = t0,
               sweep_at = l.sweep_at, delivered = l.delivered,
               mark_at = case when k.mark_at < t0 - interval '10 seconds' then t0 else k.mark_at end,
               mark_delivered = case when k.mark_at < t0 - interval '10 seconds' then k.delivered else k.mark_delivered end
         where k.consumer = c.id and k.lane = l.lane;
      end if;
      if want = 0 or (l.pos >= l.to_hi and l.late is null) then
        tried := tried || l.lane;
        if not moved then
          update headgate.cursor k set turn = t0, sweep_at = l.sweep_at, delivered = l.delivered where k.consumer = c.id and k.lane = l.lane;
        end if;
        exit when want = 0;
        {lane gave nothing}
        continue;
      end if;
      at_lane := l.lane; at_pos := l.pos; at_hi := l.to_hi; at_from := l.from_snap; at_to := l.to_snap; at_sweep_at := l.sweep_at; at_delivered := l.delivered;
      special := not plain or l.late is not null or l.discards;
    end if;
    -- point: a lane is to be read
    got := 0;
    if at_hi - at_pos > 10000 then  -- a long span: one segment at a time, so that the others are not opened
      -- (none, when all beyond is being sent by a transaction that is open: nobody else sees its segments)
      at_hi := coalesce((
        select least(at_hi, g.end_seq - 1) from headgate.segment g where g.stream = {stream} and g.end_seq > at_pos + 1 order by g.id limit 1), at_hi);
    end if;
    if not special then
      return query
      with m as materialized (
        select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at from headgate.message_{stream} m
         where (m.lane, m.seq) > (at_lane, at_pos) and (m.lane, m.seq) <= (at_lane, at_hi) and m.seq > at_pos and m.seq <= at_hi
           and pg_visible_in_snapshot(m.xid, at_to) and not pg_visible_in_snapshot(m.xid, at_from)
         order by m.lane, m.seq limit want),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, deadline, delivered_at, worker)
          select c.id, at_lane, array_agg(m.seq), deadline, t0, p_worker from m having count(*) > 0 and count(m.deliver_at) = 0
          returning at_lane || '.' || id || '.' as prefix, seqs),
      u as (
        update headgate.cursor k set pos = case when cardinality(d.seqs) < want then at_hi else d.seqs[want] end, turn = t0,
               sweep_at = least(at_sweep_at, deadline), delivered = at_delivered + cardinality(d.seqs)
          from d where k.consumer = c.id and k.lane = at_lane)
      select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, null::text, 1, m.created_at from d, m;
      get diagnostics got = row_count;
      want := want - got;
    end if;
    if got = 0 then  -- a filter, keys in order, a late, delayed or discarded message, or nothing left
      select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = at_lane;
      l.sweep_at := at_sweep_at; l.delivered := at_delivered; l.to_hi := at_hi;
      -- look ever further ahead while nothing fits
      chunk := case when chunk is null or got_before or (c.ordered and chunk_lane <> at_lane) then case when c.pattern is null then want + 20 else want * 8 + 500 end else least(chunk * 4, 20000) end;
      return query select * from headgate.sift_{stream}(c, l, want, chunk, p_worker, t0, deadline);
      get diagnostics got = row_count;
      want := want - got;
      got_before := got > 0;
      chunk_lane := at_lane;
      if got = 0 and not exists (select from headgate.cursor k where k.consumer = c.id and k.lane = l.lane and (k.pos > l.pos or k.late is distinct from l.late))
      then
        tried := tried || l.lane;
        {lane gave nothing}
      {or is read to its end}
      end if;
    end if;
    -- point: a lane is read
    exit when want <= 0 or clock_timestamp() > t0 + interval '1 second';
    {lane ends}
  end loop;
end $$;
$source$,
  '{open_}', case when p_open then 'open_' else '' end),
  '{lane begins}', case when p_open then 'begin' else '' end),
  '{lane gave nothing}', case when p_open then $$if of_lane = 0 then raise exception using errcode = 'HG0LG'; end if;$$ else '' end),
  -- (what was parked on the way is read again. But the search of a filter through a long span goes on from where it is, and behind the end
  -- of an old span comes the next one: these stay.)
  '{or is read to its end}', case when p_open then $$elsif got = 0 and exists (
        select from headgate.cursor k
         where k.consumer = c.id and k.lane = l.lane and k.pos >= k.to_hi and k.late is null and k.to_tick = tick_id) then
        tried := tried || l.lane;
        if of_lane = 0 then raise exception using errcode = 'HG0LG'; end if;$$ else '' end),
  '{lane ends}', case when p_open then $$exception
      when sqlstate 'HG0LG' then null;
      when lock_not_available then perform headgate.no_fixed_snapshot(); raise;
    end;$$ else '' end)
$template$;

-- sift_template() -> the source of sift_<stream id>(consumer, cursor, n, chunk, worker, now, deadline) -> messages: the reading of a
-- span with a filter, with keys in order, with delays, with messages that were discarded, or of what late transactions left below it; at
-- most `chunk` messages are looked at. The caller holds the cursor.
create or replace function headgate.sift_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.sift_{stream}(c headgate.consumer, l headgate.cursor, want int, chunk int, p_worker text, t0 timestamptz, deadline timestamptz)
returns setof headgate.received language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  flying text[] := '{}'; any_parked boolean := false; crowded boolean := false; bound int;
begin
  if c.ordered then
    -- in this order: a message that is nacked at this moment is seen in flight, or parked, or both, but never as neither
    flying := headgate.keys_in_flight(c.id, l.lane);
    -- point: the keys in flight are known
    any_parked := exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane);
    -- Keys in flight park the messages behind them, within bounds; past these the lane waits for an ack. The bounds are
    -- narrow while all that is in flight is young: most of it is acked in a moment, and parking costs more than waiting.
    -- (A count of all that sleep comes first, because it is cheap: those behind a failed message must not hold other keys.)
    bound := case when exists (select from headgate.delivery d where d.consumer = c.id and d.lane = l.lane and d.delivered_at < t0 - interval '100 milliseconds')
                  then 1000 else 50 end;
    crowded := any_parked and flying <> '{}'
      and (select p.seq from headgate.parked p where p.consumer = c.id and p.lane = l.lane and p.visible_at >= 'infinity'
            order by p.visible_at, p.seq offset bound limit 1) is not null
      and (select count(*) from unnest(flying) f (key) cross join lateral (
             select from headgate.parked p where p.consumer = c.id and p.lane = l.lane
                and p.key is not null and (p.key, p.seq) >= (f.key, 0) and (p.key, p.seq) <= (f.key, 9223372036854775807) order by p.key, p.seq limit bound + 1) x) > bound;
    {upsert any_parked := false;  -- older versions hold nobody up: they are forgotten below}
  end if;
  -- point: what blocks is known
  return query
  with raw as materialized (
    (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {m.channel} as channel from headgate.message_{stream} m
      where l.late is null and (m.lane, m.seq) > (l.lane, l.pos) and (m.lane, m.seq) <= (l.lane, l.to_hi) and m.seq > l.pos and m.seq <= l.to_hi
        and pg_visible_in_snapshot(m.xid, l.to_snap) and not pg_visible_in_snapshot(m.xid, l.from_snap)
      order by m.lane, m.seq limit chunk)
    union all
    (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {m.channel} as channel
       from unnest(l.late) r cross join lateral (
         select * from headgate.message_{stream} m
          where (m.lane, m.seq) >= (l.lane, greatest(lower(r), l.pos + 1)) and (m.lane, m.seq) < (l.lane, upper(r)) and (m.lane, m.seq) <= (l.lane, l.from_lo)
            and pg_visible_in_snapshot(m.xid, l.to_snap) and not pg_visible_in_snapshot(m.xid, l.from_snap)
          order by m.lane, m.seq limit chunk) m
      where l.late is not null order by m.seq limit chunk)),
  fit as materialized (  -- what is handed out is carried along: estimates are off here, and joins of CTEs turn quadratic
    select r.*, case when c.ordered then r.key end as held, coalesce(r.deliver_at > t0, false) as delayed,
           coalesce(c.ordered and r.key in (select unnest(flying)), false) as flies,
           any_parked and (select p.seq from headgate.parked p where p.consumer = c.id and p.lane = l.lane
                              and p.key is not null and (p.key, p.seq) >= (r.key, 0) and (p.key, p.seq) < (r.key, r.seq) order by p.key, p.seq limit 1) is not null as blocked
      from raw r where (c.pattern is null or r.key ~ c.pattern){and newest}
       and (not l.discards
            or (select z.seq from headgate.discarded z where z.consumer = c.id and z.seq = r.seq limit 1) is null)),
  {upsert superseded as (delete from headgate.parked p where p.ctid = any(array(
    select o.ctid from headgate.parked o join fit f on o.key = f.key and o.seq < f.seq
     where o.consumer = c.id and o.lane = l.lane for update of o skip locked))),}
  sorted as materialized (
    select f.*, f.delayed or (f.held is not null and bool_or(f.delayed or f.flies or f.blocked) over (partition by f.held order by f.seq)) as waits
      from fit f where not crowded or f.seq < coalesce((select min(f2.seq) from fit f2 where f2.flies), f.seq + 1)),
  taken as materialized (select s.seq, s.held, s.key, s.data, s.headers, s.created_at, s.channel from sorted s where not s.waits order by s.seq limit want),
  g as materialized (  -- how far this goes; null: to the end of the span (or of its late part)
    select case when (select count(*) from taken) >= want then (select max(x.seq) from taken x)
                when crowded and exists (select from fit f where f.flies) then (select min(f.seq) - 1 from fit f where f.flies)
                when (select count(*) from raw) >= chunk then (select max(r.seq) from raw r) end as stop),
  p as (
    insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
      select c.id, l.lane, s.seq, s.held, 0,
             case when s.delayed then s.deliver_at
                  when s.flies and not s.blocked and row_number() over (partition by s.held order by s.seq) = 1 then t0 + interval '50 milliseconds'
                  else 'infinity' end,
             case when s.delayed then 'delayed' else 'blocked' end
        from sorted s, g where s.waits and (g.stop is null or s.seq <= g.stop)),
  d as (
    insert into headgate.delivery (consumer, lane, seqs, keys, deadline, delivered_at, worker)
      select c.id, l.lane, array_agg(x.seq order by x.seq), case when c.ordered then array_agg(x.held order by x.seq) end, deadline, t0, p_worker
        from taken x having count(*) > 0 returning l.lane || '.' || id || '.' as prefix),
  u as (
    update headgate.cursor k set pos = coalesce(g.stop, case when l.late is null then l.to_hi else l.from_lo end),
           late = case when g.stop is not null then l.late end, turn = t0,
           sweep_at = case when exists (select from taken) then least(l.sweep_at, deadline) else l.sweep_at end,
           delivered = l.delivered + (select count(*) from taken)
      from g where k.consumer = c.id and k.lane = l.lane)
  select d.prefix || x.seq, x.seq, x.key, x.data, x.headers, x.channel, 1, x.created_at from d, taken x order by x.seq;
end $$;
$source$
$template$;

-- room_in_flight(consumer, now) -> how many more messages may be in flight at once. One claim at a time, so that each counts
-- what the one before it took, until that has committed. A transaction that stays open would hold the other workers up, so
-- nobody waits for one: what it takes is counted from its commit on, and may exceed the limit. Whoever passes one by takes the
-- next of four locks, so that they still come one at a time. That it stays open is asked of the holder: whether a call itself
-- is part of a longer transaction is only a guess, and wrong on a busy machine. Who does not get its turn within a second
-- gets nothing. Locks: advisory locks of the consumer's.
create or replace function headgate.room_in_flight(c headgate.consumer, p_now timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  slot int;
  room int;
  holder record;
  was text;
  began timestamptz := clock_timestamp();
  seen timestamptz;  -- when this holder was seen first
begin
  foreach slot in array array[-1, -3, -4, -5] loop
    was := null;
    loop
      exit when pg_try_advisory_xact_lock(c.id, slot);
      select l.virtualtransaction as name, a.state, clock_timestamp() - a.xact_start as age into holder
        from pg_locks l left join lateral pg_stat_get_activity(l.pid) a on true
       where l.locktype = 'advisory' and l.granted and l.objsubid = 2
         and l.classid = c.id::oid and l.objid = (4294967296 + slot)::oid
         and l.database = (select d.oid from pg_database d where d.datname = current_database());
      if holder.name is distinct from was then
        was := holder.name;
        seen := clock_timestamp();
      end if;
      if holder.name is not null and (case
           when holder.state is null then clock_timestamp() > seen + interval '300 milliseconds'  -- this role may not know
           when holder.state like 'idle in transaction%' then holder.age > interval '300 milliseconds'
           else holder.age > interval '2 seconds' end) then
        slot := null;  -- it stays open
        exit;
      end if;
      if clock_timestamp() > began + interval '1 second' then return 0; end if;
      perform pg_sleep(0.002);
    end loop;
    exit when slot is not null;
  end loop;
  perform headgate.sweep(c, p_now);  -- what has expired is in flight no more
  -- point: what is in flight is to be counted
  select c.max_ack_pending - coalesce(sum(cardinality(d.seqs) - (
           select count(*) from headgate.departed x where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id)), 0) into room from headgate.delivery d where d.consumer = c.id;
  return room;
end $$;

-- next_span(cursor, newest tick) -> the cursor at the beginning of its next span; unchanged when there is none yet.
create or replace function headgate.next_span(l headgate.cursor, newest headgate.tick) returns headgate.cursor
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare bridge headgate.tick; below int8multirange; s int := newest.stream;
begin
  -- Ticks that lie between may be bridges from another cluster, or tell where late transactions left messages.
  if exists (select from headgate.tick t where t.stream = s and t.id >= l.to_base and (t.late is not null or t.reborn is not null)) then
    select * into bridge from headgate.tick t where t.stream = s and t.id = l.to_tick and t.reborn is not null;
    if found then
      select t.id, t.id, t.snap, t.lo, t.hi into l.to_tick, l.to_base, l.to_snap, l.to_lo, l.to_hi
        from headgate.tick t where t.stream = s and t.id = bridge.reborn;
    end if;
    select * into bridge from headgate.tick t where t.stream = s and t.id > l.to_base and t.reborn is not null order by t.id limit 1;
    if found then newest := bridge; end if;
    -- (to_tick 0: a lane that was never read, and everything above to_lo lies ahead)
    if l.to_tick <> 0 then
      below := headgate.late_between(s, l.to_base, newest.id)
               * int8multirange(int8range(null, l.to_lo, '[]'));
    end if;
  end if;
  -- Spans only go forward: by now the cursor may stand on a tick later than the one that this claim found newest (another
  -- worker's, or a private one, whose id says nothing about its age). And never to a private one that builds on an older tick
  -- than the cursor does: its late ranges end at that tick's lo.
  if newest.id = l.to_tick or newest.base < l.to_base or (case when l.to_tick = l.to_base and newest.id = newest.base then newest.id < l.to_tick
       else pg_snapshot_xmax(newest.snap) < pg_snapshot_xmax(l.to_snap)
         or (pg_snapshot_xmax(newest.snap) = pg_snapshot_xmax(l.to_snap)
             and (select count(*) from pg_snapshot_xip(newest.snap)) > (select count(*) from pg_snapshot_xip(l.to_snap))) end) then
    return l;
  end if;
  l.from_tick := l.to_tick; l.from_snap := l.to_snap; l.from_lo := l.to_lo;
  l.to_tick := newest.id; l.to_base := newest.base; l.to_snap := newest.snap; l.to_lo := newest.lo; l.to_hi := newest.hi;
  l.pos := greatest(l.from_lo, l.first_seq - 1);
  below := below * int8multirange(int8range(l.first_seq, null));
  if not isempty(below) then
    l.late := below;
    l.pos := lower(below) - 1;
  end if;
  return l;
end $$;
