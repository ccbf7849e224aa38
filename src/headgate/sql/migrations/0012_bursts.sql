-- Ticks come in bursts: `paced_to` is the time that those so far reach to, at one a millisecond. See make_tick in ticks/ticks.sql.
alter table headgate.tick add column paced_to timestamptz not null default '-infinity';
