-- Rights: nothing for PUBLIC; producers send, consumers receive and settle, monitors look, owners
-- do everything. (Roles belong to the cluster: install/roles.sql.) Rights that were granted are
-- kept; those of roles that come later are granted the next time.

do $$
declare
  f record;
  r text;
  s record;
  built text[] := coalesce(string_to_array(current_setting('headgate.built', true), ','), '{}');
begin
  for f in select p.oid::regprocedure as name, p.proname,
                  p.prosecdef and l.lanname = 'plpgsql'
                  and not 'jit=off' = any(coalesce(p.proconfig, '{}')) as may_compile
             from pg_proc p join pg_language l on l.oid = p.prolang
               where p.pronamespace = 'headgate'::regnamespace
              and p.proname !~ '_[0-9]+$' loop  -- (build_stream sees to those)
    execute format('revoke all on function %s from public', f.name);
    -- Before 18 a plan without the scans that are turned off looks dear, and the server compiles
    -- it: over a hundred segments that takes seconds for what is read in milliseconds. What users
    -- call turns it off, also for what it calls.
    if f.may_compile then execute format('alter function %s set jit = off', f.name); end if;
    if to_regrole('headgate_owner') is null then continue; end if;
    for r in select x.role from (values
        ('headgate_producer',
         array['send', 'send_batch', 'stage', 'make_room', 'send_staged', 'last_written',
               'written_messages', 'load_once', 'note_pipeline', 'stream_settings',
               'installed_version']),
        ('headgate_consumer',
         array['receive', 'ack', 'nack', 'release', 'extend', 'tick', 'stream_settings',
               'consumer_settings', 'installed_version',
           'join_workers', 'heartbeat', 'leave_workers', 'last_seqs', 'note_timings']),
        ('headgate_monitor',
         array['peek', 'messages', 'message_states', 'message_life', 'attempts', 'channel_backlog',
               'consumer_facts', 'listed_consumer', 'listed_stream', 'dead_letters', 'stream_facts',
               'full_now', 'unread_count', 'floor_of', 'dead_count',
           'oldest_unacked', 'push_error', 'segment_bytes', 'kept_by', 'mark', 'next_mark',
           'end_mark', 'unread_since', 'reading_lag', 'chosen_streams', 'removed_between',
           'read_plan', 'has_channels', 'archive_mark', 'note_pipeline', 'pipeline_status',
           'stream_settings', 'consumer_settings', 'installed_version', 'doctor', 'vitals',
           'history', 'seq_at', 'seek_preview', 'dead_groups', 'dead_of_group', 'waiting_of_key',
           'try_filter', 'postgres_sources', 'source_backfills']),
        ('headgate_owner',
         array['create_stream', 'alter_stream', 'drop_stream', 'create_consumer', 'alter_consumer',
               'drop_consumer', 'pause', 'resume',
           'set_channel', 'set_lanes', 'seek', 'redrive', 'purge_dead', 'retry_now', 'replay',
           'discard', 'compact', 'maintain',
           'create_token', 'check_token', 'tokens', 'revoke_token', 'note_audit', 'audit_log',
           'forget_audit',
           'push_version', 'push_targets', 'push_gone', 'create_source', 'alter_source',
           'drop_source', 'source_settings', 'check_source_name', 'add_postgres_source',
           'set_source_paused', 'drop_postgres_source',
           'postgres_source_access', 'sources_to_read', 'take_source', 'keep_source',
           'note_source_progress', 'note_source_state', 'leave_source', 'backfill_source',
           'next_backfill', 'note_backfill', 'alter_postgres_source',
           'restart_postgres_source', 'route_source', 'sources_to_watch', 'note_source_slot',
           'lose_source', 'cancel_backfill',
           'begin_backfill', 'tell_deleted_rows', 'send_changes', 'note_archive', 'drop_archive',
           'forget_pipeline'])) x (role, names)
       where f.proname = any(x.names) and to_regrole(x.role) is not null loop
      execute format('grant execute on function %s to %I', f.name, r);
    end loop;
  end loop;
  if to_regrole('headgate_owner') is not null then
    grant usage on schema headgate to headgate_producer, headgate_consumer, headgate_monitor,
      headgate_owner;
    grant select
      on headgate.streams, headgate.consumers, headgate.channels, headgate.workers,
         headgate.deliveries, headgate.parked_messages, headgate.segments, headgate.archives,
         headgate.timings, headgate.sources
      to headgate_monitor;
  end if;
  -- The functions generated for each stream follow their templates; those that were made before
  -- tables were locked are done (install/gate.sql). In the end those of streams that were created
  -- meanwhile: nobody can create one from here on.
  for turn in 1 .. 2 loop
    for s in select x.id, x.id || ':' || headgate.stream_digest(x) as digest
      from headgate.stream x loop
      continue when s.digest = any(built);
      perform headgate.build_stream(s.id);
      built := built || s.digest;
    end loop;
    exit when turn = 2;
    lock table headgate.stream in share row exclusive mode;
  end loop;
  perform headgate.grant_views(x) from headgate.stream x;
  insert into headgate.cluster_identity (system_identifier, own_table, written_by)
    select system_identifier, 'headgate.cluster_identity'::regclass, pg_current_xact_id()
      from pg_control_system() on conflict do nothing;
end $$;
