-- A database that was restored from a dump: its ids are of another cluster.

-- bridge_restore(open) -> whether the database had been restored from a dump and a bridge was
-- built. The ids in messages and ticks are then of another cluster. The bridge: per stream, one
-- tick in which everything restored is visible, and behind it a first tick of the new cluster in
-- which nothing is. Spans end at the first and go on from the second, so old ids meet only old
-- snapshots. Sends need not wait: what they write lies above the bridge.
create or replace function headgate.bridge_restore(p_open boolean) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  h headgate.cluster_identity;
  here bigint;
  s int;
  b bigint;
  old headgate.tick;
  last bigint;
  late int8multirange;
begin
  if headgate.is_same_cluster() then return false; end if;
  if p_open then
    perform headgate.fail('HG010', 'this database was restored from a dump and is not set up yet',
      'call headgate.maintain() once, outside a transaction');
  end if;
  select * into h from headgate.cluster_identity for update;
  if headgate.is_same_cluster() then return true; end if;
  select system_identifier into here from pg_control_system();
  if h.system_identifier is distinct from here then
    for s in select id from headgate.stream order by id loop
      old := headgate.newest_tick(s);
      last := greatest(old.hi, headgate.last_restored(s));
      if last > headgate.last_seq(s) then
        perform setval(('headgate.seq_' || s)::regclass, last);
      end if;
      -- late transactions that ended between the last tick and the dump
      select range_agg(headgate.written_by(s, u.x, u.f, old.lo)) into late
        from unnest(old.late_xids, old.late_from) u (x, f);
      b := nextval('headgate.tick_id');
      insert into headgate.tick (stream, id, base, snap, lo, hi0, hi, late, bridge_to)
        values (s, b, b, '9223372036854775806:9223372036854775806:', last, last, last,
                case when not isempty(late) then late end,
                nextval('headgate.tick_id'));
      insert into headgate.tick (stream, id, base, snap, lo, hi0, hi, bound)
        select s, t.bridge_to, t.bridge_to, '3:3:', last, last, last, '3' from headgate.tick t
         where t.stream = s and t.id = b;
      update headgate.layout y set end_tick = b, end_seq = last + 1 from headgate.stream x
       -- whoever wrote there did not move along
       where y.stream = s and x.id = s and y.base < x.base and y.end_tick is null;
    end loop;
  end if;
  update headgate.cluster_identity
     set system_identifier = here, own_table = 'headgate.cluster_identity'::regclass,
         written_by = pg_current_xact_id();
  return true;
end $$;

-- last_restored(stream id) -> the highest seq that came out of the dump, null when there is none;
-- what was sent here since lies above. A restore makes a table's indexes after its rows, in one
-- transaction for everything or in later ones.
create or replace function headgate.last_restored(p_stream int) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  m record;
  restored int := (select age(h.xmin) from headgate.cluster_identity h);
begin
  for m in execute format(
    'select m.seq, age(m.xmin) as row, (select max(age(i.xmin)) from pg_index i where i.indrelid = m.tableoid) as index '
                          'from headgate.message_%s m order by m.seq desc', p_stream) loop
    if m.row > m.index or (m.row = m.index and m.index = restored) then return m.seq; end if;
  end loop;
  return null;
end $$;

-- is_same_cluster() -> whether the row of cluster_identity was written where it lies now: a restore
-- gives the table another oid and the row another xmin. Cheap enough to be asked by every tick.
create or replace function headgate.is_same_cluster() returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select h.own_table = 'headgate.cluster_identity'::regclass
     and h.xmin::text::bigint = (h.written_by::text::bigint & 4294967295)
    from headgate.cluster_identity h
$$;
