-- The steps of a receive, where lanes are hashed. They are the same for all streams, so that a
-- session plans them once; what reads a stream's own tables is in receive_<stream id>, which calls
-- them (templates/receive.sql). Their plans are made with its settings, search_path among them: to
-- set that again costs some microseconds a call, and nobody else may call them (test_rights.py).
-- This is the hot path. A statement costs mostly by the nodes of its plan, even of those that never
-- run, so the usual case (a lane with work left in its span, no filter, no order) has statements of
-- its own. What is parked is looked up in the order of one index, so that no planner takes another
-- one: its statistics of small, fast-changing tables are never right, and a plan is kept for the
-- life of a session.
--
-- A receive claims lane after lane, the one that waited longest first, until the batch is full:
-- what is parked and due, then the log.
--   receive_step -> (a lane with work left) read
--                -> claim_with_care -> probe -> begin_spans -> read, read, …
--                                            -> claim_any -> check_lane -> retry -> begin_span ->
--                                              read, filtered

-- know_call(call, batch_size, worker, open, upsert, lets go) -> the call, with all that is needed
-- off the plain path.
create or replace function headgate.know_call(
  r headgate.receiving, n int, p_worker text, p_open boolean, p_upsert boolean, p_lets_go boolean)
returns headgate.receiving
language plpgsql as $$
begin
  select k, n, p_worker, p_open, p_upsert, p_lets_go, not k.ordered and k.pattern is null, 0,
         coalesce(r.tried, '{}')
    into r.c, r.asked, r.worker, r.open, r.is_upsert, r.lets_go, r.is_plain, r.tries, r.tried
    from headgate.consumer k where k.id = r.consumer;
  return r;
end $$;

-- end_step(call, got) -> the call, which has done a step: 'claim' when it goes on to another lane.
-- Writes: as claim_any, begin_span.
create or replace function headgate.end_step(r headgate.receiving, got int)
returns headgate.receiving
language plpgsql as $$
begin
  if r.step = 'probe' then
    if r.ahead <> '{}' and r.is_quick and not r.is_upsert and not r.lets_go then
      r := headgate.begin_spans(r);
    end if;
    return case when r.begun is null then headgate.claim_any(r) else headgate.next_lane(r) end;
  end if;
  if r.step = 'look' then return headgate.end_look(r); end if;
  r.want := r.want - got;
  return case when r.step = 'retry' then headgate.end_retry(r, got)
              when r.step = 'filtered' then headgate.end_filtered(r, got)
              else headgate.begin_look(r) end;
end $$;

-- begin_look(call) -> the call, which found nothing in its lane that it could hand out at once: it
-- asks whether anything is left there. (That a lane has nothing is usual, and to filter costs
-- more.)
create or replace function headgate.begin_look(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  r.probed := array[r.lane];
  r.probed_from := array[r.pos];
  r.probed_to := array[r.hi];
  r.step := 'look';
  return r;
end $$;

-- end_look(call) -> the call, which is at the end of its lane's span, or has to filter what is left
-- of it.
-- Writes: cursor.
create or replace function headgate.end_look(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  is_left boolean := r.ahead <> '{}';
begin
  r.ahead := null;
  if is_left then return headgate.begin_filtered(r); end if;
  update headgate.cursor k
     set pos = r.hi, served_at = r.t0, expires_at = r.expires_at, delivered = r.delivered
   where k.consumer = r.consumer and k.lane = r.lane;
  return headgate.next_lane(r);
end $$;

-- begin_filtered(call) -> the call, whose lane needs read_filtered_<stream id>: a filter, keys in
-- order, a late, delayed or discarded message.
create or replace function headgate.begin_filtered(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
declare
  c headgate.consumer := r.c;
  l headgate.cursor;
begin
  select k.* into l from headgate.cursor k where k.consumer = r.consumer and k.lane = r.lane;
  l.expires_at := r.expires_at;
  l.delivered := r.delivered;
  l.to_hi := r.hi;
  r.l := l;
  -- look ever further ahead while nothing fits
  r.chunk := case
    when r.chunk is null or r.chunk_gave or (c.ordered and r.chunk_lane <> r.lane) then
      case when c.pattern is null then r.want + 20 else r.want * 8 + 500 end
    else least(r.chunk * 4, 20000) end;
  r.chunk_lane := r.lane;
  r.step := 'filtered';
  return r;
end $$;

-- end_filtered(call, got) -> the call, which has read its lane by read_filtered_<stream id>.
create or replace function headgate.end_filtered(r headgate.receiving, got int)
returns headgate.receiving
language plpgsql as $$
declare
  l headgate.cursor := r.l;  -- where it was
  k headgate.cursor;  -- where it is
begin
  r.chunk_gave := got > 0;
  if got = 0 then
    select x.* into k from headgate.cursor x where x.consumer = r.consumer and x.lane = r.lane;
    -- (what was parked on the way is read again. But the search of a filter through a long span
    -- goes on from where it is, and behind the end of an old span comes the next one: these stay.)
    if (k.pos > l.pos or k.late is distinct from l.late) is not true
       or r.lets_go and k.pos >= k.to_hi and k.late is null and k.to_tick = r.tick then
      r.tried := r.tried || r.lane;
      if r.lets_go and r.lane_gave = 0 then
        r.step := 'let go';
        return r;
      end if;
    end if;
  end if;
  return headgate.next_lane(r);
end $$;

-- deliver_again(call, seqs, attempts, keys) -> what the ack_ids of these messages begin with, which
-- were parked; null when there are none. Counts those that were handed out before.
-- Writes: delivery, cursor.
create or replace function headgate.deliver_again(
  r headgate.receiving, p_seqs bigint[], p_attempts int[], p_keys text[]) returns text
language plpgsql as $$
declare
  delivery bigint;
  again int := (select count(*) from unnest(p_attempts) a where a > 1);
begin
  if p_seqs is null then return null; end if;
  -- (both at once, so that a mark never lies between them; end_retry writes the same `delivered`)
  if again > 0 then
    update headgate.cursor k
       set redelivered = k.redelivered + again, delivered = k.delivered + cardinality(p_seqs)
     where k.consumer = r.consumer and k.lane = r.lane;
  end if;
  insert into headgate.delivery (consumer, lane, seqs, attempts, keys, deadline, delivered_at,
                                 worker)
    values (r.consumer, r.lane, p_seqs, p_attempts, case when (r.c).ordered then p_keys end,
            r.deadline,
            r.t0, r.worker) returning id into delivery;
  return r.lane || '.' || delivery || '.';
end $$;

-- end_retry(call, got) -> the call, which has handed out what was parked in its lane.
create or replace function headgate.end_retry(r headgate.receiving, got int)
returns headgate.receiving
language plpgsql as $$
declare
  l headgate.cursor := r.l;
begin
  r.lane_gave := got;
  if got > 0 then
    l.delivered := l.delivered + got;
    l.expires_at := least(l.expires_at, r.deadline);
    r.l := l;
  end if;
  return headgate.begin_span(r);
end $$;

-- next_lane(call) -> the call, which is done with its lane.
create or replace function headgate.next_lane(r headgate.receiving) returns headgate.receiving
language plpgsql as $$
begin
  r.step := case
    when r.want > 0 and clock_timestamp() <= r.t0 + interval '1 second' then 'claim' end;
  return r;
end $$;
