-- Columns of cursor and tick by what they say: their old names said it only to who knew already.

alter table headgate.cursor rename turn to served_at;     -- when its lane was last served
alter table headgate.cursor rename mark_at to rate_since;  -- since when mark_delivered counts
alter table headgate.cursor rename sift to has_delayed;    -- its span has delayed messages
alter table headgate.tick rename looked_at to locks_checked_at;  -- when pg_locks was last asked
-- when the first deadline of the lane's deliveries passes
alter table headgate.cursor rename sweep_at to expires_at;
alter type headgate.receiving rename attribute sweep_at to expires_at;
