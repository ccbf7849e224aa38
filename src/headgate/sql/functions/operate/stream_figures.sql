-- How large a stream is, and how fast it grows; its dead letters.

-- is_gone(stream id) -> whether its log is not there (any more), whatever the snapshot of the
-- caller still shows.
create or replace function headgate.is_gone(p_stream int) returns boolean
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select to_regclass(format('headgate.message_%s', p_stream)) is null
$$;

-- stream_rate(stream id, last seq) -> sequence numbers that went by a second in the last ten to
-- twenty seconds: an estimate. Ticks tell where there is one of that age. Where nobody made one,
-- the times of some messages do, so that what was sent before the window does not count.
create or replace function headgate.stream_rate(p_stream int, p_last bigint) returns float8
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  t headgate.tick;
  since timestamptz := clock_timestamp() - interval '10 seconds';
  low bigint;   -- at or below was sent before `since`
  high bigint;  -- above was sent after
begin
  select * into t from headgate.tick k
   where k.stream = p_stream and k.at <= since order by k.id desc limit 1;
  low := coalesce(t.hi, 0);
  if low >= p_last then return 0; end if;
  if t.at < since - interval '10 seconds' or t.id is null then
    high := p_last;
    -- sixteen looks each: what is left is a 4,096th of what was sent since the tick
    for i in 1 .. 3 loop
      execute format($q$
        select coalesce(max(x.seq) filter (where m.created_at < $3 or m.created_at is null), $1),
               coalesce(min(x.seq) filter (where m.created_at >= $3), $2)
          from (select $1 + ($2 - $1) * n / 16 as seq from generate_series(1, 16) n) x
          left join lateral (select m.created_at from headgate.message_%s m
                              where m.seq >= x.seq order by m.seq limit 1) m on true $q$, p_stream)
        into low, high using low, high, since;
      exit when high - low < 2 or high <= low;
    end loop;
    t.at := since;
    low := least(low, p_last);
  end if;
  return greatest(headgate.used_seqs(p_stream, p_last) - headgate.used_seqs(p_stream, low), 0)
         / extract(epoch from clock_timestamp() - t.at);
end $$;

-- stream_facts(stream id) -> count (estimated when large), bytes, oldest, newest, rate over the
-- last seconds. What compaction has kept counts.
create or replace function headgate.stream_facts(p_stream int, out messages bigint,
                                                 out exact boolean, out bytes bigint,
  out oldest timestamptz, out newest timestamptz, out last_seq bigint, out rate float8)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  kept bigint;
  kept_since timestamptz;
begin
  last_seq := headgate.last_seq(p_stream);
  execute format(
    'select (select created_at from headgate.message_%1$s order by seq limit 1), (select created_at from headgate.message_%1$s order by seq desc limit 1), '
                 '(select count(*) from (select from headgate.message_%1$s limit 10001) x)',
                 p_stream) into oldest, newest, messages;
  exact := messages <= 10000;
  if not exact then
    -- segments were counted as they closed; of those still written, all seqs that were drawn
    select greatest(stream_facts.messages,
                    sum(
                      coalesce(g.messages,
                               greatest(least(last_seq + 1, g.end_seq) - g.first_seq - g.skipped,
                                        0)))::bigint) into messages
      from headgate.segment g where g.stream = p_stream and g.state <> 'dropped';
  end if;
  select sum(pg_total_relation_size(i.inhrelid)) into bytes from pg_inherits i
   where i.inhparent = ('headgate.message_' || p_stream)::regclass;
  execute format('select (select count(*) from (select from headgate.preserved_%1$s limit 10001) x), '
                 '(select created_at from headgate.preserved_%1$s order by seq limit 1)', p_stream)
                   into kept, kept_since;
  if kept > 0 then
    if kept > 10000 then  -- as the last vacuum or analyze counted them
      exact := false;
      select greatest(kept, r.reltuples::bigint) into kept from pg_class r
       where r.oid = ('headgate.preserved_' || p_stream)::regclass;
    end if;
    messages := messages + kept;
    oldest := least(oldest, kept_since);
    bytes := bytes + pg_total_relation_size(('headgate.preserved_' || p_stream)::regclass);
  end if;
  rate := headgate.stream_rate(p_stream, last_seq);
exception when undefined_table or internal_error then  -- it is being dropped
  if not headgate.is_gone(p_stream) then raise; end if;
  messages := 0;
  exact := false;
  bytes := 0;
  last_seq := 0;
end $$;

-- dead_count(consumer) -> how many dead letters it has.
create or replace function headgate.dead_count(c headgate.consumer) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare
  d int;
  n bigint := 0;
begin
  select id into d from headgate.stream s where s.dead_of = c.stream;
  if found then
    execute format(
      'select count(*) from headgate.message_%s m where left(m.headers ->> ''source_consumer'', 60) = $1', d) into n using c.name;
  end if;
  return n;
exception when undefined_table or internal_error then  -- it is being dropped
  if not headgate.is_gone(d) then raise; end if;
  return 0;
end $$;
