-- receive_open_<stream id>(consumer, batch_size, worker, acks, open, ack_wait) -> messages, where
-- lanes are named, for a call inside a longer transaction: it lets go of everything that it has
-- looked into when that gave it nothing. Otherwise as receive_<stream id>.
create function headgate.receive_open_{stream}(
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
  begin
    {step receive_named/wake_noted_lanes}
    loop
      {step receive_named/next_round}
    end loop;
    if taken <> '{}' then perform headgate.note_asleep(c, taken, null); end if;
    -- (not always: notes that led nowhere are to be gone one day, also where everybody receives
    -- like this)
    if want = had and random() < 0.8 then raise exception using errcode = 'HG0LG'; end if;
  exception
    when sqlstate 'HG0LG' then null;
    when lock_not_available then perform headgate.no_fixed_snapshot(); raise;
  end;
end $$;
