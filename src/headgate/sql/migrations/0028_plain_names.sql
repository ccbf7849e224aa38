-- Tables and a column by what they are: their old names said it only to who knew already.

-- where this database lives (it was `house`), and this table's oid when the row was written there
alter table headgate.house rename to cluster_identity;
alter table headgate.cluster_identity rename home to own_table;
alter table headgate.cluster_identity
  rename constraint house_only_row_check to cluster_identity_only_row_check;
alter index headgate.house_pkey rename to cluster_identity_pkey;

-- a bridge from another cluster: the tick that spans which end here go on from (it was `reborn`)
alter table headgate.tick rename reborn to bridge_to;
update headgate.archive set mark = replace(mark::text, '"reborn":', '"bridge_to":')::jsonb
 where mark::text like '%"reborn":%';

-- when maintenance last ran (it was `upkeep`)
alter table headgate.upkeep rename to maintenance_run;
alter table headgate.maintenance_run
  rename constraint upkeep_only_row_check to maintenance_run_only_row_check;
alter index headgate.upkeep_pkey rename to maintenance_run_pkey;

-- the last batch of a writer in a stream, and in a table of the user's (`written`, `loaded`)
alter table headgate.written rename to writer_progress;
alter index headgate.written_pkey rename to writer_progress_pkey;
alter table headgate.writer_progress
  rename constraint written_stream_fkey to writer_progress_stream_fkey;
alter table headgate.loaded rename to table_progress;
alter index headgate.loaded_pkey rename to table_progress_pkey;

-- what compaction preserves of a stream's messages (it was `kept_<stream id>`). Each takes two locks
-- until the end: of 3,000 streams and more max_locks_per_transaction has to be raised for this.
do $$
declare s int;
begin
  for s in select x.id from headgate.stream x order by x.id loop
    execute format('alter table headgate.kept_%1$s rename to preserved_%1$s', s);
    execute format('alter index headgate.kept_%1$s_pkey rename to preserved_%1$s_pkey', s);
  end loop;
end $$;
