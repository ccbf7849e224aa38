-- look_for_more: no lane was to be had. Lanes that were discovered or noted are woken, or, when
-- others hold all that is due at this instant, it is tried again; otherwise the loop is left.
-- Writes: as take_discovered and take_wakes.
if tries < 8 and (has_discovered or behind)
   and exists (select from headgate.discovered x where x.consumer = c.id) then
  taken := taken || headgate.take_discovered(c, t1, headgate.lanes_of_batch(want));
  tries := tries + 1;
  continue;
end if;
if tries < 8 and has_notes and want = had
   and exists (select from headgate.wake w where w.consumer = c.id and w.key is null) then
  -- the lanes that there were notes of had nothing: there are more notes
  perform headgate.take_wakes(c, t1, headgate.lanes_of_batch(want), not is_alone);
  tries := tries + 1;
  continue;
end if;
-- nothing to claim, or all of it locked by other claims at this instant: then try again
-- rather than say "nothing"
exit when want < had or tries >= 8 or not (
  exists (select from headgate.cursor k
           where k.consumer = c.id and k.next_at <= t1 and k.next_at < 'infinity'
             and (mine is null or k.lane % {lanes} = any(mine)))
  or exists (select from headgate.cursor k
              where k.consumer = c.id and k.lane = -1
                and (k.pos < k.to_hi or k.to_base < newest.base)));
tries := tries + 1;
perform pg_sleep(0.0005 * tries);
continue;
