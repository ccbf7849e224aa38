-- append_<stream id>(xid, base, lanes, keys, datas, headers, channels, delays, end) -> seqs: the
-- insert into the log. (Columns have no alias, and the rare case is elsewhere, because each word
-- costs memory of every session and stream: docs/adr/0022.)
-- Writes: message_<stream id>.
create function headgate.append_{stream}(
  p_xid xid8, p_base int, p_lanes int, p_keys text[], p_datas text[], p_headers jsonb[],
  p_channels text[], p_delays interval[], p_end bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan as $$
declare r bigint[];
begin
  -- point: a send has an id and no seq
  {step append/insert_batch into};
  -- point: a send has inserted
  return r;
end $$;
