-- drop_superseded: parked versions of which a newer one is read here are removed.
-- Locks: parked (SKIP LOCKED).
-- Writes: parked.
superseded as (
  delete from headgate.parked p where p.ctid = any(array(
    select o.ctid from headgate.parked o join fit f on o.key = f.key and o.seq < f.seq
     where o.consumer = c.id and o.lane = l.lane for update of o skip locked)))
