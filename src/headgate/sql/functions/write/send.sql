-- Publishing. A send inserts rows and touches nothing else, so publishers never wait for each other
-- and a send inside the user's own transaction is safe. The transaction's id is taken before a seq
-- is drawn: ticks rely on it.
--
-- Room that a transaction makes helps others only when it commits, and until then nobody else can
-- make any. Ticks and maintenance keep it ahead of need. When they evidently do not, a send does,
-- unless it looks like part of a longer transaction: such a one makes room only for what it has
-- drawn itself (append_beyond).

-- named_lane_sql(expression) -> SQL for the lane of a key or channel, in streams whose lanes are
-- named. It is a hash, so that a send neither looks a lane up nor makes one; with 58 bits, two of a
-- million names share one once in half a million streams. Lanes from 2^57 on are those of messages
-- without a name. So named lanes are told from numbered ones by their size.
create or replace function headgate.named_lane_sql(p_expression text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('((hashtextextended(%s, 0) & 288230376151711743) | {NAMED_LANES})',
                p_expression)
$$;

-- named_lane(name) -> the lane of a key or channel.
do $$ begin
  execute format(
    'create or replace function headgate.named_lane(p_name text) returns bigint language sql immutable '
                 'set search_path = pg_catalog, pg_temp return %s',
                 headgate.named_lane_sql('p_name'));
end $$;

-- append_beyond(stream, xid, keys, datas, headers, channels, delays, seqs) -> seqs: appends
-- messages whose seqs append_<stream id> has drawn beyond the segments that there were. Room is
-- made for them.
create or replace function headgate.append_beyond(
  s headgate.stream, x xid8, keys text[], datas text[], headers jsonb[], channels text[],
  delays interval[], seqs bigint[]) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.reach_segments(s.id, seqs[cardinality(seqs)]);
  execute format('select headgate.append_drawn_%s($1, $2, $3, $4, $5, $6, $7, $8, $9)', s.id)
    using x, s.base, s.lanes, keys, datas, headers, channels, delays, seqs;
  return seqs;
end $$;

-- send_batch(stream, datas, keys, headers, channels, delays, ids) -> seqs, in the order of the
-- messages. A message whose id was sent before, within the stream's dedup window, is not appended
-- again: its first seq is returned. Data and headers of a message count toward max_message_bytes:
-- HG009. HG010 for a stream of dead letters.
-- Writes: the log, message_id, segment.
create or replace function headgate.send_batch(
  stream text, datas text[], keys text[] default null, headers jsonb[] default null,
  channels text[] default null, delays interval[] default null, ids text[] default null)
returns bigint[] language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s headgate.stream;
  x xid8;
  n int := coalesce(cardinality(datas), 0);
  seqs bigint[];
  ending bigint;  -- where the segments end
  room bigint;    -- how many seqs are left up to there
begin
  select * into s from headgate.stream t where t.name = send_batch.stream;
  if not found then s := headgate.find_stream(send_batch.stream); end if;
  -- point: a send knows the stream
  if to_regclass('headgate.message_' || s.id) is null then
    perform headgate.stream_is_gone(s.name);
  end if;
  if s.dead_of is not null then perform headgate.refuse_dead(s); end if;
  if n = 0 then return '{}'; end if;
  if n > 10000 or cardinality(keys) <> n or cardinality(headers) <> n or cardinality(channels) <> n
     or cardinality(delays) <> n or cardinality(ids) <> n
     or (channels is not null and s.lane_by <> 'channel') then
    perform headgate.refuse_batch(s, n, channels);
  end if;
  if pg_column_size(datas) + coalesce(pg_column_size(headers), 0) > s.max_message_bytes then
    perform headgate.check_sizes(s, datas, headers);
  end if;
  if s.max_storage is not null then perform headgate.check_room(s); end if;
  begin
    select g.end_seq,
           g.end_seq - coalesce(pg_sequence_last_value(('headgate.seq_' || s.id)::regclass), 0)
      into ending, room
      from headgate.segment g where g.stream = s.id order by g.id desc limit 1;
  -- this waited for drop_stream (here alone: the sequence stays locked until the transaction ends)
  exception when undefined_table or internal_error then
    if to_regclass('headgate.seq_' || s.id) is not null then raise; end if;
    perform headgate.stream_is_gone(s.name);
  end;
  if room <= n + greatest(s.segment_rows, 50000) / 4 and not headgate.in_user_transaction() then
    perform headgate.ensure_segments(s.id, n);
    ending := headgate.segments_known(s.id);
  elsif pg_current_xact_id_if_assigned() is not null then  -- it may have sent before
    ending := headgate.segments_known(s.id);
  end if;
  if s.one_message_per_key then
    return headgate.send_versions(s, datas, keys, headers, channels, delays, ids);
  end if;
  x := pg_current_xact_id();
  if ids is not null then
    return headgate.send_once(s, x, datas, keys, headers, channels, delays, ids, ending);
  elsif current_setting('headgate.keeps_' || s.id, true) = 'y' or headgate.keeps_plans(s.id) then
    execute format('select headgate.append_%s($1, $2, $3, $4, $5, $6, $7, $8, $9)', s.id)
      into seqs using x, s.base, s.lanes, keys, datas, headers, channels, delays, ending;
  else
    seqs := headgate.append_cold(s, x, keys, datas, headers, channels, delays, ending);
  end if;
  if seqs[n] < ending then return seqs; end if;
  return headgate.append_beyond(s, x, keys, datas, headers, channels, delays, seqs);
end $$;

-- refuse_batch(stream, n, channels): HG010, for what is wrong with a batch of n messages: there are
-- too many, the stream has no channels, or the arrays have different lengths.
create or replace function headgate.refuse_batch(s headgate.stream, p_n int, p_channels text[])
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_n > 10000 then
    perform headgate.fail('HG010', format('%s messages in one batch', p_n),
                          'send at most 10,000 messages in a call');
  end if;
  if p_channels is not null and cardinality(p_channels) = p_n and s.lane_by <> 'channel' then
    perform headgate.fail('HG010', format('stream "%s" has no channels', s.name),
      'leave channels out, or make the stream with lane_by => ''channel''');
  end if;
  perform headgate.fail('HG010', 'the arrays of a batch have different lengths',
    'datas, keys, headers, channels, delays and ids each need one element a message (or null for the whole array)');
end $$;

-- check_sizes(stream, datas, headers): HG009 when a message is larger than the stream takes.
create or replace function headgate.check_sizes(s headgate.stream, datas text[], headers jsonb[])
returns void
language sql stable set search_path = pg_catalog, pg_temp as $$
  select headgate.check_size(s, max(octet_length(u.d) + coalesce(pg_column_size(u.h), 0)))
    from unnest(datas, headers) u (d, h)
$$;

-- check_size(stream, bytes): HG009 when a message of so many bytes is larger than the stream takes.
create or replace function headgate.check_size(s headgate.stream, p_bytes bigint) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if p_bytes > s.max_message_bytes then
    perform headgate.fail('HG009',
      format('a message of %s bytes is larger than stream "%s" takes (%s)',
             p_bytes, s.name, s.max_message_bytes),
      'send a reference to the data instead, or raise the limit: headgate.alter_stream(name, max_message_bytes => …)');
  end if;
end $$;

-- refuse_dead(stream): HG010. Dead letters are written by the engine alone (append_dead): their
-- headers say of which message they are, and what is redriven is believed.
create or replace function headgate.refuse_dead(s headgate.stream) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.fail('HG010',
                        format('nothing can be sent to stream "%s": it holds dead letters', s.name),
    'send to another stream; a message becomes a dead letter when it has failed max_deliver times');
end $$;

-- send_once(…, end): the part of send_batch for messages with ids; `end`, where the segments end
-- that the caller knows of.
-- Writes: message_id, in id order; waits only for another open transaction that sends the same id.
create or replace function headgate.send_once(
  s headgate.stream, x xid8, datas text[], keys text[], headers jsonb[], channels text[],
  delays interval[], ids text[], p_end bigint) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare seqs bigint[];
begin
  -- A late transaction is told from one that never published by its lock on this table: take it
  -- before drawing a seq.
  execute format('lock table headgate.message_%s in row exclusive mode', s.id);
  with first as (
    select distinct on (t.id) t.id from unnest(ids) with ordinality t (id, ord)
     where t.id is not null order by t.id, t.ord),
  claimed as (
    insert into headgate.message_id as m (stream, id, seq)
      select s.id, f.id, nextval(('headgate.seq_' || s.id)::regclass) from first f order by f.id
      on conflict (stream, id) do update set seq = excluded.seq, at = excluded.at
        where m.at < clock_timestamp() - s.dedup_window
      returning m.id, m.seq),
  mine as (
    select min(t.ord) as ord, c.seq from claimed c
      join unnest(ids) with ordinality t (id, ord) on t.id = c.id group by c.id, c.seq),
  fresh as (
    select t.ord, coalesce(m.seq, nextval(('headgate.seq_' || s.id)::regclass)) as seq
      from unnest(ids) with ordinality t (id, ord) left join mine m on m.ord = t.ord
     where t.id is null or m.ord is not null)
  select array_agg(f.seq order by t.ord) into seqs
    from generate_series(1, cardinality(ids)) t (ord) left join fresh f on f.ord = t.ord;
  -- point: ids are claimed
  -- seqs were drawn in id order; hand them out in the order of the batch
  with given as (select t.ord, t.seq from unnest(seqs) with ordinality t (seq, ord)
                  where t.seq is not null),
  ranked as (
    select o.ord, q.seq from (select ord, row_number() over (order by ord) r from given) o
      join (select seq, row_number() over (order by seq) r from given) q using (r))
  select array_agg(r.seq order by t.ord) into seqs
    from generate_series(1, cardinality(ids)) t (ord) left join ranked r on r.ord = t.ord;
  perform headgate.reach_segments(s.id, max(q)) from unnest(seqs) q
   having max(q) >= p_end;
  execute format(
    'select headgate.append_drawn_%s($1, $2, $3, k, d, h, c, w, q) from (select array_agg(t.k) k, array_agg(t.d) d, array_agg(t.h) h, '
                 'array_agg(t.c) c, array_agg(t.w) w, array_agg(t.q) q from unnest($4, $5, $6, $7, $8, $9) t (k, d, h, c, w, q) where t.q is not null) x '
                 'where q is not null', s.id)
    using x, s.base, s.lanes, keys, datas, headers, channels, delays, seqs;
  -- point: a send with ids has inserted
  return headgate.record_ids(s, ids, seqs);
end $$;

-- record_ids(stream, ids, seqs) -> seqs, those of repeats filled in: a message whose seq is given
-- has claimed its id, which stands for that seq from now on; the others get the seq that theirs
-- stands for. Each id is looked up in the order of the primary key, so that no planner takes the
-- other index and reads all ids of the stream: the statistics of a table that is filled and emptied
-- all the time are never right.
-- Writes: message_id.
create or replace function headgate.record_ids(s headgate.stream, p_ids text[], p_seqs bigint[])
returns bigint[] language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
  set enable_mergejoin = off set enable_sort = off as $$
begin
  -- the rows are this transaction's own, so they stay where they are found
  update headgate.message_id m set seq = f.given
    from (select x.place, u.seq as given
            from unnest(p_ids, p_seqs) u (id, seq) cross join lateral (
              select i.ctid as place, i.id, i.seq from headgate.message_id i
               where i.stream = s.id and i.id >= u.id order by i.stream, i.id limit 1) x
           where u.seq is not null and x.id = u.id and x.seq <> u.seq) f
   where m.ctid = f.place;
  if array_position(p_seqs, null) is null then return p_seqs; end if;
  return array(
    select coalesce(u.seq, x.seq)
      from unnest(p_ids, p_seqs) with ordinality u (id, seq, ord) left join lateral (
        select i.id, i.seq from headgate.message_id i
         where i.stream = s.id and i.id >= u.id order by i.stream, i.id limit 1) x
        on u.seq is null and x.id = u.id
     order by u.ord);
end $$;

-- send(stream, data, key, headers, channel, delay, id) -> seq. One message; see send_batch.
create or replace function headgate.send(
  stream text, data text, key text default null, headers jsonb default null,
  channel text default null,
  delay interval default null, id text default null) returns bigint
language sql security definer set search_path = pg_catalog, pg_temp as $$
  select (
    headgate.send_batch(stream, array[data], array[key], array[headers],
                        case when channel is not null then array[channel] end,
                              case when delay is not null then array[delay] end,
                              case when id is not null then array[id] end))[1]
$$;
