-- Looking without touching: the messages of a stream, and their states for a consumer. Nothing here
-- locks or writes.

-- peek(stream, consumer, max, newest_first, states, before, after) -> messages with their state for
-- the consumer, without any effect: available, delivered, parked, done, dead or discarded. `states`
-- keeps only messages in these states. However long the log is, a call looks at about 20,000
-- messages at most: where that ends it (a filter that few keys pass, say), the last row has the
-- state 'more', a seq and nothing else: go on with after => that seq (before =>, newest first).
create or replace function headgate.peek(stream text, consumer text, max int default 10,
                                         newest_first boolean default false,
  states text[] default null, before bigint default null, after bigint default null)
returns table (seq bigint, key text, data text, headers jsonb, created_at timestamptz, state text,
               attempt int, visible_at timestamptz, worker text,
  reason text, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  s headgate.stream := headgate.find_stream(stream);
  backward boolean := coalesce(newest_first, false);
  low bigint := greatest(coalesce(after, 0), 0);                 -- what is looked at lies above
  high bigint := coalesce(before, headgate.last_seq(s.id) + 1);  -- and below
  left_over bigint := coalesce(peek.max, 2147483647);            -- messages that may still be shown
  budget bigint := 20000;                                       -- and be looked at
  step bigint;
  shown bigint;
  -- the part of the log that a round looks at
  r record;
begin
  perform headgate.check_peek(peek.max, states);
  step := least(left_over * 2 + 100, 10000);
  if states && array['done'] and not states && array['available', 'discarded'] then
    high := least(high, headgate.read_below(c));
  end if;
  while left_over > 0 and low < high - 1 loop
    if budget <= 0 then
      state := 'more';
      seq := case when backward then high else low end;
      return next;
      return;
    end if;
    if states is null or 'done' = any(states) then
      r := headgate.next_messages(s.id, low, high, backward, step);
      step := least(step * 4, 10000);
    else
      r := headgate.next_candidates(c, s.id, states, low, high, backward,
                                    least(left_over, 1000)::int);
    end if;
    budget := budget - r.looked;
    return query select *
      from headgate.show_messages(c, s, r.above, r.below, r.seqs, states, backward, left_over);
    get diagnostics shown = row_count;
    left_over := left_over - shown;
    if backward then high := r.above + 1; else low := r.below - 1; end if;
  end loop;
end $$;

-- check_peek(max, states): HG010 for arguments of peek that make no sense.
create or replace function headgate.check_peek(p_max int, p_states text[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare wrong text;
begin
  perform headgate.check_max(p_max);
  select coalesce(x, 'null') into wrong from unnest(p_states) x
   where x is null
     or x not in ('available', 'delivered', 'parked', 'done', 'dead', 'discarded', 'skipped')
       limit 1;
  if found then
    perform headgate.fail('HG010', format('"%s" is not a state of a message', wrong),
      'states are available, delivered, parked, done, dead and discarded');
  end if;
end $$;

-- show_messages(consumer, stream, above, below, seqs, states, backward, n) -> up to n messages
-- between above and below in these states: of these seqs, or (null) of all.
create or replace function headgate.show_messages(c headgate.consumer, s headgate.stream,
                                                  p_above bigint, p_below bigint,
  p_seqs bigint[], p_states text[], p_backward boolean, n bigint)
returns table (seq bigint, key text, data text, headers jsonb, created_at timestamptz, state text,
               attempt int,
  visible_at timestamptz, worker text, reason text, last_error text)
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set jit = off as $$
declare g headgate.cursor;
begin
  if p_seqs = '{}' then return; end if;
  select * into g from headgate.cursor k where k.consumer = c.id and k.lane = -1;
  -- first which, and only of these the data; a state that is asked of one table is one hash join
  return query execute format($q$
    with %3$s,
    chosen as materialized (
      select * from near x where x.state <> 'skipped' and ($6 is null or x.state = any($6))
       order by x.seq %2$s limit $7)
    select m.seq, m.key, m.data, m.headers, m.created_at, x.state,
           case x.state when 'parked' then x.parked_attempt
                when 'delivered' then x.delivered_attempt
                        when 'dead' then coalesce(x.dead_attempt, 0) else 0 end,
           case x.state when 'parked' then nullif(x.visible_at, 'infinity')
                when 'delivered' then x.deadline end,
           case x.state when 'delivered' then x.worker end,
           case x.state when 'parked' then x.reason end,
           case x.state when 'parked' then x.parked_error when 'dead' then x.dead_error end
      from chosen x join %1$s m
        on m.seq = any(array(select y.seq from chosen y)) and m.seq = x.seq
     order by m.seq %2$s $q$,
    headgate.stored_sql(s.id, 'm.seq, m.key, m.data, m.headers, m.created_at'), case when p_backward then 'desc' else 'asc' end,
    headgate.states_sql(s, p_seqs is not null))
    using c, g, p_above, p_below, p_seqs, p_states, n;
end $$;

-- states_sql(stream, only seqs) -> the SQL (for a `with`) of the states of messages, `near`: of
-- those between $3 and $4, or of the seqs $5 alone. ($1: consumer; $2: gatherer.)
create or replace function headgate.states_sql(s headgate.stream, p_only_seqs boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($q$
    stored as materialized (
      select m.seq, m.lane, m.key, m.xid, true as is_logged from headgate.message_%1$s m
       where m.seq > $3 and m.seq < $4%4$s%5$s
      union all
      select m.seq, m.lane, m.key, m.xid, false from headgate.preserved_%1$s m
       where m.seq > $3 and m.seq < $4%4$s%5$s),
    lanes as materialized (select distinct m.lane from stored m),
    discovered as materialized (%6$s),
    near as (
      select m.seq,
             case when p.seq is not null then 'parked'
                  when d.seq is not null then 'delivered'
                  when ($1).pattern is not null
                    and (m.key is null or m.key !~ ($1).pattern) then 'skipped'
                  -- (what is only kept no reader comes to, wherever it is)
                  when m.is_logged
                       and coalesce(
                         (select %2$s from headgate.cursor k
                           where k.consumer = ($1).id and k.lane = m.lane),
                                    case when y.lane is not null then %7$s end, %3$s, false) then
                                      'available'
                  when z.seq is not null then 'discarded'
                  when e.seq is not null then 'dead'
                  else 'done' end as state,
             p.attempt as parked_attempt, p.visible_at, p.reason, p.last_error as parked_error,
             d.attempt as delivered_attempt, d.deadline, d.worker, e.attempt as dead_attempt,
             e.last_error as dead_error
        from stored m
        left join discovered y on y.lane = m.lane
        left
          join headgate.parked p on p.consumer = ($1).id and p.seq = m.seq and p.seq > $3
            and p.seq < $4
        left join headgate.delivered_seqs($1, $3, $4) d on d.seq = m.seq
        left
          join headgate.discarded z on z.consumer = ($1).id and z.seq = m.seq and z.seq > $3
            and z.seq < $4
                                      and z.at is not null
        left join headgate.dead_seqs($1, $3, $4) e on e.seq = m.seq) $q$,
    s.id, headgate.unread_sql('k'), headgate.unread_sql('($2)'),
    case when p_only_seqs then ' and m.seq = any($5)' else '' end, headgate.newest_only(s, 'm'),
    headgate.discovered_among_sql('lanes'), headgate.unread_sql('y'))
$$;

-- messages(stream, max, newest_first, filter, before, after) -> messages of a stream, whoever has
-- read them.
create or replace function headgate.messages(stream text, max int default 10,
                                             newest_first boolean default false,
  filter text[] default null, before bigint default null, after bigint default null)
returns table (seq bigint, key text, data text, headers jsonb, deliver_at timestamptz,
               created_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  pattern text := headgate.filter_pattern(filter);
begin
  perform headgate.check_max(max);
  return query execute format($q$
    select m.seq, m.key, m.data, m.headers, m.deliver_at, m.created_at
      from %1$s m
     where ($1 is null or m.seq < $1) and ($2 is null or m.seq > $2)
       and ($3 is null or m.key ~ $3)%2$s
     order by m.seq %3$s
       limit $4 $q$, headgate.stored_sql(s.id, 'm.*'), headgate.newest_only(s, 'm'),
         case when newest_first then 'desc' else 'asc' end)
    using before, after, pattern, max;
end $$;
