-- What a call of receive knows. Its steps (read/steps.sql) hand it on to each other, and the function
-- generated for the stream does in between what needs the stream's own tables.
create type headgate.receiving as (
  step text,  -- what comes next: 'claim', 'probe', 'retry', 'read', 'look', 'sift', 'let go'; null: nothing
  consumer int,
  is_quick boolean,  -- it has neither filter nor order, and is not leased
  want int,  -- how many messages are still to be found
  t0 timestamptz,  -- when the call began
  deadline timestamptz,
  tick bigint,  -- up to which tick lanes are read
  busy boolean,  -- some lane has work left in its span
  has_watched boolean,  -- a delivery past its deadline is not where the lane's sweep_at says
  tried bigint[],  -- lanes that are not to be looked at again
  -- the lane that is held, and what is read of it
  lane bigint,
  pos bigint,
  hi bigint,
  from_snap pg_snapshot,
  to_snap pg_snapshot,
  sweep_at timestamptz,
  delivered bigint,
  -- off the plain path
  asked int,  -- how many messages the caller wants; null: know_call was not called
  c headgate.consumer,
  worker text,
  open boolean,  -- the call is part of a longer transaction
  is_upsert boolean,  -- the stream keeps one message per key
  lets_go boolean,  -- of lanes that gave nothing: each is a subtransaction
  is_plain boolean,  -- the consumer has neither filter nor order
  newest headgate.tick,  -- the tick up to which lanes are read, once it is known
  tries int,  -- how often all lanes were held by others
  probed bigint[],  -- lanes that may have something,
  probed_from bigint[],  -- behind which seq,
  probed_to bigint[],  -- up to which,
  ahead bigint[],  -- and those of them that have; null: it is not known
  begun bigint[],  -- lanes that are held, in which a span has begun: they are read next
  l headgate.cursor,  -- the cursor of the lane that is held
  lane_gave int,  -- how many of its parked messages were handed out
  chunk int,  -- how many messages a sift looks at,
  chunk_lane bigint,  -- where the last one was,
  chunk_gave boolean  -- and whether it gave any
);
