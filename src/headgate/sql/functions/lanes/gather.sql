-- The gatherer of named lanes: reads the log once for the whole consumer, and tells the lanes that
-- it meets. What holds is at the head of lanes/lanes.sql.

-- note_taken(consumer, lanes): of lanes that were seen to be discovered and without a cursor,
-- leaves notes for those that another transaction is just giving one, or has given one since: it
-- may have found the gatherer where it was before, and put the lane to sleep. One that takes a lane
-- later than this finds the gatherer held (take_discovered).
-- Writes: wake.
create or replace function headgate.note_taken(c headgate.consumer, p_lanes bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  taken bigint[] := p_lanes;
begin
  if not headgate.has_fixed_snapshot() then
    -- (take_discovered holds them; who holds nothing any more has committed, and is seen below)
    taken := headgate.lanes_held(c.id, p_lanes);
    taken := taken || array(
      select u.lane from unnest(p_lanes) u (lane)
       where u.lane <> all(taken)
         and (select x.lane from headgate.discovered x where x.consumer = c.id and x.lane = u.lane
               limit 1) is null);
  end if;
  insert into headgate.wake (consumer, lane) select c.id, u from unnest(taken) u;
end $$;

-- move_gatherer(consumer) -> whether the gatherer of a consumer with named lanes was moved on,
-- because nobody else did for a second: those who receive only inside longer transactions leave it
-- where it is.
-- Locks: as find_ready_lanes_<stream id>.
-- Writes: as find_ready_lanes_<stream id>.
create or replace function headgate.move_gatherer(c headgate.consumer) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  newest headgate.tick := headgate.newest_tick(c.stream);
  was headgate.cursor;
  now headgate.cursor;
begin
  select * into was from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  if not found or was.served_at > clock_timestamp() - interval '1 second'
     or not (was.pos < was.to_hi or was.late is not null or was.to_tick <> newest.id) then
    return false;
  end if;
  execute format('select headgate.find_ready_lanes_%s($1, $2, clock_timestamp(), null)', c.stream)
    using c, newest;
  select * into now from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  return (now.to_tick, now.pos, now.late) is distinct from (was.to_tick, was.pos, was.late);
end $$;

-- hold_gatherer(consumer) -> the gatherer, held so that no seek overlooks the lanes that are added;
-- null while the consumer is being moved. With a fixed snapshot it must be as it is there: lanes
-- may have come, been read and been forgotten since.
-- Locks: the gatherer FOR KEY SHARE, or NO KEY UPDATE (SKIP LOCKED).
create or replace function headgate.hold_gatherer(c headgate.consumer) returns headgate.cursor
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' as $$
declare g headgate.cursor;
begin
  if headgate.has_fixed_snapshot() then
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
       for no key update skip locked;
  else
    select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
      for key share skip locked;
  end if;
  return g;
-- (when a newer version of the row has to be locked as well, SKIP LOCKED waits after all)
exception when lock_not_available then
  return null;
end $$;
