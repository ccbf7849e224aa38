-- receive_open_<stream id>(consumer, batch_size, worker, acks, open, ack_wait) -> messages, where
-- lanes are hashed, for a call inside a longer transaction: it lets go of the lanes that gave it
-- nothing, so that each lane is a subtransaction. Otherwise as receive_<stream id>.
create function headgate.receive_open_{stream}(
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
  r := {step receive/next_step lets_go};
  <<lanes>> while r.step is not null loop
    begin
      loop
        {step receive/do_step lets_go}
      end loop;
      if r.step = 'let go' then
        r.step := 'claim';
        raise exception using errcode = 'HG0LG';
      end if;
    exception
      when sqlstate 'HG0LG' then null;
      when lock_not_available then perform headgate.no_fixed_snapshot(); raise;
    end;
  end loop;
end $$;
