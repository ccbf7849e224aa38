-- Sending in two steps, exactly once, for engines that work in batches and repeat a batch after a
-- failure: each task stages its messages in a table of its own, and when all are done one
-- transaction moves them into the stream and notes the batch. A batch that is noted already is not
-- moved again. Staging is not logged, so a crash of the database may empty it: the counts tell.

-- stage(stream, writer, batch, channels) -> the name, in schema headgate, of a new table for a
-- task's messages: key, data, headers (JSON), channel, deliver_at; n counts its rows, because a
-- table does not keep the order in which they are written. `writer` names who repeats batches, for
-- instance a query.
-- Writes: staging; DDL.
create or replace function headgate.stage(stream text, writer text, batch bigint,
                                          channels boolean default false) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  name text := 'staged_' || nextval('headgate.staging_id');
begin
  if writer is null or writer = '' or batch is null then
    perform headgate.fail('HG010', 'a batch needs a writer and a number',
                          'give the writer a name that stays the same when it is started again');
  end if;
  if channels and s.lane_by <> 'channel' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name),
                          'leave the column channel out, or make the stream with lane_by => ''channel''');
  end if;
  if s.dead_of is not null then perform headgate.refuse_dead(s); end if;
  perform headgate.hold_stream(s);
  insert into headgate.staging (name, stream, writer, batch) values (name, s.id, writer, batch);
  execute format(
    'create unlogged table headgate.%I (key text, data text not null, headers text, channel text, deliver_at timestamptz, '
                 'n bigint generated always as identity (cache 1000)) '
                 'with (autovacuum_enabled = off)', name);
  execute format('grant insert on headgate.%I to %I', name, session_user);
  if to_regrole('headgate_producer') is not null then
    execute format('grant insert on headgate.%I to headgate_producer', name);
  end if;
  return name;
end $$;

-- drop_staging(name): removes a staging table.
-- Writes: staging; DDL.
create or replace function headgate.drop_staging(p_name text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('drop table if exists headgate.%I', p_name);
  delete from headgate.staging g where g.name = p_name;
end $$;

-- try_drop_staging(name) -> whether a staging table was removed: not while somebody uses it. Never
-- waits.
-- Writes: staging; DDL.
create or replace function headgate.try_drop_staging(p_name text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  begin
    execute format('lock table headgate.%I in access exclusive mode nowait', p_name);
  exception
    when lock_not_available then return false;
    when undefined_table then null;
  end;
  perform headgate.drop_staging(p_name);
  return true;
end $$;

-- make_room(stream, n): room for n messages that are to be sent in one transaction; to be called in
-- one of its own before, because others wait for room that is made in a long one. 55P03 when
-- another transaction is making some for more than a second.
-- Writes: segment; DDL.
create or replace function headgate.make_room(stream text, n bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare s headgate.stream := headgate.find_stream(stream);
begin
  if n is null or n not between 0 and 1000000000 then
    perform headgate.fail('HG010',
                          format('room for %s messages is not possible', coalesce(n::text, 'null')),
                          'ask for at most 1,000,000,000');
  end if;
  perform headgate.reach_segments(s.id, headgate.last_seq(s.id) + n);
end $$;

-- send_staged(stream, writer, batch, names, counts) -> how many messages were sent: those of the
-- named staging tables, one table after the other, or none when this batch of the writer, or a
-- later one, was sent before. `counts` says how many each has to hold. Waits for another call for
-- the same writer.
-- Writes: written, staging; DDL.
create or replace function headgate.send_staged(stream text, writer text, batch bigint,
                                                names text[], counts bigint[]) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream := headgate.find_stream(stream);
  x xid8;
  n bigint;
  total bigint := 0;
begin
  if cardinality(names) <> cardinality(counts) then
    perform headgate.fail('HG010', 'names and counts have different lengths',
                          'give one count for each staging table');
  end if;
  perform headgate.hold_stream(s);
  insert into headgate.writer_progress as w (writer, stream, batch, messages)
    values (send_staged.writer, s.id, send_staged.batch,
            (select coalesce(sum(c), 0) from unnest(counts) c))
    on conflict on constraint writer_progress_pkey do update
      set batch = excluded.batch, messages = excluded.messages, at = clock_timestamp()
      where w.batch < excluded.batch;
  if found then
    if s.max_storage is not null then perform headgate.check_room(s); end if;
    perform headgate.reach_segments(s.id, headgate.last_seq(s.id) + coalesce(sum(c), 0)::bigint)
       from unnest(counts) c;
    -- a late transaction is told from one that never published by its lock on this table: take it
    -- before drawing a seq
    execute format('lock table headgate.message_%s in row exclusive mode', s.id);
    x := pg_current_xact_id();
    for i in 1 .. coalesce(cardinality(names), 0) loop
      n := headgate.check_staged(s, send_staged.writer, send_staged.batch, names[i], counts[i]);
      if s.one_message_per_key then
        perform headgate.send_upserts(s, names[i]);
      else
        perform headgate.move_staged(s, x, names[i], n);
      end if;
      total := total + n;
    end loop;
  end if;
  -- one that a task which came too late still writes into is left to the next call, or to
  -- maintenance
  perform headgate.try_drop_staging(g.name) from headgate.staging g
    where g.writer = send_staged.writer and g.stream = s.id and g.batch <= send_staged.batch;
  return total;
end $$;

-- check_staged(stream, writer, batch, name, count) -> how many messages were staged in a table:
-- HG030 unless it is there, is of this batch, and has as many as it has to hold; HG009 when one is
-- larger than the stream takes.
create or replace function headgate.check_staged(
  s headgate.stream, p_writer text, p_batch bigint, p_name text, p_count bigint) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  n bigint;
  largest bigint;
begin
  perform from headgate.staging g
   where g.name = p_name and g.stream = s.id and g.writer = p_writer
     and g.batch = p_batch;
  if not found then
    perform headgate.fail('HG030', format('what was staged as %s is gone', p_name),
                          'repeat the batch: a restarted Spark query does so');
  end if;
  execute format(
    'select count(*), max(octet_length(data) + coalesce(octet_length(headers), 0)) '
                 'from headgate.%I', p_name) into n, largest;
  if n <> p_count then
    perform headgate.fail('HG030',
                          format(
                            '%s messages were staged, %s are left: the database was restarted meanwhile', p_count, n),
      'repeat the batch: a restarted Spark query does so');
  end if;
  perform headgate.check_size(s, largest);
  return n;
end $$;

-- move_staged(stream, xid, name, n): moves what was staged, n messages, into the log. Others may
-- draw seqs meanwhile, so that it turns out at the end only whether there was room for all: if not,
-- that is made, and they are moved again, with other seqs. Waits up to a second for room that
-- another transaction makes (55P03).
-- Writes: segment; DDL.
create or replace function headgate.move_staged(s headgate.stream, x xid8, p_name text, n bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare broken text;
begin
  for i in 1 .. 20 loop
    begin
      execute format('select headgate.move_%s($1, $2, $3, $4)', s.id)
        using x, s.base, s.lanes, p_name;
      return;
    exception when check_violation then  -- no segment for one of them has no name; a constraint has
      get stacked diagnostics broken = constraint_name;
      if broken <> '' then raise; end if;
    end;
    perform headgate.reach_segments(s.id, headgate.last_seq(s.id) + n);
  end loop;
  perform headgate.fail('55P03',
    format('others send so much to stream "%s" that there is no room for %s messages', s.name, n),
    'repeat the call');
end $$;

-- send_upserts(stream, name): sends what was staged into a stream that keeps one message a key,
-- through send_batch.
create or replace function headgate.send_upserts(s headgate.stream, p_name text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set synchronize_seqscans = off as $$
declare
  d text[];
  k text[];
  h jsonb[];
  c text[];
  w interval[];
begin
  for d, k, h, c, w in execute format(
      'select array_agg(t.data order by t.n), array_agg(t.key order by t.n), array_agg(t.headers::jsonb order by t.n), '
      'case when count(t.channel) > 0 then array_agg(t.channel order by t.n) end, '
      'case when count(t.deliver_at) > 0 then array_agg(greatest(t.deliver_at - clock_timestamp(), interval ''0'') order by t.n) end '
      'from headgate.%I t group by (t.n - 1) / 10000 order by (t.n - 1) / 10000', p_name) loop
    perform headgate.send_batch(s.name, d, k, h, c, w);
  end loop;
end $$;

-- last_written(stream, writer) -> the last batch of a writer that was sent, null before the first.
create or replace function headgate.last_written(stream text, writer text) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select w.batch from headgate.writer_progress w, headgate.find_stream(last_written.stream) s
   where w.stream = s.id and w.writer = last_written.writer
$$;

-- written_messages(stream, writer) -> how many messages the last batch of a writer had, null before
-- the first.
create or replace function headgate.written_messages(stream text, writer text) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select w.messages from headgate.writer_progress w, headgate.find_stream(written_messages.stream) s
   where w.stream = s.id and w.writer = written_messages.writer
$$;

-- load_once(writer, target, batch) -> whether a batch is still to be put into a table of the
-- user's: true once, for batches that count up. Call it in the transaction that does so; another
-- one for the same writer waits for it.
-- Writes: loaded.
create or replace function headgate.load_once(writer text, target text, batch bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into headgate.table_progress as l (writer, target, batch)
  values (load_once.writer, load_once.target, load_once.batch)
    on conflict on constraint table_progress_pkey do update
      set batch = excluded.batch, at = clock_timestamp() where l.batch < excluded.batch;
  return found;
end $$;

-- collect_staging() -> how many staging tables were removed that nobody came back for within a day.
-- Never waits. DDL.
-- Locks: the rows of staging (SKIP LOCKED) and the tables.
-- Writes: staging; DDL.
create or replace function headgate.collect_staging() returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  g headgate.staging;
  n bigint := 0;
begin
  for g in select * from headgate.staging x
    where x.created_at < clock_timestamp() - interval '1 day' limit 16 for update skip locked loop
    continue when not headgate.try_drop_staging(g.name);
    n := n + 1;
  end loop;
  return n;
end $$;
