-- Receiving: claim what a worker may work on next. One call, one round trip, one transaction.

do $$ begin
  if to_regtype('headgate.received') is null then
    create type headgate.received as (
      ack_id text, seq bigint, key text, data text, headers jsonb, channel text, attempt int,
      created_at timestamptz);
  end if;
end $$;

-- receive(stream, consumer, batch_size, worker, acks, open, ack_wait) -> up to batch_size messages,
-- each with the ack_id to settle it by. First settles `acks` (ack_ids of messages or whole
-- deliveries that the worker has just finished), then claims. What it hands out is the worker's for
-- `ack_wait`, or the consumer's when that is null. Locks the cursors it claims (SKIP LOCKED) and,
-- making a tick, the stream's row; writes delivery, cursor, parked, tick. Inside a transaction that
-- is seen to have been open already it holds only the lanes that it took messages from; where lanes
-- are named, also some that it looked into. (The first statement after BEGIN is not told from one
-- alone, and holds what it looked into, too.)
create or replace function headgate.receive(
  stream text, consumer text, batch_size int default 1, worker text default null,
  acks text[] default null,
  open boolean default null, ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s int;
  claim text;
begin
  select t.id into s from headgate.stream t where t.name = receive.stream;
  if not found then s := (headgate.find_stream(receive.stream)).id; end if;
  if to_regclass('headgate.message_' || s) is null then
    perform headgate.stream_is_gone(receive.stream);
  end if;
  open := headgate.is_open() or open;
  claim := format('select * from headgate.receive_%s%s($1, $2, $3, $4, $5, $6)',
                  case when open then 'open_' else '' end, s);
  if current_setting('transaction_isolation') not in ('repeatable read', 'serializable') then
    return query execute claim using consumer, batch_size, worker, acks, open, ack_wait;
    return;
  end if;
  -- SKIP LOCKED may wait for a row that this snapshot sees an older version of: see check_call
  begin
    return query execute claim using consumer, batch_size, worker, acks, open, ack_wait;
  exception when lock_not_available then
    perform headgate.no_fixed_snapshot();
  end;
end $$;

-- receive_opening() -> how receive_<stream id> begins where lanes are named: finds the consumer,
-- and makes a tick when one is needed. (Where they are hashed, receive_step does.)
create or replace function headgate.receive_opening() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
  t0 timestamptz := clock_timestamp();
  deadline timestamptz;
  want int := n;
  c headgate.consumer;
  busy boolean;
  newest headgate.tick;
  tick_id bigint;
  tick_at timestamptz;
  tick_hi bigint;
  tick_settled boolean;
  too_many boolean;
  dummy text;
  has_watched boolean;
begin
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
  if open is null then open := headgate.is_open(); end if;
  -- point: a rotation knows the consumer
  -- A tick must be made before this transaction has an id, so before anything is written. While
  -- some lane has work left in its span there is no hurry.
  select t.id, t.at, t.hi, t.hi = t.hi0 and pg_snapshot_xmin(t.snap) >= t.bound,
         t.paced_to between t0 + interval '7 milliseconds' and t0 + interval '1 second',
         exists (select from headgate.cursor k
                  where k.consumer = c.id and k.next_at <= t0 and k.next_at < 'infinity'),
         -- (asked here, because a statement of its own costs more than the question)
         (select d.id from headgate.delivery d
           where d.consumer = c.id and d.lane >= 144115188075855872 and d.deadline <= t0
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
    newest := headgate.make_tick({stream}, coalesce(open, headgate.is_open()));
    tick_id := newest.id;
  end if;
$source$
$template$;

-- delete_deliveries() -> the statement that settles whole deliveries, those that nobody else holds
-- or has held (xmax): for the others there is settle_surely. Rows are found by their key, not by
-- their place: one that is extended meanwhile lies elsewhere. They are compared as a whole, or a
-- planner joins by consumer and reads all of its deliveries.
create or replace function headgate.delete_deliveries() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select $source$delete from headgate.delivery d
       using (select split_part(a, '.', 1)::bigint as lane, split_part(a, '.', 2)::bigint as id
                from unnest(acks) a offset 0) a
       where (d.consumer, d.lane, d.id) >= (c.id, a.lane, a.id)
         and (d.consumer, d.lane, d.id) <= (c.id, a.lane, a.id)
         and d.xmax = '0'::xid and d.is_split is null$source$
$$;

-- receive_steps() -> what receive_<stream id> does itself, one step at a time.
--   read   A lane's span, of a consumer without filter and order: the hot statement. It makes the
--     delivery
--          and moves the cursor, or, when one of the messages is delayed, does nothing.
--   probe  Which lanes have something behind their span?
--   look   Is anything left in the lane's span?
--   retry  What is parked and due.
--   cold   Everything, in a session that is to keep no plans of this stream.
--   sift   A span with a filter, with keys in order, with delays …
-- Rows are compared as (lane, seq), so that no planner takes another index: its statistics are
-- never right, and a plan is kept for the life of a session. (Columns have no alias, and what is
-- rare is elsewhere, because each word costs memory of every session and stream.)
create or replace function headgate.receive_steps() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select replace(replace($source$r := {step};
    if r.step = 'read' then
      -- point: a lane is to be read
      return query
      {read};
      get diagnostics got = row_count;
      -- point: a lane is read
      exit lanes when got = r.want;
    elsif r.step in ('probe', 'look') then
      r.ahead := {ahead};
    elsif r.step in ('retry', 'sift') then
      return query select * from headgate.retry_{stream}(r);
      get diagnostics got = row_count;
    elsif r.step = 'cold' then
      return query select * from headgate.receive_cold(
        {stream}, p_consumer, n, p_worker, acks, open, p_ack_wait);
      exit;
    else
      exit;
    end if;$source$,
  '{read}', headgate.read_statement()),
  '{ahead}', headgate.ahead_statement())
$template$;

-- read_statement(), ahead_statement() -> the step `read`, and the one of `probe` and `look`. The
-- call is r, and the worker p_worker.
create or replace function headgate.read_statement() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$with m as materialized (
        select seq, key, data, headers, deliver_at, created_at from headgate.message_{stream}
         where (lane, seq) > (r.lane, r.pos) and (lane, seq) <= (r.lane, r.hi)
           and seq > r.pos and seq <= r.hi
           and pg_visible_in_snapshot(xid, r.to_snap)
           and not pg_visible_in_snapshot(xid, r.from_snap)
         order by lane, seq limit r.want),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, deadline, delivered_at, worker)
          select r.consumer, r.lane, array_agg(seq), r.deadline, r.t0, p_worker from m
          having count(*) > 0 and count(deliver_at) = 0
          returning r.lane || '.' || id || '.' as prefix, seqs),
      u as (
        update headgate.cursor k
           set pos = case when cardinality(seqs) < r.want then r.hi else seqs[r.want] end,
               turn = r.t0,
               sweep_at = least(r.sweep_at, r.deadline), delivered = r.delivered + cardinality(seqs)
          from d where k.consumer = r.consumer and k.lane = r.lane)
      select prefix || seq, seq, key, data, headers, null::text, 1, created_at from d, m$source$
$template$;

-- ahead_statement() -> the expression that says which of the probed lanes have something behind
-- their span.
create or replace function headgate.ahead_statement() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$array(
        select l from unnest(r.probed, r.probed_from, r.probed_to) u (l, a, b)
         where exists (
           select from headgate.message_{stream}
            where (lane, seq) > (l, a) and (lane, seq) <= (l, b) and seq > a and seq <= b
              offset 0))$source$
$template$;

-- (A parameter of receive_template had another name once, and cannot be given one.)
do $$ begin
  if exists (select from pg_proc p
              where p.oid = to_regprocedure('headgate.receive_template(boolean)')
                and 'p_open' = any(p.proargnames)) then
    drop function headgate.receive_template(boolean);
  end if;
end $$;

-- receive_template(lets go) -> the source of receive_<stream id>(consumer, batch_size, worker,
-- acks, open, ack_wait), and with `lets go` of receive_open_<stream id>, which lets go of the lanes
-- that gave it nothing: there each lane is a subtransaction. A caller that knows whether it is
-- inside a longer transaction says so in `open`. (Streams whose lanes are keys or channels have the
-- one in lanes/rotate.sql.) Here is only what reads the stream's own tables, because a session
-- keeps the plans of every stream that it has received from (docs/adr/0022): all else is in the
-- steps, which are the same for all streams (read/steps.sql).
create or replace function headgate.receive_template(p_lets_go boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select replace(replace(replace(replace(replace($source$
create function headgate.receive_{open_}{stream}(
  p_consumer text, n int, p_worker text, acks text[], open boolean default null,
  p_ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
  r headgate.receiving;
  got int;
begin
  {loop}
end $$;
$source$,
  '{open_}', case when p_lets_go then 'open_' else '' end),
  '{loop}', case when p_lets_go then $$r := {step};
  <<lanes>> while r.step is not null loop
    begin
      loop
        {steps}
      end loop;
      if r.step = 'let go' then
        r.step := 'claim';
        raise exception using errcode = 'HG0LG';
      end if;
    exception
      when sqlstate 'HG0LG' then null;
      when lock_not_available then perform headgate.no_fixed_snapshot(); raise;
    end;
  end loop;$$ else $$<<lanes>> loop
    {steps}
  end loop;$$ end),
  '{steps}', headgate.receive_steps()),
  '{step}', $$headgate.receive_step(
      r, got, {stream}, 'headgate.seq_{stream}', {is upsert}, {lets go}, p_consumer, n, p_worker,
      acks, open, p_ack_wait)$$),
  '{lets go}', p_lets_go::text)
$template$;

-- retry_template() -> the source of retry_<stream id>(call) -> messages of the lane that the call
-- holds: those that are parked and due, and that may leave (see unpark), or what sift_<stream id>
-- answers. Writes as unpark and deliver_again, or as that.
create or replace function headgate.retry_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.retry_{stream}(r headgate.receiving) returns setof headgate.received
language plpgsql set search_path = pg_catalog, pg_temp
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  back bigint[];  -- what was parked
  attempts int[];
  keys text[];
  got int;
begin
  if r.step = 'sift' then
    -- point: a span is to be sifted
    return query
    select * from headgate.sift_{stream}(r.c, r.l, r.want, r.chunk, r.worker, r.t0, r.deadline);
    return;
  end if;
  select array_agg(p.seq), array_agg(p.attempt), array_agg(p.key) into back, attempts, keys
    from headgate.unpark(r.c, r.lane, r.want, r.t0) p;
  -- point: what was parked is to be looked up
  return query
  with m as materialized (
    select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at
      from unnest(back, attempts) p (seq, attempt)
      join (select * from headgate.message_{stream} union all select *
              from headgate.preserved_{stream}) m
        on m.seq = p.seq),
  d as materialized (
    select headgate.deliver_again(
             r, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
             array_agg(m.key order by m.seq)) as prefix
      from m)
  select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, null::text, m.attempt, m.created_at
    from d, m where d.prefix is not null order by m.seq;
  get diagnostics got = row_count;
  if got < cardinality(back) then
    perform headgate.record_missing(r.c, back, keys, 'removed while parked');
  end if;
end $$;
$source$
$template$;

-- sift_template() -> the source of sift_<stream id>(consumer, cursor, n, chunk, worker, now,
-- deadline) -> messages: the reading of a span with a filter, with keys in order, with delays, with
-- messages that were discarded, or of what late transactions left below it; at most `chunk`
-- messages are looked at. The caller holds the cursor.
create or replace function headgate.sift_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.sift_{stream}(c headgate.consumer, l headgate.cursor, want int, chunk int,
                                       p_worker text, t0 timestamptz, deadline timestamptz)
returns setof headgate.received language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  flying text[] := '{}'; any_parked boolean := false; crowded boolean := false; bound int;
begin
  if c.ordered then
    -- in this order: a message that is nacked at this moment is seen in flight, or parked, or both,
    -- but never as neither
    flying := headgate.keys_in_flight(c.id, l.lane);
    -- point: the keys in flight are known
    any_parked := exists (select from headgate.parked p
                           where p.consumer = c.id and p.lane = l.lane);
    -- Keys in flight park the messages behind them, within bounds; past these the lane waits for an
    -- ack. The bounds are narrow while all that is in flight is young: most of it is acked in a
    -- moment, and parking costs more than waiting. (A count of all that sleep comes first, because
    -- it is cheap: those behind a failed message must not hold other keys.)
    bound := case
      when exists (select from headgate.delivery d
                    where d.consumer = c.id and d.lane = l.lane
                      and d.delivered_at < t0 - interval '100 milliseconds')
                  then 1000 else 50 end;
    crowded := any_parked and flying <> '{}'
      and (select p.seq from headgate.parked p
            where p.consumer = c.id and p.lane = l.lane and p.visible_at >= 'infinity'
            order by p.visible_at, p.seq offset bound limit 1) is not null
      and (select count(*) from unnest(flying) f (key) cross join lateral (
             select from headgate.parked p where p.consumer = c.id and p.lane = l.lane
                and p.key is not null and (p.key, p.seq) >= (f.key, 0)
                and (p.key, p.seq) <= (f.key, 9223372036854775807) order by p.key, p.seq
                  limit bound + 1) x) > bound;
    {upsert any_parked := false;  -- older versions hold nobody up: they are forgotten below}
  end if;
  -- point: what blocks is known
  return query
  with raw as materialized (
    (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {m.channel} as channel
       from headgate.message_{stream} m
      where l.late is null and (m.lane, m.seq) > (l.lane, l.pos)
        and (m.lane, m.seq) <= (l.lane, l.to_hi) and m.seq > l.pos and m.seq <= l.to_hi
        and pg_visible_in_snapshot(m.xid, l.to_snap)
        and not pg_visible_in_snapshot(m.xid, l.from_snap)
      order by m.lane, m.seq limit chunk)
    union all
    (select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {m.channel} as channel
       from unnest(l.late) r cross join lateral (
         select * from headgate.message_{stream} m
          where (m.lane, m.seq) >= (l.lane, greatest(lower(r), l.pos + 1))
            and (m.lane, m.seq) < (l.lane, upper(r)) and (m.lane, m.seq) <= (l.lane, l.from_lo)
            and pg_visible_in_snapshot(m.xid, l.to_snap)
            and not pg_visible_in_snapshot(m.xid, l.from_snap)
          order by m.lane, m.seq limit chunk) m
      where l.late is not null order by m.seq limit chunk)),
  -- what is handed out is carried along: estimates are off here, and joins of CTEs turn quadratic
  fit as materialized (
    select r.*, case when c.ordered then r.key end as held,
           coalesce(r.deliver_at > t0, false) as delayed,
           coalesce(c.ordered and r.key in (select unnest(flying)), false) as flies,
           any_parked
           and (select p.seq from headgate.parked p where p.consumer = c.id and p.lane = l.lane
                              and p.key is not null and (p.key, p.seq) >= (r.key, 0)
                              and (p.key, p.seq) < (r.key, r.seq) order by p.key, p.seq
                                limit 1) is not null as blocked
      from raw r where (c.pattern is null or r.key ~ c.pattern){and newest}
       and (not l.discards
            or (select z.seq from headgate.discarded z where z.consumer = c.id and z.seq = r.seq
                 limit 1) is null)),
  {upsert superseded as (delete from headgate.parked p where p.ctid = any(array(
    select o.ctid from headgate.parked o join fit f on o.key = f.key and o.seq < f.seq
     where o.consumer = c.id and o.lane = l.lane for update of o skip locked))),}
  sorted as materialized (
    select f.*, f.delayed
        or (f.held is not null
            and bool_or(f.delayed or f.flies or f.blocked) over (partition by f.held
                order by f.seq)) as waits
      from fit f
        where not crowded
          or f.seq < coalesce((select min(f2.seq) from fit f2 where f2.flies), f.seq + 1)),
  taken as materialized (select s.seq, s.held, s.key, s.data, s.headers, s.created_at, s.channel
                           from sorted s where not s.waits order by s.seq limit want),
  g as materialized (  -- how far this goes; null: to the end of the span (or of its late part)
    select case when (select count(*) from taken) >= want then (select max(x.seq) from taken x)
                when crowded
                  and exists (select from fit f where f.flies) then
                    (select min(f.seq) - 1 from fit f where f.flies)
                when (select count(*) from raw) >= chunk then
                  (select max(r.seq) from raw r) end as stop),
  p as (
    insert into headgate.parked (consumer, lane, seq, key, attempt, visible_at, reason)
      select c.id, l.lane, s.seq, s.held, 0,
             case when s.delayed then s.deliver_at
                  when s.flies and not s.blocked
                    and row_number() over (partition by s.held order by s.seq) = 1 then
                      t0 + interval '50 milliseconds'
                  else 'infinity' end,
             case when s.delayed then 'delayed' else 'blocked' end
        from sorted s, g where s.waits and (g.stop is null or s.seq <= g.stop)),
  d as (
    insert into headgate.delivery (consumer, lane, seqs, keys, deadline, delivered_at, worker)
      select c.id, l.lane, array_agg(x.seq order by x.seq),
             case when c.ordered then array_agg(x.held order by x.seq) end, deadline, t0, p_worker
        from taken x having count(*) > 0 returning l.lane || '.' || id || '.' as prefix),
  u as (
    update headgate.cursor k
       set pos = coalesce(g.stop, case when l.late is null then l.to_hi else l.from_lo end),
           late = case when g.stop is not null then l.late end, turn = t0,
           sweep_at = case when exists (select from taken) then least(l.sweep_at, deadline)
                           else l.sweep_at end,
           delivered = l.delivered + (select count(*) from taken)
      from g where k.consumer = c.id and k.lane = l.lane)
  select d.prefix || x.seq, x.seq, x.key, x.data, x.headers, x.channel, 1, x.created_at
    from d, taken x order by x.seq;
end $$;
$source$
$template$;

-- room_in_flight(consumer, now) -> how many more messages may be in flight at once. One claim at a
-- time, so that each counts what the one before it took, until that has committed. A transaction
-- that stays open would hold the other workers up, so nobody waits for one: what it takes is
-- counted from its commit on, and may exceed the limit. Whoever passes one by takes the next of
-- four locks, so that they still come one at a time. That it stays open is asked of the holder:
-- whether a call itself is part of a longer transaction is only a guess, and wrong on a busy
-- machine. Who does not get its turn within a second gets nothing. Locks: advisory locks of the
-- consumer's.
create or replace function headgate.room_in_flight(c headgate.consumer, p_now timestamptz)
returns int
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
      select l.virtualtransaction as name, a.state, clock_timestamp() - a.xact_start as age
        into holder
        from pg_locks l left join lateral pg_stat_get_activity(l.pid) a on true
       where l.locktype = 'advisory' and l.granted and l.objsubid = 2
         and l.classid = c.id::oid and l.objid = (4294967296 + slot)::oid
         and l.database = (select d.oid from pg_database d where d.datname = current_database());
      if holder.name is distinct from was then
        was := holder.name;
        seen := clock_timestamp();
      end if;
      if holder.name is not null and (case
           -- this role may not know
           when holder.state is null then clock_timestamp() > seen + interval '300 milliseconds'
           when holder.state like 'idle in transaction%' then
             holder.age > interval '300 milliseconds'
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
           select count(*) from headgate.departed x
            where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id)), 0) into room
              from headgate.delivery d where d.consumer = c.id;
  return room;
end $$;

-- next_span(cursor, newest tick) -> the cursor at the beginning of its next span; unchanged when
-- there is none yet.
create or replace function headgate.next_span(l headgate.cursor, newest headgate.tick)
returns headgate.cursor
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare bridge headgate.tick; below int8multirange; s int := newest.stream;
begin
  -- Ticks that lie between may be bridges from another cluster, or tell where late transactions
  -- left messages.
  if exists (select from headgate.tick t
              where t.stream = s and t.id >= l.to_base
                and (t.late is not null or t.bridge_to is not null)) then
    select * into bridge from headgate.tick t
     where t.stream = s and t.id = l.to_tick and t.bridge_to is not null;
    if found then
      select t.id, t.id, t.snap, t.lo, t.hi into l.to_tick, l.to_base, l.to_snap, l.to_lo, l.to_hi
        from headgate.tick t where t.stream = s and t.id = bridge.bridge_to;
    end if;
    select * into bridge from headgate.tick t
     where t.stream = s and t.id > l.to_base and t.bridge_to is not null order by t.id limit 1;
    if found then newest := bridge; end if;
    -- (to_tick 0: a lane that was never read, and everything above to_lo lies ahead)
    if l.to_tick <> 0 then
      below := headgate.late_between(s, l.to_base, newest.id)
               * int8multirange(int8range(null, l.to_lo, '[]'));
    end if;
  end if;
  -- Spans only go forward: by now the cursor may stand on a tick later than the one that this claim
  -- found newest (another worker's, or a private one, whose id says nothing about its age). And
  -- never to a private one that builds on an older tick than the cursor does: its late ranges end
  -- at that tick's lo.
  if newest.id = l.to_tick or newest.base < l.to_base
     or (case when l.to_tick = l.to_base and newest.id = newest.base then newest.id < l.to_tick
       else pg_snapshot_xmax(newest.snap) < pg_snapshot_xmax(l.to_snap)
         or (pg_snapshot_xmax(newest.snap) = pg_snapshot_xmax(l.to_snap)
             and (select count(*) from pg_snapshot_xip(newest.snap)) > (select count(*)
                 from pg_snapshot_xip(l.to_snap))) end) then
    return l;
  end if;
  l.from_tick := l.to_tick; l.from_snap := l.to_snap; l.from_lo := l.to_lo;
  l.to_tick := newest.id;
  l.to_base := newest.base;
  l.to_snap := newest.snap;
  l.to_lo := newest.lo;
  l.to_hi := newest.hi;
  l.pos := greatest(l.from_lo, l.first_seq - 1);
  below := below * int8multirange(int8range(l.first_seq, null));
  if not isempty(below) then
    l.late := below;
    l.pos := lower(below) - 1;
  end if;
  return l;
end $$;
