-- serve_filtered: the lane's span by read_filtered_<stream id>; in a lane of one key nothing passes
-- what is parked or was just handed out.
-- Gives: total, l.
if want > 0 and (l.pos < l.to_hi or l.late is not null) and not (is_strict and (total > 0
     or exists (select from headgate.parked p where p.consumer = c.id and p.lane = l.lane)))
       then
  chunk := case when l.discards then want * 8 + 5000 when c.pattern is null then want + 20
                else want * 8 + 500 end;
  return query
  select * from headgate.read_filtered_{stream}(c, l, want, chunk, p_worker, t, deadline);
  get diagnostics got = row_count;
  total := total + got;
  select k.* into l from headgate.cursor k where k.consumer = c.id and k.lane = l.lane;
end if;
