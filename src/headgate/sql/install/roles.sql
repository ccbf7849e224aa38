-- Roles belong to the cluster, not to the database: they are made when missing, and left out (with a
-- notice) when whoever installs may not create roles.
  declare r text;
  begin
    foreach r in array array['headgate_owner', 'headgate_producer', 'headgate_consumer', 'headgate_monitor'] loop
      if to_regrole(r) is null then execute format('create role %I nologin', r); end if;
    end loop;
    if not pg_has_role('headgate_owner', 'headgate_producer', 'member')
       or not pg_has_role('headgate_owner', 'headgate_consumer', 'member')
       or not pg_has_role('headgate_owner', 'headgate_monitor', 'member') then
      grant headgate_producer, headgate_consumer, headgate_monitor to headgate_owner;
    end if;
  exception
    when insufficient_privilege then
      raise notice 'headgate: roles not created: % may not create roles', current_user;
    when duplicate_object or unique_violation then
      raise notice 'headgate: roles are being created by another session';
  end;
