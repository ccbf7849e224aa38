-- The steps of a receive that claim a lane, where lanes are hashed, and see to what is not its log.
-- (What is common to all steps: steps.sql.)

-- claim_with_care(call) -> the call, with a lane that it holds now, and that may need more than
-- reading on: of a consumer that is ordered, filtered or leased, one with more to do than to read
-- on (which the call holds already), or one that has something behind its span, when no lane has
-- work left.
-- Locks: a cursor (SKIP LOCKED).
-- Writes: as check_lane.
create or replace function headgate.claim_with_care(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  r.lane_gave := 0;
  -- in order, lanes with nothing in flight first: there no key is taken
  if r.busy and not r.is_quick then
    select k.lane, 'check' into r.lane, r.step from headgate.cursor k
     where k.consumer = r.consumer
       and (k.pos < k.to_hi or k.served_at < r.t0 - interval '20 milliseconds')
       and k.lane <> all(r.tried)
     order by (r.c).ordered and exists (
                select from headgate.delivery d where d.consumer = r.consumer and d.lane = k.lane),
              k.served_at
     limit 1 for no key update skip locked;
  end if;
  if r.lane is null then
    if r.ahead is null then
      select array_agg(k.lane), array_agg(k.to_lo), array_agg(9223372036854775807), 'probe'
        into r.probed, r.probed_from, r.probed_to, r.step from headgate.cursor k
       where k.consumer = r.consumer and k.lane <> all(r.tried) and k.to_tick <> r.tick;
      if r.probed is not null then return r; end if;
      r.ahead := '{}';
    end if;
    return headgate.claim_any(r);
  elsif r.step = 'check' then
    select k into r.l from headgate.cursor k where k.consumer = r.consumer and k.lane = r.lane;
    return headgate.check_lane(r);
  end if;
  r.hi := headgate.end_of_read((r.c).stream, r.pos, r.hi);
  r.step := 'read';
  return r;
end $$;

-- claim_any(call) -> the call, with the lane that waited longest of those with anything to do,
-- which it holds now.
-- Locks: a cursor (SKIP LOCKED).
-- Writes: as check_lane.
create or replace function headgate.claim_any(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  select k into r.l from headgate.cursor k
   where k.consumer = r.consumer and k.lane <> all(r.tried) and (
         k.pos < k.to_hi or k.late is not null or k.expires_at <= r.t0
      or (r.lets_go and r.has_watched and exists (
           select from headgate.delivery d
            where d.consumer = r.consumer and d.lane = k.lane and d.is_watched
              and d.deadline <= r.t0))
      or (k.to_tick <> r.tick and k.lane = any(r.ahead))
      or k.to_base < (select max(t.id) from headgate.tick t
                       where t.stream = (r.c).stream and t.late is not null)
      or (select p.visible_at from headgate.parked p
           where p.consumer = r.consumer and p.lane = k.lane order by p.visible_at limit 1) <= r.t0
      or ((r.c).ordered and exists (
           select from headgate.wake w where w.consumer = r.consumer and w.lane = k.lane)))
   order by k.served_at limit 1 for no key update skip locked;
  if found then
    r.lane := (r.l).lane;
    return headgate.check_lane(r);
  end if;
  -- nothing to claim, or all of it locked by other claims at this instant: then try again rather
  -- than say "nothing"
  if r.want < r.asked or r.tries >= 8 or not exists (
       select from headgate.cursor k
        where k.consumer = r.consumer and k.lane <> all(r.tried)
          and (k.pos < k.to_hi or (k.to_tick <> r.tick and k.lane = any(r.ahead)))) then
    r.step := null;
    return r;
  end if;
  r.tries := r.tries + 1;
  perform pg_sleep(0.0005 * r.tries);
  r.ahead := null;  -- those others may be done with them
  r.step := 'claim';
  return r;
end $$;

-- check_lane(call) -> the call, whose lane is to be looked at closely: what has expired there is
-- taken apart, and what is parked and due comes first.
-- Writes: cursor, delivery, parked, wake.
create or replace function headgate.check_lane(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
  l headgate.cursor := r.l;
begin
  -- point: a lane is claimed
  if l.expires_at <= r.t0 or (r.lets_go and r.has_watched) then
    l.expires_at := headgate.expire_lane(c, l.lane, r.t0);
    r.l := l;
  end if;
  -- it has changed hands, or another worker is not done with it
  if c.leased and not headgate.may_claim(c, l.lane, r.worker) then
    update headgate.cursor k set served_at = r.t0, expires_at = l.expires_at
     where k.consumer = c.id and k.lane = l.lane;
    r.tried := r.tried || l.lane;
    r.step := case when r.lets_go then 'let go' else 'claim' end;
    return r;
  end if;
  -- point: a lane is swept
  if c.ordered then perform headgate.take_key_wakes(c, l.lane, r.t0); end if;
  if r.is_upsert then perform headgate.forget_superseded(c, l.lane, r.t0); end if;
  if (select p.visible_at from headgate.parked p
       where p.consumer = c.id and p.lane = l.lane order by p.visible_at limit 1) <= r.t0 then
    r.step := 'retry';
    return r;
  end if;
  return headgate.begin_span(r);
end $$;
