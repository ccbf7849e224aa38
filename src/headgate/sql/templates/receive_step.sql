-- receive_step(call, got, stream id, its sequence, upsert, lets go, consumer, batch_size, worker,
-- acks, open, ack_wait) -> the call at the next step that receive_<stream id> has to do, after the
-- last one has handed out `got` messages. The first one, of a call that is null, finds the
-- consumer, relaxes the commit, makes a tick when one is needed, settles acks, and sees to limits.
-- (A call that is `cold` is at its beginning, too: see receive_cold.) Each claims a lane, when the
-- call has none: of those with work left the one that waited longest; the others are looked at now
-- and then, lest they starve. When the call `lets go`, a lane is a subtransaction, so that the
-- first one claims none, nor does one that ends a lane. The same for all streams:
-- functions/read/steps.sql says how it goes on.
-- Locks: the stream's row, a cursor (SKIP LOCKED).
-- Writes: tick, and as settle, apply_limits and claim_with_care.
create or replace function headgate.receive_step(
  r headgate.receiving, got int, p_stream int, p_seqs regclass, p_upsert boolean, p_lets_go boolean,
  p_consumer text, n int, p_worker text, acks text[], p_open boolean, p_ack_wait interval)
returns headgate.receiving
language plpgsql as $$
declare
  t0 timestamptz;
  c headgate.consumer;
  is_ordered boolean;
  is_limited boolean;  -- it is paused or leased, or has max_ack_pending
  is_odd boolean;  -- something about the call has to be looked at
  tick_hi bigint;
  tick_settled boolean;
  tick_is_old boolean;
  too_many boolean;  -- ticks were made lately
  dummy text;
begin
  if r.step is null and not p_lets_go
     and coalesce(current_setting('headgate.keeps_' || p_stream, true), '') <> 'y'
     and not headgate.keeps_plans(p_stream) then
    r.step := 'cold';
    return r;
  elsif r.step is null or r.step = 'cold' then
    {step receive_step/begin_call}
    {step receive_step/settle_acks}
    -- point: a receive has settled its acks
    r.step := 'claim';
    if is_limited or r.has_watched or p_lets_go then
      r := headgate.apply_limits(headgate.know_call(r, n, p_worker, p_open, p_upsert, p_lets_go));
      if p_lets_go then return r; end if;
    end if;
  elsif r.step = 'read' and got > 0 then  -- the batch is not full yet
    r.want := r.want - got;
    r.step := case when clock_timestamp() <= r.t0 + interval '1 second' then 'claim' end;
    if p_lets_go then return r; end if;
  elsif r.step <> 'claim' then
    if r.asked is null then
      r := headgate.know_call(r, n, p_worker, p_open, p_upsert, p_lets_go);
    end if;
    r := headgate.end_step(r, got);
    if p_lets_go then return r; end if;
  end if;
  while r.step = 'claim' loop
    if r.begun is not null then
      {step receive_step/take_begun_lane}
      return r;
    elsif r.busy and r.is_quick then
      {step receive_step/claim_busy_lane}
      if r.step = 'read' then return r; end if;
    else
      r.lane := null;
    end if;
    if r.asked is null then
      r := headgate.know_call(r, n, p_worker, p_open, p_upsert, p_lets_go);
    end if;
    r := headgate.claim_with_care(r);
    if p_lets_go then return r; end if;
  end loop;
  return r;
end $$;
