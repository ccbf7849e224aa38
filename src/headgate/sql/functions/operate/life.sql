-- A message's life: everything that is known of one message, for those who are asked about it.

-- message_life(stream, seq) -> at, consumer, event, attempt, worker, error, until: one message's
-- whole life in one answer, in the order of time; what happened at no time that is known comes last
-- (at is null). Of a message: sent (until: it was delayed to then), or gone: it was removed,
-- superseded or never committed. For each consumer: delivered (worker; until: its deadline, while
-- it is in flight), failed (nacked) or expired, dead (it became a dead letter), redriven, replayed,
-- discarded; and where it is now: parked, delayed, blocked (behind one of its key) or released
-- (until: when it is due), waiting (not read yet), skipped (by the consumer's filter), done. Of
-- attempts the last 20 are kept. No row for a seq that was not drawn yet.
-- Locks: nothing.
-- Writes: nothing.
create or replace function headgate.message_life(stream text, seq bigint)
returns table (at timestamptz, consumer text, event text, attempt int, worker text, error text,
  until timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  m record;
begin
  if message_life.seq is null then
    perform headgate.fail('HG010', 'it is not said which message', 'give its seq');
  end if;
  if message_life.seq < 1 or message_life.seq > headgate.last_seq(s.id) then return; end if;
  execute format($q$
    -- (lanes with a name have another type than numbered ones, and a session keeps one plan for
    -- both)
    select m.lane::bigint as lane, m.xid, m.key, m.created_at, m.deliver_at
      from %s m
     where m.seq = $1 limit 1 $q$, headgate.stored_sql(s.id, 'm.*'))
    into m using message_life.seq;
  return query
  select x.at, x.name, x.event, x.attempt, x.worker, x.error, x.until
    from (
      select m.created_at as at, null::text as name,
             case when m.xid is null then 'gone' else 'sent' end as event, null::int as attempt,
             null::text as worker, null::text as error, m.deliver_at as until, 0::bigint as nth
      union all
      select l.at, c.name, l.event, l.attempt, l.worker, l.error, l.until, l.nth
        from headgate.consumer c
       cross join lateral headgate.life_for(c, m.lane, message_life.seq, m.xid, m.key) l
       where c.stream = s.id) x
   order by x.at nulls last, x.name nulls first, x.nth;
end $$;

-- life_for(consumer, lane, seq, xid, key) -> the part of a message's life that is about one
-- consumer, `nth` in order; of a message that is gone (xid is null), what is remembered.
create or replace function headgate.life_for(
  c headgate.consumer, p_lane bigint, p_seq bigint, p_xid xid8, p_key text)
returns table (nth bigint, at timestamptz, event text, attempt int, worker text, error text,
  until timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  x record;  -- where it is now
begin
  return query
  select a.id * 3 + v.n, v.at, v.event, nullif(a.attempt, 0), a.worker, v.error, null::timestamptz
    from (select * from headgate.attempt b where b.consumer = c.id and b.seq = p_seq
           order by b.consumer desc, b.seq desc, b.id desc limit 20) a
   cross join lateral (values
     (0, a.began, 'delivered', null::text, a.began is not null),
     (1, a.at, case a.outcome when 'nacked' then 'failed' else a.outcome end, a.error, true),
     (2, a.at, 'dead', a.error, a.is_dead)) v (n, at, event, error, is_so)
   where v.is_so;
  select * into x from headgate.state_of(c, p_lane, p_seq, p_xid, p_key);
  nth := 9223372036854775807;
  attempt := nullif(x.attempt, 0);
  if p_xid is null then
    x.state := null;
  elsif x.state = 'parked' then
    event := case when x.reason in ('delayed', 'blocked', 'released') then x.reason
                  else 'parked' end;
    error := x.last_error;
    until := x.visible_at;
    select p.parked_at into at from headgate.parked p
     where p.consumer = c.id and p.lane = headgate.parking_lane(c, p_lane, p_key, p_seq)
       and p.seq = p_seq;
    return next;
    return;
  elsif x.state = 'delivered' then
    event := 'delivered';
    worker := x.worker;
    until := x.visible_at;
    select d.delivered_at into at from headgate.delivery d
     where d.consumer = c.id and d.lane = headgate.parking_lane(c, p_lane, p_key, p_seq)
       and p_seq = any(d.seqs) order by d.delivered_at desc limit 1;
    return next;
    return;
  elsif x.state in ('available', 'skipped') then
    event := case x.state when 'available' then 'waiting' else x.state end;
    return next;
    return;
  end if;
  return query
    select l.* from headgate.life_ended(c, p_seq, x.state = 'done', nullif(x.attempt, 0)) l;
end $$;

-- life_ended(consumer, seq, is done, attempt) -> the last event of life_for, of a message that is
-- nowhere at work any more; no row when it is not known.
create or replace function headgate.life_ended(
  c headgate.consumer, p_seq bigint, p_is_done boolean, p_attempt int)
returns table (nth bigint, at timestamptz, event text, attempt int, worker text, error text,
  until timestamptz)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare e record;  -- how it ended, if not by an ack
begin
  nth := 9223372036854775807;
  attempt := p_attempt;
  select * into e from headgate.end_of(c, p_seq);
  if e.state = 'discarded' then
    event := 'discarded';
    select d.at into at from headgate.discarded d where d.consumer = c.id and d.seq = p_seq;
    return next;
  elsif e.state = 'dead' then
    -- not one that was told with its attempts: of a time before these were noted, or too long ago
    if not exists (select from headgate.attempt a
                    where a.consumer = c.id and a.seq = p_seq and a.is_dead) then
      event := 'dead';
      attempt := e.attempt;
      error := e.last_error;
      at := headgate.died_at(c, p_seq);
      return next;
    end if;
  elsif p_is_done then
    event := 'done';
    return next;
  end if;
end $$;

-- died_at(consumer, seq) -> when the newest dead letter of a message was written; null when that is
-- not known.
create or replace function headgate.died_at(c headgate.consumer, p_seq bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  d int;
  died timestamptz;
begin
  select s.id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return null; end if;
  execute format($q$
    select max(m.created_at) from headgate.message_%s m
     where left(m.headers ->> 'source_consumer', 60) = $1
       and left(m.headers ->> 'source_seq', 20) = $2 $q$, d)
    into died using c.name, p_seq::text;
  return died;
end $$;
