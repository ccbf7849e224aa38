-- find_ready_lanes_<stream id>(consumer, newest tick, now, few, direct): reads on in the log for
-- the whole consumer, up to 100,000 messages, and wakes the lanes it meets, making cursors for
-- those that have none; beyond these it looks which other lanes there are, lest one tenant's burst
-- hides the others. Inside a user's open transaction, or while another holds the gatherer, `few`
-- lanes are woken and the gatherer is left where it is: it and other lanes would be held until the
-- commit. `direct`: so many lanes it may hold, and of the others it leaves word.
-- Locks: the gatherer's and idle lanes' cursors (SKIP LOCKED).
-- Writes: cursor, wake, discovered.
create function headgate.find_ready_lanes_{stream}(c headgate.consumer, newest headgate.tick,
                                         p_now timestamptz, few int, direct int default null)
returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
  set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  g headgate.cursor;
  was headgate.cursor;
  lanes bigint[];
  names text[];
  known bigint[];
  strange bigint[];
  strange_names text[];
  told bigint[];
  later bigint[];
  later_names text[];
  held bigint[];
  places tid[];
  n bigint;
  last bigint;
begin
  {step find_ready_lanes/hold_gatherer}
  {step find_ready_lanes/read_span}
  -- point: the gatherer has read
  if few is not null then
    {step find_ready_lanes/choose_few}
  end if;
  if lanes is not null then
    {step find_ready_lanes/tell_lanes_apart}
    {step find_ready_lanes/wake_known}
    -- point: known lanes are woken
    {step find_ready_lanes/add_strange}
  end if;
  -- point: strange lanes have cursors
  if few is not null then return; end if;
  {step find_ready_lanes/advance}
end $$;
