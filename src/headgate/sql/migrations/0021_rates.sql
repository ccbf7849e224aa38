-- Rates over a window that ends now, and redeliveries counted apart: see functions/read/steps.sql.

alter table headgate.cursor
  add redelivered bigint not null default 0,  -- of `delivered`, those that were not the first attempt
  add earlier_at timestamptz,                 -- the mark before mark_at, at most 20 seconds older
  add earlier_delivered bigint;

-- mark_delivered counts first attempts alone from now on: begin again.
update headgate.cursor set mark_delivered = delivered, mark_at = clock_timestamp();
