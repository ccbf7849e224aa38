-- Old ticks are thinned out, and where late transactions left messages stays known.

-- has_old_ticks(stream) -> whether thin_ticks may have something to do there: a private tick, or
-- one that is neither the newest nor looked at before, and old enough (or dated in the future).
create or replace function headgate.has_old_ticks(s headgate.stream) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select exists (select from headgate.tick t where t.stream = s.id and t.base <> t.id)
      or exists (
        select from (values (s.thinned_seconds, interval '10 seconds'),
                            (s.thinned_minutes, interval '1 hour')) w (from_tick, age)
         cross join lateral (
           select count(*) as ticks, min(x.at) as first, max(x.at) as last
             from (select t.at from headgate.tick t
                    where t.stream = s.id and t.base = t.id and t.id > w.from_tick
                    order by t.id limit 2) x) y
         where y.ticks = 2 and (y.first < clock_timestamp() - w.age or y.last > clock_timestamp()))
$$;

-- thin_ticks(stream id, most) -> how many ticks were removed: of those older than 10 seconds one a
-- second is kept, of those older than an hour one a minute; private ones go. Looks at `most` ticks
-- of each sort, from where the last call stopped, so that a call takes milliseconds however many
-- have piled up. Makes no use of statistics, which are never right here. Does nothing in a
-- transaction with a fixed snapshot, which does not see what others have thinned since.
-- Locks: the stream's row (callers hold it already).
-- Writes: tick, stream.
create or replace function headgate.thin_ticks(p_stream int, p_most int default 2000) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  s headgate.stream;
  n int;
  gone int;
  seconds bigint;
  minutes bigint;
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    return 0;
  end if;
  select * into s from headgate.stream t where t.id = p_stream for no key update;
  delete from headgate.tick t where t.stream = p_stream and t.id = any(array(
    select k.id from headgate.tick k
     where k.stream = p_stream and k.base <> k.id
       and k.at not between clock_timestamp() - interval '10 seconds' and clock_timestamp()
     order by k.id limit p_most));
  get diagnostics n = row_count;
  select * into gone, seconds
    from headgate.thin_public(p_stream, s.thinned_seconds, 'second', interval '10 seconds', p_most);
  n := n + gone;
  select * into gone, minutes
    from headgate.thin_public(p_stream, s.thinned_minutes, 'minute', interval '1 hour', p_most);
  n := n + gone;
  if (seconds, minutes) <> (s.thinned_seconds, s.thinned_minutes) then
    update headgate.stream t set thinned_seconds = seconds, thinned_minutes = minutes
     where t.id = p_stream;
  end if;
  return n;
end $$;

-- thin_public(stream id, from, unit, age, most) -> how many of the next public ticks from this one
-- on were removed, and where to go on: of those older than `age` (or dated in the future, after the
-- clock was set back) the first of each unit of time is kept. Bridges stay, and what a new log or a
-- bridge begins with. The late ranges of a tick that goes move to the next one kept, where
-- late_between() looks for them.
-- Needs: the caller holds the stream's row.
-- Writes: tick.
create or replace function headgate.thin_public(
  p_stream int, p_from bigint, p_unit text, p_age interval, p_most int,
  out gone int, out go_on bigint)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  newest bigint := (headgate.newest_tick(p_stream)).id;
  last bigint;            -- of the ticks that are looked at
  ids bigint[];           -- those that go
  lates int8multirange[]; -- what some of these have
  keepers bigint[];       -- and which tick gets it (null: the first one behind `last`)
  keeper bigint;
  moved int8multirange;
begin
  gone := 0;
  go_on := p_from;
  -- The usual case by far: the next one is not old yet.
  if (select t.at between clock_timestamp() - p_age and clock_timestamp() from headgate.tick t
       where t.stream = p_stream and t.base = t.id and t.id > p_from order by t.id limit 1) then
    return;
  end if;
  with looked as materialized (
    select t.id, t.at, t.bound, t.late,
           t.id < newest and t.bridge_to is null
             and t.at not between clock_timestamp() - p_age and clock_timestamp() as is_old
      from headgate.tick t
     where t.stream = p_stream and t.base = t.id and t.id >= p_from
     order by t.id limit p_most),
  judged as (
    select l.*, l.is_old and l.bound is distinct from '3'
                and 1 < row_number() over (
                      partition by l.is_old, date_trunc(p_unit, l.at) order by l.id) as goes
      from looked l),
  placed as (
    select j.*, min(j.id) filter (where not j.goes)
                  over (order by j.id desc rows between unbounded preceding and 1 preceding)
                  as next_kept
      from judged j)
  select max(p.id),
         array_agg(p.id) filter (where p.goes),
         array_agg(p.late) filter (where p.goes and p.late is not null),
         array_agg(p.next_kept) filter (where p.goes and p.late is not null),
         max(p.id) filter (where p.is_old and not p.goes)
    into last, ids, lates, keepers, go_on
    from placed p;
  gone := coalesce(cardinality(ids), 0);
  go_on := coalesce(go_on, p_from);
  delete from headgate.tick t where t.stream = p_stream and t.id = any(ids);
  for keeper, moved in select u.k, range_agg(u.l)
                         from unnest(keepers, lates) u (k, l) group by u.k loop
    if keeper is null then
      select t.id into keeper from headgate.tick t
       where t.stream = p_stream and t.base = t.id and t.id > last order by t.id limit 1;
    end if;
    update headgate.tick t set late = coalesce(t.late, '{}') + moved
     where t.stream = p_stream and t.id = keeper;
  end loop;
end $$;

-- late_between(stream id, after, up to) -> where transactions that were late left messages, as far
-- as they ended after the tick `after` and up to the tick `up_to`, and perhaps more: whoever reads
-- there goes by snapshots anyway. Neither tick needs to exist any more. When `up_to` was thinned
-- out, what it and those before it had lies on the first public tick behind it. When there is no
-- such tick, because the one that made `up_to` was rolled back, the log itself is asked.
create or replace function headgate.late_between(p_stream int, p_after bigint, p_up_to bigint)
returns int8multirange
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  closing bigint;
  found_late int8multirange;
  newest headgate.tick;
begin
  select t.id into closing from headgate.tick t
   where t.stream = p_stream and t.base = t.id and t.id >= p_up_to order by t.id limit 1;
  select range_agg(t.late) into found_late from headgate.tick t
   where t.stream = p_stream and t.id > p_after and t.id <= coalesce(closing, p_up_to)
     and t.late is not null;
  if closing is null
     and not exists (select from headgate.tick t where t.stream = p_stream and t.id = p_up_to) then
    newest := headgate.newest_tick(p_stream);
    select coalesce(found_late, '{}')
           + coalesce(range_agg(headgate.written_by(p_stream, u.x, u.f, newest.lo)), '{}')
      into found_late from unnest(newest.late_xids, newest.late_from) u (x, f);
  end if;
  return found_late;
end $$;
