-- Named lanes: one per key or per channel, any number of them, most of them idle. How they wake,
-- sleep and are forgotten; templates/receive_named.sql serves them.
--
-- A lane has a cursor only while something is known of it. The gatherer (the cursor of lane -1)
-- reads the log once for the whole consumer, span by span, and wakes the lanes that it meets. A
-- claim takes the lanes that are due, in the order of next_at, and each gives its share of the
-- batch and goes to the end of the rotation. What holds:
--   1. a lane without a cursor has nothing unread up to the tick that the gatherer has reached,
--      except from the span on that `discovered` tells of it;
--   2. a lane goes idle (next_at null) only when it has read up to that tick, as seen after its
--      cursor was locked; and the gatherer, which meets a cursor that is locked, leaves a note
--      (wake) instead of waiting. So no wake is lost;
--   3. a lane found full (next_at infinity) is woken by whatever takes one of its messages out of
--      flight: an ack in the same receive wakes it directly when it gets the cursor, everything
--      else leaves a note;
--   4. only one claim at a time holds a lane's cursor, and it counts what is in flight after it got
--      it: limits hold over all workers;
--   5. the gatherer is moved by who holds it FOR NO KEY UPDATE. Nobody needs that to go on: while
--      it is held, by a transaction that may be open for long, others add the few lanes that they
--      need themselves (`few` below), from where the gatherer stands. They hold it FOR KEY SHARE,
--      which keeps a seek off, and each lane by an advisory lock, by which whoever moves the
--      gatherer tells that a lane may still be undone;
--   6. who moves the gatherer and may be part of a longer transaction touches only the lanes that
--      it serves itself (`direct`). Of the others it leaves word that nobody has to wait for: notes
--      (wake) of those that have a cursor, rows in `discovered` of those that have none. A lane of
--      which there is such word is not forgotten, and one that was discovered gets its cursor from
--      there alone (take_discovered): from anywhere else it would begin too late.

-- set_channel(stream, consumer, channel, …): changes the limits of one channel (or key, by the
-- stream's lanes) that are given; null leaves a limit as it is, and `clear` names those to put back
-- to the consumer's own. max_concurrency 0 holds the channel back.
-- Writes: channel, cursor.
create or replace function headgate.set_channel(
  stream text, consumer text, channel text, max_concurrency int default null,
  release_interval interval default null,
  clear text[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set lock_timeout = '1s' as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  l bigint := case when channel is null then {UNNAMED_LANES}
                   else headgate.named_lane(channel) end;
  h headgate.channel;
begin
  if s.lane_by = 'hash' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name),
                          'make the stream with lane_by => ''channel'' (or ''key'')');
  end if;
  perform headgate.check_consumer('none', null, null, null, null, max_concurrency, release_interval,
                                  null);
  clear := coalesce(clear, '{}');
  if not clear <@ array['max_concurrency', 'release_interval'] then
    perform headgate.fail('HG010', 'clear names an unknown limit',
                          'max_concurrency and release_interval can be cleared');
  end if;
  insert into headgate.channel as x (consumer, lane, name, max_concurrency, release_interval)
    values (c.id, l, set_channel.channel,
            case when 'max_concurrency' <> all(clear) then set_channel.max_concurrency end,
            case when 'release_interval' <> all(clear) then set_channel.release_interval end)
    on conflict on constraint channel_pkey do update set
      max_concurrency = case
        when 'max_concurrency' <> all(clear) then
          coalesce(excluded.max_concurrency, x.max_concurrency) end,
      release_interval = case
        when 'release_interval' <> all(clear) then
          coalesce(excluded.release_interval, x.release_interval) end
    returning * into h;
  if h.max_concurrency is null and h.release_interval is null then
    delete from headgate.channel x where x.consumer = c.id and x.lane = l;
  end if;
  update headgate.cursor k
     set max_concurrency = h.max_concurrency, release_interval = h.release_interval,
         next_at = case when k.next_at = 'infinity' then clock_timestamp() else k.next_at end
   where k.consumer = c.id and k.lane = l;
  -- a cursor that is being made with the old limits: its next claim sees to it
  insert into headgate.wake (consumer, lane) values (c.id, l);
exception when lock_not_available then
  perform headgate.fail('55P03',
                        format('channel "%s" of consumer "%s" is held by an open transaction',
                               set_channel.channel, c.name),
    'repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)');
end $$;

-- expire_named_lanes(consumer, now, most) -> how many deliveries past their deadline were taken
-- apart (at most 100 a call): where lanes are named, and everywhere those whose deadline was moved
-- nearer, of which a lane's expires_at does not know. With `most`, only until so many messages may
-- be handed out again: what a longer transaction takes apart nobody else gets before its end.
-- Locks: deliveries (SKIP LOCKED).
-- Writes: delivery, parked, wake.
create or replace function headgate.expire_named_lanes(
  c headgate.consumer, p_now timestamptz, p_most int default null) returns int
language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  d headgate.delivery;
  n int := 0;
  back int := 0;  -- so many messages come again
begin
  loop
    for d in select * from headgate.delivery x
              where x.consumer = c.id and (x.lane >= {UNNAMED_LANES} or x.is_watched)
                and x.deadline <= p_now
              order by x.deadline limit case when p_most is null then 100 else 1 end
                for update skip locked loop
      if p_most is not null then
        select back + count(*) into back
          from headgate.in_flight_of(d) f cross join unnest(f.attempts, f.seqs) u (attempt, seq)
         -- (the others become dead letters)
         where coalesce(u.attempt, 1) < coalesce(c.max_deliver, 2147483647);
      end if;
      perform headgate.end_delivery(c, d);
      n := n + 1;
    end loop;
    exit when p_most is null or d.id is null or back >= p_most or n >= 100;
  end loop;
  return n;
end $$;

-- forget_lanes(consumer) -> how many idle lanes lost their cursor: what the gatherer has passed and
-- nobody used for a minute. At most 10,000 a call, and every ten seconds, for it looks at all of
-- them.
-- Locks: the gatherer and idle cursors (SKIP LOCKED).
-- Writes: cursor.
create or replace function headgate.forget_lanes(c headgate.consumer) returns int
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare g headgate.cursor; n int; total bigint; again bigint;
begin
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1
     for no key update skip locked;
  if not found or g.pos < g.to_hi or g.late is not null
     or g.rate_since > clock_timestamp() - interval '10 seconds' then
    return 0;
  end if;
  -- lanes that were full when their limits were changed, and have nothing in flight whose ack could
  -- wake them
  insert into headgate.wake (consumer, lane)
    select c.id, k.lane from headgate.cursor k
     where k.consumer = c.id and k.lane >= 0 and k.next_at = 'infinity'
       and not exists (select from headgate.delivery d where d.consumer = c.id and d.lane = k.lane);
  with idle as (
    select k.consumer, k.lane from headgate.cursor k
     where k.consumer = c.id and k.lane >= 0 and k.next_at is null
       and k.served_at < clock_timestamp() - interval '1 minute'
       -- all that it has read the gatherer has passed (one on a private tick has read more than its
       -- base tells)
       and ((k.to_tick = k.to_base and k.to_base <= g.to_base)
            or pg_snapshot_xmax(k.to_snap) <= pg_snapshot_xmin(g.to_snap))
       and not exists (select from headgate.delivery d where d.consumer = c.id and d.lane = k.lane)
       and not exists (select from headgate.parked p where p.consumer = c.id and p.lane = k.lane)
       and not exists (select from headgate.wake w where w.consumer = c.id and w.lane = k.lane)
       and not exists (select from headgate.discovered x
                        where x.consumer = c.id and x.lane = k.lane)
       and not k.discards
     limit 10000 for update skip locked),
  gone as (delete from headgate.cursor k using idle i
           where k.consumer = i.consumer and k.lane = i.lane returning k.delivered, k.redelivered)
  select count(*), coalesce(sum(delivered), 0), coalesce(sum(redelivered), 0) into n, total, again
    from gone;
  -- (the gatherer has no rate: here its mark only says when this was last done)
  update headgate.cursor k set delivered = k.delivered + total, redelivered = k.redelivered + again,
         rate_since = case when n < 10000 then clock_timestamp() else k.rate_since end
   where k.consumer = c.id and k.lane = -1;
  return n;
end $$;
