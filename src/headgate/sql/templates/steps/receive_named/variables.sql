-- variables: what the steps of a rotation know.
got int;
want int := n;  -- so many messages are still wanted,
had int;        -- and so many were at the beginning
tries int := 0;   -- rounds that found no lane to hold
passes int := 0;  -- rounds that gave nothing
t0 timestamptz := clock_timestamp();
t1 timestamptz;  -- of this round
deadline timestamptz;
dummy text;
c headgate.consumer;
keeps_keys boolean;  -- keys in order, and a lane has more than one
is_limited boolean;
has_channels boolean;  -- some channel has limits of its own
-- the caller says, and it is not seen to be wrong, that this statement is a transaction of its own
is_fixed boolean := current_setting('transaction_isolation') in ('repeatable read', 'serializable');
is_alone boolean := not coalesce(open, true) and pg_current_xact_id_if_assigned() is null
  and not is_fixed;
-- the newest tick
newest headgate.tick;
public headgate.tick;
tick_id bigint;
tick_at timestamptz;
tick_hi bigint;
tick_settled boolean;
too_many boolean;  -- ticks were made lately
busy boolean;  -- a lane is due
has_watched boolean;  -- a delivery is past its deadline
-- lanes: those that were freed by acks, this worker's, those that are held, and what each may give
freed bigint[];
mine bigint[];
l headgate.cursor;
places tid[];
claimed bigint[];
n_lanes int;
rooms int[];
shares int[];
slows boolean[];  -- those that serve_lane_{stream} has to see to
is_first boolean := true;
is_stale boolean;
gone headgate.delivery[];
-- so many may be woken here: in a longer transaction no more than it serves, for it holds them
-- until its end
lanes_left int := 1000;
has_discovered boolean := false;
has_notes boolean := false;
-- discovered lanes that got a cursor here while the gatherer was being moved
taken bigint[] := '{}';
noted bigint[] := '{}';  -- the lanes that have a note of a key
-- keys that are in flight, each behind the number of its lane
flying text[] := '{}';
-- the gatherer
behind boolean;
g_base bigint;
g_pos bigint;
g_tick bigint;
g_turn timestamptz;
special bigint;  -- the last tick that tells of late transactions or of a restore
