-- read_plan takes how many rows a task reads at most: its old form goes, the new one is in functions/ticks/positions.sql.
drop function if exists headgate.read_plan(text, jsonb, jsonb, text[], text[], int, int);
