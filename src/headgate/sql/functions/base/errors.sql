-- Errors. Every error that users can meet has an SQLSTATE of class HG and a hint that says what to
-- do.

-- fail(state, message, hint): raises.
-- Locks: nothing.
-- Writes: nothing.
create or replace function headgate.fail(p_state text, p_message text, p_hint text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception using errcode = p_state, message = p_message, hint = p_hint;
end $$;

-- find_stream(name) -> the stream's row, or HG001.
create or replace function headgate.find_stream(p_name text) returns headgate.stream
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream;
begin
  select * into s from headgate.stream where name = p_name;
  if not found then
    perform headgate.fail('HG001', format('stream "%s" does not exist', p_name),
      'create it with headgate.create_stream(name), or look at the view headgate.streams');
  end if;
  return s;
end $$;

-- stream_is_gone(name): raises, for a stream whose row was seen and whose tables are gone, what is
-- true of it now (tables are looked up as of now, whatever the snapshot): HG001, or, as another one
-- has its name, 40001.
create or replace function headgate.stream_is_gone(p_name text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if to_regclass(format('headgate.%I', 'log_' || p_name)) is not null then
    perform headgate.fail('40001',
      format('stream "%s" was dropped and made again after this transaction began', p_name),
      'repeat the transaction');
  end if;
  perform headgate.fail('HG001', format('stream "%s" does not exist any more', p_name),
    'create it with headgate.create_stream(name), or look at the view headgate.streams');
end $$;

-- consumer_is_missing(stream, name): raises that there is no such consumer, also when there is one
-- by now: who looked for it has not found it. HG001 when the stream is not there (null: it was, and
-- is gone), otherwise HG003.
create or replace function headgate.consumer_is_missing(p_stream text, p_name text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_stream is null then
    perform headgate.fail('HG001', 'the stream does not exist any more',
      'create it with headgate.create_stream(name), or look at the view headgate.streams');
  end if;
  perform headgate.find_stream(p_stream);
  perform headgate.fail('HG003', format('stream "%s" has no consumer "%s"', p_stream, p_name),
    'create it with headgate.create_consumer(stream, name), or look at the view headgate.consumers');
end $$;

-- find_consumer(stream, name) -> the consumer's row, or HG001 / HG003.
create or replace function headgate.find_consumer(p_stream text, p_name text)
returns headgate.consumer
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer;
begin
  select c1.* into c from headgate.consumer c1 join headgate.stream s on s.id = c1.stream
   where s.name = p_stream and c1.name = p_name;
  if not found then perform headgate.consumer_is_missing(p_stream, p_name); end if;
  return c;
end $$;

-- check_name(what, name): HG005 unless the name is fit for a stream or consumer.
create or replace function headgate.check_name(p_what text, p_name text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_name is null or p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,54}$' then
    perform headgate.fail('HG005',
                          format('"%s" is not a name for a %s', coalesce(p_name, 'null'), p_what),
      'use 1 to 50 letters, digits, "_", "-" or ".", not beginning with "-" or "."');
  end if;
end $$;

-- check_max(n): HG010 where less than nothing is asked for. Null is no limit.
create or replace function headgate.check_max(p_max int) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p_max < 0 then
    perform headgate.fail('HG010', format('max %s is not possible', p_max), 'choose 0 or more');
  end if;
end $$;

-- fail_if_different(what, alter, settings): HG015 when some setting was given and is not the one
-- that there is; `given` is null where that is not so. `change` says how it can be changed: by the
-- function `alter`, another one, or (null) not at all.
create or replace function headgate.fail_if_different(p_what text, p_alter text,
                                                      p_settings headgate.setting[]) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  differing text;
  ways text;
  fixed text;
begin
  select string_agg(format('%s is %s, not %s', x.name, coalesce(x.there, 'none'), x.given), '; '
                    order by x.nth),
         string_agg(distinct case x.change when 'alter' then p_alter else x.change end || '(…)',
                    ', '),
         string_agg(x.name, ', ' order by x.nth) filter (where x.change is null)
    into differing, ways, fixed
    from unnest(p_settings) with ordinality x (name, given, there, change, nth)
      where x.given is not null;
  if differing is not null then
    perform headgate.fail('HG015',
                          format('%s exists already with other settings: %s', p_what, differing),
      'leave these settings out' || coalesce(', or change them with ' || ways, '')
      || coalesce('; ' || fixed || ' cannot be changed: choose another name', ''));
  end if;
end $$;

-- installed_version() -> the last migration, and the digest and version of the functions.
create or replace function headgate.installed_version(out migration int, out digest text,
                                                      out functions int)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select (select max(m.version) from headgate.migration m),
         (select d.digest from headgate.functions_digest d),
         (select d.version from headgate.functions_digest d)
$$;
