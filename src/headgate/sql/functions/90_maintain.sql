-- Maintenance: one bounded step of everything that keeps the engine lean. Safe to run from many processes at once.

-- maintain() -> what was done, one row a task. Locks what it works on with SKIP LOCKED; never waits.
create or replace function headgate.maintain() returns table (task text, subject text, done bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream; c headgate.consumer; t headgate.tick; n bigint; open boolean := headgate.is_open();
begin
  -- ticks first: they must be made before this transaction has an id, so one stream's a call; the others wait their turn
  if not open then
    select x.* into s from headgate.stream x
      cross join lateral (select at from headgate.tick k where k.stream = x.id order by k.id desc limit 1) last order by last.at limit 1;
    if found then
      t := headgate.make_tick(s.id, false);
      return query select 'tick', s.name, t.id;
    end if;
  end if;
  for s in select * from headgate.stream order by id for no key update skip locked loop
    n := headgate.thin_ticks(s.id);
    if n > 0 then return query select 'thin ticks', s.name, n; end if;
    with old as (
      select m.ctid from headgate.message_id m where m.stream = s.id and m.at < clock_timestamp() - s.dedup_window order by m.at limit 10000 for update skip locked)
    delete from headgate.message_id m using old where m.ctid = old.ctid;
    get diagnostics n = row_count;
    if n > 0 then return query select 'forget message ids', s.name, n; end if;
    if headgate.segments_end(s.id) <= headgate.last_seq(s.id) + greatest(s.segment_rows, 50000) then
      perform headgate.ensure_segments(s.id, 0);
      return query select 'segments', s.name, 1::bigint;
    end if;
  end loop;
  for c in select * from headgate.consumer order by id loop
    n := headgate.sweep(c, clock_timestamp());
    if n > 0 then return query select 'sweep', c.name, n; end if;
  end loop;
end $$;
