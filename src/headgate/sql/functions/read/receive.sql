-- Receiving: claim what a worker may work on next. One call, one round trip, one transaction.

do $$ begin
  if to_regtype('headgate.received') is null then
    create type headgate.received as (
      ack_id text, seq bigint, key text, data text, headers jsonb, channel text, attempt int,
      created_at timestamptz);
  end if;
end $$;

-- receive(stream, consumer, batch_size, worker, acks, open, ack_wait) -> up to batch_size messages,
-- each with the ack_id to settle it by. First settles `acks` (ack_ids of messages or whole
-- deliveries that the worker has just finished), then claims. What it hands out is the worker's for
-- `ack_wait`, or the consumer's when that is null. Inside a transaction that is seen to have been
-- open already it holds only the lanes that it took messages from; where lanes are named, also some
-- that it looked into. (The first statement after BEGIN is not told from one alone, and holds what
-- it looked into, too.)
-- Locks: the cursors it claims (SKIP LOCKED) and, making a tick, the stream's row.
-- Writes: delivery, cursor, parked, tick.
create or replace function headgate.receive(
  stream text, consumer text, batch_size int default 1, worker text default null,
  acks text[] default null,
  open boolean default null, ack_wait interval default null)
returns setof headgate.received
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  s int;
  claim text;
begin
  select t.id into s from headgate.stream t where t.name = receive.stream;
  if not found then s := (headgate.find_stream(receive.stream)).id; end if;
  if to_regclass('headgate.message_' || s) is null then
    perform headgate.stream_is_gone(receive.stream);
  end if;
  open := headgate.in_user_transaction() or open;
  claim := format('select * from headgate.receive_%s%s($1, $2, $3, $4, $5, $6)',
                  case when open then 'open_' else '' end, s);
  if current_setting('transaction_isolation') not in ('repeatable read', 'serializable') then
    return query execute claim using consumer, batch_size, worker, acks, open, ack_wait;
    return;
  end if;
  -- SKIP LOCKED may wait for a row that this snapshot sees an older version of: see check_call
  begin
    return query execute claim using consumer, batch_size, worker, acks, open, ack_wait;
  exception when lock_not_available then
    perform headgate.no_fixed_snapshot();
  end;
end $$;
