-- Looking: what became of a message that is over, and calls that take more than before.

-- Messages that a consumer was told never to get again (headgate.discard). Kept for those who look: nothing else reads it.
-- No foreign key: its triggers would lock the consumer's row.
create table headgate.discarded (
  consumer int not null,
  seq bigint not null,
  at timestamptz not null default clock_timestamp(),
  primary key (consumer, seq)
);

-- Dead letters are found by the message that they were: see index_dead in functions/read/dead.sql.
do $$
declare s int;
begin
  for s in select id from headgate.stream where dead_of is not null loop
    execute format('create index on headgate.message_%s '
                   '(left(headers ->> ''source_consumer'', 60), left(headers ->> ''source_seq'', 20))', s);
  end loop;
end $$;

-- It takes one argument more, and is made again after this.
drop function if exists headgate.set_channel(text, text, text, int, interval);

-- A setting as it was given beside the one that there is: see fail_if_different in functions/base/errors.sql.
create type headgate.setting as (name text, given text, there text, change text);
