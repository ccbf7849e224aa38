-- Upsert streams: the newest version of a key may go with its segment while an older one is left.

-- Of each such key, the highest seq that was removed. Rows are few: only keys of which an older
-- version is stored somewhere. Written by maintenance alone, so that no sender waits. See write/upsert.sql.
create table headgate.newest (
  stream int not null,
  key text not null,
  seq bigint not null,
  checked_at timestamptz not null default clock_timestamp(), -- when its need was last looked into
  primary key (stream, key)
);
create index newest_checked on headgate.newest (stream, checked_at);

drop function if exists headgate.unmodified(headgate.stream, text[], text[]);
drop function if exists headgate.send_modified(
  headgate.stream, text[], text[], jsonb[], text[], interval[], text[], bigint[]);

-- The logs of existing streams show the newest versions by both.
do $$
declare
  s headgate.stream;
  shown text;
begin
  for s in select * from headgate.stream t where t.one_message_per_key loop
    shown := format(
      'select seq, key, data, headers, lane, deliver_at, created_at%2$s '
      'from headgate.TABLE_%1$s m '
      'where true and (m.key is null or not '
      '(exists (select from headgate.message_%1$s newer where newer.key = m.key and newer.seq > m.seq) '
      'or exists (select from headgate.newest newer '
      'where newer.stream = %1$s and newer.key = m.key and newer.seq > m.seq)))',
      s.id, case s.lane_by when 'channel' then ', channel' end);
    execute format('create or replace view headgate.%I as %s union all %s',
      'log_' || s.name, replace(shown, 'TABLE', 'message'), replace(shown, 'TABLE', 'kept'));
  end loop;
end $$;
