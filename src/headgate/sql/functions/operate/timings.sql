-- Timings: a sample of how long messages took. An ack leaves no trace of its message, so workers
-- that are asked to say it.

-- note_timings(stream, consumer, channels, attempts, waited, handled): of messages that were
-- handled, one element each; lengths are seconds. What is older than 30 days is forgotten.
-- Writes: timing.
create or replace function headgate.note_timings(stream text, consumer text, channels text[],
                                                 attempts int[], waited real[], handled real[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer);
begin
  insert into headgate.timing (consumer, channel, attempt, waited, handled)
    select c.id, u.channel, u.attempt, greatest(u.waited, 0), greatest(u.handled, 0)
      from unnest(channels, attempts, note_timings.waited, note_timings.handled) u (channel,
          attempt, waited, handled);
  delete from headgate.timing t
   where t.consumer = c.id and t.at < clock_timestamp() - interval '30 days';
end $$;
