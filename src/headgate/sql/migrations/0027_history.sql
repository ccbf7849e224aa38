-- How it was: a row for each time that maintenance looked, for charts of the last hour and day (docs/adr/0029).

-- All streams and consumers in one row, as arrays: at most some 700 rows, however many there are.
create table headgate.history (
  at timestamptz primary key,
  is_kept boolean not null,     -- for a day; others for an hour
  streams int[] not null,       -- ids; the same place in the other arrays is the same stream
  sent bigint[] not null,       -- since it was made
  bytes bigint[] not null,
  consumers int[] not null,
  delivered bigint[] not null,  -- first attempts since it was made
  lag bigint[] not null,
  in_flight bigint[] not null,
  parked bigint[] not null,
  dead bigint[] not null
);
