
-- templates() -> the files of sql/templates, without their headers, by name: for pasted().
create or replace function headgate.templates() returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $templates$
select jsonb_object_agg(t.name, t.source) from (values
{sources}
) t (name, source)
$templates$;
