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
    n := headgate.tidy_layouts(s);
    if n > 0 then return query select 'lanes', s.name, n; end if;
    n := headgate.remove_superseded(s);
    if n > 0 then return query select 'superseded versions', s.name, n; end if;
    if headgate.segments_end(s.id) <= headgate.last_seq(s.id) + greatest(s.segment_rows, 50000) then
      perform headgate.ensure_segments(s.id, 0);
      return query select 'segments', s.name, 1::bigint;
    end if;
  end loop;
  for c in select * from headgate.consumer order by id loop
    n := headgate.sweep(c, clock_timestamp());
    if n > 0 then return query select 'sweep', c.name, n; end if;
  end loop;
  if not open then
    return query select 'rewrite', r.name, r.pages from headgate.rewrite_small() r;
  end if;
end $$;

-- rewrite_small() -> name and former size in pages of the small hot tables that were rewritten. While somebody holds an old
-- snapshot, vacuum can remove nothing that was updated since, and these tables would grow without end and slow everybody
-- down. The live rows are put into an emptied table instead, which takes milliseconds and depends on no snapshot.
-- Gives up at once when it does not get the lock. Locks the table ACCESS EXCLUSIVE; run it outside longer transactions.
create or replace function headgate.rewrite_small() returns table (name text, pages bigint)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare t text; rows text; live bigint; was text := current_setting('lock_timeout');
begin
  foreach t in array array['cursor', 'delivery', 'wake', 'parked'] loop
    pages := pg_relation_size(('headgate.' || t)::regclass) / 8192;
    continue when pages < 64;
    begin
      perform set_config('lock_timeout', '20ms', true);
      execute format('lock table headgate.%I in access exclusive mode', t);
      execute format('select count(*) from headgate.%I', t) into live;
      -- TRUNCATE shows an empty table to older snapshots: harmless to a forgotten session, not to a dump that has begun
      if live <= 20000 and pages > 64 + live / 4
         and not exists (select from pg_stat_activity a where a.datname = current_database() and a.application_name = 'pg_dump') then
        execute format('select array_agg(x)::text from headgate.%I x', t) into rows;
        execute format('truncate headgate.%I', t);
        execute format('insert into headgate.%1$I select (u).* from unnest($1::headgate.%1$I[]) u', t) using rows;
        name := t;
        return next;
      end if;
    exception when lock_not_available then
      null;  -- the next call will do it
    end;
    perform set_config('lock_timeout', was, true);
  end loop;
end $$;
