-- renew_limits: gives the cursors the limits of their channels.
-- Writes: cursor.
update headgate.cursor k set (max_concurrency, release_interval) = (
  select max(x.max_concurrency), max(x.release_interval) from headgate.channel x
   where x.consumer = c.id and x.lane = k.lane)
 where k.ctid = any(places);
