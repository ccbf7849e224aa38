-- Thinning of ticks goes on where it stopped; streams with many segments are dropped in steps.

alter table headgate.stream
  add thinned_seconds bigint not null default 0,  -- up to this tick, one a second is left
  add thinned_minutes bigint not null default 0;  -- and up to this one, one a minute
create index tick_private on headgate.tick (stream, id) where base <> id;
drop function if exists headgate.thin_ticks(int);

-- Streams that are gone for everybody, and whose tables maintenance has still to drop: see
-- functions/base/streams.sql. The log of such a stream is called dropped_<stream id>.
create table headgate.dropped_stream (
  stream int primary key,
  name text not null,
  at timestamptz not null default clock_timestamp()
);
