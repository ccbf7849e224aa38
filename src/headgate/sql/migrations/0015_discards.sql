-- Discarding what a consumer has not read yet: see functions/read/discard.sql.

drop function if exists headgate.discard(text, text, bigint[]);  -- takes and answers more now

-- lane: the message was not read when it was discarded, and the cursor of that lane has still to pass it over; null: it is behind.
-- at: null when the message was given back since (redrive): it is passed over, and is discarded no more.
alter table headgate.discarded
  add lane bigint,
  alter at drop not null;
create index discarded_ahead on headgate.discarded (consumer, lane, seq) where lane is not null;

-- Whether something that the cursor has still to come to may have been discarded: only then a claim looks.
alter table headgate.cursor add discards boolean not null default false;
