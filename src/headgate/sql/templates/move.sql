-- move_<stream id>(xid, base, lanes, name) -> n: moves what was staged into the log, in the order
-- in which it was written there.
-- Writes: message_<stream id>.
create function headgate.move_{stream}(p_xid xid8, p_base int, p_lanes int, p_name text)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set synchronize_seqscans = off as $$
declare n bigint;
begin
  execute replace($q$
    insert into headgate.message_{stream} (xid, lane, key, data, headers,
                                           deliver_at{channel_column})
      select $1, {lane}, t.k, t.d, t.h::jsonb, t.w{channel_value}
        from headgate.staged_table t (k, d, h, c, w), (select $2 as p_base, $3 as p_lanes) p
          order by t.n $q$, 'staged_table', quote_ident(p_name))
    using p_xid, p_base, p_lanes;
  get diagnostics n = row_count;
  return n;
end $$;
