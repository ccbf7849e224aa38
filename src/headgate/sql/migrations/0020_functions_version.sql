-- The version of the functions, which only grows: older code never replaces newer functions.
alter table headgate.functions_digest add version int not null default 0;
drop function if exists headgate.installed_version();  -- answers the version, too
