-- Receiving where lanes are named: one per key or per channel, any number of them, most of them idle.
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

-- set_channel(stream, consumer, channel, max_concurrency, release_interval): the limits of one channel (or key, by the stream's
-- lanes); null means the consumer's own. 0 holds the channel back. Writes channel, cursor.
create or replace function headgate.set_channel(stream text, consumer text, channel text, max_concurrency int default null, release_interval interval default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream); c headgate.consumer := headgate.find_consumer(stream, consumer); l bigint;
begin
  if s.lane_by = 'hash' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name), 'make the stream with lane_by => ''channel'' (or ''key'')');
  end if;
  perform headgate.check_consumer('none', null, null, null, null, max_concurrency, release_interval, null);
  l := case when channel is null then 144115188075855872 else headgate.named_lane(channel) end;
  if max_concurrency is null and release_interval is null then
    delete from headgate.channel h where h.consumer = c.id and h.lane = l;
  else
    insert into headgate.channel as h (consumer, lane, name, max_concurrency, release_interval)
      values (c.id, l, set_channel.channel, set_channel.max_concurrency, set_channel.release_interval)
      on conflict on constraint channel_pkey do update set max_concurrency = excluded.max_concurrency, release_interval = excluded.release_interval;
  end if;
  update headgate.cursor k set max_concurrency = set_channel.max_concurrency, release_interval = set_channel.release_interval,
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

-- rotate_template() -> the source of receive_<stream id>(consumer, batch_size, worker, acks, open) where lanes are named. The usual lanes
-- (nothing parked, no filter) are served all in one statement, the others one by one by serve_<stream id>.
create or replace function headgate.rotate_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.receive_{stream}(p_consumer text, n int, p_worker text, acks text[], open boolean default null) returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  got int; tries int := 0; passes int := 0; freed bigint[]; mine bigint[]; l headgate.cursor; places tid[]; rooms int[]; shares int[];
  slows boolean[]; special bigint; g_base bigint; g_pos bigint; g_tick bigint; t1 timestamptz; behind boolean; public headgate.tick; is_limited boolean; is_first boolean := true;
{opening}
  is_limited := c.ordered or c.max_concurrency is not null or exists (select from headgate.channel h where h.consumer = c.id);
  if cardinality(acks) > 0 then
    if not (c.ordered and not {strict}) and array_to_string(acks, ' ') ~ '^([0-9]{1,18}\.[0-9]{1,18}( |$))+$' then  -- whole deliveries
      with gone as (
        delete from headgate.delivery d where d.ctid = any(array(
          select x.ctid from unnest(acks) a cross join lateral (
            select x.ctid from headgate.delivery x
             where x.consumer = c.id and x.lane = split_part(a, '.', 1)::bigint and x.id = split_part(a, '.', 2)::bigint limit 1 for update) x)) returning d.lane)
      select array_agg(distinct x.lane) into freed from gone x;
      if is_limited and freed is not null then
        if open then
          insert into headgate.wake (consumer, lane) select c.id, u from unnest(freed) u;
        else
          perform headgate.wake_lanes(c, freed, t0);
        end if;
      end if;
    else
      perform headgate.settle(c, acks);
    end if;
  end if;
  if c.paused then return; end if;
  if not open or not busy then  -- in an open transaction, only what it may then hand out
    -- (asked here, because a call of a function that pins its settings costs more than the question)
    if (select d.id from headgate.delivery d where d.consumer = c.id and d.lane >= 144115188075855872 and d.deadline <= t0 order by d.deadline limit 1) is not null then
      perform headgate.expire(c, t0);
    end if;
    if exists (select from headgate.wake w where w.consumer = c.id) then perform headgate.take_wakes(c, t0); end if;
  end if;
  if c.max_ack_pending is not null then
    want := least(n, headgate.room_in_flight(c, t0, open));
    if want <= 0 then return; end if;
  end if;
  if c.leased then mine := headgate.leased_slots(c, p_worker, t0); end if;
  if newest.id is null then select t.* into newest from headgate.tick t where t.stream = {stream} and t.id = tick_id; end if;
  select coalesce(max(t.id), 0) into special from headgate.tick t where t.stream = {stream} and (t.late is not null or t.reborn is not null);
  loop
    -- The gatherer stands only on public ticks, whose ids say which is the later one. While somebody's transaction keeps new ones from
    -- being made, a few lanes are woken past it.
    public := newest;
    if newest.id <> newest.base then public := headgate.newest_tick({stream}); end if;
    loop  -- of a large backlog all lanes are to be known before one of them is served
      select k.pos < k.to_hi or k.to_tick <> public.id or k.late is not null, k.pos, k.to_tick into behind, g_pos, g_tick from headgate.cursor k
       where k.consumer = c.id and k.lane = -1;
      exit when open or not behind;
      perform headgate.gather_{stream}(c, public, t0, null);
      exit when clock_timestamp() > t0 + interval '300 milliseconds'
        or exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1 and k.pos = g_pos and k.to_tick = g_tick);
    end loop;
    if not busy and (open or (public.id <> newest.id and public.at < t0 - interval '1 second')) then
      perform headgate.gather_{stream}(c, newest, t0, want);
    end if;
    t1 := clock_timestamp();
    -- A lane costs more than a message, so that in batches of 50 and more each lane gives up to four, if it has them.
    -- What is held stays where it is: the statements below find the rows again by their place, which is cheaper than carrying them along.
    select array_agg(x.place) into places from (
      select k.ctid as place from headgate.cursor k
       where k.consumer = c.id and k.next_at <= t1 and k.next_at < 'infinity' and (mine is null or k.lane % {lanes} = any(mine))
       order by k.next_at, k.lane limit case when is_first then ceil(want::float8 / least(4, greatest(1, n / 25))) else want end for update skip locked) x;
    is_first := false;
    if c.leased and places is not null then  -- now that they are held: has one changed hands, or is another worker not done with it?
      select array_agg(h.place order by h.nth) into places from unnest(places) with ordinality h (place, nth) join headgate.cursor k on k.ctid = h.place
       where headgate.may_claim(c, k.lane, p_worker);
    end if;
    if places is null then
      -- nothing to claim, or all of it locked by other claims at this instant: then try again rather than say "nothing"
      exit when want < n or tries >= 8 or not (
        exists (select from headgate.cursor k where k.consumer = c.id and k.next_at <= t1 and k.next_at < 'infinity' and (mine is null or k.lane % {lanes} = any(mine)))
        or exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1 and (k.pos < k.to_hi or k.to_base < newest.base)));
      tries := tries + 1;
      perform pg_sleep(0.0005 * tries);
      continue;
    end if;
    -- Now that the lanes are held: how far the gatherer is, what is in flight, and which lanes need a closer look.
    select k.to_base into g_base from headgate.cursor k where k.consumer = c.id and k.lane = -1;
    if g_base > newest.base then newest := headgate.newest_tick({stream}); end if;
    -- Each waiting lane gives its share of the batch, the first ones one more; one message when releases are spaced.
    select array_agg(y.room order by y.nth), array_agg(y.slow order by y.nth),
           array_agg(case when y.room <= 0 then 0 when y.pace > interval '0' then 1
                          else least(y.room, want / y.waiting + case when y.rank <= want % y.waiting then 1 else 0 end) end order by y.nth)
      into rooms, slows, shares from (
      select x.*, count(*) filter (where x.room > 0) over () as waiting, count(*) filter (where x.room > 0) over (order by x.nth) as rank from (
        select h.nth, coalesce(k.release_interval, c.release_interval) as pace,
               case when c.ordered and {strict} and k.lane >= 288230376151711744 then
                      case when (select d.id from headgate.delivery d where d.consumer = c.id and d.lane = k.lane order by d.id limit 1) is not null then 0 else 2147483647 end
                    when coalesce(k.max_concurrency, c.max_concurrency) is null then 2147483647
                    else coalesce(k.max_concurrency, c.max_concurrency) - coalesce((
                      select sum(cardinality(d.seqs)) from headgate.delivery d where d.consumer = c.id and d.lane = k.lane), 0) end::int as room,
               -- a filter, keys in order inside a channel, delays, messages of late transactions, a span that does not simply
               -- end at the newest tick, or something parked: serve_{stream}
               c.pattern is not null or (c.ordered and not {strict}) or k.sift or k.late is not null
                 or (k.pos >= k.to_hi and (k.to_tick <> k.to_base or newest.id <> newest.base or k.to_base <= special))
                 or (select p.seq from headgate.parked p where p.consumer = c.id and p.lane = k.lane order by p.visible_at, p.seq limit 1) is not null as slow
          from unnest(places) with ordinality h (place, nth) join headgate.cursor k on k.ctid = h.place) x) y;
    return query
    with s as materialized (
      select k.lane, h.nth, h.place, rooms[h.nth] as room, shares[h.nth] as share, k.delivered, k.mark_at, k.mark_delivered, k.next_at,
             coalesce(k.release_interval, c.release_interval) as pace,
             case when v.moves then k.to_tick else k.from_tick end as from_tick, case when v.moves then k.to_snap else k.from_snap end as from_snap,
             case when v.moves then k.to_lo else k.from_lo end as from_lo, case when v.moves then newest.id else k.to_tick end as to_tick,
             case when v.moves then newest.base else k.to_base end as to_base, case when v.moves then newest.snap else k.to_snap end as to_snap,
             case when v.moves then newest.lo else k.to_lo end as to_lo, case when v.moves then newest.hi else k.to_hi end as to_hi,
             case when v.moves then k.to_lo else k.pos end as pos
        from unnest(places) with ordinality h (place, nth) join headgate.cursor k on k.ctid = h.place
       cross join lateral (select k.pos >= k.to_hi and k.to_base < newest.id as moves) v
       where not slows[h.nth]),
    r as materialized (
      select s.*, x.*, coalesce(cardinality(x.seqs), 0) > s.share as more, least(coalesce(cardinality(x.seqs), 0), s.share) as n,
             nextval('headgate.delivery_id') as id
        from s cross join lateral (
          select array_agg((y.m).seq) as seqs, array_agg(y.m) as messages, coalesce(bool_or((y.m).deliver_at is not null), false) as delayed
            from (select m from headgate.message_{stream} m
                   where s.share > 0 and (m.lane, m.seq) > (s.lane, s.pos) and (m.lane, m.seq) <= (s.lane, s.to_hi) and m.seq > s.pos and m.seq <= s.to_hi
                     and pg_visible_in_snapshot(m.xid, s.to_snap) and not pg_visible_in_snapshot(m.xid, s.from_snap)
                   order by m.lane, m.seq limit s.share + 1) y) x),
    u as (
      update headgate.cursor k set from_tick = r.from_tick, from_snap = r.from_snap, from_lo = r.from_lo, to_tick = r.to_tick, to_base = r.to_base,
             to_snap = r.to_snap, to_lo = r.to_lo, to_hi = r.to_hi, sift = r.delayed,
             pos = case when r.delayed or r.share <= 0 then r.pos when r.more then r.seqs[r.n] else r.to_hi end,
             turn = case when r.delayed or r.n = 0 then k.turn else t1 end, delivered = r.delivered + case when r.delayed then 0 else r.n end,
             mark_at = case when k.mark_at < t1 - interval '10 seconds' then t1 else k.mark_at end,
             mark_delivered = case when k.mark_at < t1 - interval '10 seconds' then k.delivered else k.mark_delivered end,
             next_at = case when r.share <= 0 then 'infinity' when r.delayed then r.next_at
                            when not r.more and r.to_base >= g_base then null
                            when r.n > 0 and (r.n >= r.room or (c.ordered and r.lane >= 288230376151711744)) then 'infinity'
                            else t1 + case when r.n > 0 and r.pace > interval '0' then r.pace else interval '0' end + r.nth * interval '1 microsecond' end
        from r where k.ctid = r.place),
    d as (
      insert into headgate.delivery (consumer, lane, id, seqs, keys, deadline, delivered_at, worker)
        select c.id, r.lane, r.id, r.seqs[:r.n], case when c.ordered then array(select m.key from unnest(r.messages[:r.n]) m) end, deadline, t1, p_worker from r where r.n > 0 and not r.delayed)
    select r.lane || '.' || r.id || '.' || m.seq, m.seq, m.key, m.data, m.headers, {m.channel}, 1, m.created_at
      from r cross join lateral unnest(r.messages[:r.n]) m where not r.delayed;
    get diagnostics got = row_count;
    want := want - got;
    passes := case when got > 0 then 0 else passes + 1 end;
    if true = any(slows) then
      for i in 1 .. cardinality(slows) loop
        continue when not slows[i];
        select k.* into l from headgate.cursor k where k.ctid = places[i];
        return query select * from headgate.serve_{stream}(c, l, newest, least(shares[i], want), rooms[i], g_base, p_worker, t1, deadline);
        get diagnostics got = row_count;
        want := want - got;
        if got > 0 then passes := 0; end if;
      end loop;
    end if;
    exit when want <= 0 or passes > 50 or clock_timestamp() > t0 + interval '1 second';
  end loop;
end $$;
$source$
$template$;

-- serve_template() -> the source of serve_<stream id>(consumer, cursor, newest tick, n, room, gatherer's tick, worker, now, deadline) -> messages of one
-- lane: what is parked and due together with the log, by the time they are due, then by seq; where order is kept, what is
-- parked first. The caller holds the cursor. Writes cursor, delivery, parked.
create or replace function headgate.serve_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.serve_{stream}(c headgate.consumer, l headgate.cursor, newest headgate.tick, share int, room int, g_base bigint, p_worker text,
  t timestamptz, deadline timestamptz)
returns setof headgate.received language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  want int := share; got int; total int := 0; chunk int; sleeps timestamptz; is_strict boolean := c.ordered and {strict} and l.lane >= 288230376151711744;
  is_done boolean := false; was bigint := l.delivered; was_pos bigint := l.pos;
begin
  if c.ordered then perform headgate.take_notes(c, l.lane, t); end if;
  {upsert perform headgate.forget_superseded(c, l.lane, t);}
  if share <= 0 then
    update headgate.cursor k set next_at = case when room <= 0 then 'infinity'::timestamptz else k.next_at end where k.consumer = c.id and k.lane = l.lane;
    return;
  end if;
  if l.pos >= l.to_hi and l.late is null and l.to_tick <> newest.id then
    is_done := l.to_tick = (headgate.next_span(l, newest)).to_tick;  -- the lane has seen more than the newest tick
    l := headgate.next_span(l, newest);
    update headgate.cursor k set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo, to_tick = l.to_tick,
           to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos, late = l.late
     where k.consumer = c.id and k.lane = l.lane;
  end if;
  if c.ordered or c.pattern is not null or l.late is not null then
    if (select p.visible_at from headgate.parked p where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) <= t then
      return query
      with p as materialized (select * from headgate.unpark(c, l.lane, want, t)),
      m as materialized (
        select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at, {m.channel} as channel from p
          join (select * from headgate.message_{stream} union all select * from headgate.kept_{stream}) m on m.seq = p.seq),
      gone as (  -- removed by retention while they were in flight or being parked
        insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
          select c.id, p.first, p.last, p.n - m.n, 'removed while parked'
            from (select count(*) as n, min(p.seq) as first, max(p.seq) as last from p) p, (select count(*) as n from m) m
           where p.n > m.n and headgate.no_fixed_snapshot()),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at, worker)
          select c.id, l.lane, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
                 case when c.ordered then array_agg(m.key order by m.seq) end, deadline, t, p_worker from m having count(*) > 0
          returning l.lane || '.' || id || '.' as prefix)
      select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, m.channel, m.attempt, m.created_at from d, m order by m.seq;
      get diagnostics got = row_count;
      want := want - got; total := total + got;
    end if;
    -- in a lane of one key nothing passes what is parked or was just handed out
    if want > 0 and (l.pos < l.to_hi or l.late is not null) and not (is_strict and (total > 0
         or exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane))) then
      chunk := case when c.pattern is null then want + 20 else want * 8 + 500 end;
      return query select * from headgate.sift_{stream}(c, l, want, chunk, p_worker, t, deadline);
      get diagnostics got = row_count;
      total := total + got;
      select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
    end if;
  else
    return query
    with raw as materialized (
      select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {m.channel} as channel from headgate.message_{stream} m
       where (m.lane, m.seq) > (l.lane, l.pos) and (m.lane, m.seq) <= (l.lane, l.to_hi) and m.seq > l.pos and m.seq <= l.to_hi
         and pg_visible_in_snapshot(m.xid, l.to_snap) and not pg_visible_in_snapshot(m.xid, l.from_snap)
       order by m.lane, m.seq limit want + 20),
    -- Due times never fall along the log, so that what is taken of it is its beginning, delayed messages apart.
    log as materialized (
      select r.*, greatest(r.deliver_at, max(r.created_at) over (order by r.seq)) as due from raw r),
    waits as materialized (
      select p.seq, p.attempt + 1 as attempt, case p.reason when 'released' then '-infinity' else p.visible_at end as due, p.ctid as place from headgate.parked p
       where p.consumer = c.id and p.lane = l.lane and p.visible_at <= t order by p.visible_at, p.seq limit want),
    taken as materialized (
      select x.* from (
        select g.seq, 1 as attempt, g.due, null::tid as place, g.key, g.data, g.headers, g.channel, g.created_at from log g where g.deliver_at is null or g.deliver_at <= t
        union all
        select w.seq, w.attempt, w.due, w.place, m.key, m.data, m.headers, {m.channel}, m.created_at
          from waits w join (select * from headgate.message_{stream} union all select * from headgate.kept_{stream}) m on m.seq = w.seq) x
       order by x.due, x.seq limit want),
    stop as materialized (
      select coalesce((select min(g.seq) - 1 from log g where g.deliver_at is null and g.seq <> all(array(select x.seq from taken x))),
                      case when (select count(*) from raw) < want + 20 then l.to_hi else (select max(r.seq) from raw r) end) as at),
    p as (
      insert into headgate.parked (consumer, lane, seq, attempt, visible_at, reason)
        select c.id, l.lane, g.seq, 0, g.deliver_at, 'delayed' from log g, stop
         where g.deliver_at is not null and g.seq <= stop.at and g.seq <> all(array(select x.seq from taken x))),
    lost as materialized (  -- removed by retention while they were in flight or being parked
      select w.seq, w.place from waits w where not exists (select from headgate.message_{stream} m where m.seq = w.seq)
         and not exists (select from headgate.kept_{stream} m where m.seq = w.seq) and headgate.no_fixed_snapshot()),
    noted as (
      insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
        select c.id, min(x.seq), max(x.seq), count(*), 'removed while parked' from lost x having count(*) > 0),
    gone as (
      delete from headgate.parked p where p.ctid = any(array(
        select x.place from taken x where x.place is not null union all select x.place from lost x))),
    d as (
      insert into headgate.delivery (consumer, lane, seqs, attempts, deadline, delivered_at, worker)
        select c.id, l.lane, array_agg(x.seq order by x.due, x.seq), array_agg(x.attempt order by x.due, x.seq), deadline, t, p_worker
          from taken x having count(*) > 0 returning l.lane || '.' || id || '.' as prefix),
    u as (update headgate.cursor k set pos = stop.at from stop where k.consumer = c.id and k.lane = l.lane)
    select d.prefix || x.seq, x.seq, x.key, x.data, x.headers, x.channel, x.attempt, x.created_at from d, taken x order by x.due, x.seq;
    get diagnostics got = row_count;
    total := total + got;
    select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
  end if;
  -- when to look at the lane again
  select min(x.at) into sleeps from (select p.visible_at as at from headgate.parked p where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) x;
  update headgate.cursor k set
    turn = case when total > 0 then t else k.turn end, delivered = was + total,
    sift = sleeps is not null or (l.sift and l.pos < l.to_hi),
    next_at = case
      when total >= room and total > 0 or (is_strict and total > 0) then 'infinity'
      when l.pos < l.to_hi or l.late is not null or (l.to_base < g_base and not is_done) then
        case when total > 0 then t + coalesce(k.release_interval, c.release_interval, interval '0')
             when is_strict and sleeps is not null then sleeps
             when l.pos > was_pos or l.pos >= l.to_hi then t
             else least(sleeps, t + interval '20 milliseconds') end  -- nothing may pass at present: not in a tight loop
      when total > 0 then greatest(sleeps, t + coalesce(k.release_interval, c.release_interval, interval '0'))
      else sleeps end
   where k.consumer = c.id and k.lane = l.lane;
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
