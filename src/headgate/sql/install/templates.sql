
-- templates() -> the files of sql/templates, without their headers, by name: for pasted().
create or replace function headgate.templates() returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp as $templates$
select jsonb_object_agg(t.name, t.source) from (values
{sources}
) t (name, source)
$templates$;

-- What is the same for all streams is made here.
do $build$
begin
  execute headgate.pasted('receive_step', '{}');
  execute headgate.pasted('settle', '{}');
end $build$;
