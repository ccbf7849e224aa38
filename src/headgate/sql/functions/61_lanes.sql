-- Named lanes: one per key or per channel, any number of them, most of them idle. How they wake, sleep and are forgotten; 62_rotate.sql
-- serves them.
--
-- A lane has a cursor only while something is known of it. The gatherer (the cursor of lane -1) reads the log once for the
-- whole consumer, span by span, and wakes the lanes that it meets. A claim takes the lanes that are due, in the order of
-- next_at, and each gives its share of the batch and goes to the end of the rotation. What holds:
--   1. a lane without a cursor has nothing unread up to the tick that the gatherer has reached;
--   2. a lane goes idle (next_at null) only when it has read up to that tick, as seen after its cursor was locked; and the
--      gatherer, which meets a cursor that is locked, leaves a note (wake) instead of waiting. So no wake is lost;
--   3. a lane found full (next_at infinity) is woken by whatever takes one of its messages out of flight: an ack in the same
--      receive wakes it directly when it gets the cursor, everything else leaves a note;
--   4. only one claim at a time holds a lane's cursor, and it counts what is in flight after it got it: limits hold over
--      all workers.

-- set_channel(stream, consumer, channel, …): changes the limits of one channel (or key, by the stream's lanes) that are given; null leaves
-- a limit as it is, and `clear` names those to put back to the consumer's own. max_concurrency 0 holds the channel back.
-- Writes channel, cursor.
create or replace function headgate.set_channel(
  stream text, consumer text, channel text, max_concurrency int default null, release_interval interval default null,
  clear text[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  l bigint := case when channel is null then 144115188075855872 else headgate.named_lane(channel) end;
  h headgate.channel;
begin
  if s.lane_by = 'hash' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name), 'make the stream with lane_by => ''channel'' (or ''key'')');
  end if;
  perform headgate.check_consumer('none', null, null, null, null, max_concurrency, release_interval, null);
  clear := coalesce(clear, '{}');
  if not clear <@ array['max_concurrency', 'release_interval'] then
    perform headgate.fail('HG010', 'clear names an unknown limit', 'max_concurrency and release_interval can be cleared');
  end if;
  insert into headgate.channel as x (consumer, lane, name, max_concurrency, release_interval)
    values (c.id, l, set_channel.channel,
            case when 'max_concurrency' <> all(clear) then set_channel.max_concurrency end,
            case when 'release_interval' <> all(clear) then set_channel.release_interval end)
    on conflict on constraint channel_pkey do update set
      max_concurrency = case when 'max_concurrency' <> all(clear) then coalesce(excluded.max_concurrency, x.max_concurrency) end,
      release_interval = case when 'release_interval' <> all(clear) then coalesce(excluded.release_interval, x.release_interval) end
    returning * into h;
  if h.max_concurrency is null and h.release_interval is null then
    delete from headgate.channel x where x.consumer = c.id and x.lane = l;
  end if;
  update headgate.cursor k set max_concurrency = h.max_concurrency, release_interval = h.release_interval,
         next_at = case when k.next_at = 'infinity' then clock_timestamp() else k.next_at end
   where k.consumer = c.id and k.lane = l;
end $$;

-- wake_lanes(consumer, lanes, now): something of these lanes is in flight no more: those that were full go on. The caller has
-- changed the deliveries in this transaction. Lanes whose cursor somebody holds get a note. Locks cursors (SKIP LOCKED);
-- writes cursor, wake.
create or replace function headgate.wake_lanes(c headgate.consumer, p_lanes bigint[], p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare held bigint[]; places tid[];
begin
  -- also those that are not full: a claim that counts before this transaction commits must not put them to sleep
  select array_agg(x.lane), array_agg(x.place) filter (where x.next_at = 'infinity') into held, places from (
    select h.* from unnest(p_lanes) u (lane) cross join lateral (
      select k.lane, k.ctid as place, k.next_at from headgate.cursor k where k.consumer = c.id and k.lane = u.lane limit 1 for update skip locked) h) x;
  if places is not null then
    update headgate.cursor k set next_at = greatest(p_now, k.turn + coalesce(k.release_interval, c.release_interval)) where k.ctid = any(places);
  end if;
  if cardinality(p_lanes) > coalesce(cardinality(held), 0) then
    insert into headgate.wake (consumer, lane) select c.id, u.lane from unnest(p_lanes) u (lane) where u.lane <> all(coalesce(held, '{}'));
  end if;
end $$;

-- take_wakes(consumer, now): makes the lanes due that notes were left for. Notes of lanes whose cursor somebody holds stay, and
-- so do those about keys, which the claim of the lane takes up. Locks cursors, notes (SKIP LOCKED); writes cursor, wake.
create or replace function headgate.take_wakes(c headgate.consumer, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare noted bigint[]; held bigint[]; places tid[]; g headgate.cursor;
begin
  noted := array(select w.lane from headgate.wake w where w.consumer = c.id order by w.lane limit 1000);
  if noted = '{}' then return; end if;
  noted := array(select distinct u from unnest(noted) u);
  select coalesce(array_agg(h.lane), '{}'), array_agg(h.place) into held, places from unnest(noted) u (lane) cross join lateral (
    select k.lane, k.ctid as place from headgate.cursor k where k.consumer = c.id and k.lane = u.lane limit 1 for update skip locked) h;
  update headgate.cursor k set next_at = greatest(p_now, k.turn + coalesce(k.release_interval, c.release_interval))
   where k.ctid = any(places) and (k.next_at is null or k.next_at > p_now);
  -- a note of a lane without a cursor (nothing was left to read when it went idle): what is parked there needs one
  if exists (select from unnest(noted) u (lane) where not exists (select from headgate.cursor k where k.consumer = c.id and k.lane = u.lane)) then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1 for update skip locked;
    if found then
      -- while the gatherer is in the middle of a span, that span is still unread there
      perform headgate.add_lanes(c, g, array_agg(u.lane), null, p_now, g.pos < g.to_hi or g.late is not null) from unnest(noted) u (lane)
        where not exists (select from headgate.cursor k where k.consumer = c.id and k.lane = u.lane);
      held := held || array(select u.lane from unnest(noted) u (lane) where u.lane <> all(held)
                              and exists (select from headgate.cursor k where k.consumer = c.id and k.lane = u.lane and k.next_at = p_now));
    end if;
  end if;
  delete from headgate.wake w where w.ctid = any(array(
    select x.place from unnest(held) u (lane) cross join lateral (
      select w.ctid as place from headgate.wake w where w.consumer = c.id and w.lane = u.lane and w.key is null limit 1000 for update skip locked) x));
end $$;

-- add_lanes(consumer, gatherer, lanes, names, now, unread) -> whether each of them has a cursor now. `unread`: they read the span that the
-- gatherer is in; otherwise they have read all of it. Lanes that a user's open transaction has just made are not waited for.
-- The caller holds the gatherer, or is such a transaction. Writes cursor.
create or replace function headgate.add_lanes(c headgate.consumer, g headgate.cursor, p_lanes bigint[], p_names text[], p_now timestamptz, p_unread boolean)
returns boolean language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '20ms' as $$
declare held bigint[] := '{}';
begin
  for i in 1 .. 2 loop
    begin
      insert into headgate.cursor (consumer, lane, turn, from_tick, from_snap, from_lo, to_tick, to_base, to_snap, to_lo, to_hi, pos, late,
                                   next_at, max_concurrency, release_interval, name)
        select c.id, u.lane, '-infinity', g.from_tick, g.from_snap, g.from_lo, g.to_tick, g.to_base, g.to_snap, g.to_lo, g.to_hi,
               case when not p_unread then g.to_hi when g.late is not null then lower(g.late) - 1 else g.from_lo end, case when p_unread then g.late end,
               p_now, h.max_concurrency, h.release_interval, u.name
          from unnest(p_lanes, p_names) u (lane, name) left join headgate.channel h on h.consumer = c.id and h.lane = u.lane
         where u.lane <> all(held)
        on conflict (consumer, lane) do nothing;
      return held = '{}';
    exception when lock_not_available then
      held := array(select u.lane from unnest(p_lanes) u (lane) join pg_locks l on l.locktype = 'advisory' and l.classid::bigint = c.id
                       and l.objid::bigint = (u.lane & 2147483647) and l.database = (select oid from pg_database where datname = current_database()));
    end;
  end loop;
  return false;
end $$;

-- gather_template() -> the source of gather_<stream id>(consumer, newest tick, now, few): reads on in the log for the whole consumer, up to
-- 100,000 messages, and wakes the lanes it meets, making cursors for those that have none. Inside a user's open
-- transaction, `few` lanes are woken and the gatherer is left where it is: it and other lanes would be held until the
-- commit. Locks the gatherer's and idle lanes' cursors (SKIP LOCKED); writes cursor, wake.
create or replace function headgate.gather_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.gather_{stream}(c headgate.consumer, newest headgate.tick, p_now timestamptz, few int) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare g headgate.cursor; was headgate.cursor; lanes bigint[]; names text[]; known bigint[]; held bigint[]; places tid[]; n bigint; last bigint; is_complete boolean := true;
begin
  if few is null then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1 for update skip locked;
    if not found then return; end if;
  else
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  end if;
  if g.pos >= g.to_hi and g.late is null then
    was := g;
    g := headgate.next_span(g, newest);
    if g.to_tick = was.to_tick then return; end if;
  end if;
  was := g;
  if g.late is not null then  -- what late transactions left below the span
    select array_agg(x.lane), array_agg(x.name) into lanes, names from (
      select m.lane, min({name}) as name from unnest(g.late) r join headgate.message_{stream} m on m.seq >= lower(r) and m.seq < upper(r)
       where m.seq <= g.from_lo and pg_visible_in_snapshot(m.xid, g.to_snap) and not pg_visible_in_snapshot(m.xid, g.from_snap)
         and (c.pattern is null or m.key ~ c.pattern) group by m.lane) x;
  else
    select array_agg(x.lane) filter (where x.fits), array_agg(x.name) filter (where x.fits), coalesce(sum(x.n), 0), max(x.last) into lanes, names, n, last from (
      select y.lane, min(y.name) as name, bool_or(y.fits) as fits, count(*) as n, max(y.seq) as last from (
        select m.lane, {name} as name, m.seq, c.pattern is null or coalesce(m.key ~ c.pattern, false) as fits from headgate.message_{stream} m
         where m.seq > g.pos and m.seq <= g.to_hi and pg_visible_in_snapshot(m.xid, g.to_snap) and not pg_visible_in_snapshot(m.xid, g.from_snap)
         order by m.seq limit 100000) y group by y.lane) x;
  end if;
  if few is not null then
    -- lanes without a cursor that no other such transaction has just made, and idle ones
    select array_agg(x.lane), array_agg(x.name) into lanes, names from (
      select u.lane, u.name from unnest(lanes, names) u (lane, name)
       where not exists (select from headgate.cursor k where k.consumer = c.id and k.lane = u.lane and (k.next_at is not null or k.to_tick = g.to_tick))
         and pg_try_advisory_xact_lock(c.id, (u.lane & 2147483647)::int) limit few) x;
  end if;
  if lanes is not null then
    -- lane by lane: joined the other way around, this would read all the consumer's cursors
    known := array(select h.lane from unnest(lanes) u (lane) cross join lateral (
      select k.lane from headgate.cursor k where k.consumer = c.id and k.lane = u.lane limit 1) h);
    if known <> '{}' then
      select coalesce(array_agg(h.lane), '{}'), array_agg(h.place) into held, places from unnest(known) u (lane) cross join lateral (
        select k.lane, k.ctid as place from headgate.cursor k where k.consumer = c.id and k.lane = u.lane limit 1 for update skip locked) h;
      update headgate.cursor k set next_at = greatest(p_now, k.turn + coalesce(k.release_interval, c.release_interval))
       where k.ctid = any(places) and (few is not null or k.to_base < g.to_base) and (k.next_at is null or (k.next_at > p_now and k.next_at < 'infinity'));
      if few is null and cardinality(held) < cardinality(known) then
        insert into headgate.wake (consumer, lane) select c.id, u.lane from (select unnest(known) except select unnest(held)) u (lane);
      end if;
    end if;
    if cardinality(known) < cardinality(lanes) then is_complete := headgate.add_lanes(c, g, lanes, names, p_now, true); end if;
  end if;
  if few is not null then return; end if;
  if not is_complete then  -- an open transaction may still undo a lane: begin here again, though with what is new by then
    g := was;
    if g.late is null then
      select newest.id, newest.base, newest.snap, newest.lo, newest.hi into g.to_tick, g.to_base, g.to_snap, g.to_lo, g.to_hi where newest.id > g.to_base and newest.reborn is null
        and not exists (select from headgate.tick t where t.stream = {stream} and t.id > g.to_base and (t.late is not null or t.reborn is not null));
      if not found then g := was; end if;
    end if;
  elsif g.late is not null then
    g.late := null; g.pos := g.from_lo;
  else
    g.pos := case when n < 100000 then g.to_hi else last end;
  end if;
  update headgate.cursor k set from_tick = g.from_tick, from_snap = g.from_snap, from_lo = g.from_lo, to_tick = g.to_tick, to_base = g.to_base,
         to_snap = g.to_snap, to_lo = g.to_lo, to_hi = g.to_hi, pos = g.pos, late = g.late, turn = p_now
   where k.consumer = c.id and k.lane = -1;
end $$;
$source$
$template$;

-- expire(consumer, now) -> how many deliveries past their deadline were taken apart (at most 100 a call), where lanes are named.
-- Locks deliveries (SKIP LOCKED); writes delivery, parked, wake.
create or replace function headgate.expire(c headgate.consumer, p_now timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare d headgate.delivery; n int := 0;
begin
  for d in select * from headgate.delivery x where x.consumer = c.id and x.lane >= 144115188075855872 and x.deadline <= p_now
            order by x.deadline limit 100 for update skip locked loop
    delete from headgate.delivery x where x.consumer = c.id and x.lane = d.lane and x.id = d.id;
    perform headgate.park_failed(c, d, d.seqs, null, 'expired', null);
    n := n + 1;
  end loop;
  return n;
end $$;

-- forget_lanes(consumer) -> how many idle lanes lost their cursor: what the gatherer has passed and nobody used for a minute.
-- At most 10,000 a call, and every ten seconds, for it looks at all of them. Locks the gatherer and idle cursors (SKIP LOCKED); writes cursor.
create or replace function headgate.forget_lanes(c headgate.consumer) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare g headgate.cursor; n int; total bigint;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1 for update skip locked;
  if not found or g.pos < g.to_hi or g.late is not null or g.mark_at > clock_timestamp() - interval '10 seconds' then return 0; end if;
  with idle as (
    select k.consumer, k.lane from headgate.cursor k
     where k.consumer = c.id and k.lane >= 0 and k.next_at is null and k.turn < clock_timestamp() - interval '1 minute' and k.to_base <= g.to_base
       and not exists (select from headgate.delivery d where d.consumer = c.id and d.lane = k.lane)
       and not exists (select from headgate.parked p where p.consumer = c.id and p.lane = k.lane)
     limit 10000 for update skip locked),
  gone as (delete from headgate.cursor k using idle i where k.consumer = i.consumer and k.lane = i.lane returning k.delivered)
  select count(*), coalesce(sum(delivered), 0) into n, total from gone;
  update headgate.cursor k set delivered = k.delivered + total, mark_at = case when n < 10000 then clock_timestamp() else k.mark_at end,
         mark_delivered = k.delivered + total
   where k.consumer = c.id and k.lane = -1;
  return n;
end $$;
