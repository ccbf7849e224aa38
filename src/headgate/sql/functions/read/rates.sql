-- Rates. A cursor has two marks: how many messages its lane had handed out for the first time at
-- `rate_since` and at `earlier_at`. Whoever serves a lane moves them when the later one is ten
-- seconds old, at most that often, so that it costs nothing that is worth counting. A rate is taken
-- from the mark that is ten to twenty seconds old (view consumer_position); in a lane that nobody
-- has served for ten seconds it is 0.

-- marks_sql(time) -> what moves the marks of a cursor k, for an UPDATE. Where nobody has served the
-- lane in between, nothing was handed out in the ten seconds before.
create or replace function headgate.marks_sql(p_now text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format(
    'earlier_at = case when k.rate_since >= %1$s - interval ''10 seconds'' then k.earlier_at '
                      'when k.rate_since < %1$s - interval ''20 seconds'' then %1$s - interval ''10 seconds'' '
                      'else k.rate_since end, '
    'earlier_delivered = case when k.rate_since >= %1$s - interval ''10 seconds'' then k.earlier_delivered '
                             'when k.rate_since < %1$s - interval ''20 seconds'' then k.delivered - k.redelivered '
                             'else k.mark_delivered end, '
    'rate_since = case when k.rate_since >= %1$s - interval ''10 seconds'' then k.rate_since else %1$s end, '
    'mark_delivered = case when k.rate_since >= %1$s - interval ''10 seconds'' then k.mark_delivered '
                          'else k.delivered - k.redelivered end', p_now)
$$;

-- move_marks(consumer id, lane, now): moves the marks of a lane that the caller holds. Writes
-- cursor.
do $$ begin
  execute format(
    'create or replace function headgate.move_marks(p_consumer int, p_lane bigint, p_now timestamptz) '
    'returns void language sql volatile set search_path = pg_catalog, pg_temp as %L',
    format('update headgate.cursor k set %s where k.consumer = p_consumer and k.lane = p_lane',
           headgate.marks_sql('p_now')));
end $$;
