-- Webhooks: consumers that push, sources that are pushed to; how many long polls may wait at a consumer.

-- These take or give more than before, and are made again after this.
do $$
declare f regprocedure;
begin
  for f in select p.oid::regprocedure from pg_proc p where p.pronamespace = 'headgate'::regnamespace
            and p.proname in ('create_consumer', 'alter_consumer', 'check_consumer', 'consumer_settings') loop
    execute 'drop function ' || f;
  end loop;
end $$;

alter table headgate.consumer add max_waiting int;  -- long polls at one server; null: no limit

-- Where a consumer pushes its messages. Secrets sign what is sent, so they are kept as they are: nobody but the owner of the
-- schema can read this table, and what looks at it for others leaves them out.
create sequence headgate.push_version;
create table headgate.push (
  consumer int primary key references headgate.consumer on delete cascade,
  version bigint not null default nextval('headgate.push_version'), -- another one with each change: servers look for it
  url text not null,
  secrets text[] not null check (cardinality(secrets) between 1 and 5),
  concurrency int not null,   -- requests at once, of each server
  timeout interval not null,
  headers jsonb,              -- sent along; their values may be secret
  note text                   -- why it was paused, when the endpoint asked for it
);

-- What brings messages in from elsewhere.
create table headgate.source (
  name text primary key,
  kind text not null check (kind in ('webhook')),
  stream int not null references headgate.stream on delete cascade,
  scheme text not null,       -- how a webhook is signed
  secrets text[] not null default '{}',
  settings jsonb not null default '{}',
  created_at timestamptz not null default clock_timestamp()
);
