-- What mending the engine needed.

drop function if exists headgate.make_tick(int, boolean);  -- takes one more now
drop function if exists headgate.keep_in_flight(headgate.delivery, bigint[]);
drop function if exists headgate.forget(headgate.consumer, bigint);
drop function if exists headgate.no_fixed_snapshot();
drop function if exists headgate.receive_template();
drop function if exists headgate.rotate_template();
drop function if exists headgate.take_wakes(headgate.consumer, timestamptz);

-- Messages that left their delivery before the others of it: acked, nacked or released. Means nothing once the delivery is gone.
create table headgate.departed (
  consumer int not null,
  lane bigint not null,
  delivery bigint not null,
  seq bigint not null,
  primary key (consumer, lane, delivery, seq)
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = off);

-- A consumer that starts at a seq never gets one below, also when it commits later.
alter table headgate.cursor add first_seq bigint not null default 0;

-- What is in flight: the messages of deliveries without those that have departed.
create view headgate.in_flight as
select d.consumer, d.lane, d.id as delivery, d.worker, d.deadline, u.seq, coalesce(u.attempt, 1) as attempt, u.key, u.ord
  from headgate.delivery d
 cross join lateral unnest(d.seqs, d.attempts, d.keys) with ordinality u (seq, attempt, key, ord)
 where not exists (
   select from headgate.departed x
    where x.consumer = d.consumer and x.lane = d.lane and x.delivery = d.id and x.seq = u.seq);

-- Named lanes with work that a receive has met beyond those that it serves itself. It may be part of a long transaction, so it leaves
-- them for others, with the span that they have to read, instead of holding their cursors. See functions/lanes/lanes.sql.
create table headgate.discovered (
  consumer int not null,
  lane bigint not null,
  name text,
  at timestamptz not null,
  first_seq bigint not null,
  from_tick bigint not null,
  from_lo bigint not null,
  to_tick bigint not null,
  to_base bigint not null,
  to_lo bigint not null,
  to_hi bigint not null,
  from_snap pg_snapshot not null,
  to_snap pg_snapshot not null,
  late int8multirange
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = off);
create index discovered_lane on headgate.discovered (consumer, lane);
