-- Reading the log by spans, and writing into it from staged batches: for Spark, and for other engines that do work in batches.

-- What readers of spans select from: the log with its transaction ids. Made with a stream from here on.
do $$
declare s headgate.stream;
begin
  for s in select * from headgate.stream loop
    execute format('create view headgate.read_%1$s as select seq, xid, created_at, lane, key, data, headers, deliver_at, %2$s as channel from headgate.message_%1$s',
                   s.id, case s.lane_by when 'channel' then 'channel' else 'null::text' end);
    if to_regrole('headgate_monitor') is not null then execute format('grant select on headgate.read_%s to headgate_monitor', s.id); end if;
  end loop;
end $$;

-- What was staged and is not yet in a stream: one table each, filled by one task. See functions/write/staging.sql.
create table headgate.staging (
  name text primary key,
  stream int not null references headgate.stream on delete cascade,
  writer text not null,
  batch bigint not null,
  created_at timestamptz not null default clock_timestamp()
);
create index staging_writer on headgate.staging (writer, batch);

-- The last batch of each writer that is in its stream.
create table headgate.written (
  writer text not null,
  stream int not null references headgate.stream on delete cascade,
  batch bigint not null,
  messages bigint not null,
  at timestamptz not null default clock_timestamp(),
  primary key (writer, stream)
);
create sequence headgate.staging_id;

-- The last batch of each writer that is in a table of the user's. See headgate.load_once().
create table headgate.loaded (
  writer text not null,
  target text not null,
  batch bigint not null,
  at timestamptz not null default clock_timestamp(),
  primary key (writer, target)
);

-- Archives: how far a stream was copied to a lake, by the pipeline of that name. See functions/outside/archives.sql.
create table headgate.archive (
  stream int not null references headgate.stream on delete cascade,
  name text not null,
  place text not null,
  mark jsonb not null,        -- everything up to here is there
  floor bigint not null,      -- so nothing at or below is missing
  at timestamptz not null default clock_timestamp(),
  primary key (stream, name)
);

-- Messages may be kept until archives have them.
alter table headgate.stream drop constraint stream_retain_check,
  add constraint stream_retain_check check (retain in ('forever', 'until_acked', 'until_archived'));

-- What pipelines last said of themselves.
create table headgate.pipeline (
  name text primary key,
  kind text not null,
  state text not null check (state in ('running', 'done', 'stopped', 'failed')),
  process text not null,
  spec jsonb not null,
  progress jsonb not null default '{}',
  error text,
  started_at timestamptz not null default clock_timestamp(),
  seen_at timestamptz not null default clock_timestamp()
);

-- How long messages took that were acked, as far as workers were told to sample it. See functions/operate/timings.sql.
create table headgate.timing (
  consumer int not null references headgate.consumer on delete cascade,
  at timestamptz not null default clock_timestamp(),
  channel text,
  attempt int not null,
  waited real not null,       -- seconds from sending to the beginning of the work
  handled real not null       -- seconds of work
);
create index timing_consumer on headgate.timing (consumer, at);
