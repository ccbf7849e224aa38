-- settle_parked: what was parked and is handed out is parked no more, nor is what retention has
-- removed, which is a loss.
-- Writes: parked, loss.
lost as materialized (  -- removed by retention while they were in flight or being parked
  select x.seq, x.place from (
    select w.seq, w.place from waits w
     where not exists (select from headgate.message_{stream} m where m.seq = w.seq)
       and not exists (select from headgate.preserved_{stream} m where m.seq = w.seq) offset 0) x
   where headgate.no_fixed_snapshot(x.seq)),
noted as (
  insert into headgate.loss (consumer, first_seq, last_seq, messages, reason)
    select c.id, min(x.seq), max(x.seq), count(*), 'removed while parked' from lost x
    having count(*) > 0),
gone as (
  delete from headgate.parked p where p.ctid = any(array(
    select x.place from taken x where x.place is not null union all select x.place
      from lost x)))
