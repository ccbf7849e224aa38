-- What consumers are not done with in a segment, and what they lose when it is removed.

-- rest_of(segment) -> the consumers that are not done with a closed segment, all seen in one
-- snapshot: whether some of it is unread, and if not, how many of its messages are in flight and
-- parked.
create or replace function headgate.rest_of(g headgate.segment)
returns table (consumer int, name text, unread boolean, in_flight bigint, parked bigint)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  -- lanes by key or channel: where a lane is idle or has no cursor, the gatherer (lane -1) has
  -- still to come to it, or it is read
  return query execute format($q$
    select * from (
      select c.id, c.name, u.unread,
             case
               when not u.unread then
                 (select count(*) from headgate.in_flight f
                   where f.consumer = c.id and f.seq >= $1 and f.seq < $2) end as in_flight,
             case
               when not u.unread then
                 (select count(*) from headgate.parked p
                   where p.consumer = c.id and p.seq >= $1 and p.seq < $2) end as parked
        from headgate.consumer c cross join lateral (select
             exists (select from headgate.cursor k cross
                       join lateral headgate.read_up_to(%1$s, k) r (start) cross join lateral (
                       select from headgate.message_%1$s_%2$s m
                        where m.lane = k.lane and m.seq > r.start
                          and headgate.unread(k, m.seq, m.xid) limit 1) m
                      where k.consumer = c.id and k.lane >= 0 and r.start < $2 - 1
                        and (k.next_at is not null or k.lane < {UNNAMED_LANES}))
          or exists (select from headgate.hidden_lanes(c.id) k cross join lateral (
                       select from headgate.message_%1$s_%2$s m
                        where m.lane = k.lane and headgate.unread(k, m.seq, m.xid) limit 1) m)
          or exists (select from headgate.cursor k cross
                       join lateral headgate.read_up_to(%1$s, k) r (start) cross join lateral (
                       select from headgate.message_%1$s_%2$s m
                        where m.seq > r.start and headgate.unread(k, m.seq, m.xid)
                          and not exists (select from headgate.cursor o
                                           where o.consumer = k.consumer and o.lane = m.lane
                                             and not headgate.unread(o, m.seq, m.xid)) limit 1) m
                      where k.consumer = c.id and k.lane = -1 and r.start < $2 - 1) as unread) u
       where c.stream = %1$s) x
     where x.unread or x.in_flight > 0 or x.parked > 0 order by x.name $q$, g.stream, g.id)
    using g.first_seq, g.end_seq;
end $$;

-- unread_in(consumer, segment) -> how many messages there it has still to come to and would get.
create or replace function headgate.unread_in(c headgate.consumer, g headgate.segment)
returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  n bigint;
  behind boolean;
  s headgate.stream;
begin
  select bool_or(headgate.read_up_to(g.stream, k) < g.end_seq - 1) into behind
    from headgate.cursor k where k.consumer = c.id;
  if not behind then return 0; end if;
  select * into s from headgate.stream x where x.id = g.stream;
  execute format(
    'select count(*) from headgate.message_%s_%s m left join headgate.cursor k on k.consumer = $1 and k.lane = m.lane '
                 'left join headgate.discovered_lanes($1) x on x.lane = m.lane '
                 'left join headgate.cursor q on q.consumer = $1 and q.lane = -1 '
                 'where case when k.lane is not null then %s when x.lane is not null then %s when q.lane is not null then %s else false end '
                 'and ($2 is null or m.key ~ $2)%s',
                 g.stream, g.id, headgate.unread_sql('k'), headgate.unread_sql('x'),
                 headgate.unread_sql('q'), headgate.newest_only(s, 'm'))
    into n using c.id, c.pattern;
  return n;
end $$;

-- progress_in(consumer, segment) -> where the consumer is in it, as a digest: another one when it
-- has read on there, or wants other messages. Of a stream of newest messages it is another one each
-- time: which of them count changes with every send.
create or replace function headgate.progress_in(c headgate.consumer, g headgate.segment)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return (
    select coalesce(c.pattern, '') || case
      when (select s.one_message_per_key from headgate.stream s where s.id = g.stream) then
        clock_timestamp()::text else '' end
           || coalesce(
             md5(
               string_agg(format('%s %s %s %s', k.lane, k.first_seq, k.to_tick, k.pos), ','
                          order by k.lane)), '')
           || case when bool_or(k.discards) then (
                select count(*)::text from headgate.discarded z
                 where z.consumer = c.id and z.seq >= g.first_seq and z.seq < g.end_seq) else '' end
      from headgate.cursor k
        where k.consumer = c.id and headgate.read_up_to(g.stream, k) < g.end_seq - 1);
end $$;

-- losses_in(segment, consumers, progress, messages) -> what each consumer would lose if it were
-- removed now, and its progress. Of those that are where they were when this was asked before (the
-- other arguments), nothing is counted again.
create or replace function headgate.losses_in(
  g headgate.segment, p_consumers int[] default '{}', p_progress text[] default '{}',
  p_messages bigint[] default '{}')
returns table (consumer int, progress text, messages bigint)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select c.id, p.progress, coalesce(x.messages, headgate.unread_in(c, g))
    from headgate.consumer c
   cross join lateral (select headgate.progress_in(c, g) as progress offset 0) p
    left
      join unnest(p_consumers, p_progress, p_messages) x (consumer, progress,
                                                          messages) on x.consumer = c.id
                                                          and x.progress = p.progress
   where c.stream = g.stream
$$;

-- record_loss(consumer id, first seq, last seq, n, reason): records that n messages there were
-- removed before the consumer was done with them. Raises a serialization failure where the snapshot
-- is fixed: there the message may just be out of sight.
-- Writes: loss.
create or replace function headgate.record_loss(
  p_consumer int, p_first bigint, p_last bigint, n bigint, p_reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.no_fixed_snapshot();
  insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
  values (p_consumer, p_first, p_last, n, p_reason);
end $$;

-- record_missing(consumer, seqs, keys, reason): those of the messages that are nowhere any more
-- were removed with their segment before the consumer was done with them: lost. Not so a version
-- that a newer one has superseded, and removed, since the caller looked for such. Raises as
-- `record_loss` does.
-- Writes: loss.
create or replace function headgate.record_missing(
  c headgate.consumer, p_seqs bigint[], p_keys text[], p_reason text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
  upserts boolean := (select s.one_message_per_key from headgate.stream s where s.id = c.stream);
begin
  execute format($q$
    select headgate.record_loss($1, min(x.seq), max(x.seq), count(*), $4)
      from unnest($2, $3) x (seq, key)
     where not exists (select from headgate.message_%1$s m where m.seq = x.seq)
       and not exists (select from headgate.preserved_%1$s k where k.seq = x.seq)%2$s
    having count(*) > 0 $q$, c.stream,
    case when upserts then ' and not ' || headgate.superseded_sql(c.stream, 'x') else '' end)
    using c.id, p_seqs, p_keys, p_reason;
end $$;

-- without_removed(consumer, delivery, seqs) -> those whose messages still exist. The others failed
-- after retention had removed them: they are lost (record_missing), and what waited behind them
-- goes on.
-- Writes: loss, wake.
create or replace function headgate.without_removed(c headgate.consumer, d headgate.delivery,
                                                    p_seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  there int8multirange := headgate.log_ranges(c.stream);
  gone bigint[];
begin
  if not exists (select from unnest(p_seqs) s where not s <@ there) then return p_seqs; end if;
  execute format(
    'select array_agg(s) from unnest($1) s where not s <@ $2 and not exists (select from headgate.preserved_%s k where k.seq = s)', c.stream)
    into gone using p_seqs, there;
  if gone is null then return p_seqs; end if;
  perform headgate.record_missing(c, array_agg(u.s), array_agg(u.k), 'removed while in flight')
     from unnest(d.seqs, d.keys) u (s, k) where u.s = any(gone);
  if c.ordered then
    perform headgate.wake_keys(c, d.lane,
                                 array(select u.k from unnest(d.seqs, d.keys) u (s, k)
                                        where u.s = any(gone)));
  end if;
  return array(select s from unnest(p_seqs) s where s <> all(gone));
end $$;
