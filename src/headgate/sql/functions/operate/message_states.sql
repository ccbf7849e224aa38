-- The state of one message for each consumer. Nothing here locks or writes.

-- message_states(stream, seq) -> of one message, its state for each consumer: available, delivered,
-- parked, done, dead (it has a dead letter), discarded, or skipped (its key does not pass the
-- filter).
create or replace function headgate.message_states(stream text, seq bigint)
returns table (consumer text, state text, attempt int, visible_at timestamptz, worker text,
               reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  return query execute format($q$
    select c.name, coalesce(e.state, y.state), coalesce(e.attempt, x.attempt), x.visible_at,
           x.worker, x.reason,
           coalesce(e.last_error, x.last_error)
      from (select m.*, true as is_logged from headgate.message_%1$s m
            union all select m.*, false from headgate.preserved_%1$s m) m
     cross join headgate.consumer c
     cross join lateral headgate.state_of(c, m.lane, m.seq, m.xid, m.key) x
     cross join lateral (
       select case when x.state = 'available' and not m.is_logged then 'done'
                   else x.state end) y (state)
      left join lateral headgate.end_of(c, m.seq) e on y.state = 'done'
     where m.seq = $1 and c.stream = $2 order by c.name $q$, s.id) using message_states.seq, s.id;
end $$;

-- state_of(consumer, lane, seq, xid, key) -> the state of one message for one consumer; dead and
-- discarded ones are done here, see end_of. What waits behind its key is due at no time that is
-- known, which is null here: clients cannot read 'infinity'.
create or replace function headgate.state_of(c headgate.consumer, p_lane bigint, p_seq bigint,
                                             p_xid xid8, p_key text,
  out state text, out attempt int, out visible_at timestamptz, out worker text, out reason text,
  out last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare here bigint := headgate.parking_lane(c, p_lane, p_key, p_seq);
begin
  select 'parked', p.attempt, nullif(p.visible_at, 'infinity'), p.reason, p.last_error
    into state, attempt, visible_at, reason, last_error
    from headgate.parked p where p.consumer = c.id and p.lane = here and p.seq = p_seq;
  if found then return; end if;
  select 'delivered', coalesce(d.attempts[array_position(d.seqs, p_seq)], 1), d.deadline, d.worker
    into state, attempt, visible_at, worker
    from headgate.delivery d where d.consumer = c.id and d.lane = here and p_seq = any(d.seqs)
     and not exists (select from headgate.departed x
                      where x.consumer = c.id and x.lane = here and x.delivery = d.id
                        and x.seq = p_seq) limit 1;
  if found then return; end if;
  attempt := 0;
  state := case when c.pattern is not null and (p_key is null or p_key !~ c.pattern) then 'skipped'
                when (select headgate.unread(k, p_seq, p_xid) from (
                        select k.* from headgate.cursor k
                         where k.consumer = c.id and k.lane in (p_lane, -1)
                        union all
                        select k.* from headgate.discovered_lanes(c.id, p_lane) k) k
                       order by k.lane desc limit 1) then 'available'
                else 'done' end;
end $$;

-- end_of(consumer, seq) -> how a message that is done for the consumer ended, if not by an ack:
-- dead, or discarded. No row otherwise.
create or replace function headgate.end_of(c headgate.consumer, p_seq bigint)
returns table (state text, attempt int, last_error text)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select 'discarded', null::int, null::text from headgate.discarded x
   where x.consumer = c.id and x.seq = p_seq and x.at is not null
   union all
  (select 'dead', d.attempt, d.last_error from headgate.dead_seqs(c, p_seq - 1, p_seq + 1) d)
   limit 1
$$;

-- dead_seqs(consumer, after, before) -> the messages between these seqs of which the consumer has a
-- dead letter. What others have written into the dead-letter stream by hand is passed over when it
-- makes no sense.
create or replace function headgate.dead_seqs(c headgate.consumer, p_after bigint, p_before bigint)
returns table (seq bigint, attempt int, last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare d int;
begin
  select s.id into d from headgate.stream s where s.dead_of = c.stream;
  if not found then return; end if;
  return query execute format($q$
    select distinct on (x.source) x.source, x.attempts, x.error from (
      select m.seq, m.headers ->> 'last_error' as error,
             case when left(m.headers ->> 'source_seq', 20) ~ '^[0-9]{1,18}$'
                  then (m.headers ->> 'source_seq')::bigint end as source,
             case when left(m.headers ->> 'attempts', 20) ~ '^[0-9]{1,9}$'
                  then (m.headers ->> 'attempts')::int end as attempts
        from headgate.message_%s m
       where left(m.headers ->> 'source_consumer', 60) = $1
         and ($2 is null or left(m.headers ->> 'source_seq', 20) = $2)) x
     where x.source > $3 and x.source < $4
     order by x.source, x.seq desc $q$, d)
    using c.name, case when p_before = p_after + 2 then (p_after + 1)::text end, p_after, p_before;
end $$;

-- delivered_seqs(consumer, after, before) -> the messages between these seqs that it has in flight.
create or replace function headgate.delivered_seqs(c headgate.consumer, p_after bigint,
                                                   p_before bigint)
returns table (seq bigint, attempt int, deadline timestamptz, worker text)
language sql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
  select f.seq, f.attempt, f.deadline, f.worker from headgate.in_flight f
   where f.consumer = c.id and f.seq > p_after and f.seq < p_before
$$;
