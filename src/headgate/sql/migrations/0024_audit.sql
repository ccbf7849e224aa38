-- The audit log says which token did it with which rights, to which stream, and what was asked for.

alter table headgate.audit add column token text;     -- the id of the token that called
alter table headgate.audit add column scopes text[];  -- what it might do then
alter table headgate.audit add column stream text;    -- that it was about, also when it was just made
alter table headgate.audit add column details jsonb;  -- what was asked for, without secrets

drop function if exists headgate.note_audit(text, text, text, int);  -- takes these now
drop function if exists headgate.audit_log(int, bigint);             -- and answers them
