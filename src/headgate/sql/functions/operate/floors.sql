-- Up to where everything is done for a consumer, and how old what is not done is.

-- floor_of(consumer) -> everything at or below is done for it.
create or replace function headgate.floor_of(c headgate.consumer) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  r bigint;
  newest headgate.tick := headgate.newest_tick(c.stream);
begin
  -- What retention has removed holds nobody; a lane holds the floor only before the first message
  -- behind its cursor, and before the lo of the newest tick, above which one may still be
  -- committed; what late transactions may have written holds it. Of named lanes in the middle of a
  -- span there may be any number: their messages are not looked for.
  execute format($q$
    select least(
      (select greatest(least(x.lowest, (select min(lower(t.late)) - 1 from headgate.tick t
                                         where t.stream = %1$s and t.late is not null
                                           and t.id > x.base)), $3)
         from (select least(min(k.pos), min(k.to_lo), min(lower(k.late)) - 1) as lowest,
                 min(k.to_base) as base
                 from headgate.cursor k
                where k.consumer = $1 and k.lane >= {UNNAMED_LANES} and k.next_at is not null
                  and k.pos < k.to_hi) x
        where x.base is not null),
      (select min(least(m.seq - 1, greatest(u.start, $2)))
         from headgate.cursor k cross join lateral greatest(%2$s, $3) u (start)
         left join lateral (
           select m.seq from headgate.message_%1$s m
            where k.lane >= 0 and (m.lane, m.seq) > (k.lane, u.start)
              and (m.lane, m.seq) < (k.lane + 1, 0)
              and m.seq > u.start and %3$s order by m.lane, m.seq limit 1) m on true
        where k.consumer = $1 and k.lane >= 0
          and case when k.lane < {UNNAMED_LANES} then true
                   else k.next_at is not null and k.pos >= k.to_hi end),
      (select case when min(x.from_lo) is not null
                   then
                     greatest(min(greatest(least(x.from_lo, lower(x.late) - 1), x.first_seq - 1)),
                              $3) end
         from headgate.discovered x
        where x.consumer = $1
          and not exists (select from headgate.cursor o where o.consumer = $1 and o.lane = x.lane)),
      (select min(m.seq) - 1 from headgate.noted_lanes($1) k cross
         join lateral greatest(%2$s, $3) u (start)
        cross join lateral (
          select m.seq from headgate.message_%1$s m
           where (m.lane, m.seq) > (k.lane, u.start) and (m.lane, m.seq) < (k.lane + 1, 0) and %3$s
           order by m.lane, m.seq limit 1) m),
      (select least((select m.seq - 1 from headgate.message_%1$s m
                      where m.seq > u.start and %3$s
                        and (select z.seq from headgate.discarded z
                              where z.consumer = $1 and z.seq = m.seq limit 1) is null
                      order by m.seq limit 1), greatest(u.start, $2))
         from headgate.cursor k cross join lateral greatest(%2$s, $3) u (start)
        where k.consumer = $1 and k.lane = -1)) $q$,
    c.stream, headgate.read_up_to_sql('k', c.stream::text), headgate.unread_sql('k'))
    into r using c.id, newest.lo, lower(headgate.log_ranges(c.stream)) - 1;
  return least(r, headgate.late_floor(c, newest),
               (select min(f.seq) - 1 from headgate.in_flight f where f.consumer = c.id),
                  (select min(p.seq) - 1 from headgate.parked p where p.consumer = c.id));
end $$;

-- late_floor(consumer, newest tick) -> below which nothing can come any more from transactions that
-- are late, or null: there is none. What lies before the seq that the consumer starts at never
-- does.
create or replace function headgate.late_floor(c headgate.consumer, newest headgate.tick)
returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
  select greatest(min(f),
                  (select min(k.first_seq) - 1 from headgate.cursor k where k.consumer = c.id))
    from unnest(newest.late_from) f having count(*) > 0
$$;

-- oldest_unacked(consumer) -> when the oldest message that it has not finished was sent; null when
-- there is none.
create or replace function headgate.oldest_unacked(c headgate.consumer) returns timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare r timestamptz;
begin
  -- any number of lanes: the first one that may be unfinished
  if exists (select from headgate.cursor k where k.consumer = c.id and k.lane = -1) then
    return headgate.first_sent_after(c.stream, headgate.floor_of(c));
  end if;
  execute format($q$
    select min(x.created_at) from (
      select m.created_at from headgate.cursor k cross join lateral (
        select m.created_at from headgate.message_%1$s m
         where (m.lane, m.seq) > (k.lane, headgate.read_up_to(($1).stream, k))
           and (m.lane, m.seq) < (k.lane + 1, 0)
           and headgate.unread(k, m.seq, m.xid)
           and (($1).pattern is null or m.key ~ ($1).pattern) order by m.lane, m.seq limit 1) m
             where k.consumer = ($1).id
      union all
      select m.created_at
        from %2$s m
          where m.seq = least(
        (select min(f.seq) from headgate.in_flight f where f.consumer = ($1).id),
        (select min(p.seq) from headgate.parked p where p.consumer = ($1).id))) x $q$,
    c.stream, headgate.stored_sql(c.stream, 'm.seq, m.created_at'))
          into r using c;
  return r;
end $$;

-- first_sent_after(stream id, seq) -> when the first message above this seq was sent, if there is
-- one.
create or replace function headgate.first_sent_after(p_stream int, p_seq bigint) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare r timestamptz;
begin
  if p_seq >= headgate.last_seq(p_stream) then return null; end if;
  execute format(
    'select m.created_at from headgate.message_%s m where m.seq > $1 order by m.seq limit 1',
    p_stream)
    into r using p_seq;
  return r;
end $$;
