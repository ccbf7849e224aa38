-- retry_<stream id>(call) -> messages of the lane that the call holds: those that are parked and
-- due, and that may leave (see unpark), or what read_filtered_<stream id> answers.
-- Writes: as unpark and deliver_again, or as that.
create function headgate.retry_{stream}(r headgate.receiving) returns setof headgate.received
language plpgsql set search_path = pg_catalog, pg_temp
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  back bigint[];  -- what was parked
  attempts int[];
  keys text[];
  got int;
begin
  if r.step = 'filtered' then
    -- point: a span is to be filtered
    return query
    select * from headgate.read_filtered_{stream}(
      r.c, r.l, r.want, r.chunk, r.worker, r.t0, r.deadline);
    return;
  end if;
  select array_agg(p.seq), array_agg(p.attempt), array_agg(p.key) into back, attempts, keys
    from headgate.unpark(r.c, r.lane, r.want, r.t0) p;
  -- point: what was parked is to be looked up
  return query
  with m as materialized (
    select p.seq, p.attempt, m.key, m.data, m.headers, m.created_at
      from unnest(back, attempts) p (seq, attempt)
      join (select * from headgate.message_{stream}
            union all select * from headgate.preserved_{stream}) m
        on m.seq = p.seq),
  d as materialized (
    select headgate.deliver_again(
             r, array_agg(m.seq order by m.seq), array_agg(m.attempt order by m.seq),
             array_agg(m.key order by m.seq)) as prefix
      from m)
  select d.prefix || m.seq, m.seq, m.key, m.data, m.headers, null::text, m.attempt, m.created_at
    from d, m where d.prefix is not null order by m.seq;
  get diagnostics got = row_count;
  if got < cardinality(back) then
    perform headgate.record_missing(r.c, back, keys, 'removed while parked');
  end if;
end $$;
