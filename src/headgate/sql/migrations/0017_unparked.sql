-- Functions that take or answer more than before; no tables change.

drop function if exists headgate.unpark(headgate.consumer, bigint, int, timestamptz);  -- also answers keys now
drop function if exists headgate.bury(headgate.consumer, bigint[], int[], text);  -- takes the delivery now
drop function if exists headgate.expire(headgate.consumer, timestamptz);  -- takes one more now
