-- lanes_with_more: those of the probed lanes that have something behind their span. receive_cold
-- asks for it, too.
-- Needs: r, the call, with the lanes and the seqs between which to look.
array(
  select l from unnest(r.probed, r.probed_from, r.probed_to) u (l, a, b)
   where exists (
     select from headgate.message_{stream}
      where (lane, seq) > (l, a) and seq > a and seq <= b
        {if not until_18} and (lane, seq) <= (l, b)
        {if until_18} and lane = any(array[l])
        offset 0))
