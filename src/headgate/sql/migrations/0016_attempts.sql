-- Powers over single messages: replays, what became of every failed attempt, a message's life.

-- What failed, was redriven or was replayed: one row each time. Success leaves none. Inserted
-- without any unique index, so that nobody waits for anybody; maintenance keeps it small
-- (trim_attempts). No foreign key: its triggers would lock the consumer's row.
create sequence headgate.attempt_id;
create table headgate.attempt (
  id bigint not null default nextval('headgate.attempt_id'),
  stream int not null,
  consumer int not null,
  seq bigint not null,
  attempt int not null,       -- which one failed; 0: it was redriven or replayed
  began timestamptz,          -- when it was delivered for this attempt
  at timestamptz not null,    -- when that ended
  outcome text not null check (outcome in ('nacked', 'expired', 'redriven', 'replayed')),
  is_dead boolean not null default false, -- with this attempt it became a dead letter
  worker text,
  error text
);
create index attempt_stream on headgate.attempt (stream, id);
create index attempt_message on headgate.attempt (consumer, seq, id);

-- Up to which row of headgate.attempt it was seen to that no message has too many.
alter table headgate.stream add attempts_trimmed bigint not null default 0;

-- A replayed message is a parked one that is due now.
alter table headgate.parked drop constraint parked_reason_check;
alter table headgate.parked add constraint parked_reason_check check (
  reason in ('delayed', 'nacked', 'expired', 'blocked', 'redriven', 'released', 'replayed'));

drop function if exists headgate.retry_now(text, text, bigint[]);  -- takes one more now
drop function if exists headgate.discovered_lanes(int);  -- takes one more now

-- What headgate.attempts() answers.
create type headgate.failed_attempt as (
  id bigint,
  consumer text,
  seq bigint,
  attempt int,
  began timestamptz,
  at timestamptz,
  outcome text,
  is_dead boolean,
  worker text,
  error text
);
