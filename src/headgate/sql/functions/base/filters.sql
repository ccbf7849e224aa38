-- Key filters: tokens separated by dots; `*` stands for one token, `>` at the end for one or more.

-- filter_pattern(filter) -> one regular expression that matches the keys that pass, or HG006.
create or replace function headgate.filter_pattern(p_filter text[]) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  f text;
  token text;
  tokens text[];
  parts text[];
  patterns text[] := '{}';
  i int;
begin
  if p_filter is null then return null; end if;
  if cardinality(p_filter) = 0 or array_ndims(p_filter) <> 1 then
    perform headgate.fail('HG006', 'the filter is empty', 'leave it out to get every message');
  end if;
  foreach f in array p_filter loop
    tokens := string_to_array(f, '.');
    parts := '{}';
    for i in 1 .. coalesce(cardinality(tokens), 0) loop
      token := tokens[i];
      if token = '' or (token = '>' and i < cardinality(tokens))
         or (length(token) > 1 and token ~ '[*>]') then
        tokens := null;
        exit;
      end if;
      parts := parts || case token when '*' then '[^.]+' when '>' then '.+'
                        else regexp_replace(token, '([^A-Za-z0-9_])', '\\\1', 'g') end;
    end loop;
    if tokens is null or cardinality(tokens) = 0 then
      perform headgate.fail('HG006', format('"%s" is not a key filter', coalesce(f, 'null')),
        'write tokens separated by dots; "*" stands for one token, ">" at the end for one or more: orders.*.created, orders.>');
    end if;
    patterns := patterns || array_to_string(parts, '\.');
  end loop;
  return '^(?:' || array_to_string(patterns, '|') || ')$';
end $$;
