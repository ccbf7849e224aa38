-- receive_<stream id>(consumer, batch_size, worker, acks, open, ack_wait) -> messages, where lanes
-- are hashed. A caller that knows whether it is inside a longer transaction says so in `open`. Here
-- is only what reads the stream's own tables, because a session keeps the plans of every stream
-- that it has received from (docs/adr/0022): all else is in the steps that are the same for all
-- streams (functions/read/steps.sql).
-- Locks: as receive_step.
-- Writes: as receive_step; delivery, cursor.
create function headgate.receive_{stream}(
  p_consumer text, n int, p_worker text, acks text[], open boolean default null,
  p_ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off as $$
declare
  r headgate.receiving;
  got int;
begin
  <<lanes>> loop
    {step receive/do_step}
  end loop;
end $$;
