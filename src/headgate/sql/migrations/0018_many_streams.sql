-- Thousands of streams: maintenance in turns, and figures for listings (docs/adr/0020).

-- Whose turn it is: see functions/operate/turns.sql. Sequences, so that processes share the turns out
-- among themselves without waiting for each other, and none is lost or kept by an open transaction.
create sequence headgate.stream_turn;
create sequence headgate.consumer_turn;
create sequence headgate.storage_turn;

-- The stream of a stream's dead letters is looked for with every consumer that is shown.
create index stream_dead_of on headgate.stream (dead_of) where dead_of is not null;

-- What maintenance last saw of consumers and streams, where there are many: see
-- functions/operate/samples.sql. No foreign keys: their triggers would lock the consumer's row.
create table headgate.consumer_sample (
  consumer int primary key,
  at timestamptz not null,
  unread bigint not null,
  exact boolean not null,
  floor bigint,
  oldest_unacked timestamptz,
  dead bigint not null,
  last_seq bigint not null,   -- of the stream, just before
  delivered bigint not null   -- by the consumer, just before
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);

create table headgate.stream_sample (
  stream int primary key,
  at timestamptz not null,
  messages bigint not null,
  exact boolean not null,
  bytes bigint not null,
  oldest timestamptz,
  newest timestamptz,
  last_seq bigint not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000);

drop function if exists headgate.take_discovered(headgate.consumer, timestamptz, int);  -- answers the lanes now
drop function if exists headgate.prepare_storage();  -- takes an argument now
