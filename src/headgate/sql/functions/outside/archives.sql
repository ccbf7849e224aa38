-- Archives and pipelines: what processes outside the database say of their progress.

-- note_archive(stream, name, place, mark): everything up to the mark is in the lake at `place`.
-- Marks only go forward.
-- Writes: archive.
create or replace function headgate.note_archive(stream text, name text, place text, mark jsonb)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  perform headgate.hold_stream(s);
  insert into headgate.archive as a (stream, name, place, mark, floor)
    select s.id, note_archive.name, note_archive.place, m, (m->>'floor')::bigint
      from headgate.mark(stream, note_archive.mark::text) m
    on conflict on constraint archive_pkey do update
      set place = excluded.place, mark = excluded.mark, floor = excluded.floor,
          at = clock_timestamp()
      -- (while a transaction is open for long, the floor stays where it is and marks go on)
      where excluded.floor >= a.floor
        and ((excluded.mark->>'tick')::bigint,
             coalesce((excluded.mark->>'pos')::bigint, 9223372036854775807))
            >= ((a.mark->>'tick')::bigint, coalesce((a.mark->>'pos')::bigint, 9223372036854775807));
end $$;

-- drop_archive(stream, name): forgets an archive, so that retention waits for it no longer. What it
-- has stays in the lake. HG014 when there is none.
-- Writes: archive.
create or replace function headgate.drop_archive(stream text, name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  delete from headgate.archive a where a.stream = s.id and a.name = drop_archive.name;
  if not found then
    perform headgate.fail('HG014',
                          format('stream "%s" has no archive "%s"', s.name, drop_archive.name),
                          'the view headgate.archives lists them');
  end if;
end $$;

-- archive_mark(stream, name) -> how far an archive is, null when it said nothing yet.
create or replace function headgate.archive_mark(stream text, name text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select a.mark from headgate.archive a, headgate.find_stream(archive_mark.stream) s
   where a.stream = s.id and a.name = archive_mark.name
$$;

-- note_pipeline(name, kind, state, process, spec, progress, error): what a pipeline says of itself.
-- `process` tells runs apart: a new one starts the clock again.
-- Writes: pipeline.
create or replace function headgate.note_pipeline(
  name text, kind text, state text, process text, spec jsonb, progress jsonb default '{}',
  error text default null) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into headgate.pipeline as p (name, kind, state, process, spec, progress, error)
    values (note_pipeline.name, note_pipeline.kind, note_pipeline.state, note_pipeline.process,
            note_pipeline.spec, note_pipeline.progress, note_pipeline.error)
    on conflict on constraint pipeline_pkey do update
      set kind = excluded.kind, state = excluded.state, process = excluded.process,
          spec = excluded.spec,
      progress = excluded.progress, error = excluded.error, seen_at = clock_timestamp(),
      started_at = case when p.process = excluded.process then p.started_at
                        else clock_timestamp() end
$$;

-- pipeline_status(name) -> what pipelines last said of themselves, all of them or the named one.
-- One that runs and was not heard of for
-- a minute is `lost`.
create or replace function headgate.pipeline_status(name text default null)
returns table (pipeline text, kind text, state text, process text, spec jsonb, progress jsonb,
               error text, started_at timestamptz, seen_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.name, p.kind,
         case
           when p.state = 'running'
             and p.seen_at < clock_timestamp() - interval '1 minute' then 'lost' else p.state end,
         p.process, p.spec, p.progress, p.error, p.started_at, p.seen_at
    from headgate.pipeline p where pipeline_status.name is null or p.name = pipeline_status.name
      order by p.name
$$;

-- forget_pipeline(name) -> whether there was such a pipeline: removes what it said of itself.
-- Writes: pipeline.
create or replace function headgate.forget_pipeline(name text) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with gone as (delete from headgate.pipeline p where p.name = forget_pipeline.name returning 1)
    select exists (select from gone)
$$;
