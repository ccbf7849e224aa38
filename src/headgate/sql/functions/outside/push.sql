-- Push consumers: the server receives for them and posts each message to a URL. What is here says
-- where and how; the posting is in headgate.server.push.pushing, over receive, ack, nack and
-- release like any worker's.

-- write_push(consumer, push): sets what is given of {"url", "secret", "concurrency", "timeout",
-- "headers"}; the rest stays, or has its default when the consumer did not push before. HG010 for
-- what makes no sense; no message repeats a secret.
-- Locks: its row of push.
-- Writes: push.
create or replace function headgate.write_push(c headgate.consumer, p_push jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare p headgate.push;
begin
  if jsonb_typeof(p_push) <> 'object' or exists (
      select from jsonb_object_keys(p_push) k
       where k not in ('url', 'secret', 'concurrency', 'timeout', 'headers')) then
    perform headgate.fail('HG010', 'push has settings that are not known',
                          'give an object of url, secret, concurrency, timeout (seconds) and headers');
  end if;
  if c.leased then
    perform headgate.fail('HG010',
                          format(
                            'consumer "%s" leases its lanes to workers, which a server that pushes is not', c.name),
      'push from a consumer without leases');
  end if;
  select * into p from headgate.push x where x.consumer = c.id for update;
  if p.consumer is null then p.concurrency := 8; p.timeout := interval '15 seconds'; end if;
  if p_push ? 'url' then p.url := p_push ->> 'url'; end if;
  if p_push ? 'secret' then
    p.secrets := headgate.texts_of(p_push -> 'secret');
  end if;
  if jsonb_typeof(p_push -> 'concurrency') = 'number'
     and (p_push ->> 'concurrency')::numeric between 1 and 1000
      and (p_push ->> 'concurrency')::numeric % 1 = 0 then
    p.concurrency := (p_push ->> 'concurrency')::numeric::int;
  elsif p_push ? 'concurrency' then
    perform headgate.fail('HG010', 'this concurrency is not possible',
                          'choose 1 to 1000 requests at once');
  end if;
  if jsonb_typeof(p_push -> 'timeout') = 'number'
     and (p_push ->> 'timeout')::numeric between 0.1 and 300 then
    p.timeout := make_interval(secs => (p_push ->> 'timeout')::float8);
  elsif p_push ? 'timeout' then
    perform headgate.fail('HG010', 'this timeout is not possible', 'choose 0.1 to 300 seconds');
  end if;
  if p_push ? 'headers' then p.headers := nullif(nullif(p_push -> 'headers', 'null'), '{}'); end if;
  perform headgate.check_push(p);
  insert into headgate.push as x (consumer, url, secrets, concurrency, timeout, headers)
    values (c.id, p.url, p.secrets, p.concurrency, p.timeout, p.headers)
    on conflict (consumer) do update
      set version = excluded.version, url = excluded.url, secrets = excluded.secrets,
      concurrency = excluded.concurrency, timeout = excluded.timeout, headers = excluded.headers,
      note = null;
end $$;

-- check_push(push): HG010 unless URL, secrets and headers are possible.
create or replace function headgate.check_push(p headgate.push) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  if p.url is null
     or p.url !~ '^https?://([A-Za-z0-9._~%-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?][!-~]*)?$'
     or p.url ~ '#' or length(p.url) > 2000 then
    perform headgate.fail('HG010', 'push needs a URL to post to',
                          'give http:// or https://, a host and a path, without user, password or fragment');
  end if;
  if p.secrets is null or cardinality(p.secrets) not between 1 and 5
      or exists (select from unnest(p.secrets) s where not headgate.is_signing_secret(s, 24)) then
    perform headgate.fail('HG010', 'push needs a secret to sign with',
      'give whsec_ and 24 to 64 random bytes in base64, such as: echo whsec_$(openssl rand -base64 32); a list of up to 5 signs with each');
  end if;
  if p.headers is not null
     and not coalesce(jsonb_typeof(p.headers) = 'object' and length(p.headers::text) <= 10000
                      and not exists (
      select from jsonb_each(p.headers) e
       where jsonb_typeof(e.value) <> 'string' or e.value #>> '{}' !~ '^[ -~]*$'
         or e.key !~ '^[A-Za-z0-9_-]{1,100}$'
         or e.key ~*
           '^(webhook-.*|content-.*|host|connection|transfer-encoding|te|trailer|upgrade|expect|keep-alive|proxy-.*)$'), false) then
    perform headgate.fail('HG010', 'these headers cannot be sent along',
      'give an object of names and texts of plain ASCII; those of the connection, the content and the signature are not yours to set');
  end if;
end $$;

-- texts_of(value) -> a JSON text, or list of texts, as text[]; null when it is neither.
create or replace function headgate.texts_of(p_value jsonb) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select case jsonb_typeof(p_value)
    when 'string' then array[p_value #>> '{}']
    when 'array' then case
      when not jsonb_path_exists(p_value, '$[*] ? (@.type() != "string")') then
        array(select jsonb_array_elements_text(p_value)) end end
$$;

-- is_signing_secret(text, least) -> whether it is whsec_ and between `least` and 64 bytes in
-- base64, as Standard Webhooks has it.
create or replace function headgate.is_signing_secret(p_secret text, p_least int) returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  return coalesce(p_secret ~ '^whsec_[A-Za-z0-9+/]+={0,2}$'
                  and octet_length(decode(substr(p_secret, 7), 'base64')) between p_least and 64,
                      false);
exception when others then  -- not base64 after all
  return false;
end $$;

-- push_version() -> changes whenever where or how some consumer pushes has changed, or whether it
-- is paused. The highest version does not tell: one that was drawn earlier may be committed later.
create or replace function headgate.push_version() returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(md5(string_agg(p.consumer || '.' || p.version, ' ' order by p.consumer)), '')
    from headgate.push p join headgate.consumer c on c.id = p.consumer where not c.paused
$$;

-- push_targets() -> what a server needs to push, of the consumers that are not paused: for the
-- owner's eyes alone, it holds the secrets.
create or replace function headgate.push_targets()
returns table (stream text, consumer text, version bigint, url text, secrets text[],
               concurrency int, timeout interval, headers jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.name, c.name, p.version, p.url, p.secrets, p.concurrency, p.timeout, p.headers
    from headgate.push p join headgate.consumer c on c.id = p.consumer
      join headgate.stream s on s.id = c.stream
   where not c.paused order by s.name, c.name
$$;

-- push_gone(stream, consumer, version, note) -> whether the consumer was paused: its endpoint says
-- that it is gone. Not when the settings have changed meanwhile: then it was another endpoint that
-- said so.
-- Writes: consumer, push.
create or replace function headgate.push_gone(stream text, consumer text, version bigint, note text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare c headgate.consumer := headgate.find_consumer(stream, consumer);
begin
  update headgate.push p set note = left(push_gone.note, 500)
   where p.consumer = c.id and p.version = push_gone.version;
  if not found then return false; end if;
  update headgate.consumer k set paused = true where k.id = c.id;
  return true;
end $$;

-- push_error(consumer id) -> why the last message that could not be pushed was refused; null when
-- none waits.
create or replace function headgate.push_error(p_consumer int) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select p.last_error
    from (select * from headgate.parked p where p.consumer = p_consumer limit 1000) p
   where p.attempt > 0 and p.last_error is not null order by p.parked_at desc limit 1
$$;
