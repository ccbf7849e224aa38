-- receive_<stream id>(consumer, batch_size, worker, acks, open, ack_wait) -> messages, where lanes
-- are named: those that are due give a share of the batch each, and go to the end of the rotation.
-- The usual lanes (nothing parked, no filter, no key of theirs in flight where order is kept) are
-- served all in one statement, the others one by one by serve_lane_<stream id>. What holds is at
-- the head of functions/lanes/lanes.sql.
create function headgate.receive_{stream}(
  p_consumer text, n int, p_worker text, acks text[], open boolean default null,
  p_ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s'
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  {step receive_named/variables}
begin
  {step receive_named/open_call}
  {step receive_named/settle_acks}
  {step receive_named/apply_limits}
  {step receive_named/wake_noted_lanes}
  loop
    {step receive_named/next_round}
  end loop;
  if taken <> '{}' then perform headgate.note_asleep(c, taken, null); end if;
end $$;
