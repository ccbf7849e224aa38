-- Sources that read the changes of tables of a PostgreSQL database.

create sequence headgate.postgres_source_version;

create table headgate.postgres_source (
  name text primary key,
  stream int not null references headgate.stream on delete cascade,
  version bigint not null default nextval('headgate.postgres_source_version'), -- another one with each change
  url text not null,          -- of the database that is read, with its password
  place text not null,        -- the same without, for those who look
  tables text[] not null,     -- schema.table, quoted where SQL would
  publication text not null,
  slot text not null,
  made text[] not null,       -- 'publication', 'slot': what was made for it goes with it
  system_identifier text not null, -- of the server that is read: an LSN means nothing on another one
  is_paused boolean not null default false,
  created_at timestamptz not null default clock_timestamp()
);

-- How far a source was read. Changed with each commit, so it has room for new versions of its row.
create table headgate.source_progress (
  source text primary key references headgate.postgres_source on delete cascade,
  lsn pg_lsn not null,        -- every transaction that ended up to here is in the stream
  committed_at timestamptz,   -- of the last one
  messages bigint not null default 0,
  reader text,                -- who reads it: one at a time
  reader_until timestamptz,   -- and until when that holds, unless it says that it still does
  state text not null default 'starting' check (state in ('starting', 'reading', 'failing', 'lost')),
  error text,                 -- why it cannot be read
  hint text,
  state_at timestamptz not null default clock_timestamp(),
  wal_end pg_lsn,             -- of the database that is read, when last looked at
  caught_up_at timestamptz,   -- when there was nothing left to read
  marked_at timestamptz,      -- the rate is counted from here
  marked_messages bigint,
  rate double precision       -- messages a second
) with (fillfactor = 50);

-- Tables whose rows are read beside their changes, and how far that is.
create table headgate.source_backfill (
  source text not null references headgate.postgres_source on delete cascade,
  table_name text not null,
  state text not null default 'waiting' check (state in ('waiting', 'running', 'done', 'failed')),
  last_key text[],            -- of the rows that were read, in the order of the key's index
  again text[] not null default '{}', -- keys (JSON) of rows that changed meanwhile: they are read again
  rows bigint not null default 0,
  estimate bigint,            -- of rows in all
  error text,
  asked_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  primary key (source, table_name)
);

-- (Their definitions are in sql/functions/outside/postgres_sources.sql.)
create function headgate.guard_postgres_source() returns trigger language plpgsql as 'begin return old; end';
create function headgate.guard_source_name() returns trigger language plpgsql as 'begin return new; end';
create trigger guard before delete on headgate.postgres_source
  for each row execute function headgate.guard_postgres_source();
create trigger guard before insert on headgate.source for each row execute function headgate.guard_source_name();
