-- Discarding: messages that a consumer is never to get, wherever they are: unread, in flight or
-- parked.
--
-- A message that the consumer has not read yet stays in the log. A row in `discarded` with its lane
-- says that the cursor of the lane passes it over. What holds:
--   1. a discarded message that is unread has such a row, and its lane has a cursor with
--     `discards`. A claim of a lane without
--      `discards` never looks, and one with it takes the slower way (sift_<stream id>), which does;
--   2. both are written by who holds the lane's cursor, after a look from after the lock. So a
--     message is handed out by a claim
--      that had the cursor before, and is in flight then, or it is passed over;
--   3. a named lane that has no cursor gets one (give_cursors), and a cursor with `discards` is not
--     forgotten;
--   4. maintenance takes the lane out of rows that the cursor is past, and `discards` off a cursor
--     without any (pass_discarded). The
--      rows stay for those who look, until the message goes with its segment.
-- What is in flight leaves its delivery as by an ack (read/departing.sql), what is parked is
-- deleted. A seek forgets it all.

-- What a discard is to find: see discard_begins.
do $$ begin
  if to_regtype('headgate.discard_wish') is null then
    create type headgate.discard_wish as (
      low bigint, high bigint,    -- it lies between these
      seqs bigint[], pattern text, channel text, sent_before timestamptz,
      -- it had committed here; up to that seq ids are of another cluster
      as_of pg_snapshot, restored_to bigint);
  end if;
end $$;

-- discard(stream, consumer, seqs, filter, channel, older_than, all, go_on, open) -> discarded,
-- held, more. Gives up messages of this consumer for good: those among what is unread, delayed,
-- parked or in flight, and had committed when it was called, that fit all of what is given: these
-- seqs; a key that passes the filter; that channel (or key, by the stream's lanes); sent longer ago
-- than that. At least one must be given, or "all" => true. Acks of what was in flight are stale
-- from then on, and what waited behind goes on. At most 10,000 messages a call: `more` is null when
-- that was all, and otherwise what to say as go_on, with the same other arguments, to go on: in
-- another transaction, where this one has added as many new lanes by key or channel as it may
-- (HG010 in the same one, when nothing more can be done there). `held` messages were passed over:
-- an open transaction has them in hand. A caller that knows whether it is inside a longer
-- transaction says so in `open`: where it is not, more new lanes by key or channel are added in a
-- call, which are held until its end. HG016 at REPEATABLE READ and SERIALIZABLE. Locks as
-- hold_in_place, preserved_<stream id> ROW EXCLUSIVE, cursors FOR NO KEY UPDATE (SKIP LOCKED),
-- deliveries as take_out, parked rows (SKIP LOCKED), each for at most half a second; writes
-- discarded, cursor, delivery, departed, parked, wake, tick.
create or replace function headgate.discard(
  stream text, consumer text, seqs bigint[] default null, filter text[] default null,
  channel text default null,
  older_than interval default null, "all" boolean default false, go_on text default null,
  open boolean default null,
  out discarded int, out held int, out more text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  w headgate.discard_wish;
  -- the caller says, and it is not seen to be wrong, that this statement is a transaction of its
  -- own
  is_alone boolean := not coalesce(open, true) and not headgate.is_open();
  looks bigint := 100000;  -- so many messages may still be looked at
  -- so long it waits for others, in all
  until timestamptz := clock_timestamp() + interval '500 milliseconds';
  chosen bigint[];
  below bigint;         -- what is chosen now lies below
  looked bigint;
  began bigint;         -- what it was asked about lies above
  r record;
begin
  perform headgate.need_read_committed('discard');
  perform headgate.check_discard(s, seqs, filter, channel, older_than, coalesce("all", false));
  w := headgate.discard_begins(s, seqs, headgate.filter_pattern(filter), channel, older_than, go_on,
                               is_alone);
  began := w.low;
  -- point: a discard has its tick
  perform headgate.hold_in_place(c, 'discarded');
  perform headgate.lock_kept(c);  -- or what is just being moved there is found in neither place
  -- point: a discard holds the consumer
  discarded := 0;
  held := 0;
  while w.low < w.high - 1 and looks > 0 and discarded < 10000 loop
    if w.seqs is null then
      select n.seqs, n.below, n.looked into chosen, below, looked
        from headgate.next_candidates(c, s.id, array['available', 'delivered', 'parked'], w.low,
                                      w.high, false, 10000) n;
      looks := looks - greatest(looked, 1000);
    else
      chosen := w.seqs[: 10000];
      below := case when cardinality(w.seqs) > 10000 then chosen[10000] + 1 else w.high end;
      looks := looks - 10000;
    end if;
    chosen := headgate.fitting(s, w, chosen);
    if cardinality(chosen) > 10000 - discarded then
      chosen := chosen[: 10000 - discarded];
      below := chosen[cardinality(chosen)] + 1;
    end if;
    if w.seqs is not null then
      w.seqs := array(select u from unnest(w.seqs) u where u >= below order by u);
    end if;
    select * into r from headgate.discard_these(c, s, chosen, is_alone, until);
    discarded := discarded + r.gone;
    held := held + r.held;
    if r.later is not null then  -- more lanes than one transaction may add: another goes on there
      -- or it went round for ever
      if go_on is not null and discarded = 0 and r.later - 1 <= began then
        perform headgate.fail('HG010',
                              'this transaction has added as many lanes as one may, and cannot go on',
          'end this one, and pass the same go_on in the next transaction');
      end if;
      w.low := r.later - 1;
      exit;
    end if;
    w.low := below - 1;
  end loop;
  if w.low < w.high - 1 then
    more := format('%s/%s/%s/%s', w.low, w.high,
                   (extract(epoch from w.sent_before) * 1000000)::bigint, w.as_of);
  end if;
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03',
    format(
      'messages of consumer "%s" cannot be discarded now: an open transaction moves it, compacts the stream, or gives '
           'back the same ones', c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- check_discard(…): HG010 for arguments of discard that make no sense.
create or replace function headgate.check_discard(
  s headgate.stream, p_seqs bigint[], p_filter text[], p_channel text, p_older_than interval,
  p_all boolean) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if num_nonnulls(p_seqs, p_filter, p_channel, p_older_than) = 0 and not p_all then
    perform headgate.fail('HG010', 'it is not said what to discard',
      'give seqs, filter, channel or older_than (over HTTP older_than_ms), or, by name, all');
  end if;
  if num_nonnulls(p_seqs, p_filter, p_channel, p_older_than) > 0 and p_all then
    perform headgate.fail('HG010', 'all are not to be discarded when some are chosen, too',
      'leave either all or the others out');
  end if;
  if p_older_than < interval '0' or p_older_than > interval '1000 years' then
    perform headgate.fail('HG010', format('an age of %s is not possible', p_older_than),
                          'choose from 0 to 1000 years');
  end if;
  if p_channel is not null and s.lane_by = 'hash' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name),
      'choose by key: filter; or make the stream with lane_by => ''channel'' (or ''key'')');
  end if;
end $$;

-- discard_begins(stream, seqs, pattern, channel, older_than, go_on, alone) -> what to find, and
-- where to begin. Makes a tick of this moment, so that what late transactions have left is known;
-- `go_on` has the one that the first call made. Writes tick.
create or replace function headgate.discard_begins(
  s headgate.stream, p_seqs bigint[], p_pattern text, p_channel text, p_older_than interval,
  p_go_on text, p_alone boolean)
returns headgate.discard_wish
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  w headgate.discard_wish;
  parts text[] := regexp_match(p_go_on,
                               '^([0-9]{1,18})/([0-9]{1,18})/((?:-?[0-9]{1,17})?)/([0-9]{1,18}:[0-9]{1,18}:[0-9,]*)$');
begin
  if p_go_on is not null and (parts is null or (parts[3] = '') <> (p_older_than is null)) then
    perform headgate.fail('HG010', format('"%s" is not where a discard can go on', p_go_on),
      'pass on what the call before answered as more, with the same other arguments, or leave it out');
  end if;
  -- a public one, which gatherers go by
  if p_alone then perform headgate.make_tick(s.id, false); end if;
  w.as_of := (headgate.make_tick(s.id, true)).snap;
  if p_go_on is null then
    w.low := 0;
    w.high := headgate.last_seq(s.id) + 1;
    w.sent_before := clock_timestamp() - p_older_than;
  else
    w.low := parts[1];
    w.high := parts[2];
    w.sent_before := to_timestamp(nullif(parts[3], '')::float8 / 1000000);
    begin
      w.as_of := parts[4];
    exception when others then
      perform headgate.fail('HG010', format('"%s" is not where a discard can go on', p_go_on),
        'pass on what the call before answered as more, or leave it out');
    end;
  end if;
  if p_seqs is not null then
    w.seqs := array(select distinct u from unnest(p_seqs) u where u > w.low and u < w.high
                     order by u);
  end if;
  w.pattern := p_pattern;
  w.channel := p_channel;
  w.restored_to := coalesce(
    (select max(t.hi) from headgate.tick t where t.stream = s.id and t.bridge_to is not null), 0);
  return w;
end $$;

-- fitting(stream, wish, seqs) -> those of the messages that a discard is to find, whatever has
-- become of them.
create or replace function headgate.fitting(s headgate.stream, w headgate.discard_wish,
                                            p_seqs bigint[]) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set jit = off as $$
declare r bigint[];
begin
  if p_seqs = '{}' then return p_seqs; end if;
  execute format($q$
    select array(
      select m.seq from (
        select m.seq, m.xid, m.lane, m.key, m.created_at, %2$s as name from headgate.message_%1$s m
         where m.seq = any($2)
        union
        select m.seq, m.xid, m.lane, m.key, m.created_at, %2$s as name
          from headgate.preserved_%1$s m
         where m.seq = any($2)) m
       where (($1).pattern is null or m.key ~ ($1).pattern)
         and (($1).channel is null
              or (m.lane = headgate.named_lane(($1).channel) and m.name = ($1).channel))
         and (($1).sent_before is null or m.created_at < ($1).sent_before)
         and (m.seq <= ($1).restored_to or m.xid = '2' or pg_visible_in_snapshot(m.xid, ($1).as_of))
       order by m.seq) $q$,
    s.id, case s.lane_by when 'channel' then 'm.channel' else 'm.key' end) into r using w, p_seqs;
  return r;
end $$;

-- unfinished(consumer, stream, seqs) -> those of the messages that are unread ('available'), in
-- flight ('delivered') or parked for the consumer, all seen in one snapshot, with the lane of the
-- log and its name.
create or replace function headgate.unfinished(c headgate.consumer, s headgate.stream,
                                               p_seqs bigint[])
returns table (seq bigint, lane bigint, name text, state text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set jit = off as $$
declare g headgate.cursor;
begin
  if p_seqs = '{}' then return; end if;
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  return query execute format($q$
    with discovered as materialized (select * from headgate.discovered_lanes(($1).id))
    select x.seq, x.lane::bigint, x.name, x.state from (
      select m.seq, m.lane, m.name,
             case when p.seq is not null then 'parked'
                  when d.seq is not null then 'delivered'
                  when m.is_wanted and coalesce(
                         (select %3$s from headgate.cursor k
                           where k.consumer = ($1).id and k.lane = m.lane),
                         (select %3$s from discovered k where k.lane = m.lane), %4$s, false) then
                           'available' end as state
        from (select m.seq, m.xid, m.lane, %2$s as name,
                     (($1).pattern is null
                      or coalesce(m.key ~ ($1).pattern, false))%5$s as is_wanted
                from headgate.message_%1$s m where m.seq = any($3)
              union all
              select m.seq, m.xid, m.lane, %2$s, false from headgate.preserved_%1$s m
               where m.seq = any($3)
                 and not exists (select from headgate.message_%1$s o where o.seq = m.seq)) m
        left join headgate.parked p on p.consumer = ($1).id and p.seq = m.seq
        left join headgate.delivered_seqs($1, $4, $5) d on d.seq = m.seq) x
     where x.state is not null $q$,
    s.id, case s.lane_by when 'channel' then 'm.channel' else 'm.key' end, headgate.unread_sql('k'),
    headgate.unread_sql('($2)'), headgate.newest_only(s, 'm'))
    using c, g, p_seqs, p_seqs[1] - 1, p_seqs[cardinality(p_seqs)] + 1;
end $$;

-- discard_these(consumer, stream, seqs, alone, until) -> how many of the messages were discarded,
-- the first of those in lanes that this transaction could not add any more, and how many, of those
-- before it, another open transaction has in hand. They go from unread to in flight to parked, so
-- that is the order in which they are looked for, and what has moved meanwhile is looked for again.
-- The caller holds the consumer in place. Locks and writes as discard.
create or replace function headgate.discard_these(
  c headgate.consumer, s headgate.stream, p_seqs bigint[], p_alone boolean, until timestamptz,
  out gone int, out held int, out later bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  rest bigint[] := p_seqs;
  unread bigint[];
  lanes bigint[];
  names text[];
  flying bigint[];
  waiting bigint[];
  n int;
begin
  gone := 0;
  for i in 1 .. 6 loop
    select array_agg(u.seq order by u.seq),
           array_agg(u.seq order by u.seq) filter (where u.state = 'available'),
           array_agg(u.lane order by u.seq) filter (where u.state = 'available'),
           array_agg(u.name order by u.seq) filter (where u.state = 'available'),
           array_agg(u.seq order by u.seq) filter (where u.state = 'delivered'),
           array_agg(u.seq order by u.seq) filter (where u.state = 'parked')
      into rest, unread, lanes, names, flying, waiting from headgate.unfinished(c, s, rest) u;
    held := coalesce(cardinality(rest), 0);
    exit when rest is null or i = 6 or (i > 2 and clock_timestamp() > until);
    -- point: it is known where the messages to discard are
    later := null;
    if unread is not null then
      select x.gone, x.later into n, later
        from headgate.discard_unread(c, s, unread, lanes, names, until, p_alone) x;
      gone := gone + n;
    end if;
    -- point: what is unread is discarded
    if flying is not null then gone := gone + headgate.discard_flying(c, flying, until); end if;
    -- point: what is in flight is discarded
    if waiting is not null then gone := gone + headgate.discard_parked(c, waiting); end if;
  end loop;
  if later is not null then held := (select count(*) from unnest(rest) u where u < later); end if;
end $$;

-- discard_unread(consumer, stream, seqs, lanes, names, until, alone) -> how many of these unread
-- messages, each in its lane, were discarded, and the first of those in lanes that this transaction
-- could not add any more. Waits no longer than `until` for lanes that others hold. Locks cursors
-- FOR NO KEY UPDATE (SKIP LOCKED), and as give_cursors; writes discarded, cursor.
create or replace function headgate.discard_unread(
  c headgate.consumer, s headgate.stream, p_seqs bigint[], p_lanes bigint[], p_names text[],
  p_until timestamptz,
  p_alone boolean, out gone int, out later bigint)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  wanted bigint[] := array(select distinct u from unnest(p_lanes) u order by u);
  held bigint[] := '{}';
  strange bigint[];
  no_room boolean := false;
begin
  loop
    held := held
      || headgate.hold_lanes(c, array(select unnest(wanted) except select unnest(held) order by 1));
    exit when cardinality(held) >= cardinality(wanted);
    if s.lane_by <> 'hash' then
      strange := array(select unnest(wanted) except
                       select unnest(headgate.with_cursor(c.id, wanted)) order by 1);
      if strange <> '{}' and headgate.give_cursors(c, strange, array(
           select min(u.name) from unnest(p_lanes, p_names) u (lane, name)
             join unnest(strange) x (lane) using (lane)
            group by u.lane order by u.lane), p_alone) > 0 then
        continue;
      end if;
      no_room := strange <> '{}' and headgate.room_for_locks(1) < 1;
    end if;
    exit when clock_timestamp() > p_until or no_room;
    perform pg_sleep(0.005);
  end loop;
  -- point: lanes to discard from are held
  execute format($q$
    with gone as (
      insert into headgate.discarded (consumer, seq, lane)
        select k.consumer, m.seq, k.lane
          from headgate.message_%1$s m join headgate.cursor k on k.consumer = $1 and k.lane = m.lane
         where m.seq = any($2) and k.lane in (select unnest($3)) and %2$s
        on conflict (consumer, seq) do update set at = excluded.at, lane = excluded.lane
        returning lane),
    -- also those that have it: a receive with a fixed snapshot, which does not see the new rows, is
    -- told by that
    flagged as (
      update headgate.cursor k set discards = true from (select distinct g.lane from gone g) g
       where k.consumer = $1 and k.lane = g.lane)
    select count(*) from gone $q$, s.id, headgate.unread_sql('k')) into gone
     using c.id, p_seqs, held;
  -- point: unread messages are discarded
  if no_room then
    select min(u.seq) into later from unnest(p_seqs, p_lanes) u (seq, lane)
     where u.lane in (select unnest(wanted) except
                      select unnest(headgate.with_cursor(c.id, wanted)));
  end if;
end $$;

-- hold_lanes(consumer, lanes) -> those of the lanes whose cursors nobody else holds: now they are
-- held. Locks cursors FOR NO KEY UPDATE (SKIP LOCKED, which waits after all when a newer version of
-- the row has to be locked, too: then none is got).
create or replace function headgate.hold_lanes(c headgate.consumer, p_lanes bigint[])
returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '50ms'
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
begin
  return array(
    select h.lane from unnest(p_lanes) u (lane) cross join lateral (
      select k.lane from headgate.cursor k where k.consumer = c.id and k.lane = u.lane limit 1
         for no key update skip locked) h);
exception when lock_not_available then
  return '{}';
end $$;

-- give_cursors(consumer, lanes, names, alone) -> how many of these named lanes, which have no
-- cursor, got one here. Locks the gatherer as who moves it does, when `alone`; otherwise, or when
-- another holds it, FOR KEY SHARE (SKIP LOCKED), and each lane by an advisory lock, as many as a
-- transaction may. Writes cursor, discovered.
create or replace function headgate.give_cursors(c headgate.consumer, p_lanes bigint[],
                                                 p_names text[], p_alone boolean) returns int
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  g headgate.cursor;
  mine bigint[] := p_lanes;
  told bigint[];
  done bigint[];
begin
  if p_alone then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
       for no key update skip locked;
  end if;
  if g.consumer is null then
    mine := array(
      select u from unnest(p_lanes) u where pg_try_advisory_xact_lock(c.id, (u & 2147483647)::int)
       limit headgate.room_for_locks(cardinality(p_lanes)));
    if mine = '{}' then return 0; end if;
    g := headgate.hold_gatherer(c);
    if g.consumer is null then return 0; end if;
  end if;
  -- point: lanes to discard from are to get cursors
  -- The look comes after the gatherer: where it stands, and what was discovered up to there.
  mine := array(select unnest(mine) except select unnest(headgate.with_cursor(c.id, mine)));
  told := array(
    select u from unnest(mine) u
     where (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u
             limit 1) is not null);
  perform headgate.add_discovered(c, g, told, clock_timestamp());
  mine := array(select unnest(mine) except select unnest(told));
  -- while the gatherer is in the middle of a span, that span is still unread there
  perform headgate.add_lanes(c, g, array_agg(u.lane), array_agg(u.name), clock_timestamp(),
                             g.pos < g.to_hi or g.late is not null)
     from unnest(p_lanes, p_names) u (lane, name) where u.lane in (select unnest(mine))
       having count(*) > 0;
  done := headgate.with_cursor(c.id, mine || told);
  delete from headgate.discovered x where x.consumer = c.id and x.lane = any(done);
  return cardinality(done);
end $$;

-- discard_flying(consumer, seqs, until) -> how many of these messages were taken out of their
-- deliveries and discarded. Locks as take_out; writes delivery, departed, discarded, wake.
create or replace function headgate.discard_flying(c headgate.consumer, p_seqs bigint[],
                                                   p_until timestamptz) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  a record;
  d headgate.delivery;
  n int := 0;
begin
  for a in
    select f.lane, f.delivery, array_agg(f.seq) as seqs from headgate.in_flight f
     where f.consumer = c.id and f.seq in (select unnest(p_seqs))
     group by f.lane, f.delivery order by f.lane, f.delivery
  loop
    d := headgate.take_out(c, a.lane, a.delivery, a.seqs, p_until);
    continue when d.id is null or d.seqs = '{}';
    -- point: what is to be discarded is taken out
    perform headgate.note_discarded(c, d.seqs);
    if c.ordered then perform headgate.leave_notes(c, d.lane, d.keys); end if;
    if d.lane >= 144115188075855872 then perform headgate.note_lane(c, d.lane); end if;
    n := n + cardinality(d.seqs);
  end loop;
  return n;
end $$;

-- discard_parked(consumer, seqs) -> how many of these parked messages were discarded. One that
-- another transaction is handing out or changing at this moment is passed over. Locks parked rows
-- (SKIP LOCKED); writes parked, wake, discarded.
create or replace function headgate.discard_parked(c headgate.consumer, p_seqs bigint[]) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare gone bigint[];
begin
  with held as materialized (
    select p.lane, p.seq from headgate.parked p
     where p.consumer = c.id and p.seq in (select unnest(p_seqs)) for update skip locked),
  gone as (
    delete from headgate.parked p using held h
     where p.consumer = c.id and p.lane = h.lane and p.seq = h.seq returning p.lane, p.key, p.seq),
  notes as (
    insert into headgate.wake (consumer, lane, key)
      select distinct c.id, g.lane, g.key from gone g
       where g.key is not null or g.lane >= 144115188075855872)
  select coalesce(array_agg(g.seq), '{}') into gone from gone g;
  -- point: what was parked is to be noted as discarded
  perform headgate.note_discarded(c, gone);
  return cardinality(gone);
end $$;

-- note_discarded(consumer, seqs): these messages, which the consumer has read, are discarded.
-- Writes discarded.
create or replace function headgate.note_discarded(c headgate.consumer, p_seqs bigint[])
returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into headgate.discarded (consumer, seq) select c.id, u from unnest(p_seqs) u order by u
    on conflict (consumer, seq) do update set at = excluded.at
$$;

-- no_longer_discarded(consumer, seqs): these messages are given back, and are parked. What the
-- consumer has still to pass over in the log stays passed over. Writes discarded.
create or replace function headgate.no_longer_discarded(c headgate.consumer, p_seqs bigint[])
returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  update headgate.discarded x set at = null
   where x.consumer = c.id and x.seq = any(p_seqs) and x.lane is not null;
  delete from headgate.discarded x
   where x.consumer = c.id and x.seq = any(p_seqs) and x.lane is null;
$$;

-- pass_discarded(consumer) -> how many discarded messages were found to be behind the cursors that
-- had to pass them over, of up to 1,000 lanes and 10,000 of a lane. Locks cursors, discarded rows
-- (SKIP LOCKED); writes discarded, cursor.
create or replace function headgate.pass_discarded(c headgate.consumer) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  -- of many lanes, from one chosen by chance on
  last bigint := case when random() < 0.5 then headgate.any_lane() else -1 end;
  has_turned boolean := last < 0;
  l bigint;
  passed bigint[];
  total bigint := 0;
begin
  for i in 1 .. 1000 loop
    select z.lane into l from headgate.discarded z
     where z.consumer = c.id and z.lane is not null and z.lane > last order by z.lane limit 1;
    if not found then
      exit when has_turned;
      has_turned := true;
      last := -1;
      continue;
    end if;
    last := l;
    continue when headgate.passed_in(c, l) = '{}';
    perform from headgate.cursor k where k.consumer = c.id and k.lane = l
       for no key update skip locked;
    continue when not found
    and exists (select from headgate.cursor k where k.consumer = c.id and k.lane = l);
    -- point: a lane whose discarded messages are passed is held
    passed := headgate.passed_in(c, l);
    delete from headgate.discarded z
     where z.consumer = c.id and z.seq = any(passed) and z.at is null;
    update headgate.discarded z set lane = null where z.consumer = c.id and z.seq = any(passed);
    total := total + cardinality(passed);
    if not exists (select from headgate.discarded z where z.consumer = c.id and z.lane = l) then
      update headgate.cursor k set discards = false where k.consumer = c.id and k.lane = l;
    end if;
  end loop;
  return total;
end $$;

-- passed_in(consumer, lane) -> discarded messages of a lane that its cursor is past, or that are
-- gone, of the first 10,000 there. They are locked (SKIP LOCKED).
create or replace function headgate.passed_in(c headgate.consumer, p_lane bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  k headgate.cursor;
  r bigint[];
begin
  select * into k from headgate.cursor x where x.consumer = c.id and x.lane = p_lane;
  execute format($q$
    select array(
      select z.seq from (
        select z.seq from headgate.discarded z
         where z.consumer = $1 and z.lane = $2 order by z.lane, z.seq limit 10000
           for update skip locked) z
        left join headgate.message_%1$s m on m.seq = z.seq
       where $3 is null or m.seq is null or not %2$s) $q$, c.stream, headgate.ahead_sql('($4)'))
    into r using c.id, p_lane, k.lane, k;
  return r;
end $$;

-- tidy_discarded(stream) -> how many notes of discarded messages that are behind were deleted, at
-- most 10,000 a call: those whose message is gone with its segment. Locks them (SKIP LOCKED);
-- writes discarded.
create or replace function headgate.tidy_discarded(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare n bigint;
begin
  if not exists (select from headgate.consumer c join headgate.discarded d on d.consumer = c.id
                  where c.stream = s.id) then
    return 0;
  end if;
  -- only where no log is: there may be as many notes as there are messages
  execute format($q$
    with gone as (
      select d.consumer, d.seq
        from headgate.consumer c cross join unnest('{(,)}'::int8multirange - $1) r
       cross join lateral (
         select x.consumer, x.seq from headgate.discarded x
          where x.consumer = c.id and x.seq >= coalesce(lower(r), 0)
            and x.seq < coalesce(upper(r), 9223372036854775807)
            and x.lane is null
            and not exists (select from headgate.preserved_%1$s k where k.seq = x.seq)
          limit 10000 for update skip locked) d
       where c.stream = %1$s limit 10000)
    delete from headgate.discarded d using gone x
     where d.consumer = x.consumer and d.seq = x.seq $q$, s.id)
    using headgate.log_ranges(s.id);
  get diagnostics n = row_count;
  return n;
end $$;
