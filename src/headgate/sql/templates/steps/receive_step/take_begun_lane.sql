-- take_begun_lane: the next one of the lanes that begin_spans has claimed together.
-- Gives: r at a lane to be read.
select k.lane, k.pos, k.to_hi, k.from_snap, k.to_snap, k.expires_at, k.delivered, 'read',
       nullif(r.begun[2:], '{}')
  into r.lane, r.pos, r.hi, r.from_snap, r.to_snap, r.expires_at, r.delivered, r.step, r.begun
  from headgate.cursor k where k.consumer = r.consumer and k.lane = r.begun[1];
