-- Deadlines of single messages, and acks that come late (docs/adr/0018).

-- A message that was extended alone leaves its batch and has a row of its own. Its ack_id still
-- names the batch that it came in. See functions/read/deadlines.sql.
alter table headgate.delivery
  add parent bigint,        -- of such a row: the delivery that its ack_id names
  add is_split boolean,     -- some of its messages have rows of their own, or were parked: not to be settled by its name alone
  add is_watched boolean;   -- its deadline may be nearer than its lane's sweep_at tells

create unique index delivery_parent on headgate.delivery (consumer, lane, parent, (seqs[1]))
  where parent is not null;
drop index headgate.delivery_deadline;
create index delivery_deadline on headgate.delivery (consumer, deadline)
  where lane >= 144115188075855872 or is_watched;

-- A message whose deadline has passed knows the delivery by which it may still be acked.
alter table headgate.parked add delivery bigint;
create index parked_delivery on headgate.parked (consumer, delivery, seq)
  where delivery is not null;

create or replace view headgate.in_flight as
select d.consumer, d.lane, d.id as delivery, d.worker, d.deadline, u.seq, coalesce(u.attempt, 1) as attempt, u.key, u.ord, d.parent
  from headgate.delivery d
 cross join lateral unnest(d.seqs, d.attempts, d.keys) with ordinality u (seq, attempt, key, ord)
 where not exists (
   select from headgate.departed x
    where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id and x.seq = u.seq);

drop function if exists headgate.receive(text, text, int, text, text[], boolean);  -- takes one more now
