-- How it was in the last hour and day: what charts show. Maintenance notes it, in one row for all
-- streams and consumers (docs/adr/0029).

-- note_history() -> whether it was time: every ten seconds, or each minute where there are more
-- than a hundred streams and consumers. Removes what is older than an hour, but for a row in five
-- minutes, and these after a day. (What somebody's transaction holds locked, such as a segment that
-- it removes, is not waited for: then it is noted the next time.)
-- Locks: the advisory lock (0, -4) (skip).
-- Writes: history.
create or replace function headgate.note_history() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' as $$
declare
  moment timestamptz := clock_timestamp();
  last timestamptz := (select max(h.at) from headgate.history h);
  seen record;
begin
  -- (a clock that was put back does not stop it)
  if last between moment - interval '9.5 seconds' and moment then return false; end if;
  if last between moment - interval '59 seconds' and moment
     and (select count(*) from headgate.stream) + (select count(*) from headgate.consumer) > 100
  then return false; end if;
  if not pg_try_advisory_xact_lock(0, -4) then return false; end if;
  select coalesce(array_agg(s.id), '{}') as streams,
         coalesce(array_agg(headgate.used_seqs(s.id, f.last_seq)), '{}') as sent,
         coalesce(array_agg(coalesce(f.bytes, 0)), '{}') as bytes into seen
    from headgate.stream s cross join lateral headgate.listed_stream(s) f;
  insert into headgate.history
    select moment,
           not exists (select from headgate.history h
                        where h.is_kept
                          and h.at between moment - interval '295 seconds' and moment),
           seen.streams, seen.sent, seen.bytes,
           coalesce(array_agg(c.id), '{}'), coalesce(array_agg(coalesce(v.delivered, 0)), '{}'),
           coalesce(array_agg(v.lag), '{}'), coalesce(array_agg(v.in_flight), '{}'),
           coalesce(array_agg(v.parked), '{}'), coalesce(array_agg(v.dead), '{}')
      from headgate.consumers v join headgate.stream s on s.name = v.stream
      join headgate.consumer c on c.stream = s.id and c.name = v.name
    on conflict do nothing;
  delete from headgate.history h
   where h.at < moment - interval '25 hours' or h.at > moment + interval '1 minute'
      or (not h.is_kept and h.at < moment - interval '65 minutes');
  return true;
exception when lock_not_available or undefined_table or internal_error then  -- or being dropped
  return false;
end $$;

-- history(stream, consumer, since) -> what was seen in so long, oldest first: of a consumer, of a
-- stream, or of all together. Rates are messages a second since the row before. HG001 and HG002
-- when there is none of this name.
create or replace function headgate.history(
  stream text default null, consumer text default null, since interval default '1 hour')
returns table (at timestamptz, sent float8, bytes bigint, delivered float8, lag bigint,
               in_flight bigint, parked bigint, dead bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s int := case when stream is not null then (headgate.find_stream(stream)).id end;
  c int := case when consumer is not null
                then (headgate.find_consumer(stream, consumer)).id end;
begin
  return query
    select x.at,
           case when c is null then greatest(x.sent - lag(x.sent) over w, 0) / x.seconds end,
           case when c is null then x.bytes end,
           case when s is null or c is not null
                then greatest(x.delivered - lag(x.delivered) over w, 0) / x.seconds end,
           x.lag, x.in_flight, x.parked, x.dead
      from (
        select h.at, extract(epoch from h.at - lag(h.at) over (order by h.at))::float8 as seconds,
               case when c is not null then null
                    when s is null then (select sum(v)::bigint from unnest(h.sent) v)
                    else h.sent[array_position(h.streams, s)] end as sent,
               case when c is not null then null
                    when s is null then (select sum(v)::bigint from unnest(h.bytes) v)
                    else h.bytes[array_position(h.streams, s)] end as bytes,
               headgate.of_history(h.consumers, h.delivered, s, c) as delivered,
               headgate.of_history(h.consumers, h.lag, s, c) as lag,
               headgate.of_history(h.consumers, h.in_flight, s, c) as in_flight,
               headgate.of_history(h.consumers, h.parked, s, c) as parked,
               headgate.of_history(h.consumers, h.dead, s, c) as dead
          from headgate.history h
         where h.at > clock_timestamp() - history.since
           and (h.is_kept or history.since <= interval '65 minutes')) x
    window w as (order by x.at) order by x.at;
end $$;

-- of_history(ids, figures, stream, consumer) -> the figure of a consumer, or (of no stream) their
-- sum.
create or replace function headgate.of_history(ids int[], figures bigint[], s int, c int)
returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when c is not null then figures[array_position(ids, c)]
              when s is null then (select sum(v)::bigint from unnest(figures) v) end
$$;
