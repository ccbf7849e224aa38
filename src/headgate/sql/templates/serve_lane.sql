-- serve_lane_<stream id>(consumer, cursor, newest tick, n, room, gatherer's tick, worker, now,
-- deadline) -> messages of one lane: what is parked and due together with the log, by the time they
-- are due, then by seq; where order is kept, what is parked first.
-- Needs: the caller holds the cursor.
-- Writes: cursor, delivery, parked.
create function headgate.serve_lane_{stream}(c headgate.consumer, l headgate.cursor,
                                        newest headgate.tick, share int, room int, g_base bigint,
                                        p_worker text,
  t timestamptz, deadline timestamptz)
returns setof headgate.received language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off as $$
declare
  want int := share;
  got int;
  total int := 0;
  chunk int;
  sleeps timestamptz;
  is_strict boolean := c.ordered and {is_strict} and l.lane >= {NAMED_LANES};
  is_done boolean := false; was bigint := l.delivered; was_pos bigint := l.pos; due tid[];
  back bigint[]; back_attempts int[]; back_keys text[];
  again int := 0;  -- of these, how many were handed out before
begin
  if c.ordered then perform headgate.take_key_wakes(c, l.lane, t); end if;
  {if upsert} perform headgate.forget_superseded(c, l.lane, t);
  {step serve_lane/begin_span}
  -- point: a named lane is to be read
  if c.ordered or c.pattern is not null or l.late is not null or l.discards then
    {step serve_lane/serve_due_parked}
    {step serve_lane/serve_filtered}
  else
    {step serve_lane/serve_by_due_time}
  end if;
  -- point: a named lane is read
  {step serve_lane/say_when_due}
end $$;
