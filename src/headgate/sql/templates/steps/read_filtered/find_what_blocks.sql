-- find_what_blocks: which keys are in flight, whether anything is parked in the lane, and whether
-- too much of it waits behind those. In this order: a message that is nacked at this moment is seen
-- in flight, or parked, or both, but never as neither.
-- Needs: the lane's cursor is held, the consumer is ordered.
-- Gives: flying, any_parked, crowded.
flying := headgate.keys_in_flight(c.id, l.lane);
-- point: the keys in flight are known
any_parked := exists (select from headgate.parked p
                       where p.consumer = c.id and p.lane = l.lane);
-- Keys in flight park the messages behind them, within bounds; past these the lane waits for an
-- ack. The bounds are narrow while all that is in flight is young: most of it is acked in a moment,
-- and parking costs more than waiting. (A count of all that sleep comes first, because it is cheap:
-- those behind a failed message must not hold other keys.)
bound := case
  when exists (select from headgate.delivery d
                where d.consumer = c.id and d.lane = l.lane
                  and d.delivered_at < t0 - interval '100 milliseconds')
    then 1000
  else 50 end;
crowded := any_parked and flying <> '{}'
  and (select p.seq from headgate.parked p
        where p.consumer = c.id and p.lane = l.lane and p.visible_at >= 'infinity'
        order by p.visible_at, p.seq offset bound limit 1) is not null
  and (select count(*) from unnest(flying) f (key) cross join lateral (
         select from headgate.parked p
          where p.consumer = c.id and p.lane = l.lane and p.key is not null
            and (p.key, p.seq) >= (f.key, 0) and (p.key, p.seq) <= (f.key, 9223372036854775807)
          order by p.key, p.seq limit bound + 1) x) > bound;
-- older versions hold nobody up: they are forgotten below
{if upsert} any_parked := false;
