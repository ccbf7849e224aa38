-- Sources of tables: where each table goes, limits, what is known of their slot, and more of backfills.

drop function if exists headgate.postgres_sources();           -- these answer more now
drop function if exists headgate.take_source(text, text, interval);
drop function if exists headgate.next_backfill(text);
drop function if exists headgate.source_backfills(text);
drop function if exists headgate.postgres_source_access(text);

alter table headgate.postgres_source
  add publication_oid bigint,         -- one made anew knows nothing of what was written before it
  add warn_bytes bigint not null default 1073741824, -- of WAL that the slot keeps: more is worth a warning
  add drop_bytes bigint,              -- and more than this ends the slot, for the sake of its database
  add backfill_rate int,              -- rows a second
  add is_backfill_paused boolean not null default false;

alter table headgate.source_progress
  add timeline int,                   -- of the server that is read: a promoted standby begins another one
  add retained_bytes bigint,          -- of WAL that the slot keeps
  add wal_status text,                -- of the slot, as pg_replication_slots has it
  add looked_at timestamptz,          -- when that was seen
  add problems text[] not null default '{}'; -- with its tables, which do not keep the others from being read

alter table headgate.source_backfill
  add from_column text,               -- only rows from this value of this column on
  add from_value text,
  add finds_deleted boolean not null default false, -- whether rows that are gone are told, too
  add first_seq bigint,               -- everything that is there has a message from here on
  add deleted bigint not null default 0;

-- Tables with a stream or a key of their own.
create table headgate.source_route (
  source text not null references headgate.postgres_source on delete cascade,
  table_name text not null,
  stream int references headgate.stream on delete cascade, -- null: the source's
  key text[],                         -- columns; null: those of the row's identity
  primary key (source, table_name)
);

-- (Its definition is in sql/functions/outside/postgres_sources.sql.)
create or replace function headgate.guard_source_route() returns trigger language plpgsql as 'begin return old; end';
create trigger guard before delete on headgate.source_route
  for each row execute function headgate.guard_source_route();
