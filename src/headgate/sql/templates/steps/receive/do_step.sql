-- do_step: goes to the next step of the call and does it, or leaves the loop when there is none.
--   read   A lane's span, of a consumer without filter and order: the hot statement.
--   probe  Which lanes have something behind their span?
--   look   Is anything left in the lane's span?
--   retry  What is parked and due.
--   filtered  A span with a filter, with keys in order, with delays …
--   cold   Everything, in a session that is to keep no plans of this stream.
r := {step receive/next_step};
if r.step = 'read' then
  -- point: a lane is to be read
  return query
  {step receive/read_plain};
  get diagnostics got = row_count;
  -- point: a lane is read
  exit lanes when got = r.want;
elsif r.step in ('probe', 'look') then
  r.ahead := {step receive/lanes_with_more};
elsif r.step in ('retry', 'filtered') then
  return query select * from headgate.retry_{stream}(r);
  get diagnostics got = row_count;
elsif r.step = 'cold' then
  return query select * from headgate.receive_cold(
    {stream}, p_consumer, n, p_worker, acks, open, p_ack_wait);
  exit;
else
  exit;
end if;
