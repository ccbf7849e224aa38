-- Discarding: messages that a consumer is never to get, wherever they are: unread, in flight or
-- parked.
--
-- A message that the consumer has not read yet stays in the log. A row in `discarded` with its lane
-- says that the cursor of the lane passes it over. What holds:
--   1. a discarded message that is unread has such a row, and its lane has a cursor with
--      `discards`. A claim of a lane without `discards` never looks, and one with it takes the
--      slower way (read_filtered_<stream id>), which does;
--   2. both are written by who holds the lane's cursor, after a look from after the lock. So a
--      message is handed out by a claim that had the cursor before, and is in flight then, or it is
--      passed over;
--   3. a named lane that has no cursor gets one (give_cursors), and a cursor with `discards` is not
--      forgotten;
--   4. maintenance takes the lane out of rows that the cursor is past, and `discards` off a cursor
--      without any (pass_discarded). The rows stay for those who look, until the message goes with
--      its segment.
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
-- call, which are held until its end. HG016 at REPEATABLE READ and SERIALIZABLE.
-- Locks: as hold_in_place, preserved_<stream id> ROW EXCLUSIVE, cursors FOR NO KEY UPDATE (SKIP
-- LOCKED), deliveries as take_out, parked rows (SKIP LOCKED), each for at most half a second.
-- Writes: discarded, cursor, delivery, departed, parked, wake, tick.
create or replace function headgate.discard(
  stream text, consumer text, seqs bigint[] default null, filter text[] default null,
  channel text default null, older_than interval default null, "all" boolean default false,
  go_on text default null, open boolean default null,
  out discarded int, out held int, out more text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '900ms' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  w headgate.discard_wish;
  -- the caller says, and it is not seen to be wrong: this statement is a transaction of its own
  is_alone boolean := not coalesce(open, true) and not headgate.in_user_transaction();
  looks bigint := 100000;  -- so many messages may still be looked at
  until timestamptz := clock_timestamp() + interval '500 milliseconds';  -- it waits for others
  chosen bigint[];
  below bigint;         -- what is chosen now lies below
  looked bigint;
  later bigint;         -- more lanes than one transaction may add: another goes on from here
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
  discarded := 0; held := 0;
  while w.low < w.high - 1 and looks > 0 and discarded < 10000 loop
    select n.chosen, n.below, n.looked into chosen, below, looked
      from headgate.next_to_discard(c, s, w, 10000 - discarded) n;
    looks := looks - looked;
    if w.seqs is not null then
      w.seqs := array(select u from unnest(w.seqs) u where u >= below order by u);
    end if;
    select * into r from headgate.discard_these(c, s, chosen, is_alone, until);
    discarded := discarded + r.gone;
    held := held + r.held;
    later := r.later;
    w.low := coalesce(later, below) - 1;
    exit when later is not null;
  end loop;
  -- or it went round for ever
  if later is not null and go_on is not null and discarded = 0 and w.low <= began then
    perform headgate.fail(
      'HG010', 'this transaction has added as many lanes as one may, and cannot go on',
      'end this one, and pass the same go_on in the next transaction');
  end if;
  more := headgate.discard_goes_on(w);
exception when lock_not_available or deadlock_detected then
  perform headgate.fail('55P03',
    format(
      'messages of consumer "%s" cannot be discarded now: an open transaction moves it, compacts the stream, or gives '
           'back the same ones', c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- next_to_discard(consumer, stream, wish, n) -> up to n messages that fit, of the next 10,000 or so
-- that might; `below`: what comes next lies from there on; `looked`, how many were looked at.
create or replace function headgate.next_to_discard(
  c headgate.consumer, s headgate.stream, w headgate.discard_wish, n int,
  out chosen bigint[], out below bigint, out looked bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if w.seqs is null then
    select x.seqs, x.below, greatest(x.looked, 1000) into chosen, below, looked
      from headgate.next_candidates(c, s.id, array['available', 'delivered', 'parked'], w.low,
                                    w.high, false, 10000) x;
  else
    chosen := w.seqs[: 10000];
    below := case when cardinality(w.seqs) > 10000 then chosen[10000] + 1 else w.high end;
    looked := 10000;
  end if;
  chosen := headgate.fitting(s, w, chosen);
  if cardinality(chosen) > n then
    chosen := chosen[: n];
    below := chosen[cardinality(chosen)] + 1;
  end if;
end $$;

-- discard_goes_on(wish) -> what to say as go_on for what is left of it; null when nothing is.
create or replace function headgate.discard_goes_on(w headgate.discard_wish) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select format('%s/%s/%s/%s', w.low, w.high,
                (extract(epoch from w.sent_before) * 1000000)::bigint, w.as_of)
   where w.low < w.high - 1
$$;

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
-- `go_on` has the one that the first call made.
-- Writes: tick.
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
