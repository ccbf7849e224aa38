-- wake_noted_lanes: sees to deliveries past their deadline, gives discovered lanes their cursors,
-- and wakes the lanes that there are notes of.
-- Gives: has_discovered, has_notes, taken, mine, newest.
-- Writes: as expire_named_lanes, take_discovered and take_wakes.
if not open or not busy then  -- in an open transaction, only what it may then hand out
  if has_watched then
    perform headgate.expire_named_lanes(c, t0, case when open then want end);
  end if;
  select exists (select from headgate.discovered x where x.consumer = c.id),
         exists (select from headgate.wake w where w.consumer = c.id),
         exists (select from headgate.channel h where h.consumer = c.id)
    into has_discovered, has_notes, has_channels;
  if has_discovered or has_notes then
    if has_discovered then  -- these have waited longest, and are served first
      taken := headgate.take_discovered(c, t0,
                                        case when is_alone then greatest(n, 100)
                                             else least(headgate.lanes_of_batch(want), 1000) end);
    end if;
    if not is_alone then lanes_left := headgate.lanes_to_wake(c, t0, want); end if;
    if lanes_left > 0 then perform headgate.take_wakes(c, t0, lanes_left, not is_alone); end if;
  end if;
else
  has_channels := exists (select from headgate.channel h where h.consumer = c.id);
end if;
-- point: a rotation has read its notes
if c.leased then mine := headgate.leased_slots(c, p_worker, t0); end if;
if newest.id is null then  -- by now it may have been thinned out: then the one behind it
  select t.* into newest from headgate.tick t
   where t.stream = {stream} and t.base = t.id and t.id >= tick_id order by t.id limit 1;
end if;
