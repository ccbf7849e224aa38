-- Upsert streams (one_message_per_key): of each key only the newest version counts, the one with the highest seq that has
-- committed. There is no table of keys, whose rows senders would have to wait for: the log itself tells, by its index on
-- (key, seq). A send removes the older versions that it can lock at once. What it had to leave (another transaction holds
-- it, or has not committed it yet) is passed over by readers and removed by a later send or by maintenance.
-- Consumers of such a stream keep order: a key in flight is withheld, and its newest version comes next.

-- newest_only(stream, alias) -> the condition, to be added to a where, that keeps a message only while it is the newest
-- version of its key; nothing for other streams.
create or replace function headgate.newest_only(s headgate.stream, p_alias text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when s.one_message_per_key then
    format(' and (%1$s.key is null or not exists (select from headgate.message_%2$s newer where newer.key = %1$s.key and newer.seq > %1$s.seq))', p_alias, s.id)
    else '' end
$$;

-- unmodified(stream, datas, keys) -> for each message, null when it is to be appended, and otherwise, because the version of its
-- key before it has the same data, the seq of the newest one in the log (-1: it is in this batch). Null when all are to be.
create or replace function headgate.unmodified(s headgate.stream, p_datas text[], p_keys text[]) returns bigint[]
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare r bigint[];
begin
  if s.process_unmodified or p_keys is null then return null; end if;
  execute format($q$
    with t as (
      select u.ord, u.k, u.d, lag(u.d) over (partition by u.k order by u.ord) as before, row_number() over (partition by u.k order by u.ord) as nth
        from unnest($1, $2) with ordinality u (k, d, ord)),
    log as materialized (
      select k.key, m.seq, m.data from (select distinct t.k from t where t.k is not null) k (key) cross join lateral (
        select m.seq, m.data from headgate.message_%s m where m.key = k.key order by m.seq desc limit 1) m)
    select array_agg(case when t.d = case when t.nth > 1 then t.before else log.data end and t.k is not null then coalesce(log.seq, -1) end order by t.ord)
      from t left join log on log.key = t.k $q$, s.id) into r using p_keys, p_datas;
  return case when exists (select from unnest(r) x where x is not null) then r end;
end $$;

-- send_modified(…, unmodified) -> seqs: the part of send_batch for a batch in which some messages, told by `unmodified`, are not to
-- be appended. These get the seq of the version that they repeat.
create or replace function headgate.send_modified(
  s headgate.stream, datas text[], keys text[], headers jsonb[], channels text[], delays interval[], ids text[], unmodified bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare places int[]; seqs bigint[]; r bigint[];
begin
  places := array(select u.ord from unnest(unmodified) with ordinality u (same, ord) where u.same is null order by u.ord);
  select headgate.send_batch(s.name, array_agg(datas[p] order by p), array_agg(keys[p] order by p),
           case when headers is not null then array_agg(headers[p] order by p) end, case when channels is not null then array_agg(channels[p] order by p) end,
           case when delays is not null then array_agg(delays[p] order by p) end, case when ids is not null then array_agg(ids[p] order by p) end)
    into seqs from unnest(places) p;
  with t as (
    select u.ord, u.same, a.seq, max(a.seq) over (partition by keys[u.ord] order by u.ord) as last
      from unnest(unmodified) with ordinality u (same, ord) left join unnest(places, seqs) a (ord, seq) on a.ord = u.ord)
  select array_agg(case when t.same is null then t.seq else coalesce(t.last, t.same) end order by t.ord) into r from t;
  return r;
end $$;

-- remove_older(stream, keys, seqs): removes the versions below these from the log, as far as nobody else holds them. Locks them (SKIP
-- LOCKED). A transaction with a fixed snapshot leaves them: it would fail on what has changed since.
create or replace function headgate.remove_older(s headgate.stream, p_keys text[], p_seqs bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if p_keys is null or headgate.has_fixed_snapshot() then return; end if;
  execute format($q$
    delete from headgate.message_%1$s m where m.seq = any(array(
      select o.seq from (select u.k, max(u.s) from unnest($1, $2) u (k, s) where u.k is not null group by u.k) v (key, seq)
        join headgate.message_%1$s o on o.key = v.key and o.seq < v.seq for update of o skip locked)) $q$, s.id)
    using p_keys, p_seqs;
end $$;

-- remove_superseded(stream, n) -> how many versions were removed that sends had to leave. Looks at the next n versions in the order
-- of keys; the caller holds the stream's row. Writes stream.
create or replace function headgate.remove_superseded(s headgate.stream, n int default 1000) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare old bigint[]; looked int; last text; gone int := 0;
begin
  if not s.one_message_per_key or headgate.has_fixed_snapshot() then return 0; end if;
  execute format($q$
    select count(*), max(v.key), array_agg(v.seq) filter (where v.key = v.next) from (
      select m.key, m.seq, lead(m.key) over (order by m.key, m.seq) as next from (
        select m.key, m.seq from headgate.message_%s m where m.key is not null and m.key >= coalesce($1, '') order by m.key, m.seq limit $2) m) v $q$, s.id)
    into looked, last, old using s.swept_key, n;
  if old is not null then
    execute format('delete from headgate.message_%1$s m where m.seq = any(array(select o.seq from headgate.message_%1$s o '
                   'where o.seq = any($1) for update of o skip locked))', s.id) using old;
    get diagnostics gone = row_count;
  end if;
  if looked < n then last := null; end if;
  if last is distinct from s.swept_key then update headgate.stream t set swept_key = last where t.id = s.id; end if;
  return gone;
end $$;

-- forget_superseded(consumer, lane, now): of keys with a parked message that is due, drops the parked versions that are not the
-- newest. The caller holds the lane's cursor. Writes parked.
create or replace function headgate.forget_superseded(c headgate.consumer, p_lane bigint, p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare due text[]; gone text[];
begin
  due := array(select distinct p.key from headgate.parked p where p.consumer = c.id and p.lane = p_lane and p.visible_at <= p_now and p.key is not null);
  if due = '{}' then return; end if;
  execute format($q$
    with gone as (
      delete from headgate.parked p where p.consumer = $1 and p.lane = $2 and p.key = any($3)
         and exists (select from headgate.message_%s newer where newer.key = p.key and newer.seq > p.seq) returning p.key)
    select array_agg(distinct g.key) from gone g $q$, c.stream) into gone using c.id, p_lane, due;
  -- what waited behind them
  update headgate.parked p set visible_at = p_now
   where gone is not null and p.ctid = any(headgate.first_parked(c.id, p_lane, gone)) and p.reason = 'blocked' and p.visible_at > p_now;
end $$;

-- still_newest(consumer, delivery, seqs) -> those of the messages of a delivery that failed that are worth another attempt: of an upsert
-- stream, those that no newer version has superseded. What waits for the others may go on. Writes wake.
create or replace function headgate.still_newest(c headgate.consumer, d headgate.delivery, p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare old bigint[];
begin
  if not (select s.one_message_per_key from headgate.stream s where s.id = c.stream) then return p_seqs; end if;
  execute format($q$
    select array_agg(u.s) from unnest($1, $2) u (s, k)
     where u.s = any($3) and u.k is not null and exists (select from headgate.message_%s newer where newer.key = u.k and newer.seq > u.s) $q$, c.stream)
    into old using d.seqs, d.keys, p_seqs;
  if old is null then return p_seqs; end if;
  perform headgate.leave_notes(c, d.lane, array(select u.k from unnest(d.seqs, d.keys) u (s, k) where u.s = any(old)));
  return array(select s from unnest(p_seqs) s where s <> all(old));
end $$;
