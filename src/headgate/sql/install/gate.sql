-- install_gate(altering, lock): comes back when no transaction is open that has used our views or, with
-- `altering`, our tables; with `lock`, holding those two that every call opens first, or soon, so that
-- whoever has them meets nobody at the others. While somebody is in the way nothing is locked: a lock that
-- is asked for stops everybody behind it. headgate.migrate_wait (60 seconds) is how long that may take:
-- 55P03.
create or replace function headgate.install_gate(p_altering boolean, p_lock boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $gate$
declare
  until timestamptz := clock_timestamp()
    + coalesce(nullif(current_setting('headgate.migrate_wait', true), ''), '60s')::interval;
  seen text[];
  who text;
  said text;
begin
  loop
    -- seen twice, so that calls that come and go do not count
    select array_agg(w.tid) into seen from ({in_the_way}) w where w.is_view or p_altering;
    if seen is not null then perform pg_sleep(0.05); end if;
    perform pg_stat_clear_snapshot();
    select string_agg(distinct w.who, '; ') into who from ({in_the_way}) w
     where w.tid = any(seen) and (w.is_view or p_altering);
    if who is null then
      if not p_lock then return; end if;
      begin
        lock table headgate.stream, headgate.consumer in access exclusive mode;
        return;
      exception when lock_not_available or deadlock_detected then
        who := 'calls that are under way';
      end;
    end if;
    if clock_timestamp() >= until then
      raise exception using errcode = '55P03', message = 'the schema cannot be upgraded now: in the way is ' || who,
        hint = 'commit or roll back there, or end it (select pg_terminate_backend(pid), rollback prepared), '
               'and repeat the call; headgate.migrate_wait says how long it waits';
    end if;
    if who is distinct from said then
      raise notice 'headgate: waiting for %', who;
      said := who;
    end if;
    perform pg_sleep(0.1 + random() * 0.2);
  end loop;
end $gate$;

-- The functions, which may be made twice.
do $functions$
begin
  perform set_config('headgate.functions', $script${functions}$script$, true);
end $functions$;

-- Where tables are to be altered, all that takes long is done before they are locked, if it can be: functions are
-- made as if the tables were as they will be. Where that fails, it is done after.
do $prepare$
declare
  there int := (select coalesce(max(m.version), 0) from headgate.migration m);
  s record;
  built text[];
begin
  if there = 0 then return; end if;
  perform headgate.install_gate(there < {altering}, false);
  if there >= {altering} then return; end if;
  begin
    execute current_setting('headgate.functions');
    for s in select x.id, headgate.stream_digest(x) as digest from headgate.stream x loop
      perform headgate.build_stream(s.id);
      built := built || (s.id || ':' || s.digest);
    end loop;
    perform set_config('headgate.built', array_to_string(built, ','), true);
  exception when others then
    raise debug 'headgate: functions are made after the tables: %', sqlerrm;
  end;
  perform headgate.install_gate(true, true);
end $prepare$;

drop function headgate.install_gate(boolean, boolean);
