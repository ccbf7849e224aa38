-- For people who look for something: dead letters by what went wrong, what holds a key up, and what
-- a filter would let through. Nothing here locks or writes.

-- error_group(error) -> an error without what differs from one message to the next: ids, numbers,
-- and what stands in quotes. (A sentence in quotes is the error itself, and stays.)
create or replace function headgate.error_group(error text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select left(
    regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
      left(coalesce(nullif(btrim(error), ''), 'no error was given'), 2000),
      '"[^"]{0,32}"|''[^'']{0,32}''|`[^`]{0,32}`', '<text>', 'g'),
      '\m[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\M', '<id>', 'gi'),
      '\m(0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{12,})\M', '<id>', 'gi'),
      '\m([A-Za-z]+_)+[0-9]+\M', '<id>', 'g'),
      '[0-9]+([.,:][0-9]+)*', '<n>', 'g'),
      '\s+', ' ', 'g'), 300)
$$;

-- dead_groups(stream, consumer) -> the newest 100,000 dead letters of a consumer by what went wrong
-- (error_group), the most first: how many, when the first and the last failed, the last one's
-- error. `complete` is false where there are more letters than were looked at.
create or replace function headgate.dead_groups(stream text, consumer text)
returns table (error_group text, letters bigint, first_at timestamptz, last_at timestamptz,
               last_error text, complete boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  most constant int := 100000;
  d int;
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return; end if;
  return query execute format($q$
    with letters as materialized (
      select m.seq, m.headers ->> 'last_error' as error,
             coalesce(headgate.dead_since(m.headers), m.created_at) as at
        from headgate.message_%s m where m.headers ->> 'source_consumer' = $1
       order by m.seq desc limit $2)
    select headgate.error_group(l.error), count(*), min(l.at), max(l.at),
           (array_agg(left(l.error, 2000) order by l.seq desc))[1],
           (select count(*) < $2 from letters)
      from letters l group by 1 order by 2 desc, 1 limit 1000 $q$, d)
    using c.name, most;
end $$;

-- dead_of_group(stream, consumer, error_group, max, after) -> dead_letters of this group alone.
create or replace function headgate.dead_of_group(
  stream text, consumer text, error_group text, max int default 100, after bigint default 0)
returns table (seq bigint, key text, data text, headers jsonb, failed_at timestamptz, attempts int,
               last_error text, source_seq bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  d int;
  found_seqs bigint[];
begin
  perform headgate.check_max(max);
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return; end if;
  execute format($q$
    select array(select m.seq from headgate.message_%s m
                  where m.seq > $2 and m.headers ->> 'source_consumer' = $1
                    and headgate.error_group(m.headers ->> 'last_error') = $3
                  order by m.seq limit $4) $q$, d)
    into found_seqs using c.name, coalesce(after, 0), error_group, max;
  return query select x.* from unnest(found_seqs) f (seq)
    cross join lateral headgate.dead_letters(stream, consumer, 1, f.seq - 1) x order by 1;
end $$;

-- waiting_of_key(stream, consumer, key, max) -> the messages of a key that the consumer is not done
-- with, oldest first: parked, in flight, or not read yet, as peek shows them. It looks at about
-- 30,000 messages that are not done at most: where that ends it, the last row has the state 'more'
-- and the seq up to which it has looked.
create or replace function headgate.waiting_of_key(stream text, consumer text, key text,
                                                   max int default 10)
returns table (seq bigint, created_at timestamptz, state text, attempt int, visible_at timestamptz,
               worker text, reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  s headgate.stream := headgate.find_stream(stream);
  low bigint := 0;                                  -- what is looked at lies above
  high bigint := headgate.last_seq(s.id) + 1;       -- and below
  left_over bigint := coalesce(waiting_of_key.max, 10);
  budget bigint := 50000;
  shown bigint;
  r record;
begin
  perform headgate.check_max(waiting_of_key.max);
  while left_over > 0 and low < high - 1 loop
    if budget <= 0 then
      state := 'more';
      seq := low;
      return next;
      return;
    end if;
    r := headgate.next_candidates(c, s.id, '{parked,delivered,available}', low, high, false, 10000);
    budget := budget - r.looked - 1;
    return query execute format($q$
      select m.seq, m.created_at, x.state, x.attempt, x.visible_at, x.worker, x.reason, x.last_error
        from (select * from headgate.message_%1$s union all select * from headgate.preserved_%1$s) m
       cross join lateral headgate.state_of($1, m.lane, m.seq, m.xid, m.key) x
       where m.seq = any($2) and m.key = $3 and x.state in ('parked', 'delivered', 'available')
       order by m.seq limit $4 $q$, s.id) using c, r.seqs, key, left_over;
    get diagnostics shown = row_count;
    left_over := left_over - shown;
    low := r.below - 1;
  end loop;
end $$;

-- try_filter(stream, filter, max) -> of the newest `max` messages of a stream, how many a filter
-- lets through, and up to ten keys each of those that it does and of those that it does not.
create or replace function headgate.try_filter(
  stream text, filter text[], max int default 1000,
  out looked bigint, out passed bigint, out passing text[], out others text[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  pattern text := headgate.filter_pattern(filter);
begin
  perform headgate.check_max(max);
  execute format($q$
    with newest as materialized (
      select m.seq, m.key, coalesce($1 is null or m.key ~ $1, false) as passes
        from headgate.message_%s m order by m.seq desc limit $2),
    keys as (select n.key, n.passes, max(n.seq) as seq from newest n
              where n.key is not null group by 1, 2)
    select (select count(*) from newest), (select count(*) from newest n where n.passes),
           array(select k.key from keys k where k.passes order by k.seq desc limit 10),
           array(select k.key from keys k where not k.passes order by k.seq desc limit 10) $q$,
    s.id) into looked, passed, passing, others using pattern, least(max, 10000);
end $$;
