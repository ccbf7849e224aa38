-- move_gatherer: moves the gatherer on to the newest tick, so that all lanes of a large backlog are
-- known before one of them is served.
-- Gives: behind, special, and where the gatherer is. Locks, writes: as find_ready_lanes_<stream
-- id>. The gatherer stands only on public ticks, whose ids say which is the later one. While
-- somebody's transaction keeps new ones from being made, a few lanes are woken past it.
public := newest;
if newest.id <> newest.base then public := headgate.newest_tick({stream}); end if;
loop  -- of a large backlog all lanes are to be known before one of them is served
  select k.pos < k.to_hi or k.to_tick <> public.id or k.late is not null, k.pos, k.to_tick,
         k.served_at,
         (select coalesce(max(t.id), 0) from headgate.tick t
           where t.stream = {stream} and (t.late is not null or t.bridge_to is not null))
    into behind, g_pos, g_tick, g_turn, special from headgate.cursor k
   where k.consumer = c.id and k.lane = -1;
  exit when open or not behind;
  if is_alone then
    perform headgate.find_ready_lanes_{stream}(c, public, t0, null, null);
  else
    perform headgate.find_ready_lanes_{stream}(c, public, t0, null,
                                                headgate.lanes_to_wake(c, t0, want));
  end if;
  exit when clock_timestamp() > t0 + interval '300 milliseconds'
    or exists (select from headgate.cursor k
                where k.consumer = c.id and k.lane = -1 and k.pos = g_pos
                  and k.to_tick = g_tick);
end loop;
-- (tries: what is due, or the gatherer, has been held by others for milliseconds, and may be
-- for long. Nor must what is due, while nobody moves the gatherer, hide the lanes that are not
-- known yet.)
if tries >= 4 or (behind and is_first and g_turn < t0 - interval '50 milliseconds')
   or (not busy and (open or public.id <> newest.id)) then
  perform headgate.find_ready_lanes_{stream}(c, newest, t0, headgate.lanes_of_batch(want));
end if;
-- point: a rotation has gathered
