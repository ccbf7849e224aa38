-- lanes_ahead_<stream id>(gatherer, after, start, n) -> lanes, with their names, that have messages
-- of the gatherer's span above a seq: of n lanes of the log from `start` on, found by going from
-- lane to lane in the index.
create function headgate.lanes_ahead_{stream}(g headgate.cursor, p_after bigint, p_start bigint,
                                              n int) returns table (lane bigint, name text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set jit = off
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  first bigint;  -- of the segment that is looked at: those before need not be opened
  at bigint := p_start - 1;
  has_turned boolean := p_start <= 0;
begin
  select max(s.first_seq) into first from headgate.segment s
   where s.stream = {stream} and s.first_seq <= p_after + 1;
  for i in 1 .. n loop
    select m.lane, {lane_name} into at, lanes_ahead_{stream}.name from headgate.message_{stream} m
     where m.lane > at and m.seq >= first and m.seq <= g.to_hi order by m.lane, m.seq limit 1;
    if not found then
      exit when has_turned;
      has_turned := true;
      at := -1;
      continue;
    end if;
    exit when has_turned and p_start > 0 and at >= p_start;
    lane := at;
    -- (in this order, so that no planner goes through the span by seq)
    if (select m.seq from headgate.message_{stream} m
         where (m.lane, m.seq) > (at, p_after)
           {if not until_18} and (m.lane, m.seq) <= (at, g.to_hi)
           and m.seq > p_after and m.seq <= g.to_hi
           {if until_18} and m.lane = any(array[at])
           and pg_visible_in_snapshot(m.xid, g.to_snap)
           and not pg_visible_in_snapshot(m.xid, g.from_snap)
         order by m.lane, m.seq limit 1) is not null then
      return next;
    end if;
  end loop;
end $$;
