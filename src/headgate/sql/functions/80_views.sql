-- Views for people who look with SQL; the SDK's insights read the same ones.
drop view if exists headgate.streams, headgate.consumers, headgate.deliveries, headgate.parked_messages, headgate.segments;

create view headgate.streams as
-- A stream: how many messages and bytes are in it, since when, and how fast it grows.
select s.name, s.lanes, f.messages, f.exact, f.bytes, f.oldest, f.newest, f.last_seq, f.rate, s.dedup_window, s.max_message_bytes,
       (select count(*) from headgate.consumer c where c.stream = s.id) as consumers,
       (select d.name from headgate.stream d where d.id = s.dead_of) as dead_of, s.created_at,
       s.retain, s.retain_up_to, s.retain_at_least, s.max_storage, s.is_full
  from headgate.stream s cross join lateral headgate.stream_facts(s.id) f;

create view headgate.consumers as
-- A consumer: its settings, unread messages, in flight, parked, dead letters, lag, floor, how fast it goes, and how many
-- messages were removed before it was done with them.
select s.name as stream, c.name, c.filter, case when c.ordered then 'key' else 'none' end as "order", c.ack_wait, c.max_deliver,
       c.max_ack_pending, c.backoff, c.paused, u.count as unread, u.exact, d.in_flight, p.parked, p.dead,
       u.count + d.in_flight + p.parked as lag, d.oldest_delivery, headgate.oldest_unacked(c) as oldest_unacked, headgate.floor_of(c) as floor, k.delivered, k.rate, c.created_at,
       (select coalesce(sum(l.messages), 0)::bigint from headgate.loss l where l.consumer = c.id) as lost
  from headgate.consumer c join headgate.stream s on s.id = c.stream
 cross join lateral headgate.unread_count(c) u
 cross join lateral (select coalesce(sum(cardinality(d.seqs)), 0)::bigint as in_flight, min(d.delivered_at) as oldest_delivery
                       from headgate.delivery d where d.consumer = c.id) d
 cross join lateral (select count(*) as parked, headgate.dead_count(c) as dead from headgate.parked p where p.consumer = c.id) p
 cross join lateral (select sum(k.delivered)::bigint as delivered,
                            sum((k.delivered - k.mark_delivered) / greatest(extract(epoch from clock_timestamp() - k.mark_at), 1))::float8 as rate
                       from headgate.cursor k where k.consumer = c.id) k;

create view headgate.deliveries as
-- A batch in flight: its messages, deadline and worker.
select s.name as stream, c.name as consumer, d.lane, d.id, d.seqs, d.attempts, d.delivered_at, d.deadline, d.worker
  from headgate.delivery d join headgate.consumer c on c.id = d.consumer join headgate.stream s on s.id = c.stream;

create view headgate.parked_messages as
-- A message that waits outside the log's order: delayed, failed, or behind one of its key.
select s.name as stream, c.name as consumer, p.lane, p.seq, p.key, p.attempt, p.visible_at, p.reason, p.last_error, p.parked_at
  from headgate.parked p join headgate.consumer c on c.id = p.consumer join headgate.stream s on s.id = c.stream;

create view headgate.segments as
-- A segment of a stream's log: its range of seqs, how many messages it holds (counted when it was closed), its size, and
-- why it is still kept once it is closed.
select s.name as stream, g.id, g.state, g.first_seq, g.end_seq, case when g.state = 'dropped' then 0 else g.messages end as messages,
       headgate.segment_bytes(s.id, g.id) as bytes, g.created_at, g.closed_at, g.last_at, headgate.kept_by(g) as kept_by
  from headgate.segment g join headgate.stream s on s.id = g.stream;
