-- append_drawn_<stream id>(xid, base, lanes, keys, datas, headers, channels, delays, seqs) -> seqs:
-- the insert of messages whose seqs were drawn already.
-- Writes: message_<stream id>.
create function headgate.append_drawn_{stream}(
  p_xid xid8, p_base int, p_lanes int, p_keys text[], p_datas text[], p_headers jsonb[],
  p_channels text[], p_delays interval[], p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan as $$
begin
  insert into headgate.message_{stream} (seq, xid, lane, key, data, headers,
                                         deliver_at{channel_column})
    select s, p_xid, {lane}, k, d, h,
           case when w is not null then clock_timestamp() + w end{channel_value}
      from unnest(p_keys, p_datas, p_headers, p_delays, p_seqs{channel_parameter})
             t (k, d, h, w, s{channel_value});
  return p_seqs;
end $$;
