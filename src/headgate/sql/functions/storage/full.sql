-- Streams that are full, and why a segment is still kept.

-- is_full(stream) -> whether it is above max_storage and nothing may be removed: its oldest segment
-- holds messages younger than retain_at_least, or, where messages are kept until they are acked or
-- archived, no closed segment is.
create or replace function headgate.is_full(s headgate.stream) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if s.max_storage is null or headgate.stored_bytes(s.id) <= s.max_storage then
    return false;
  end if;
  if s.retain <> 'forever' then
    return not exists (select from headgate.segment g
                        where g.stream = s.id and g.state = 'closed' and headgate.in_archives(g)
                          and not exists (select from headgate.rest_of(g)))
        or (s.retain = 'until_acked'
            and not exists (select from headgate.consumer c where c.stream = s.id));
  end if;
  return s.retain_at_least is not null and coalesce((
    select g.state = 'open' or g.last_at > clock_timestamp() - s.retain_at_least
      from headgate.segment g
     where g.stream = s.id and g.state <> 'dropped' order by g.id limit 1), false);
end $$;

-- full_now(stream) -> is_full, for those who look.
create or replace function headgate.full_now(s headgate.stream) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select headgate.is_full(s)
$$;

-- check_room(stream): HG013 when it is full. Each send asks: one that fails cannot leave a mark for
-- the next.
create or replace function headgate.check_room(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.is_full(s) then
    perform headgate.fail('HG013',
                          format(
                            'stream "%s" is full: %s bytes are more than its max_storage, and nothing may be removed', s.name, headgate.stored_bytes(s.id)),
      case s.retain
           when 'until_acked' then
             'let its consumers catch up (what is acked is removed by maintenance), drop a consumer that is no longer needed, or raise max_storage'
                    when 'until_archived' then
                      'let its archives and consumers catch up (the view headgate.segments says who holds what), drop one that is no longer needed, or raise max_storage'
                    else 'raise max_storage, or lower retain_at_least' end);
  end if;
end $$;

-- kept_by(segment) -> why a closed segment is still there, or one that is full is not closed.
create or replace function headgate.kept_by(g headgate.segment) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  t headgate.tick;
  r record;
  part regclass := to_regclass(format('headgate.message_%s_%s', g.stream, g.id));
begin
  if g.state = 'open' then
    t := headgate.newest_tick(g.stream);
    select * into s from headgate.stream where id = g.stream;
    return case
      when g.end_seq - 1 <= t.hi0
        and (t.lo < g.end_seq - 1
             or exists (select from unnest(t.late_from) f where f < g.end_seq - 1))
                then 'an open transaction may still write into it'
                when s.max_storage is not null and headgate.stored_bytes(s.id) > s.max_storage
                then 'max_storage is reached, and only closed segments are removed' end;
  end if;
  if g.state = 'dropped' then
    return case
      when headgate.held_open(('headgate.message_' || g.stream)::regclass) then
        'emptied; an open transaction keeps its empty table'
                else 'emptied; maintenance drops its empty table' end;
  end if;
  select * into s from headgate.stream where id = g.stream;
  if g.messages > 0 and not headgate.in_archives(g) then
    return coalesce(
      (select format('archive %s does not have it yet', a.name) from headgate.archive a
        where a.stream = s.id order by a.floor, a.name limit 1),
                    'the stream has no archive yet');
  end if;
  if g.messages > 0 and coalesce(g.last_at >= clock_timestamp() - s.retain_up_to, true) then
    if s.retain <> 'forever' then
      select * into r from headgate.rest_of(g) limit 1;
      if found then
        return case when r.unread then format('consumer %s has not read it', r.name)
                    when r.in_flight > 0 then
                      format('consumer %s has %s of its messages in flight', r.name, r.in_flight)
                    else format('consumer %s has %s of its messages parked', r.name, r.parked) end;
      elsif s.retain = 'until_acked'
         and not exists (select from headgate.consumer c where c.stream = s.id) then
        return 'the stream has no consumer yet';
      end if;
    elsif s.max_storage is not null and headgate.stored_bytes(s.id) > s.max_storage then
      if g.last_at >= clock_timestamp() - s.retain_at_least then
        return format('retained at least until %s', g.last_at + s.retain_at_least);
      end if;
    elsif s.retain_up_to is not null then
      return format('retained until %s', g.last_at + s.retain_up_to);
    else
      return case when s.max_storage is null then 'the stream keeps its messages for ever'
                  else 'max_storage is not reached' end;
    end if;
  end if;
  return case when headgate.held_open(part) then 'an open transaction'
              else 'the next maintenance removes it' end;
end $$;
