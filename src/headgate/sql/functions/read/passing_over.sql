-- Rows of `discarded`: messages that a lane passes over, until it is past them. What holds is at
-- the head of read/discard.sql.

-- note_discarded(consumer, seqs): these messages, which the consumer has read, are discarded.
-- Writes: discarded.
create or replace function headgate.note_discarded(c headgate.consumer, p_seqs bigint[])
returns void
language sql set search_path = pg_catalog, pg_temp as $$
  insert into headgate.discarded (consumer, seq) select c.id, u from unnest(p_seqs) u order by u
    on conflict (consumer, seq) do update set at = excluded.at
$$;

-- no_longer_discarded(consumer, seqs): these messages are given back, and are parked. What the
-- consumer has still to pass over in the log stays passed over.
-- Writes: discarded.
create or replace function headgate.no_longer_discarded(c headgate.consumer, p_seqs bigint[])
returns void
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  update headgate.discarded x set at = null
   where x.consumer = c.id and x.seq = any(p_seqs) and x.lane is not null;
  delete from headgate.discarded x
   where x.consumer = c.id and x.seq = any(p_seqs) and x.lane is null;
$$;

-- pass_discarded(consumer) -> how many discarded messages were found to be behind the cursors that
-- had to pass them over, of up to 1,000 lanes and 10,000 of a lane.
-- Locks: cursors, discarded rows (SKIP LOCKED).
-- Writes: discarded, cursor.
create or replace function headgate.pass_discarded(c headgate.consumer) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
    set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  -- of many lanes, from one chosen by chance on
  last bigint := case when random() < 0.5 then headgate.any_lane() else -1 end;
  has_turned boolean := last < 0;
  l bigint;
  passed bigint[];
  total bigint := 0;
begin
  for i in 1 .. 1000 loop
    select z.lane into l from headgate.discarded z
     where z.consumer = c.id and z.lane is not null and z.lane > last order by z.lane limit 1;
    if not found then
      exit when has_turned;
      has_turned := true;
      last := -1;
      continue;
    end if;
    last := l;
    continue when headgate.passed_in(c, l) = '{}';
    perform from headgate.cursor k where k.consumer = c.id and k.lane = l
       for no key update skip locked;
    continue when not found
    and exists (select from headgate.cursor k where k.consumer = c.id and k.lane = l);
    -- point: a lane whose discarded messages are passed is held
    passed := headgate.passed_in(c, l);
    delete from headgate.discarded z
     where z.consumer = c.id and z.seq = any(passed) and z.at is null;
    update headgate.discarded z set lane = null where z.consumer = c.id and z.seq = any(passed);
    total := total + cardinality(passed);
    if not exists (select from headgate.discarded z where z.consumer = c.id and z.lane = l) then
      update headgate.cursor k set discards = false where k.consumer = c.id and k.lane = l;
    end if;
  end loop;
  return total;
end $$;

-- passed_in(consumer, lane) -> discarded messages of a lane that its cursor is past, or that are
-- gone, of the first 10,000 there.
-- Locks: these rows of discarded (SKIP LOCKED).
create or replace function headgate.passed_in(c headgate.consumer, p_lane bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  k headgate.cursor;
  r bigint[];
begin
  select * into k from headgate.cursor x where x.consumer = c.id and x.lane = p_lane;
  execute format($q$
    select array(
      select z.seq from (
        select z.seq from headgate.discarded z
         where z.consumer = $1 and z.lane = $2 order by z.lane, z.seq limit 10000
           for update skip locked) z
        left join headgate.message_%1$s m on m.seq = z.seq
       where $3 is null or m.seq is null or not %2$s) $q$, c.stream, headgate.ahead_sql('($4)'))
    into r using c.id, p_lane, k.lane, k;
  return r;
end $$;

-- tidy_discarded(stream) -> how many notes of discarded messages that are behind were deleted, at
-- most 10,000 a call: those whose message is gone with its segment.
-- Locks: the rows (SKIP LOCKED).
-- Writes: discarded.
create or replace function headgate.tidy_discarded(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare n bigint;
begin
  if not exists (select from headgate.consumer c join headgate.discarded d on d.consumer = c.id
                  where c.stream = s.id) then
    return 0;
  end if;
  -- only where no log is: there may be as many notes as there are messages
  execute format($q$
    with gone as (
      select d.consumer, d.seq
        from headgate.consumer c cross join unnest('{(,)}'::int8multirange - $1) r
       cross join lateral (
         select x.consumer, x.seq from headgate.discarded x
          where x.consumer = c.id and x.seq >= coalesce(lower(r), 0)
            and x.seq < coalesce(upper(r), 9223372036854775807)
            and x.lane is null
            and not exists (select from headgate.preserved_%1$s k where k.seq = x.seq)
          limit 10000 for update skip locked) d
       where c.stream = %1$s limit 10000)
    delete from headgate.discarded d using gone x
     where d.consumer = x.consumer and d.seq = x.seq $q$, s.id)
    using headgate.log_ranges(s.id);
  get diagnostics n = row_count;
  return n;
end $$;
