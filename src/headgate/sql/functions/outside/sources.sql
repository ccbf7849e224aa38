-- Sources: what brings messages into a stream from elsewhere. A webhook source is a URL of the HTTP
-- server, POST /api/webhooks/<name>; the server checks signatures, with what source_settings tells
-- it, and sends.

-- find_source(name) -> the source's row, or HG020.
create or replace function headgate.find_source(p_name text) returns headgate.source
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare r headgate.source;
begin
  select * into r from headgate.source where name = p_name;
  if not found then
    perform headgate.fail('HG020', format('source "%s" does not exist', p_name),
                          'create it with headgate.create_source(name, stream), or look at the view headgate.sources');
  end if;
  return r;
end $$;

-- check_source(source): HG010 unless scheme, secrets and settings make sense together. No message
-- repeats a secret.
create or replace function headgate.check_source(r headgate.source) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  perform headgate.refuse_dead(s) from headgate.stream s
   where s.id = r.stream and s.dead_of is not null;
  if r.scheme is null or r.scheme not in ('standard', 'github', 'stripe', 'hmac', 'none') then
    perform headgate.fail('HG010',
                          format('the scheme "%s" is not known', coalesce(r.scheme, 'null')),
                          'choose standard, github, stripe, hmac or none');
  end if;
  perform headgate.check_source_secrets(r);
  perform headgate.check_source_settings(r);
  perform headgate.check_source_signature(r);
end $$;

-- check_source_secrets(source): HG010 unless it has the secrets that its scheme needs. No message
-- repeats one.
create or replace function headgate.check_source_secrets(r headgate.source) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if (r.scheme = 'none') <> (cardinality(r.secrets) = 0) then
    perform headgate.fail('HG010',
                          case
                            when r.scheme = 'none' then
                              'a source without signatures has no secret' else
                                'the source needs a secret to check signatures with' end,
      case when r.scheme = 'none' then 'leave the secret out, or choose a scheme'
           else 'give the one that the sender signs with, or choose scheme => ''none''' end);
  end if;
  if cardinality(r.secrets) > 5
     or exists (select from unnest(r.secrets) s where s is null or length(s) not between 8 and 1000)
     or (r.scheme = 'standard'
         and exists (select from unnest(r.secrets) s where not headgate.is_signing_secret(s, 16)))
           then
    perform headgate.fail('HG010', 'this secret is not possible',
                          case r.scheme
                               when 'standard' then
                                 'give whsec_ and the base64 of the key, as the sender shows it; a list of up to 5 takes each'
      else 'give 8 to 1000 characters; a list of up to 5 takes each' end);
  end if;
end $$;

-- check_source_settings(source): HG010 unless its settings are possible.
create or replace function headgate.check_source_settings(r headgate.source) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v jsonb := r.settings;
  bad text;  -- the name of one that is not
begin
  if jsonb_typeof(v) is distinct from 'object' then
    perform headgate.fail('HG010', 'the settings of a source are an object',
                          'give key, id, channel, headers, signature, tolerance, body or rate_limit');
  end if;
  select k into bad from jsonb_object_keys(v) k
   where k not in ('key', 'id', 'channel', 'headers', 'signature', 'tolerance', 'body',
                   'rate_limit') limit 1;
  if bad is not null then
    perform headgate.fail('HG010',
                          format('the setting "%s" of a source is not known', left(bad, 50)),
                          'there are key, id, channel, headers, signature, tolerance, body and rate_limit');
  end if;
  select k into bad from unnest(array['key', 'id', 'channel']) k
   where v ? k
     and not coalesce(jsonb_typeof(v -> k) = 'string'
                      and (v ->> k) ~ '^(header:[A-Za-z0-9_-]{1,100}|.{1,200})$', false);
  if bad is not null then
    perform headgate.fail('HG010', format('the %s is not said in a way that is known', bad),
                          'write a path in the JSON body, such as customer.id or /customer/id, or header:X-Name');
  end if;
  if v ? 'channel'
     and (select s.lane_by from headgate.stream s where s.id = r.stream) <> 'channel' then
    perform headgate.fail('HG010', 'the source''s stream has no channels',
                          'leave the channel out, or make the stream with lane_by => ''channel''');
  end if;
  if v ? 'headers'
     and not coalesce(jsonb_typeof(v -> 'headers') = 'array'
                      and jsonb_array_length(v -> 'headers') <= 50
      and not jsonb_path_exists(v,
                                '$.headers[*] ? (@.type() != "string" || !(@ like_regex "^[A-Za-z0-9_-]{1,100}$"))'), false) then
    perform headgate.fail('HG010', 'the headers to keep are not possible',
                          'give a list of up to 50 names');
  end if;
  if v ? 'tolerance'
     and not coalesce(jsonb_typeof(v -> 'tolerance') = 'number'
                      and (v ->> 'tolerance')::numeric between 1 and 86400, false) then
    perform headgate.fail('HG010', 'this tolerance is not possible', 'choose 1 to 86400 seconds');
  end if;
  if v ? 'body' and not coalesce(v ->> 'body' in ('json', 'any'), false) then
    perform headgate.fail('HG010', 'the body is json or any',
                          'json takes nothing else; any keeps other bodies as text or bytes');
  end if;
  if v ? 'rate_limit'
     and not coalesce(jsonb_typeof(v -> 'rate_limit') = 'number'
                      and (v ->> 'rate_limit')::numeric between 1 and 1000000
      and (v ->> 'rate_limit')::numeric % 1 = 0, false) then
    perform headgate.fail('HG010', 'this rate_limit is not possible',
                          'choose 1 to 1000000 messages a second');
  end if;
end $$;

-- check_source_signature(source): HG010 unless a source of the scheme hmac, and only such a one,
-- says where the signature is.
create or replace function headgate.check_source_signature(r headgate.source) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare v jsonb := r.settings;
begin
  if (r.scheme = 'hmac') <> (v ? 'signature') or (r.scheme = 'hmac' and not coalesce(
       jsonb_typeof(v -> 'signature') = 'object'
       and (v #>> '{signature,header}') ~ '^[A-Za-z0-9_-]{1,100}$'
       and coalesce(v #>> '{signature,algorithm}', 'sha256') in ('sha256', 'sha1', 'sha512')
       and coalesce(v #>> '{signature,encoding}', 'hex') in ('hex', 'base64')
       and coalesce(v #>> '{signature,prefix}', '') ~ '^[ -~]{0,50}$'
       and not exists (select from jsonb_object_keys(v -> 'signature') k
                        where k not in ('header', 'algorithm', 'encoding', 'prefix')), false)) then
    perform headgate.fail('HG010',
                          'with the scheme hmac, and only then, it must be said where the signature is',
      'signature: {"header": "X-Signature", "algorithm": "sha256" | "sha1" | "sha512", "encoding": "hex" | "base64", "prefix": "sha256="}');
  end if;
end $$;

-- create_source(name, stream, kind, scheme, secret, settings): a webhook source. `secret` is what
-- the sender signs with (several while it is being changed); settings are {"key", "id", "channel"}:
-- where in the body or headers they are; "headers": which to keep; "signature": of the scheme hmac;
-- "tolerance": seconds that a timestamp may be off; "body": json or any; "rate_limit": messages a
-- second.
-- Writes: source.
create or replace function headgate.create_source(
  name text, stream text, kind text default 'webhook', scheme text default 'standard',
  secret text[] default '{}', settings jsonb default '{}',
  if_not_exists boolean default false) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  r headgate.source;
  made text;
begin
  perform headgate.check_name('source', create_source.name);
  if kind is distinct from 'webhook' then
    perform headgate.fail('HG010',
                          format('sources of kind "%s" are not in this version',
                                 coalesce(kind, 'null')), 'there are webhook sources');
  end if;
  r.name := create_source.name;
  r.kind := create_source.kind;
  r.stream := (headgate.find_stream(create_source.stream)).id;
  r.scheme := create_source.scheme;
  r.secrets := coalesce(create_source.secret, '{}');
  r.settings := jsonb_strip_nulls(coalesce(create_source.settings, '{}'));
  perform headgate.check_source(r);
  perform headgate.hold_stream(headgate.find_stream(create_source.stream));
  insert into headgate.source as x (name, kind, stream, scheme, secrets, settings)
  values (r.name, r.kind, r.stream, r.scheme, r.secrets, r.settings)
    on conflict on constraint source_pkey do nothing returning x.name into made;
  if made is null and not coalesce(if_not_exists, false) then
    perform headgate.fail('HG021', format('source "%s" exists already', create_source.name),
                          'choose another name, or say if_not_exists => true');
  end if;
end $$;

-- alter_source(name, stream, scheme, secret, settings): changes what is given. Of the settings
-- those that are given; null removes one.
-- Locks: its row.
-- Writes: source.
create or replace function headgate.alter_source(name text, stream text default null,
                                                 scheme text default null,
                                                 secret text[] default null,
                                                 settings jsonb default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.source := headgate.find_source(name);
begin
  select * into r from headgate.source x where x.name = r.name for update;
  if alter_source.stream is not null then
    r.stream := (headgate.find_stream(alter_source.stream)).id;
  end if;
  r.scheme := coalesce(alter_source.scheme, r.scheme);
  r.secrets := coalesce(alter_source.secret, r.secrets);
  if jsonb_typeof(alter_source.settings) = 'object' then
    r.settings := jsonb_strip_nulls(r.settings || alter_source.settings);
  elsif alter_source.settings is not null then r.settings := alter_source.settings; end if;
  perform headgate.check_source(r);
  update headgate.source x
     set stream = r.stream, scheme = r.scheme, secrets = r.secrets, settings = r.settings
       where x.name = r.name;
end $$;

-- drop_source(name): removes a source. What it brought stays.
-- Writes: source.
create or replace function headgate.drop_source(name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare r headgate.source := headgate.find_source(name);
begin
  delete from headgate.source x where x.name = r.name;
end $$;

-- source_settings(name) -> what a server needs to take a webhook: for the owner's eyes alone, it
-- holds the secrets. No row when there is none.
create or replace function headgate.source_settings(name text)
returns table (stream text, scheme text, secrets text[], settings jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.name, r.scheme, r.secrets, r.settings from headgate.source r
    join headgate.stream s on s.id = r.stream where r.name = source_settings.name
$$;
