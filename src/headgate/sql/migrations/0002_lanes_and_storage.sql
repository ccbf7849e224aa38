-- Lanes by key and by channel, limits, leases, changing the number of lanes, retention, upserts.

-- The functions change with their tables and are all made again after this; the views stand on both.
drop view if exists headgate.streams, headgate.consumers, headgate.deliveries, headgate.parked_messages, headgate.segments;
do $$
declare f regprocedure;
begin
  for f in select p.oid::regprocedure from pg_proc p where p.pronamespace = 'headgate'::regnamespace loop
    execute 'drop function ' || f || ' cascade';
  end loop;
end $$;

alter table headgate.stream
  add lane_by text not null default 'hash' check (lane_by in ('hash', 'key', 'channel')),
  add base int not null default 0,                      -- hashed lanes are base .. base + lanes - 1: see layout
  add retain text not null default 'forever' check (retain in ('forever', 'until_acked')),
  add retain_up_to interval,
  add retain_at_least interval,
  add max_storage bigint,
  add segment_bytes bigint not null default 1073741824, -- a segment closes at so many rows, bytes, or at this age
  add segment_age interval,                             -- null: chosen by the retention
  add is_full boolean not null default false,           -- above max_storage, and nothing may be removed: send fails
  add compact_every interval not null default '30 minutes',
  add compacted_at timestamptz not null default clock_timestamp(),
  add one_message_per_key boolean not null default false,
  add process_unmodified boolean not null default false;

-- How hashed lanes were numbered over time. A message lies in the layout of its transaction's id, so that all messages of
-- a transaction lie in one: the newest layout whose `since` is not above it.
create table headgate.layout (
  stream int not null references headgate.stream on delete cascade,
  base int not null,
  lanes int not null,
  since xid8 not null,
  end_seq bigint,             -- nothing of this layout lies at or above; null while something may still be written in it
  primary key (stream, base)
);
insert into headgate.layout (stream, base, lanes, since) select id, 0, lanes, '3' from headgate.stream;

alter table headgate.segment
  add state text not null default 'open' check (state in ('open', 'closed', 'dropped')), -- dropped: emptied, its table goes when nobody looks
  add closed_at timestamptz,
  add messages bigint,        -- counted when it was closed
  add last_at timestamptz;    -- when its last message was sent

alter table headgate.consumer
  add max_concurrency int,    -- of each lane, so many messages in flight at once; a channel may have its own
  add release_interval interval, -- of each lane, one message per interval
  add leased boolean not null default false,
  add lease_time interval not null default '10 seconds';

-- Lanes by key or channel: the lane is a hash of the name, so that a send need not look it up or make it.
-- next_at: when a claim should look at the lane; infinity: there is work, but the lane is full and an ack will wake it;
-- null: nothing is known to be there (always, in streams with hashed lanes). Lane -1 of such a consumer is the gatherer:
-- how far the log was searched for lanes with work. An idle lane needs no row.
alter table headgate.cursor
  alter lane type bigint,
  add next_at timestamptz,
  add max_concurrency int,
  add release_interval interval,
  add name text,
  add sift boolean not null default false; -- the lane has delayed messages: see serve_<stream id>
create index cursor_ready on headgate.cursor (consumer, next_at, lane) where next_at < 'infinity';
alter table headgate.delivery alter lane type bigint;
-- of named lanes, which have no sweep_at: there may be any number of them
create index delivery_deadline on headgate.delivery (consumer, deadline) where lane >= 144115188075855872;
alter table headgate.parked alter lane type bigint;
alter table headgate.wake alter lane type bigint;
alter table headgate.wake alter key drop not null;   -- without a key: the lane has room again, or has work

-- Limits of single channels; those that are null are the consumer's.
create table headgate.channel (
  consumer int not null,
  lane bigint not null,
  name text,
  max_concurrency int,
  release_interval interval,
  primary key (consumer, lane)
);

-- Workers of leased consumers, and which lanes each may read.
create table headgate.worker (
  consumer int not null,
  name text not null,
  joined_at timestamptz not null default clock_timestamp(),
  seen_at timestamptz not null default clock_timestamp(),
  until timestamptz not null,
  primary key (consumer, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

create table headgate.lease (
  consumer int not null,
  slot bigint not null,       -- the lane; of lanes by key or channel, the lane modulo the stream's lanes
  worker text,                -- null: free
  since timestamptz not null default clock_timestamp(),
  primary key (consumer, slot)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);

-- Messages that were removed before a consumer was done with them. Appended only.
create table headgate.loss (
  consumer int not null,
  at timestamptz not null default clock_timestamp(),
  first_seq bigint not null,
  last_seq bigint not null,
  messages bigint not null,
  reason text not null
);
create index loss_consumer on headgate.loss (consumer, at);

-- Messages that were still parked when their segment was compacted away.
do $$
declare s int;
begin
  for s in select id from headgate.stream loop
    execute format('create table headgate.kept_%1$s (like headgate.message_%1$s, primary key (seq))', s);
    execute format('alter table headgate.kept_%s alter seq drop default', s);
  end loop;
end $$;

-- When maintenance last ran, for doctor().
create table headgate.upkeep (
  only_row boolean primary key default true check (only_row),
  at timestamptz not null default clock_timestamp()
);
insert into headgate.upkeep default values;
-- Retention, segments, compaction.
alter table headgate.segment
  add bytes bigint,           -- measured when it was closed
  add skipped bigint not null default 0; -- seqs at its end that were left out, because it was closed by size or age
do $$
declare s headgate.stream;
begin
  for s in select * from headgate.stream loop
    execute format('create or replace view headgate.%1$I as select seq, key, data, headers, lane, deliver_at, created_at from headgate.message_%2$s '
                   'union all select seq, key, data, headers, lane, deliver_at, created_at from headgate.kept_%2$s', 'log_' || s.name, s.id);
  end loop;
end $$;

-- Changing the number of lanes: see functions/lanes/layouts.sql.
alter table headgate.layout
  add quiet_tick bigint,      -- the newest tick when nobody could begin to write in this layout any more
  add end_tick bigint;        -- everything of this layout that ever committed is visible in this tick
alter table headgate.cursor
  add gate text check (gate in ('waits', 'feeds'));

-- Upsert streams: how far the search for superseded versions came; see functions/write/upsert.sql.
alter table headgate.stream add swept_key text;
