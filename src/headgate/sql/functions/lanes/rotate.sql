-- Receiving where lanes are named: the lanes that are due give a share of the batch each, and go to
-- the end of the rotation. What holds is at the head of lanes/lanes.sql.

-- serving_template(keys) -> the statement of receive_<stream id> that serves the usual lanes, and
-- with `keys` leaves out those of which a key is in flight. (A part of a plan costs something also
-- where it never runs, so that there are two.)
create or replace function headgate.serving_template(p_keys boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select replace(replace(replace($source$
return query
with s as materialized (
  select k.lane, h.nth, h.place, rooms[h.nth] as room, shares[h.nth] as share, k.delivered,
         k.next_at,
         coalesce(k.release_interval, c.release_interval) as pace,
         case when v.moves then k.to_tick else k.from_tick end as from_tick,
         case when v.moves then k.to_snap else k.from_snap end as from_snap,
         case when v.moves then k.to_lo else k.from_lo end as from_lo,
         case when v.moves then newest.id else k.to_tick end as to_tick,
         case when v.moves then newest.base else k.to_base end as to_base,
         case when v.moves then newest.snap else k.to_snap end as to_snap,
         case when v.moves then newest.lo else k.to_lo end as to_lo,
         case when v.moves then newest.hi else k.to_hi end as to_hi,
         case when v.moves then greatest(k.to_lo, k.first_seq - 1) else k.pos end as pos
    from unnest(places) with ordinality h (place, nth) join headgate.cursor k on k.ctid = h.place
   cross join lateral (select k.pos >= k.to_hi and k.to_base < newest.id as moves) v
   where not slows[h.nth]),
r as materialized (
  select s.*, x.*, coalesce(cardinality(x.seqs), 0) > s.share as more,
         least(coalesce(cardinality(x.seqs), 0), s.share) as n,
         nextval('headgate.delivery_id') * 65536 + floor(random() * 65536)::bigint as id
    from s cross join lateral (
      select array_agg((y.m).seq) as seqs, array_agg(y.m) as messages,
             coalesce(bool_or((y.m).deliver_at is not null), false) as delayed{whether keys fly}
        from (select m from headgate.message_{stream} m
               where s.share > 0 and (m.lane, m.seq) > (s.lane, s.pos)
                 and (m.lane, m.seq) <= (s.lane, s.to_hi) and m.seq > s.pos and m.seq <= s.to_hi
                 and pg_visible_in_snapshot(m.xid, s.to_snap)
                 and not pg_visible_in_snapshot(m.xid, s.from_snap)
               order by m.lane, m.seq limit s.share + 1) y) x),
u as (
  update headgate.cursor k
     set from_tick = r.from_tick, from_snap = r.from_snap, from_lo = r.from_lo, to_tick = r.to_tick,
         to_base = r.to_base,
         to_snap = r.to_snap, to_lo = r.to_lo, to_hi = r.to_hi, sift = r.delayed,
         pos = case when r.delayed or r.share <= 0 then r.pos when r.more then r.seqs[r.n]
                    else r.to_hi end,
         turn = case when r.delayed or r.n = 0 then k.turn else t1 end,
         delivered = r.delivered + case when r.delayed then 0 else r.n end,
         {marks},
         next_at = case when r.room <= 0 then 'infinity'
                        when r.share <= 0 or r.delayed then r.next_at
                        when not r.more and r.to_base >= g_base then null
                        when r.n > 0
                          and (r.n >= r.room
                               or (c.ordered and {strict} and r.lane >= 288230376151711744)) then
                                 'infinity'
                        else
                          t1 + case when r.n > 0 and r.pace > interval '0' then r.pace
                                    else interval '0' end + r.nth * interval '1 microsecond' end
    from r where k.ctid = r.place{and none flies}),
d as (
  insert into headgate.delivery (consumer, lane, id, seqs, keys, deadline, delivered_at, worker)
    select c.id, r.lane, r.id, r.seqs[:r.n],
           case when c.ordered then array(select m.key from unnest(r.messages[:r.n]) m) end,
           deadline, t1, p_worker from r where r.n > 0 and not r.delayed{and none flies})
select r.lane || '.' || r.id || '.' || m.seq, m.seq, m.key, m.data, m.headers, {m.channel}, 1,
       m.created_at
  from r cross join lateral unnest(r.messages[:r.n]) m where not r.delayed{and none flies};
$source$,
  '{whether keys fly}', case when p_keys then
    $$,
    coalesce(bool_or(s.lane || ' ' || (y.m).key in (select unnest(flying))),
             false) as blocked$$ else '' end),
  '{and none flies}', case when p_keys then ' and not r.blocked' else '' end),
  '{marks}', headgate.marks_sql('t1'))
$template$;

-- rotate_template(open) -> the source of receive_<stream id>(consumer, batch_size, worker, acks,
-- open, ack_wait) where lanes are named, and with `open` of receive_open_<stream id>, which lets go
-- of everything that it has looked into when that gave it nothing. The usual lanes (nothing parked,
-- no filter, no key of theirs in flight where order is kept) are served all in one statement, the
-- others one by one by serve_<stream id>.
create or replace function headgate.rotate_template(p_open boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select replace(replace(replace(replace(replace(replace($source$
create function headgate.receive_{open_}{stream}(p_consumer text, n int, p_worker text, acks text[],
                                                 open boolean default null,
                                                 p_ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s'
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  got int;
  tries int := 0;
  passes int := 0;
  freed bigint[];
  mine bigint[];
  l headgate.cursor;
  places tid[];
  rooms int[];
  shares int[];
  slows boolean[];
  special bigint;
  g_base bigint;
  g_pos bigint;
  g_tick bigint;
  g_turn timestamptz;
  t1 timestamptz;
  behind boolean;
  public headgate.tick;
  is_limited boolean;
  is_first boolean := true;
  is_stale boolean;
  has_channels boolean;
  had int;
  has_discovered boolean := false; has_notes boolean := false;
  keeps_keys boolean;  -- keys in order, and a lane has more than one
  -- where it does: the keys that are in flight, each behind the number of its lane
  flying text[] := '{}';
  noted bigint[] := '{}';  -- and the lanes that have a note of a key
  -- discovered lanes that got a cursor here while the gatherer was being moved
  taken bigint[] := '{}';
  gone headgate.delivery[]; n_lanes int;
  -- so many may be woken here: in a longer transaction no more than it serves, for it holds them
  -- until its end
  lanes_left int := 1000;
  is_fixed boolean := current_setting('transaction_isolation') in ('repeatable read',
      'serializable');
  claimed bigint[];
  -- the caller says, and it is not seen to be wrong, that this statement is a transaction of its
  -- own
  is_alone boolean := not coalesce(open, true) and pg_current_xact_id_if_assigned() is null
  and not is_fixed;
{opening}
  keeps_keys := c.ordered and not {strict};
  is_limited := (c.ordered and {strict}) or c.max_concurrency is not null
  or c.release_interval is not null;
  if cardinality(acks) > 0 then
    if array_to_string(acks, ' ') ~ '^([0-9]{1,18}\.[0-9]{1,18}( |$))+$' then  -- whole deliveries
      with gone as ({delete whole deliveries}
                    returning d.lane, case when keeps_keys then d end as d)
      select array_agg(distinct x.lane), count(*), case when keeps_keys then array_agg(x.d) end,
             exists (select from headgate.channel h where h.consumer = c.id)
        into freed, got, gone, has_channels from gone x;
      if gone is not null then perform headgate.leave_notes_of(c, gone); end if;
      -- the others: stale, or held by somebody
      if got < cardinality(acks) then perform headgate.settle_surely(c, acks); end if;
      if (is_limited or has_channels) and freed is not null then
        if open then
          insert into headgate.wake (consumer, lane) select c.id, u from unnest(freed) u;
        else
          perform headgate.wake_lanes(c, freed, t0);
        end if;
      end if;
    else
      select s.stale into got from headgate.settle(c, acks) s;
      if got > 0 then perform headgate.settle_surely(c, acks); end if;
    end if;
  end if;
  -- point: a rotation has settled its acks
  if c.paused then return; end if;
  if c.max_ack_pending is not null then
    want := least(n, headgate.room_in_flight(c, t0));
    if want <= 0 then return; end if;
  end if;
  had := want;
  {begins}
  if not open or not busy then  -- in an open transaction, only what it may then hand out
    if has_watched then perform headgate.expire(c, t0, case when open then want end); end if;
    select exists (select from headgate.discovered x where x.consumer = c.id),
           exists (select from headgate.wake w where w.consumer = c.id),
           exists (select from headgate.channel h where h.consumer = c.id)
      into has_discovered, has_notes, has_channels;
    if has_discovered or has_notes then
      if has_discovered then  -- these have waited longest, and are served first
        taken := headgate.take_discovered(c, t0,
                                          case when is_alone then greatest(n, 100)
                                               else least(headgate.lanes_of_batch(want), 1000) end);
      end if;
      if not is_alone then lanes_left := headgate.lanes_to_wake(c, t0, want); end if;
      if lanes_left > 0 then perform headgate.take_wakes(c, t0, lanes_left, not is_alone); end if;
    end if;
  else
    has_channels := exists (select from headgate.channel h where h.consumer = c.id);
  end if;
  -- point: a rotation has read its notes
  if c.leased then mine := headgate.leased_slots(c, p_worker, t0); end if;
  if newest.id is null then  -- by now it may have been thinned out: then the one behind it
    select t.* into newest from headgate.tick t
     where t.stream = {stream} and t.base = t.id and t.id >= tick_id order by t.id limit 1;
  end if;
  loop
    -- The gatherer stands only on public ticks, whose ids say which is the later one. While
    -- somebody's transaction keeps new ones from being made, a few lanes are woken past it.
    public := newest;
    if newest.id <> newest.base then public := headgate.newest_tick({stream}); end if;
    loop  -- of a large backlog all lanes are to be known before one of them is served
      select k.pos < k.to_hi or k.to_tick <> public.id or k.late is not null, k.pos, k.to_tick,
             k.turn,
             (select coalesce(max(t.id), 0) from headgate.tick t
               where t.stream = {stream} and (t.late is not null or t.bridge_to is not null))
        into behind, g_pos, g_tick, g_turn, special from headgate.cursor k
       where k.consumer = c.id and k.lane = -1;
      exit when open or not behind;
      if is_alone then
        perform headgate.gather_{stream}(c, public, t0, null, null);
      else
        perform headgate.gather_{stream}(c, public, t0, null, headgate.lanes_to_wake(c, t0, want));
      end if;
      exit when clock_timestamp() > t0 + interval '300 milliseconds'
        or exists (select from headgate.cursor k
                    where k.consumer = c.id and k.lane = -1 and k.pos = g_pos
                      and k.to_tick = g_tick);
    end loop;
    -- (tries: what is due, or the gatherer, has been held by others for milliseconds, and may be
    -- for long. Nor must what is due, while nobody moves the gatherer, hide the lanes that are not
    -- known yet.)
    if tries >= 4 or (behind and is_first and g_turn < t0 - interval '50 milliseconds')
       or (not busy and (open or public.id <> newest.id)) then
      perform headgate.gather_{stream}(c, newest, t0, headgate.lanes_of_batch(want));
    end if;
    -- point: a rotation has gathered
    t1 := clock_timestamp();
    -- A lane costs more than a message, so that in batches of 20 and more each lane gives two, in
    -- those of 100 and more ten, if it has them. What is held stays where it is: the statements
    -- below find the rows again by their place, which is cheaper than carrying them along.
    select array_agg(x.place) into places from (
      select k.ctid as place from headgate.cursor k
       where k.consumer = c.id and k.next_at <= t1 and k.next_at < 'infinity'
         and (mine is null or k.lane % {lanes} = any(mine))
       order by k.next_at, k.lane
         limit case when is_first then ceil(n::float8 / least(10, greatest(1, n / 10)))
                    else want end for no key update skip locked) x;
    -- point: a rotation holds lanes
    is_first := false;
    -- now that they are held: has one changed hands, or is another worker not done with it?
    if c.leased and places is not null then
      select array_agg(h.place order by h.nth) into places
        from unnest(places) with ordinality h (place, nth)
          join headgate.cursor k on k.ctid = h.place
       where headgate.may_claim(c, k.lane, p_worker);
    end if;
    if places is null then
      if tries < 8 and (has_discovered or behind)
         and exists (select from headgate.discovered x where x.consumer = c.id) then
        taken := taken || headgate.take_discovered(c, t1, headgate.lanes_of_batch(want));
        tries := tries + 1;
        continue;
      end if;
      if tries < 8 and has_notes and want = had
         and exists (select from headgate.wake w where w.consumer = c.id and w.key is null) then
        -- the lanes that there were notes of had nothing: there are more notes
        perform headgate.take_wakes(c, t1, headgate.lanes_of_batch(want), not is_alone);
        tries := tries + 1;
        continue;
      end if;
      -- nothing to claim, or all of it locked by other claims at this instant: then try again
      -- rather than say "nothing"
      exit when want < had or tries >= 8 or not (
        exists (select from headgate.cursor k
                 where k.consumer = c.id and k.next_at <= t1 and k.next_at < 'infinity'
                   and (mine is null or k.lane % {lanes} = any(mine)))
        or exists (select from headgate.cursor k
                    where k.consumer = c.id and k.lane = -1
                      and (k.pos < k.to_hi or k.to_base < newest.base)));
      tries := tries + 1;
      perform pg_sleep(0.0005 * tries);
      continue;
    end if;
    -- Now that the lanes are held: how far the gatherer is, what is in flight, and which lanes need
    -- a closer look.
    select k.to_base into g_base from headgate.cursor k where k.consumer = c.id and k.lane = -1;
    if g_base > newest.base then
      newest := headgate.newest_tick({stream});
      select coalesce(max(t.id), 0) into special from headgate.tick t
       where t.stream = {stream} and (t.late is not null or t.bridge_to is not null);
    end if;
    -- point: a rotation knows the gatherer
    -- In this order, and both now that the lanes are held: which keys are in flight, then (below)
    -- what is parked. A message that is nacked at this moment is seen in flight, or parked, or
    -- both, but never as neither. (One that has departed may be counted as in flight:
    -- serve_{stream} looks closer.)
    if keeps_keys then
      select coalesce(array_agg(k.lane || ' ' || f.key), '{}') into flying
        from unnest(places) h (place) join headgate.cursor k on k.ctid = h.place
       cross join lateral (
         select d.keys from headgate.delivery d where d.consumer = c.id and d.lane = k.lane
          order by d.id offset 0) d
       cross join lateral unnest(d.keys) f (key)
       where f.key is not null;
      if has_notes then
        noted := array(
          select k.lane from unnest(places) h (place) join headgate.cursor k on k.ctid = h.place
           where (select w.key from headgate.wake w
                   where w.consumer = c.id and w.lane = k.lane and w.key is not null
                     limit 1) is not null);
      end if;
    end if;
    -- point: a rotation knows which keys fly
    -- Each waiting lane gives its share of the batch, the first ones one more; one message when
    -- releases are spaced.
    if not (is_limited or has_channels) then
      select array_agg(x.slow order by x.nth), bool_or(x.has_limits) into slows, has_channels from (
        -- (set since, or no more)
        select h.nth, k.max_concurrency is not null or k.release_interval is not null as has_limits,
               {slow} as slow
          from unnest(places) with ordinality h (place, nth)
            join headgate.cursor k on k.ctid = h.place) x;
      n_lanes := cardinality(places);
      rooms := array_fill(2147483647, array[n_lanes]);
      shares := array_fill(want / n_lanes + 1, array[want % n_lanes])
        || array_fill(want / n_lanes, array[n_lanes - want % n_lanes]);
      is_stale := false;
    end if;
    if is_limited or has_channels then
      select array_agg(y.room order by y.nth), array_agg(y.slow order by y.nth),
             array_agg(case when y.room <= 0 then 0 when y.pace > interval '0' then 1
                            else
                              least(y.room,
                                    want / y.waiting + case when y.rank <= want % y.waiting then 1
                                                            else 0 end) end order by y.nth)
        , bool_or(y.is_stale) into rooms, slows, shares, is_stale from (
        select x.*, count(*) filter (where x.room > 0) over () as waiting,
               count(*) filter (where x.room > 0) over (order by x.nth) as rank from (
          select h.nth, coalesce(k.release_interval, c.release_interval) as pace,
                 (has_channels or k.max_concurrency is not null or k.release_interval is not null)
                 and (k.max_concurrency, k.release_interval) is distinct from (
                   (select x.max_concurrency from headgate.channel x
                     where x.consumer = c.id and x.lane = k.lane),
                   (select x.release_interval from headgate.channel x
                     where x.consumer = c.id and x.lane = k.lane)) as is_stale,
                 case when c.ordered and {strict} and k.lane >= 288230376151711744 then
                        case when (
                          select d.id from headgate.delivery d
                           where d.consumer = c.id and d.lane = k.lane and {left in flight} > 0
                             order by d.id limit 1) is not null then 0 else 2147483647 end
                      when coalesce(k.max_concurrency, c.max_concurrency) is null then 2147483647
                      else coalesce(k.max_concurrency, c.max_concurrency) - coalesce((
                        select sum({left in flight}) from headgate.delivery d
                         where d.consumer = c.id and d.lane = k.lane), 0) end::int as room,
                 {slow} as slow
            from unnest(places) with ordinality h (place, nth)
              join headgate.cursor k on k.ctid = h.place) x) y;
    end if;
    -- point: a rotation knows what is in flight
    if is_stale then  -- limits that were changed while the lane got its cursor
      update headgate.cursor k set (max_concurrency, release_interval) = (
        select max(x.max_concurrency), max(x.release_interval) from headgate.channel x
         where x.consumer = c.id and x.lane = k.lane)
       where k.ctid = any(places);
      continue;
    end if;
    if is_fixed then
      claimed := array(select k.lane from unnest(places) h (place)
                         join headgate.cursor k on k.ctid = h.place);
    end if;
    if keeps_keys then
{serve lanes of many keys}
    else
{serve lanes}
    end if;
    get diagnostics got = row_count;
    want := want - got;
    -- point: a rotation has served
    passes := case when got > 0 then 0 else passes + 1 end;
    if flying <> '{}' then  -- those that stand where they stood were not served
      slows := array(
        select (select k.lane from headgate.cursor k where k.ctid = h.place) is not null
          from unnest(places) with ordinality h (place, nth) order by h.nth);
    end if;
    if true = any(slows) then
      for i in 1 .. cardinality(slows) loop
        continue when not slows[i];
        select k.* into l from headgate.cursor k where k.ctid = places[i];
        return query select *
          from headgate.serve_{stream}(c, l, newest, least(shares[i], want), rooms[i], g_base,
                                       p_worker, t1, deadline);
        get diagnostics got = row_count;
        want := want - got;
        if got > 0 then passes := 0; end if;
      end loop;
    end if;
    if is_fixed then perform headgate.note_asleep(c, claimed, newest); end if;
    exit when want <= 0 or passes > 50 or clock_timestamp() > t0 + interval '1 second';
  end loop;
  if taken <> '{}' then perform headgate.note_asleep(c, taken, null); end if;
  {ends}
end $$;
$source$,
  '{serve lanes}', headgate.serving_template(false)),
  '{serve lanes of many keys}', headgate.serving_template(true)),
  -- a filter, delays, messages that were discarded or of late transactions, a span that does not
  --   simply end at the newest tick, something
  -- parked, or a note of a key: serve_{stream}
  '{slow}', $$c.pattern is not null {upsert or true} or k.sift or k.late is not null or k.discards
                 or (k.pos >= k.to_hi
                     and (k.to_tick <> k.to_base or newest.id <> newest.base
                          or k.to_base <= special))
                 or k.lane = any(noted)
                 or (select p.seq from headgate.parked p
                      where p.consumer = c.id and p.lane = k.lane order by p.visible_at, p.seq
                        limit 1) is not null$$),
  '{open_}', case when p_open then 'open_' else '' end),
  '{begins}', case when p_open then 'begin' else '' end),
  '{ends}', case when p_open then
    -- (not always: notes that led nowhere are to be gone one day, also where everybody receives
    -- like this)
    $$if want = had and random() < 0.8 then raise exception using errcode = 'HG0LG'; end if;
  exception
    when sqlstate 'HG0LG' then null;
    when lock_not_available then perform headgate.no_fixed_snapshot(); raise;
  end;$$ else '' end)
$template$;

-- serve_template() -> the source of serve_<stream id>(consumer, cursor, newest tick, n, room,
-- gatherer's tick, worker, now, deadline) -> messages of one lane: what is parked and due together
-- with the log, by the time they are due, then by seq; where order is kept, what is parked first.
-- The caller holds the cursor. Writes cursor, delivery, parked.
create or replace function headgate.serve_template() returns text
language sql immutable set search_path = pg_catalog, pg_temp as $template$
select $source$
create function headgate.serve_{stream}(c headgate.consumer, l headgate.cursor,
                                        newest headgate.tick, share int, room int, g_base bigint,
                                        p_worker text,
  t timestamptz, deadline timestamptz)
returns setof headgate.received language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  want int := share;
  got int;
  total int := 0;
  chunk int;
  sleeps timestamptz;
  is_strict boolean := c.ordered and {strict} and l.lane >= 288230376151711744;
  is_done boolean := false; was bigint := l.delivered; was_pos bigint := l.pos; due tid[];
  back bigint[]; back_attempts int[]; back_keys text[];
  again int := 0;  -- of these, how many were handed out before
begin
  if c.ordered then perform headgate.take_notes(c, l.lane, t); end if;
  {upsert perform headgate.forget_superseded(c, l.lane, t);}
  if share <= 0 then
    update headgate.cursor k
       set next_at = case when room <= 0 then 'infinity'::timestamptz else k.next_at end
         where k.consumer = c.id and k.lane = l.lane;
    return;
  end if;
  if l.pos >= l.to_hi and l.late is null and l.to_tick <> newest.id then
    -- the lane has seen more than the newest tick
    is_done := l.to_tick = (headgate.next_span(l, newest)).to_tick;
    l := headgate.next_span(l, newest);
    update headgate.cursor k
       set from_tick = l.from_tick, from_snap = l.from_snap, from_lo = l.from_lo,
           to_tick = l.to_tick,
           to_base = l.to_base, to_snap = l.to_snap, to_lo = l.to_lo, to_hi = l.to_hi, pos = l.pos,
           late = l.late
     where k.consumer = c.id and k.lane = l.lane;
  end if;
  -- point: a named lane is to be read
  if c.ordered or c.pattern is not null or l.late is not null or l.discards then
    if (select p.visible_at from headgate.parked p where p.consumer = c.id and p.lane = l.lane
         order by p.visible_at limit 1) <= t then
      select array_agg(p.seq), array_agg(p.attempt), array_agg(p.key)
        into back, back_attempts, back_keys
        from headgate.unpark(c, l.lane, want, t) p;
      -- point: what was parked in a named lane is to be looked up
      return query
      with m as materialized (
        select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at, {m.channel} as channel
          from unnest(back, back_attempts) p (seq, attempt)
          join (select * from headgate.message_{stream} union all select *
                  from headgate.preserved_{stream}) m on m.seq = p.seq),
      d as (
        insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at,
                                       worker)
          select c.id, l.lane, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
                 case when c.ordered then array_agg(m.key order by m.seq) end, deadline, t, p_worker
                   from m having count(*) > 0
          returning l.lane || '.' || id || '.' as prefix)
      select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, m.channel, m.attempt, m.created_at
        from d, m order by m.seq;
      get diagnostics got = row_count;
      if got < cardinality(back) then
        perform headgate.record_missing(c, back, back_keys, 'removed while parked');
      end if;
      want := want - got; total := total + got;
      again := least(got, (select count(*) from unnest(back_attempts) a where a > 1));
    end if;
    -- in a lane of one key nothing passes what is parked or was just handed out
    if want > 0 and (l.pos < l.to_hi or l.late is not null) and not (is_strict and (total > 0
         or exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane)))
           then
      chunk := case when l.discards then want * 8 + 5000 when c.pattern is null then want + 20
                    else want * 8 + 500 end;
      return query select * from headgate.sift_{stream}(c, l, want, chunk, p_worker, t, deadline);
      get diagnostics got = row_count;
      total := total + got;
      select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
    end if;
  else
    due := array(
      select p.ctid from headgate.parked p
       where p.consumer = c.id and p.lane = l.lane and p.visible_at <= t
       order by p.visible_at, p.seq limit want for update skip locked);  -- as hold_parked says
    return query
    with raw as materialized (
      select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at, {m.channel} as channel
        from headgate.message_{stream} m
       where (m.lane, m.seq) > (l.lane, l.pos) and (m.lane, m.seq) <= (l.lane, l.to_hi)
         and m.seq > l.pos and m.seq <= l.to_hi
         and pg_visible_in_snapshot(m.xid, l.to_snap)
         and not pg_visible_in_snapshot(m.xid, l.from_snap)
       order by m.lane, m.seq limit want + 20),
    -- Due times never fall along the log, so that what is taken of it is its beginning, delayed
    -- messages apart.
    log as materialized (
      select r.*, greatest(r.deliver_at, max(r.created_at) over (order by r.seq)) as due
        from raw r),
    waits as materialized (
      select p.seq, p.attempt + 1 as attempt,
             case p.reason when 'released' then '-infinity' else p.visible_at end as due,
             p.ctid as place
        from headgate.parked p where p.ctid = any(due)),
    taken as materialized (
      select x.* from (
        select g.seq, 1 as attempt, g.due, null::tid as place, g.key, g.data, g.headers, g.channel,
               g.created_at from log g where g.deliver_at is null or g.deliver_at <= t
        union all
        select w.seq, w.attempt, w.due, w.place, m.key, m.data, m.headers, {m.channel}, m.created_at
          from waits w
            join (select * from headgate.message_{stream} union all select *
                    from headgate.preserved_{stream}) m on m.seq = w.seq) x
       order by x.due, x.seq limit want),
    stop as materialized (
      select coalesce(
        (select min(g.seq) - 1 from log g
          where g.deliver_at is null and g.seq <> all(array(select x.seq from taken x))),
                      case when (select count(*) from raw) < want + 20 then l.to_hi
                           else (select max(r.seq) from raw r) end) as at),
    p as (
      insert into headgate.parked (consumer, lane, seq, attempt, visible_at, reason)
        select c.id, l.lane, g.seq, 0, g.deliver_at, 'delayed' from log g, stop
         where g.deliver_at is not null and g.seq <= stop.at
           and g.seq <> all(array(select x.seq from taken x))),
    lost as materialized (  -- removed by retention while they were in flight or being parked
      select x.seq, x.place from (
        select w.seq, w.place from waits w
         where not exists (select from headgate.message_{stream} m where m.seq = w.seq)
           and not exists (select from headgate.preserved_{stream} m where m.seq = w.seq)
        offset 0) x
       where headgate.no_fixed_snapshot(x.seq)),
    noted as (
      insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
        select c.id, min(x.seq), max(x.seq), count(*), 'removed while parked' from lost x
        having count(*) > 0),
    gone as (
      delete from headgate.parked p where p.ctid = any(array(
        select x.place from taken x where x.place is not null union all select x.place
          from lost x))),
    d as (
      insert into headgate.delivery (consumer, lane, seqs, attempts, deadline, delivered_at, worker)
        select c.id, l.lane, array_agg(x.seq order by x.due, x.seq),
               array_agg(x.attempt order by x.due, x.seq), deadline, t, p_worker
          from taken x having count(*) > 0 returning l.lane || '.' || id || '.' as prefix),
    u as (update headgate.cursor k set pos = stop.at,
                 redelivered = k.redelivered + (select count(*) from taken x where x.attempt > 1)
            from stop where k.consumer = c.id and k.lane = l.lane)
    select d.prefix || x.seq, x.seq, x.key, x.data, x.headers, x.channel, x.attempt, x.created_at
      from d, taken x order by x.due, x.seq;
    get diagnostics got = row_count;
    total := total + got;
    select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
  end if;
  -- point: a named lane is read
  -- when to look at the lane again
  select min(x.at) into sleeps
    from (select p.visible_at as at from headgate.parked p
           where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) x;
  update headgate.cursor k set
    turn = case when total > 0 then t else k.turn end, delivered = was + total,
    redelivered = k.redelivered + again,
    sift = sleeps is not null or (l.sift and l.pos < l.to_hi),
    next_at = case
      when total >= room and total > 0 or (is_strict and total > 0) then 'infinity'
      when l.pos < l.to_hi or l.late is not null or (l.to_base < g_base and not is_done) then
        case when total > 0 then t + coalesce(k.release_interval, c.release_interval, interval '0')
             when is_strict and sleeps is not null then sleeps
             when l.pos > was_pos or l.pos >= l.to_hi then t
             -- nothing may pass at present: not in a tight loop
             else least(sleeps, t + interval '20 milliseconds') end
      when total > 0 then
        greatest(sleeps, t + coalesce(k.release_interval, c.release_interval, interval '0'))
      else sleeps end
   where k.consumer = c.id and k.lane = l.lane;
  if l.mark_at < t - interval '10 seconds' then
    perform headgate.move_marks(c.id, l.lane, t);
  end if;
end $$;
$source$
$template$;
