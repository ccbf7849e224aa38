-- What waits in each channel: what the functions in functions/operate/backlog.sql hand to each other.

-- A look at what a consumer has still to read: where it begins and ends, and the parts of it
-- that are looked at (low < seq <= high), with how many messages each that is met stands for.
create type headgate.backlog_look as (
  lowest bigint,              -- what is stored lies above
  start bigint,
  highest bigint,
  complete boolean,           -- all of it is looked at
  lows bigint[],
  highs bigint[],
  weights float8[]
);

-- A lane as such a look saw it, and its place in the order that was asked for.
create type headgate.backlog_lane as (
  lane bigint,
  name text,
  unread bigint,
  parked bigint,
  rank bigint
);
