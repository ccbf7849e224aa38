-- The beginning of an installation or upgrade, which runs in one transaction: one at a time, never
-- backwards, and nobody else is held up for long. What stands in braces is filled in by schema.py.
do $begin$
declare
  until timestamptz := clock_timestamp()
    + coalesce(nullif(current_setting('headgate.migrate_wait', true), ''), '60s')::interval;
  there int := 0;  -- the database's last migration,
  functions int := 0;  -- and the version of its functions
  owner name := (select n.nspowner::regrole from pg_namespace n where n.nspname = 'headgate');
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception using errcode = 'HG016', message = 'Headgate is installed and upgraded at READ COMMITTED',
      hint = 'begin the transaction with: begin isolation level read committed;';
  end if;
  while not pg_try_advisory_xact_lock({lock}) loop
    if clock_timestamp() >= until then
      raise exception using errcode = '55P03', message = format('another migration is under way (session %s)',
          (select string_agg(l.pid::text, ', ') from pg_locks l
            where l.locktype = 'advisory' and l.granted and l.classid = 0 and l.objid = {lock}
              and l.database = (select d.oid from pg_database d where d.datname = current_database()))),
        hint = 'repeat the call once it has ended';
    end if;
    perform pg_sleep(0.02);
  end loop;

  -- never backwards
  if to_regclass('headgate.migration') is not null then
    select coalesce(max(m.version), 0) into there from headgate.migration m;
    -- (a column since migration 20)
    select coalesce(max((to_jsonb(d) ->> 'version')::int), 0) into functions from headgate.functions_digest d;
  end if;
  if there > {newest} then
    raise exception using errcode = 'HG040',
      message = format('the database''s schema is at migration %s, this script knows {newest}', there),
      hint = 'apply the script of the newer headgate package; there is no way back but a backup';
  elsif there = {newest} and functions > {version} then
    raise exception using errcode = 'HG040',
      message = format('the database has version %s of Headgate''s functions, this script {version}', functions),
      hint = 'nothing is to be done: this release works with the newer functions';
  end if;

  {roles}

  perform set_config('lock_timeout', '200ms', true);
  -- What was there, so that what is not made again can be dropped: views.sql.
  perform set_config('headgate.functions_before', coalesce((
    select string_agg(p.oid || ':' || p.xmin, ',') from pg_proc p
     where p.pronamespace = to_regnamespace('headgate')), ''), true);
  perform set_config('check_function_bodies', 'off', true);  -- old and new forms stand side by side for a moment

  -- All of it belongs to the owner of the schema, whoever upgrades.
  if owner is null then
    create schema headgate;
  elsif owner <> current_user then
    begin
      perform set_config('role', owner, true);
    exception when insufficient_privilege then
      null;  -- it will be told what it may not do
    end;
  end if;
end $begin$;

do $bootstrap$
begin
  if nullif(current_setting('check_function_bodies'), 'off') is not null then
    raise exception using errcode = 'HG010', message = 'this script has to run in one transaction',
      hint = 'psql --single-transaction --file …, or put begin; and commit; around it';
  end if;
  if to_regclass('headgate.migration') is null then
    create table headgate.migration (
      version int primary key,
      name text not null,
      applied_at timestamptz not null default clock_timestamp(),
      applied_by text not null default current_user
    );
    create table headgate.functions_digest (
      only_row boolean primary key default true check (only_row),
      digest text not null,
      applied_at timestamptz not null default clock_timestamp()
    );
  end if;
end $bootstrap$;
