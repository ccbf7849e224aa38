-- Compaction: a segment of which nearly everything is done, and whose rest is parked, is removed;
-- the rest is copied to preserved_<stream id> in the same transaction. Whoever looks a parked
-- message up by its seq looks in both.

-- preserve_unfinished(segment) -> how many messages of it were copied to preserved_<stream id>:
-- those that any consumer has parked or in flight, seen in one snapshot, so that one that is just
-- being handed out or given back is not missed.
-- Writes: preserved_<stream id>.
create or replace function headgate.preserve_unfinished(g headgate.segment) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
  execute format($q$
    insert into headgate.preserved_%1$s
    select m.* from headgate.message_%1$s_%2$s m where m.seq in (
      select p.seq from headgate.parked p join headgate.consumer c on c.id = p.consumer
       where c.stream = %1$s and p.seq >= $1 and p.seq < $2
      union all
      select f.seq from headgate.in_flight f join headgate.consumer c on c.id = f.consumer
       where c.stream = %1$s and f.seq >= $1 and f.seq < $2)
    on conflict do nothing $q$, g.stream, g.id) using g.first_seq, g.end_seq;
  get diagnostics n = row_count;
  return n;
end $$;

-- compact_segments(stream) -> how many closed segments were compacted away: at least 80 % done for
-- everybody, and the rest parked. At most 8 a call. To be called last in a transaction.
-- Locks: the segments' rows (SKIP LOCKED) and tables.
-- Writes: segment, preserved_<stream id>.
create or replace function headgate.compact_segments(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  g headgate.segment;
  n bigint := 0;
  waiting bigint;
  needed boolean;
begin
  for g in select * from headgate.segment x where x.stream = s.id and x.state = 'closed'
    order by x.id for update skip locked loop
    continue when not headgate.in_archives(g);
    select coalesce(bool_or(r.unread or r.in_flight > 0), true) into needed
      from headgate.rest_of(g) r;
    continue when needed;
    -- point: a segment has nothing unread
    select count(distinct p.seq) into waiting from headgate.parked p
      join headgate.consumer c on c.id = p.consumer
     where c.stream = s.id and p.seq >= g.first_seq and p.seq < g.end_seq;
    continue when waiting > g.messages / 5;
    -- point: a segment has little left
    if headgate.empty_segment(g, 'compacted', n = 0) then n := n + 1; end if;
    exit when n >= 8;
  end loop;
  return n;
end $$;

-- compact(stream) -> how many segments of a stream that keeps messages until they are acked or
-- archived were compacted away; maintenance does it every compact_every. Call it outside a longer
-- transaction: it locks the segments that it removes until the commit.
create or replace function headgate.compact(stream text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  perform headgate.need_read_committed('compact');
  if s.retain = 'forever' then return 0; end if;
  perform headgate.close_segments(s);
  return headgate.compact_segments(s);
end $$;

-- tidy_preserved(stream) -> how many kept messages were deleted, at most 10,000 a call: those that
-- no consumer has parked or in flight any more. Those older than retain_up_to are first given up by
-- whoever has them parked, and so lost.
-- Locks: preserved_<stream id> SHARE ROW EXCLUSIVE (NOWAIT), so that no redrive brings one back
-- meanwhile.
-- Writes: preserved_<stream id>, parked, wake, loss.
create or replace function headgate.tidy_preserved(s headgate.stream) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  n bigint;
  old headgate.segment;
  any_kept boolean;
begin
  execute format('select exists (select from headgate.preserved_%s)', s.id) into any_kept;
  if not any_kept then return 0; end if;
  begin
    execute format('lock table headgate.preserved_%s in share row exclusive mode nowait', s.id);
  exception when lock_not_available then
    return 0;
  end;
  -- point: what is kept is locked
  if s.retain_up_to is not null then
    for old.first_seq,
      old.end_seq in execute format(
        'select k.seq, k.seq + 1 from headgate.preserved_%s k where k.created_at < $1 order by k.seq limit 100', s.id)
        using clock_timestamp() - s.retain_up_to loop
      old.stream := s.id;
      perform headgate.give_up_parked(old, 'retain_up_to');
    end loop;
  end if;
  execute format($q$
    delete from headgate.preserved_%1$s k where k.seq in (
      select x.seq from headgate.preserved_%1$s x
       where not exists (
         select from (
           select p.seq from headgate.parked p join headgate.consumer c on c.id = p.consumer
            where c.stream = %1$s
           union all
           select f.seq from headgate.in_flight f join headgate.consumer c on c.id = f.consumer
            where c.stream = %1$s) u
          where u.seq = x.seq)
       limit 10000) $q$, s.id);
  get diagnostics n = row_count;
  return n;
end $$;
