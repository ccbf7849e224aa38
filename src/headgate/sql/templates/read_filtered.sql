-- read_filtered_<stream id>(consumer, cursor, n, chunk, worker, now, deadline) -> messages: the
-- reading of a span with a filter, with keys in order, with delays, with messages that were
-- discarded, or of what late transactions left below it. At most `chunk` messages are looked at.
-- Needs: the caller holds the cursor.
-- Writes: delivery, parked, cursor.
create function headgate.read_filtered_{stream}(
  c headgate.consumer, l headgate.cursor, want int, chunk int, p_worker text, t0 timestamptz,
  deadline timestamptz)
returns setof headgate.received language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  flying text[] := '{}';  -- the keys in flight
  any_parked boolean := false;
  crowded boolean := false;  -- too much is parked behind keys in flight: nothing more is
  bound int;
begin
  if c.ordered then
    {step read_filtered/find_what_blocks}
  end if;
  -- point: what blocks is known
  return query
  with
  {step read_filtered/read_span},
  {step read_filtered/tell_what_fits},
  {if upsert} {step read_filtered/drop_superseded},
  {step read_filtered/take_and_park},
  {step read_filtered/deliver_and_advance}
  select d.prefix || x.seq, x.seq, x.key, x.data, x.headers, x.channel, 1, x.created_at
    from d, taken x order by x.seq;
end $$;
