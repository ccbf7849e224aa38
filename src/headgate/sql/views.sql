-- Views for people who look with SQL; the SDK's insights read the same ones.
drop view if exists headgate.streams, headgate.consumers, headgate.channels, headgate.workers,
headgate.deliveries, headgate.parked_messages, headgate.segments,
  headgate.archives, headgate.timings, headgate.sources, headgate.consumer_position;

-- What was there when the upgrade began and was not made again (schema headgate is ours alone)
-- goes: functions that there are no more, and old forms of those that take other arguments now.
-- Here, where no view uses them. One that somebody's own view or function is built on stays, with a
-- notice.
do $$
declare
  f record;
  before text[] := string_to_array(current_setting('headgate.functions_before', true), ',');
begin
  for f in select p.oid::regprocedure as name from pg_proc p
            where p.pronamespace = 'headgate'::regnamespace and p.oid || ':' || p.xmin = any(before)
              and p.proname <> all(headgate.stream_functions(
                    coalesce(substring(p.proname from '_([0-9]{1,9})$')::int, 0))) loop
    begin
      execute format('drop routine %s', f.name);
    exception when dependent_objects_still_exist then
      raise notice
        'headgate: % is not used any more, and something outside of Headgate depends on it', f.name;
    end;
  end loop;
end $$;

create view headgate.streams as
-- A stream: how many messages and bytes are in it, since when, and how fast it grows. Where there
-- are more than 50 of them: what maintenance saw at `sampled_at`, in the last five minutes (null:
-- as it is now).
select s.name, s.lanes, f.messages, f.exact, f.bytes, f.oldest, f.newest, f.last_seq, f.rate,
       s.dedup_window, s.max_message_bytes,
       (select count(*) from headgate.consumer c where c.stream = s.id) as consumers,
       (select d.name from headgate.stream d where d.id = s.dead_of) as dead_of, s.created_at,
       s.retain, s.retain_up_to, s.retain_at_least, s.max_storage,
       case when s.max_storage is null then false
            when f.sampled_at is null then headgate.full_now(s) else s.is_full end as is_full,
       s.lane_by, s.one_message_per_key, s.process_unmodified,
       s.segment_rows, s.segment_bytes, s.segment_age, s.compact_every, f.sampled_at
  from headgate.stream s cross join lateral headgate.listed_stream(s) f;

create view headgate.consumer_position as
-- Private: where a consumer stands, as far as shared tables tell. What it has still to come to lies
-- above `start` (null: that is not known, named lanes are awake), and `base` is the lowest tick
-- that its cursors stand on.
select c.id as consumer_id, d.*, p.*, k.*
  from headgate.consumer c
 cross
   join lateral (
     select coalesce(
       sum(
         (cardinality(d.seqs)
          - (select count(*) from headgate.departed x
              where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id))),
                    0)::bigint as in_flight, min(d.delivered_at) as oldest_delivery,
                            max((select max(a) from unnest(d.attempts) a)) - 1 as flying_failures
                       from headgate.delivery d where d.consumer = c.id) d
 cross
   join lateral (select count(*) as parked,
                   count(*) filter (where p.visible_at <= clock_timestamp()) as due,
                   max(p.attempt) as parked_failures from headgate.parked p
                     where p.consumer = c.id) p
 cross join lateral (
   select sum(k.delivered - k.redelivered)::bigint as delivered,
          sum(k.redelivered)::bigint as redelivered,
          -- of first attempts, in the last ten to twenty seconds: see move_marks. The gatherer has
          -- none
          coalesce(sum(case
            when k.lane < 0 or k.served_at < clock_timestamp() - interval '10 seconds' then 0
            when k.rate_since > clock_timestamp() - interval '10 seconds'
                 and k.earlier_at is not null
            then (k.delivered - k.redelivered - k.earlier_delivered)
                 / greatest(extract(epoch from clock_timestamp() - k.earlier_at)::float8, 1)
            else (k.delivered - k.redelivered - k.mark_delivered)
                 / greatest(extract(epoch from clock_timestamp() - k.rate_since)::float8, 1) end),
                 0)::float8 as rate,
          case when not bool_or(k.lane >= {UNNAMED_LANES} and k.next_at is not null)
                and not exists (select from headgate.discovered x where x.consumer = c.id)
                and not exists (select from headgate.wake w where w.consumer = c.id)
               then min(greatest(k.first_seq - 1, least(k.pos, k.to_lo, lower(k.late) - 1)))
                      filter (where k.lane < {UNNAMED_LANES}) end as start,
          min(k.to_base) as base
     from headgate.cursor k where k.consumer = c.id) k;

create view headgate.consumers as
-- A consumer: its settings, unread messages, in flight, parked, dead letters, lag, floor, how fast
-- it goes, and how many messages were removed before it was done with them. `delivered` and `rate`
-- are of first attempts, `redelivered` of all others; `most_failures` is how often the message that
-- failed most often, of those that are not done, has failed; `due` is how many of the parked ones
-- could be handed out now. Of `push`, secrets are shown by their ends and headers by their names.
-- Of more than 50 that are behind: what maintenance saw at `sampled_at`, in the last five minutes
-- (null: as it is now), with what is unread moved on by what was sent and handed out since.
select s.name as stream, c.name, c.filter,
       case when c.ordered then 'key' else 'none' end as "order", c.ack_wait, c.max_deliver,
       c.max_ack_pending, c.backoff, c.paused, u.unread, u.exact, k.in_flight, k.parked, u.dead,
       u.unread + k.in_flight + k.parked as lag, k.oldest_delivery, u.oldest_unacked, u.floor,
       k.delivered, k.rate, c.created_at,
       (select coalesce(sum(l.messages), 0)::bigint from headgate.loss l
         where l.consumer = c.id) as lost,
       c.max_concurrency, c.release_interval, c.leased, c.lease_time, c.max_waiting,
       (
         select jsonb_build_object('url', p.url, 'secret',
                                   array(select '…' || right(x, 4) from unnest(p.secrets) x),
                                   'concurrency', p.concurrency,
                                  'timeout', extract(epoch from p.timeout), 'headers',
                                  array(select jsonb_object_keys(p.headers)), 'note', p.note,
                                  'last_error', headgate.push_error(c.id))
          from headgate.push p where p.consumer = c.id) as push,
       u.sampled_at, k.redelivered,
       coalesce(greatest(k.parked_failures, k.flying_failures), 0) as most_failures,
       k.due
  from headgate.consumer c join headgate.stream s on s.id = c.stream
  left join headgate.stream e on e.dead_of = s.id
  join headgate.consumer_position k on k.consumer_id = c.id
 cross
   join lateral headgate.listed_consumer(c, e.id, k.start, k.base, k.delivered, k.in_flight > 0
                                         or k.parked > 0) u;

create view headgate.channels as
-- A named lane of a consumer that something is known of: what is in flight and parked, its limits,
-- and whether it waits to be served ('ready'), is full, sleeps until something parked is due or the
-- next release ('waiting'), or is idle. How much waits in each, also in those that the consumer has
-- not come to yet, says headgate.channel_backlog.
select s.name as stream, c.name as consumer, coalesce(k.name, h.name) as channel,
       case when k.next_at is null then 'idle'
            when k.next_at = 'infinity' then 'full'
            when k.next_at > clock_timestamp() then 'waiting'
            else 'ready' end as state,
       -- (asked for each row that is shown, not for each that is sorted)
       coalesce((select sum(cardinality(d.seqs) - (
                          select count(*) from headgate.departed x
                           where x.consumer = d.consumer and x.lane = d.lane
                             and x.delivery = d.id))::bigint
                   from headgate.delivery d where d.consumer = c.id and d.lane = n.lane),
                        0) as in_flight,
       (select count(*) from headgate.parked p
         where p.consumer = c.id and p.lane = n.lane) as parked,
       coalesce(k.max_concurrency, h.max_concurrency, c.max_concurrency) as max_concurrency,
       coalesce(k.release_interval, h.release_interval, c.release_interval) as release_interval,
       coalesce(k.delivered - k.redelivered, 0) as delivered,
       nullif(k.served_at, '-infinity') as served_at
  from headgate.consumer c join headgate.stream s on s.id = c.stream
  join (select consumer, lane from headgate.cursor where lane >= {UNNAMED_LANES}
        union
        select consumer, lane from headgate.channel) n on n.consumer = c.id
  left join headgate.cursor k on k.consumer = n.consumer and k.lane = n.lane
  left join headgate.channel h on h.consumer = n.consumer and h.lane = n.lane;

create view headgate.deliveries as
-- A batch in flight: its messages, deadline and worker. A message of it with a deadline of its own
-- has a row of its own.
select s.name as stream, c.name as consumer, d.lane, coalesce(d.parent, d.id) as id, f.seqs,
       case when d.attempts is not null then f.attempts end as attempts,
       d.delivered_at, d.deadline, d.worker
  from headgate.delivery d join headgate.consumer c on c.id = d.consumer
    join headgate.stream s on s.id = c.stream
 cross join lateral (
   select array_agg(f.seq order by f.ord) as seqs, array_agg(f.attempt order by f.ord) as attempts
     from headgate.in_flight f
    where f.consumer = d.consumer and f.lane = d.lane and f.delivery = d.id) f
 where f.seqs is not null;

create view headgate.parked_messages as
-- A message that waits outside the log's order: delayed, failed, or behind one of its key (then it
-- is visible at no time that is known).
select s.name as stream, c.name as consumer, p.lane, p.seq, p.key, p.attempt,
       nullif(p.visible_at, 'infinity') as visible_at, p.reason, p.last_error, p.parked_at
  from headgate.parked p join headgate.consumer c on c.id = p.consumer
    join headgate.stream s on s.id = c.stream;

create view headgate.segments as
-- A segment of a stream's log: its range of seqs, how many messages it holds (counted when it was
-- closed), its size, and why it is still kept once it is closed.
select s.name as stream, g.id, g.state, g.first_seq, g.end_seq,
       case when g.state = 'dropped' then 0 else g.messages end as messages,
       headgate.segment_bytes(s.id, g.id) as bytes, g.created_at, g.closed_at, g.last_at,
       headgate.kept_by(g) as kept_by
  from headgate.segment g join headgate.stream s on s.id = g.stream;

create view headgate.workers as
-- A worker of a leased consumer: its lanes (of lanes by key or channel, their remainders), until
-- when it counts as alive unless it is seen again, and how many messages it has in flight.
select s.name as stream, c.name as consumer, w.name,
       array(select l.slot from headgate.lease l
              where l.consumer = c.id and l.worker = w.name and l.slot >= 0
                order by l.slot) as lanes,
       w.joined_at, w.seen_at, w.until,
       (
         select coalesce(
           sum(
             (cardinality(d.seqs)
              - (select count(*) from headgate.departed x
                  where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id))),
                        0)::bigint
          from headgate.delivery d where d.consumer = c.id and d.worker = w.name) as in_flight
  from headgate.worker w join headgate.consumer c on c.id = w.consumer
    join headgate.stream s on s.id = c.stream;

create view headgate.archives as
-- An archive of a stream: where it is, up to which seq nothing is missing there, about how many
-- messages it has still to copy, and how many closed segments wait for it.
select s.name as stream, a.name, a.place, a.floor, headgate.unread_since(s.name, a.mark) as lag,
       a.at,
       (select count(*) from headgate.segment g
         where g.stream = s.id and g.state = 'closed' and g.messages > 0
           and g.end_seq - 1 > a.floor) as waiting
  from headgate.archive a join headgate.stream s on s.id = a.stream;

create view headgate.timings as
-- A message of the sample that workers with the option timing take: how long it waited from sending
-- on, and how long it was worked on.
select s.name as stream, c.name as consumer, t.at, t.channel, t.attempt, t.waited, t.handled
  from headgate.timing t join headgate.consumer c on c.id = t.consumer
    join headgate.stream s on s.id = c.stream;

create view headgate.sources as
-- A source: where its messages go, how they are signed (secrets are shown by their ends), and its
-- settings.
select r.name, r.kind, s.name as stream, r.scheme,
       array(select '…' || right(x, 4) from unnest(r.secrets) x) as secret, r.settings, r.created_at
  from headgate.source r join headgate.stream s on s.id = r.stream;
