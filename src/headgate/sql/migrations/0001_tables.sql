-- The tables of the engine. Private: users call the functions and read the views.

-- Where this database lives. Transaction ids mean nothing in another cluster; when the row no longer fits
-- (it was written by a restore), ticks first build a bridge (see functions/ticks/ticks.sql).
create table headgate.house (
  only_row boolean primary key default true check (only_row),
  system_identifier bigint not null,
  home oid not null,
  written_by xid8 not null
);

create table headgate.stream (
  id int generated always as identity primary key,
  name text not null unique,
  lanes int not null check (lanes between 1 and 1024),
  dedup_window interval not null,
  max_message_bytes int not null,
  segment_rows bigint not null,
  dead_of int references headgate.stream, -- the stream whose dead letters this one holds
  created_at timestamptz not null default clock_timestamp()
);

-- A segment is a partition of message_<stream id>.
create table headgate.segment (
  stream int not null references headgate.stream on delete cascade,
  id int not null,
  first_seq bigint not null,
  end_seq bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (stream, id)
);

create sequence headgate.tick_id;

-- A tick records what had committed at one moment. See functions/ticks/ticks.sql for the invariants.
create table headgate.tick (
  stream int not null,
  id bigint not null,
  base bigint not null,       -- itself, or, of a private tick (made inside a user's transaction), the tick it builds on
  lo bigint not null,         -- what is not visible in snap lies above, late transactions apart
  hi0 bigint not null,        -- a transaction with an id >= bound has only seqs above hi0
  hi bigint not null,         -- nothing visible in snap lies above
  at timestamptz not null default clock_timestamp(),
  bound xid8,
  snap pg_snapshot not null,
  late_xids xid8[],           -- transactions that lo ignores
  late_from bigint[],         -- what each of them may have written lies above
  looked_at timestamptz,      -- when pg_locks was last asked about them
  late int8multirange,        -- where ended late transactions left messages at or below earlier ticks' lo
  reborn bigint,              -- a bridge from another cluster: spans that end here go on from that tick
  primary key (stream, id)
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
create index tick_public on headgate.tick (stream, id) where base = id;
create index tick_special on headgate.tick (stream, id) where late is not null or reborn is not null;

create table headgate.message_id (
  stream int not null,
  id text not null,
  seq bigint not null,
  at timestamptz not null default clock_timestamp(),
  primary key (stream, id)
);
create index message_id_at on headgate.message_id (stream, at);

create table headgate.consumer (
  id int generated always as identity primary key,
  stream int not null references headgate.stream,
  name text not null,
  filter text[],
  pattern text,               -- the filter as one regular expression
  ordered boolean not null,
  ack_wait interval not null,
  max_deliver int,
  max_ack_pending int,
  backoff jsonb,              -- seconds, a list of seconds, or {"first", "factor", "max", "jitter"}
  paused boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  unique (stream, name)
);

-- The progress of a consumer in one lane: the span between two ticks that it reads, and how far it is in it.
-- The snapshots are copied from the ticks, so that ticks can be thinned out without asking anybody.
create table headgate.cursor (
  -- what a claim looks at comes first and has a fixed width: each claim reads this of all the consumer's cursors
  consumer int not null,      -- no foreign key: its triggers would be looked at by every claim
  lane int not null,
  turn timestamptz not null,  -- when the lane was last served
  pos bigint not null,
  to_hi bigint not null,
  to_tick bigint not null,
  to_base bigint not null,
  to_lo bigint not null,
  from_tick bigint not null,
  from_lo bigint not null,
  delivered bigint not null default 0,
  mark_at timestamptz not null default clock_timestamp(),
  mark_delivered bigint not null default 0,
  sweep_at timestamptz,       -- no delivery of the lane expires before
  to_snap pg_snapshot not null,
  from_snap pg_snapshot not null,
  late int8multirange,        -- while set: the part of the span at or below from_lo, read first
  primary key (consumer, lane)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

create sequence headgate.delivery_id;

-- A batch in flight. Only its worker changes it (ack, nack, extend), and the claim that finds it expired.
create table headgate.delivery (
  consumer int not null,
  lane int not null,
  id bigint not null default nextval('headgate.delivery_id'),
  seqs bigint[] not null,
  attempts int[],             -- null: the first attempt of each
  keys text[],                -- only in consumers that keep order
  deadline timestamptz not null,
  delivered_at timestamptz not null default clock_timestamp(),
  worker text,
  primary key (consumer, lane, id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

-- The exceptions: messages that wait outside the log's order.
create table headgate.parked (
  consumer int not null,
  lane int not null,
  seq bigint not null,
  key text,                   -- only in consumers that keep order
  attempt int not null,       -- deliveries so far
  visible_at timestamptz not null,
  reason text not null check (reason in ('delayed', 'nacked', 'expired', 'blocked', 'redriven', 'released')),
  last_error text,
  parked_at timestamptz not null default clock_timestamp(),
  primary key (consumer, lane, seq)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);
create index parked_due on headgate.parked (consumer, lane, visible_at, seq);
create index parked_key on headgate.parked (consumer, lane, key, seq) where key is not null;

-- Notes that an ack leaves: this key may go on. Taken up by the next claim of the lane.
create table headgate.wake (
  consumer int not null,
  lane int not null,
  key text not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);
create index wake_lane on headgate.wake (consumer, lane);
