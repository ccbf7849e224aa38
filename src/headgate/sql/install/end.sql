-- The end: what is installed now.
insert into headgate.functions_digest (digest, version) values ('{digest}', {version})
  on conflict (only_row) do update
  set digest = excluded.digest, version = excluded.version, applied_at = clock_timestamp();
