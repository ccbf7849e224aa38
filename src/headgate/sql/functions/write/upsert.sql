-- Upsert streams (one_message_per_key): of each key only the newest version counts, the one with
-- the highest seq that has committed. There is no table of keys, whose rows senders would have to
-- wait for: the log itself tells, by its index on (key, seq). A send removes the older versions
-- that it can lock at once. What it had to leave (another transaction holds it, or has not
-- committed it yet) is passed over by readers and removed by a later send or by maintenance.
-- Consumers of such a stream keep order: a key in flight is withheld, and its newest version comes
-- next.
--
-- When a segment is emptied the log forgets which versions were the newest. That matters only to
-- keys of which an older version is left somewhere: these get a row in headgate.newest
-- (note_newest), and whoever asks for a newer version asks both. No older version can turn up
-- later: a segment is closed once everything below its end has committed or never will, so from
-- then on the versions below it only move (log, kept, parked, in flight, dead letters) or go.

-- superseded_sql(stream id, alias) -> the SQL of whether a newer version of a message's key has
-- committed.
create or replace function headgate.superseded_sql(p_stream int, p_alias text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format(
    '(exists (select from headgate.message_%2$s newer'
    ' where newer.key = %1$s.key and newer.seq > %1$s.seq)'
    ' or exists (select from headgate.newest newer'
    ' where newer.stream = %2$s and newer.key = %1$s.key and newer.seq > %1$s.seq))',
    p_alias, p_stream)
$$;

-- newest_only(stream, alias) -> the condition, to be added to a where, that keeps a message only
-- while it is the newest version of its key; nothing for other streams.
create or replace function headgate.newest_only(s headgate.stream, p_alias text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case when s.one_message_per_key
              then format(' and (%s.key is null or not %s)', p_alias,
                          headgate.superseded_sql(s.id, p_alias))
              else '' end
$$;

-- sees_removals(stream id, seqs) -> true. Raises a serialization failure when a segment (of these
-- seqs; null: any) was emptied after this transaction's fixed snapshot was taken: then neither its
-- messages nor what note_newest wrote of them can be seen.
-- Needs: the caller has locked the log by reading it, so that none is emptied from now on.
create or replace function headgate.sees_removals(p_stream int, p_seqs int8multirange default null)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if not headgate.has_fixed_snapshot() then return true; end if;
  -- the catalog in this snapshot, beside the file that the table has by now
  perform from headgate.segment g join pg_class t
     on t.relname = format('message_%s_%s', g.stream, g.id)
    and t.relnamespace = 'headgate'::regnamespace
   where g.stream = p_stream and g.state <> 'dropped'
     and (p_seqs is null or p_seqs && int8range(g.first_seq, g.end_seq))
     and pg_relation_filenode(t.oid) is distinct from t.relfilenode;
  return not found or headgate.no_fixed_snapshot();
end $$;

-- send_versions(stream, datas, keys, headers, channels, delays, ids) -> seqs: the part of
-- send_batch for upsert streams. Ids come first: a message whose id was sent before is neither
-- appended nor compared with. Of the others, in the order of the batch, those are appended that
-- differ from the version of their key before them. One that does not is answered by the seq of
-- that version, and its id stands for that version from then on. Waits only for another open
-- transaction that sends the same id.
-- Writes: message_id, the log.
create or replace function headgate.send_versions(
  s headgate.stream, datas text[], keys text[], headers jsonb[], channels text[],
  delays interval[], ids text[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  is_new boolean[];  -- of each, whether it has no id or one that was not sent before; null: all
  same bigint[];     -- of each that is not modified, the seq of its version in the log; null: none
  seqs bigint[];     -- of each that was appended, its seq; in the end, the answers
begin
  if ids is not null then is_new := headgate.claim_ids(s, ids); end if;
  same := headgate.unmodified(s, datas, keys, is_new);
  -- point: versions are compared
  if is_new is null and same is null then
    return headgate.append_versions(s, datas, keys, headers, channels, delays);
  end if;
  seqs := headgate.append_chosen(s, datas, keys, headers, channels, delays, is_new, same);
  -- an unmodified message repeats the last version of its key in this batch, or the one in the log
  select array_agg(case when v.same is null then v.seq else coalesce(v.last, v.same) end
                     order by v.ord)
    into seqs
    from (select u.ord, u.seq, u.same, max(u.seq) over (partition by u.key order by u.ord) as last
            from unnest(datas, keys, same, seqs) with ordinality u (data, key, same, seq, ord)) v;
  return case when ids is null then seqs else headgate.record_ids(s, ids, seqs) end;
end $$;

-- claim_ids(stream, ids) -> of each message, whether it is to be sent: it has no id, or is the
-- first one of an id that was not sent within the dedup window. The seqs of these ids are 0 until
-- the caller sets them.
-- Writes: message_id, in id order; waits only for another open transaction that sends the same id.
create or replace function headgate.claim_ids(s headgate.stream, p_ids text[]) returns boolean[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare claimed text[];
begin
  with given as (
    insert into headgate.message_id as m (stream, id, seq)
      select s.id, u.id, 0
        from (select distinct i.id from unnest(p_ids) i (id) where i.id is not null) u order by u.id
      on conflict (stream, id) do update set seq = excluded.seq, at = excluded.at
        where m.at < clock_timestamp() - s.dedup_window
      returning m.id)
  select array_agg(g.id) into claimed from given g;
  return array(
    select u.id is null
           or (c.id is not null and row_number() over (partition by u.id order by u.ord) = 1)
      from unnest(p_ids) with ordinality u (id, ord)
      left join unnest(claimed) c (id) on c.id = u.id
     order by u.ord);
end $$;

-- unmodified(stream, datas, keys, is_new) -> of each message, null when it is to be appended, and
-- otherwise, because the version of its key before it has the same data, the seq of the version in
-- the log (0: there is none, the one before is in this batch). Null when no message is unmodified.
-- Messages that are not new are passed over (is_new null: all are). A version in the log that was
-- superseded by one that was removed since does not count.
create or replace function headgate.unmodified(
  s headgate.stream, p_datas text[], p_keys text[], p_is_new boolean[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare same bigint[];
begin
  if s.process_unmodified or p_keys is null then return null; end if;
  execute format($q$
    with sent as (
      select u.ord, u.key, u.data,
             lag(u.data) over of_key as before, row_number() over of_key as nth
        from unnest($1, $2, $3) with ordinality u (key, data, is_new, ord)
       where u.key is not null and coalesce(u.is_new, true)
      window of_key as (partition by u.key order by u.ord)),
    stored as materialized (
      select m.key, m.seq, m.data
        from (select distinct x.key from sent x) k
       cross join lateral (
         select * from headgate.message_%1$s m where m.key = k.key order by m.seq desc limit 1) m
       where not exists (
         select from headgate.newest newer
          where newer.stream = %1$s and newer.key = m.key and newer.seq > m.seq)),
    same as (
      select x.ord, coalesce(v.seq, 0) as seq from sent x left join stored v on v.key = x.key
       where x.data = case when x.nth > 1 then x.before else v.data end)
    select array_agg(x.seq order by p.ord)
      from generate_series(1, cardinality($2)) p (ord) left join same x on x.ord = p.ord
    having count(x.seq) > 0 $q$, s.id)
    into same using p_keys, p_datas, p_is_new;
  if same is not null then perform headgate.sees_removals(s.id); end if;
  return same;
end $$;

-- append_versions(stream, datas, keys, headers, channels, delays) -> seqs. Appends messages to the
-- log and removes the versions before them.
-- Writes: the log.
create or replace function headgate.append_versions(
  s headgate.stream, datas text[], keys text[], headers jsonb[], channels text[], delays interval[])
returns bigint[] language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  x xid8 := pg_current_xact_id();
  seqs bigint[];
  ending bigint := headgate.segments_known(s.id);
begin
  execute format('select headgate.append_%s($1, $2, $3, $4, $5, $6, $7, $8, $9)', s.id)
    into seqs using x, s.base, s.lanes, keys, datas, headers, channels, delays, ending;
  if (seqs[cardinality(datas)] < ending) is not true then
    seqs := headgate.append_beyond(s, x, keys, datas, headers, channels, delays, seqs);
  end if;
  -- point: versions are appended
  perform headgate.remove_older(s, keys, seqs);
  return seqs;
end $$;

-- append_chosen(stream, datas, keys, headers, channels, delays, is_new, same) -> of each message
-- its seq, null when it was not appended, because it is not new or the same as the version before.
-- Writes: the log.
create or replace function headgate.append_chosen(
  s headgate.stream, datas text[], keys text[], headers jsonb[], channels text[], delays interval[],
  is_new boolean[], same bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  places bigint[];
  seqs bigint[];
begin
  select array_agg(c.ord),
         headgate.append_versions(s, array_agg(c.data), array_agg(c.key), array_agg(c.header),
                                  array_agg(c.channel), array_agg(c.delay))
    into places, seqs
    from (select * from unnest(datas, keys, headers, channels, delays, is_new, same)
            with ordinality u (data, key, header, channel, delay, is_new, same, ord)
           where coalesce(u.is_new, true) and u.same is null order by u.ord) c
  having count(*) > 0;
  return array(
    select a.seq from generate_series(1, cardinality(datas)) p (ord)
      left join unnest(places, seqs) a (ord, seq) on a.ord = p.ord order by p.ord);
end $$;

-- remove_older(stream, keys, seqs): removes the versions below these from the log, as far as nobody
-- else holds them. A transaction with a fixed snapshot leaves them: it would fail on what has
-- changed since.
-- Locks: them (SKIP LOCKED).
-- Writes: the log.
create or replace function headgate.remove_older(s headgate.stream, p_keys text[], p_seqs bigint[])
returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if p_keys is null or headgate.has_fixed_snapshot() then return; end if;
  execute format($q$
    delete from headgate.message_%1$s m where m.seq = any(array(
      select o.seq
        from (select u.k, max(u.s) from unnest($1, $2) u (k, s) where u.k is not null
               group by u.k) v (key, seq)
        join headgate.message_%1$s o on o.key = v.key and o.seq < v.seq
          for update of o skip locked)) $q$, s.id)
    using p_keys, p_seqs;
end $$;

-- remove_superseded(stream, n) -> how many versions were removed that sends had to leave. Looks at
-- the next n versions in the order of keys; the caller holds the stream's row.
-- Writes: stream.
create or replace function headgate.remove_superseded(s headgate.stream, n int default 1000)
returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
  set enable_bitmapscan = off as $$
declare
  old bigint[];
  looked int;
  last text;
  gone int := 0;
begin
  if not s.one_message_per_key or headgate.has_fixed_snapshot() then return 0; end if;
  execute format($q$
    select count(*), max(v.key), array_agg(v.seq) filter (where v.key = v.next or v.is_old)
      from (
        select m.key, m.seq, lead(m.key) over (order by m.key, m.seq) as next,
               exists (
                 select from headgate.newest newer
                  where newer.stream = %1$s and newer.key = m.key and newer.seq > m.seq) as is_old
          from (
            select m.key, m.seq from headgate.message_%1$s m
             where m.key is not null and m.key >= coalesce($1, '')
             order by m.key, m.seq limit $2) m) v $q$, s.id)
    into looked, last, old using s.swept_key, n;
  if old is not null then
    execute format(
      'delete from headgate.message_%1$s m where m.seq = any(array(select o.seq from headgate.message_%1$s o '
                   'where o.seq = any($1) for update of o skip locked))', s.id) using old;
    get diagnostics gone = row_count;
  end if;
  if looked < n then last := null; end if;
  if last is distinct from s.swept_key then
    update headgate.stream t set swept_key = last where t.id = s.id;
  end if;
  return gone;
end $$;

-- forget_superseded(consumer, lane, now): of keys with a parked message that is due, drops the
-- parked versions that are not the newest, as far as no other transaction holds them.
-- Needs: the caller holds the lane's cursor.
-- Locks: parked (SKIP LOCKED).
-- Writes: parked.
create or replace function headgate.forget_superseded(c headgate.consumer, p_lane bigint,
                                                      p_now timestamptz) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  due text[];
  gone text[];
  firsts tid[];
begin
  due := array(select distinct p.key from headgate.parked p
                where p.consumer = c.id and p.lane = p_lane and p.visible_at <= p_now
                  and p.key is not null);
  -- point: superseded versions are looked for
  if due = '{}' then return; end if;
  execute format($q$
    with gone as (
      delete from headgate.parked p where p.ctid = any(array(
        select o.ctid from headgate.parked o
         where o.consumer = $1 and o.lane = $2 and o.key = any($3) and %s
           for update of o skip locked)) returning p.key)
    select array_agg(distinct g.key) from gone g $q$, headgate.superseded_sql(c.stream, 'o'))
    into gone using c.id, p_lane, due;
  perform headgate.sees_removals(c.stream);
  if gone is null then return; end if;
  -- what waited behind them
  firsts := headgate.hold_parked(headgate.first_parked(c.id, p_lane, gone));
  update headgate.parked p set visible_at = p_now
   where p.ctid = any(firsts) and p.reason = 'blocked' and p.visible_at > p_now;
end $$;

-- still_newest(consumer, delivery, seqs) -> those of the messages of a delivery that failed that
-- are worth another attempt: of an upsert stream, those that no newer version has superseded. What
-- waits for the others may go on.
-- Writes: wake.
create or replace function headgate.still_newest(c headgate.consumer, d headgate.delivery,
                                                 p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare old bigint[];
begin
  if not (select s.one_message_per_key from headgate.stream s where s.id = c.stream) then
    return p_seqs;
  end if;
  execute format($q$
    select array_agg(u.seq) from unnest($1, $2) u (seq, key)
     where u.seq = any($3) and u.key is not null and %s $q$,
    headgate.superseded_sql(c.stream, 'u'))
    into old using d.seqs, d.keys, p_seqs;
  if old is null then return p_seqs; end if;
  perform headgate.wake_keys(c, d.lane,
                               array(select u.k from unnest(d.seqs, d.keys) u (s, k)
                                      where u.s = any(old)));
  return array(select s from unnest(p_seqs) s where s <> all(old));
end $$;

-- versions_sql(stream id, condition) -> the SQL of every version, as (key, seq), that is stored
-- anywhere or at work: in the log as far as the condition goes, kept by compaction, parked, in
-- flight, and among the dead letters. To be read in one snapshot: a version moves from one place to
-- another in one transaction.
create or replace function headgate.versions_sql(p_stream int, p_condition text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
  select format($q$
      select m.key, m.seq from headgate.message_%1$s m where m.key is not null and %2$s
      union all
      select k.key, k.seq from headgate.preserved_%1$s k where k.key is not null
      union all
      select p.key, p.seq from headgate.parked p join headgate.consumer c on c.id = p.consumer
       where c.stream = %1$s and p.key is not null
      union all
      select u.key, u.seq from headgate.delivery d join headgate.consumer c on c.id = d.consumer
       cross join unnest(d.keys, d.seqs) u (key, seq)
       where c.stream = %1$s and u.key is not null $q$, p_stream, p_condition)
    || coalesce((
      select format($q$
      union all
      select m.key, case when m.headers ->> 'source_seq' ~ '^[0-9]{1,18}$'
                         then (m.headers ->> 'source_seq')::bigint end
        from headgate.message_%s m where m.key is not null $q$, d.id)
        from headgate.stream d where d.dead_of = p_stream), '')
$$;

-- note_newest(segment): before a closed segment of an upsert stream is emptied, notes the newest
-- version in it of each key of which an older version is left anywhere.
-- Writes: newest, in key order.
create or replace function headgate.note_newest(g headgate.segment) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if not (select s.one_message_per_key from headgate.stream s where s.id = g.stream) then
    return;
  end if;
  execute format($q$
    insert into headgate.newest as n (stream, key, seq)
      select %1$s, m.key, max(m.seq)
        from (select v.key, min(v.seq) as seq from (%3$s) v group by v.key) o
        join headgate.message_%1$s_%2$s m on m.key = o.key and m.seq > o.seq
       group by m.key order by m.key
      on conflict (stream, key) do update set seq = excluded.seq where n.seq < excluded.seq $q$,
    g.stream, g.id, headgate.versions_sql(g.stream, format('m.seq < %s', g.first_seq)));
end $$;

-- forget_newest(stream, n) -> how many rows of headgate.newest were removed, because no older
-- version of their key is left anywhere. Looks at up to n rows that were not looked at for 10
-- minutes.
-- Locks: them (SKIP LOCKED).
-- Writes: newest.
create or replace function headgate.forget_newest(s headgate.stream, n int default 1000)
returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  looked text[];
  gone bigint;
begin
  if not s.one_message_per_key or headgate.has_fixed_snapshot() then return 0; end if;
  with old as (
    select w.key from headgate.newest w
     where w.stream = s.id and w.checked_at < clock_timestamp() - interval '10 minutes'
     order by w.checked_at limit n for update skip locked)
  select array_agg(o.key) into looked from old o;
  if looked is null then return 0; end if;
  -- the rows are locked, so that nobody notes a newer version between this look and their end
  execute format($q$
    delete from headgate.newest w where w.stream = $1 and w.key = any($2) and not exists (
      select from (%s) v where v.key = w.key and v.seq < w.seq) $q$,
    headgate.versions_sql(s.id, 'm.key = any($2)')) using s.id, looked;
  get diagnostics gone = row_count;
  update headgate.newest w set checked_at = clock_timestamp()
   where w.stream = s.id and w.key = any(looked);
  return gone;
end $$;
