-- Turns: with thousands of streams a step of maintenance looks at some of them, and the next step,
-- in whatever process, at the next ones. A turn is a number of a sequence: it is drawn once, so
-- that processes share the streams among themselves without a lock, and after as many turns as
-- there are streams each has had one. What a call was cut off from, or passed over because it was
-- locked, has its next turn a round later.

-- next_turns(what, ids, n) -> whose turn it is: the next n of these ids (each once, when there are
-- fewer), after those of the call before. `what` is stream, consumer or storage.
-- Writes: a sequence, and so may give the transaction an id: not for what comes before ticks.
create or replace function headgate.next_turns(p_what text, p_ids int[], n int) returns int[]
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(p_ids[1 + (t.turn % cardinality(p_ids))::int]), '{}')
    from (select nextval(format('headgate.%I', p_what || '_turn')::regclass) as turn
            from generate_series(1, least(n, cardinality(p_ids)))) t
$$;
