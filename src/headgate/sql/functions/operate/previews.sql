-- What a step would do, without doing it.

-- seq_at(stream, target) -> the first seq at 'beginning', 'end', a seq, or a time, as seek takes
-- it.
create or replace function headgate.seq_at(stream text, target text) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare id int := (headgate.find_stream(stream)).id;
begin
  if target = 'end' then return headgate.last_seq(id) + 1; end if;
  return headgate.target_seq(id, target);
end $$;

-- seek_preview(stream, consumer, target) -> where a seek would go, about how many messages that the
-- consumer has been given it would be given again, and how many unread ones would be passed over.
-- Counted (`exact`) up to 100,000 messages from the target on, else estimated.
create or replace function headgate.seek_preview(
  stream text, consumer text, target text,
  out seq bigint, out again bigint, out passed_over bigint, out exact boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off as $$
declare
  c headgate.consumer := headgate.find_consumer(stream, consumer);
  most constant int := 100000;
  looked bigint;
  ahead bigint;  -- messages for this consumer from the target on
  first bigint := coalesce(lower(headgate.log_ranges(c.stream)), 1);
  u record;
begin
  seq := headgate.seq_at(stream, target);
  select * into u from headgate.unread_count(c);
  execute format('select count(*), count(*) filter (where $1 is null or m.key ~ $1) from '
                 '(select x.key from headgate.message_%s x where x.seq >= $2 limit $3) m', c.stream)
    into looked, ahead using c.pattern, seq, most;
  exact := looked < most and u.exact;
  if looked = most then
    ahead := ahead * (headgate.used_seqs(c.stream, headgate.last_seq(c.stream))
                      - headgate.used_seqs(c.stream, greatest(seq, first) - 1)) / most;
  end if;
  again := greatest(ahead - u.count, 0);
  passed_over := greatest(u.count - ahead, 0);
end $$;
