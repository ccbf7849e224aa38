-- What the doctor looks at of consumers: those that stopped or fall behind, messages that fail for
-- ever, URLs that refuse what is pushed. As in operate/doctor.sql nothing writes, scans a backlog,
-- or waits.

-- examine_consumers(patience): consumers that stopped, are paused or fall behind while messages
-- wait.
create or replace function headgate.examine_consumers(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  r record;
  u record;
  since timestamptz;
  before timestamptz := clock_timestamp() - p_patience;
  waits text;
begin
  for r in
    select c, s.name as stream, s.id as stream_id, c.id, c.name, c.paused, k.*,
           headgate.last_seq(s.id) as last_seq,
           exists (select from headgate.delivery d
                    where d.consumer = c.id and d.deadline > clock_timestamp()) as busy
      from headgate.consumer c join headgate.stream s on s.id = c.stream
      join (select k.consumer, max(k.served_at) as served_at, max(k.to_hi) as to_hi,
                   bool_or(k.pos < k.to_hi) as unread
              from headgate.cursor k group by k.consumer) k on k.consumer = c.id
  loop
    since := headgate.first_unread_at(r.stream_id, r.id, r.to_hi, r.last_seq, r.unread);
    waits := null;
    if since is not null then
      select * into u from headgate.waiting_count(r.c, r.to_hi, r.last_seq);
      waits := format('%s%s messages wait', case when u.exact then '' else 'about ' end, u.count);
      if not r.paused and (r.served_at > before or r.busy) then
        return query select * from headgate.falls_behind(
          r.stream_id, r.stream, r.name, u.count, since,
          (select p.rate from headgate.consumer_position p where p.consumer_id = r.id),
          r.last_seq, before);
      end if;
    end if;
    continue when not r.paused and (r.served_at > before or r.busy);
    if since is null then
      waits := 'messages are due again';
      select min(p.visible_at) into since
        from (select p.visible_at from headgate.parked p where p.consumer = r.id limit 10000) p
       where p.visible_at < before;
    end if;
    if since is null then
      waits := 'lanes wait';
      select k.next_at into since from headgate.cursor k
       where k.consumer = r.id and k.next_at < before and k.next_at < 'infinity'
       order by k.next_at limit 1;
    end if;
    continue when since is null or (since > before and not r.paused);
    return query select * from headgate.stands_still(
      r.stream, r.name, r.paused, r.served_at, waits, since);
  end loop;
end $$;

-- stands_still(stream, consumer, paused, turn, p_waits, since) -> the finding that a consumer is
-- paused or received nothing since `turn`, while this waits.
create or replace function headgate.stands_still(
  p_stream text, p_consumer text, p_paused boolean, p_turn timestamptz, p_waits text,
  p_since timestamptz)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_paused then
    return query select 'note', format('consumer %s/%s', p_stream, p_consumer),
      format('Consumer "%s" of stream "%s" is paused, and %s, since %s.',
             p_consumer, p_stream, p_waits, date_trunc('second', p_since)),
      format('When it may go on: select headgate.resume(%L, %L);', p_stream, p_consumer);
  else
    return query select 'problem', format('consumer %s/%s', p_stream, p_consumer),
      format('Consumer "%s" of stream "%s" has stopped: it received nothing since %s, '
             'and %s, since %s.',
             p_consumer, p_stream, date_trunc('second', p_turn), p_waits,
             date_trunc('second', p_since)),
      format(
        'Start its workers, or see in their logs why they do not receive. If it is not needed '
             'any more: select headgate.drop_consumer(%L, %L);', p_stream, p_consumer);
  end if;
end $$;

-- first_unread_at(stream id, consumer id, to_hi, last seq, unread) -> when the first message that
-- the consumer has still to come to was sent, as far as its cursors tell; null when there is none.
-- A hundred lanes in the middle of their span (unread) are enough to find one with messages.
create or replace function headgate.first_unread_at(
  p_stream int, p_consumer int, p_to_hi bigint, p_last bigint, p_unread boolean) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  since timestamptz;
begin
  if p_unread then
    execute format($q$
      select min(m.created_at)
        from (select k.lane, k.pos, k.to_hi from headgate.cursor k
               where k.consumer = $1 and k.pos < k.to_hi limit 100) k
       cross join lateral (
         select m.created_at from headgate.message_%s m
          where (m.lane, m.seq) > (k.lane, k.pos) and (m.lane, m.seq) <= (k.lane, k.to_hi)
          order by m.lane, m.seq limit 1) m $q$, p_stream) into since using p_consumer;
  end if;
  return coalesce(since, headgate.first_sent_after(p_stream, p_to_hi));
end $$;

-- waiting_count(consumer, to_hi, last seq) -> unread_count; but of more than a thousand hashed
-- lanes, which it would go through one by one, as many as were sent since the consumer last looked.
create or replace function headgate.waiting_count(
  c headgate.consumer, p_to_hi bigint, p_last bigint, out count bigint, out exact boolean)
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
  if (select x.n > 1000 from (
        select count(*) as n from (
          select from headgate.cursor k
           where k.consumer = c.id and k.lane between 0 and 144115188075855871
           limit 1001) k) x) then
    count := headgate.used_seqs(c.stream, p_last) - headgate.used_seqs(c.stream, p_to_hi);
    exact := false;
  else
    select u.count, u.exact into waiting_count.count, waiting_count.exact
      from headgate.unread_count(c) u;
  end if;
end $$;

-- falls_behind(stream id, stream, consumer, unread, since, rate, last seq, before) -> the finding,
-- when what waits for a consumer that works is older than `before`, and would take it longer than
-- it took to gather.
create or replace function headgate.falls_behind(
  p_stream int, p_name text, p_consumer text, p_unread bigint, p_since timestamptz, p_rate float8,
  p_last bigint, p_before timestamptz)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', format('consumer %s/%s', p_name, p_consumer),
         format('Consumer "%s" of stream "%s" %s: %s messages wait, the first since %s; '
                'it gets %s a second, and %s a second are sent.',
                p_consumer, p_name,
                case when x.sent > p_rate then 'falls behind'
                     else 'is behind and does not catch up soon' end,
                p_unread, date_trunc('second', p_since), round(p_rate::numeric, 1),
                round(x.sent::numeric, 1)),
         format(
           'Give it more workers, larger batches or a faster handler. When what waits is not needed, '
                'go to the end: select headgate.seek(%L, %L, ''end'');',
                p_name, p_consumer)
    from (select headgate.stream_rate(p_stream, p_last) as sent) x
   where p_since < p_before and p_unread > 0
     and p_unread / greatest(p_rate, 0.001) > extract(epoch from clock_timestamp() - p_since)
$$;

-- most_failed(consumer id) -> the message that failed most often, of those that are not done: its
-- seq, key, lane, and how often. Of parked ones 10,000 are looked at.
create or replace function headgate.most_failed(
  p_consumer int, out seq bigint, out key text, out lane bigint, out failures int)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select x.* from (
    (select p.seq, p.key, p.lane, p.attempt
       from (select * from headgate.parked p where p.consumer = p_consumer limit 10000) p
      order by p.attempt desc, p.seq limit 1)
    union all
    (select f.seq, f.key, f.lane, f.attempt - 1 from headgate.in_flight f
      where f.consumer = p_consumer and f.attempt > 1 order by f.attempt desc, f.seq limit 1)) x
   order by 4 desc limit 1
$$;

-- examine_poison(patience): messages that fail again and again, and what waits behind them.
create or replace function headgate.examine_poison(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  r record;
  behind bigint;
  error text;
begin
  for r in
    select s.name as stream, c.name, c.id, c.max_deliver, c.ordered, m.*
      from headgate.consumer c join headgate.stream s on s.id = c.stream
     cross join lateral headgate.most_failed(c.id) m
     where m.failures >= 10
  loop
    select count(*) into behind from (
      select from headgate.parked p
       where r.key is not null and p.consumer = r.id and p.lane = r.lane
         and p.key = r.key and p.seq > r.seq
       limit 10000) x;
    select a.error into error from headgate.attempt a
     where a.consumer = r.id and a.seq = r.seq and a.error is not null order by a.id desc limit 1;
    return query select case when r.failures >= 100 or behind > 0 then 'problem' else 'warning' end,
      format('consumer %s/%s', r.stream, r.name),
      format('Message %s%s of stream "%s" has failed %s times for consumer "%s"%s; '
             'the last error was: %s', r.seq,
             ' (key "' || r.key || '")', r.stream, r.failures, r.name,
             case when behind > 0
                  then format(', and %s messages of its key wait behind it', behind) end,
             coalesce(error, 'none (its deadlines passed)')),
      format('Mend its handler, or give the message up: '
             'select headgate.discard(%1$L, %2$L, array[%3$s]);%4$s', r.stream, r.name, r.seq,
             case when r.max_deliver is null or r.max_deliver > 100
                  then format(' So that such messages become dead letters by themselves: '
                              'select headgate.alter_consumer(%L, %L, max_deliver => 20);',
                              r.stream, r.name) end);
  end loop;
end $$;

-- examine_pushes(patience): URLs that refuse what is pushed there, and why.
create or replace function headgate.examine_pushes(p_patience interval)
returns table (severity text, subject text, finding text, advice text)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select 'warning', format('consumer %s/%s', s.name, c.name),
         format('Pushing to %s fails: %s messages of consumer "%s" of stream "%s" wait for another '
                'attempt, one of them failed %s times; the last answer was: %s',
                p.url, f.messages, c.name, s.name, f.failures, coalesce(x.error, 'none')),
         case when x.error like 'refused:%'
              then
                format(
                  'Let the servers push there: start them with `headgate up --push-allow %s`. ',
                          (
                            regexp_match(p.url,
                                         '^[a-z]+://(?:[^/@]*@)?([A-Za-z0-9._-]+|\[[0-9a-f:]+\])'))[1])
              else format('See that the endpoint answers with 2xx within %s s. ',
                          extract(epoch from p.timeout)::float8) end
         || format('Then try again at once: select headgate.retry_now(%L, %L, "all" => true);',
                   s.name, c.name)
    from headgate.push p
    join headgate.consumer c on c.id = p.consumer
    join headgate.stream s on s.id = c.stream
   cross join lateral (
     select count(*) as messages, max(y.attempt) as failures
       from (select * from headgate.parked y where y.consumer = c.id limit 10000) y
      where y.attempt > 0) f
   cross join lateral (select headgate.push_error(c.id) as error) x
   where f.failures >= 3
$$;
