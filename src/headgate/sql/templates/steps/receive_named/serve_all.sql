-- serve_all: hands out what the lanes that are held give: the usual ones in one statement, the
-- others one by one.
-- Gives: want, passes.
-- Writes: delivery, cursor, parked.
if is_fixed then
  claimed := array(select k.lane from unnest(places) h (place)
                     join headgate.cursor k on k.ctid = h.place);
end if;
-- (A part of a plan costs something also where it never runs, so that there are two.)
if keeps_keys then
  return query
  {step receive_named/serve_usual keys};
else
  return query
  {step receive_named/serve_usual};
end if;
get diagnostics got = row_count;
want := want - got;
-- point: a rotation has served
passes := case when got > 0 then 0 else passes + 1 end;
if flying <> '{}' then  -- those that stand where they stood were not served
  slows := array(
    select (select k.lane from headgate.cursor k where k.ctid = h.place) is not null
      from unnest(places) with ordinality h (place, nth) order by h.nth);
end if;
if true = any(slows) then
  for i in 1 .. cardinality(slows) loop
    continue when not slows[i];
    select k.* into l from headgate.cursor k where k.ctid = places[i];
    return query select *
      from headgate.serve_lane_{stream}(c, l, newest, least(shares[i], want), rooms[i], g_base,
                                   p_worker, t1, deadline);
    get diagnostics got = row_count;
    want := want - got;
    if got > 0 then passes := 0; end if;
  end loop;
end if;
if is_fixed then perform headgate.note_asleep(c, claimed, newest); end if;
