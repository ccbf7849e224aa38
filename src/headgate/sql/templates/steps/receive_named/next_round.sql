-- next_round: holds the lanes that are due, and serves them. Leaves the loop when the batch is
-- full, or nothing is to be had.
{step receive_named/move_gatherer}
{step receive_named/hold_lanes}
if places is null then
  {step receive_named/look_for_more}
end if;
{step receive_named/know_gatherer}
if keeps_keys then
  {step receive_named/find_flying_keys}
end if;
-- point: a rotation knows which keys fly
if not (is_limited or has_channels) then
  {step receive_named/share_evenly}
end if;
if is_limited or has_channels then
  {step receive_named/share_by_room}
end if;
-- point: a rotation knows what is in flight
if is_stale then
  {step receive_named/renew_limits}
  continue;
end if;
{step receive_named/serve_all}
exit when want <= 0 or passes > 50 or clock_timestamp() > t0 + interval '1 second';
