-- Tokens of the HTTP server, its audit log, and the one look that all its waiting polls share. The
-- server makes a token's secret and sends only its hash, so that no secret is ever in a statement
-- or in PostgreSQL's log.

-- create_token(id, name, hash, scopes, streams, rate_limit, lifetime): writes token. HG006 for a
-- bad pattern, HG010 for bad scopes.
-- Writes: token.
create or replace function headgate.create_token(
  id text, name text, hash bytea, scopes text[], streams text[] default null,
  rate_limit int default null, lifetime interval default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not coalesce(cardinality(scopes) > 0
                  and scopes <@ array['admin', 'produce', 'consume', 'monitor'], false) then
    perform headgate.fail('HG010', 'the scopes of a token are not known',
                          'give one or more of admin, produce, consume and monitor');
  end if;
  if coalesce(length(name), 0) not between 1 and 200 then
    perform headgate.fail('HG010', 'a token needs a name',
                          'choose 1 to 200 characters that say who uses it');
  end if;
  if rate_limit < 1 or lifetime <= interval '0' then
    perform headgate.fail('HG010', 'rate_limit and lifetime are above 0',
                          'leave them out for no limit');
  end if;
  insert into headgate.token (id, name, hash, scopes, streams, pattern, rate_limit, expires_at)
    values (create_token.id, create_token.name, create_token.hash, create_token.scopes,
            create_token.streams,
            headgate.filter_pattern(create_token.streams), create_token.rate_limit,
            clock_timestamp() + lifetime);
end $$;

-- check_token(id) -> what a server needs to check a token that is neither revoked nor expired; no
-- row when there is none. The server compares the hashes, in constant time.
create or replace function headgate.check_token(id text)
returns table (name text, hash bytea, scopes text[], pattern text, rate_limit int)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select t.name, t.hash, t.scopes, t.pattern, t.rate_limit from headgate.token t
   where t.id = check_token.id and t.revoked_at is null
     and (t.expires_at is null or t.expires_at > clock_timestamp())
$$;

-- tokens() -> all tokens, the newest first, without their hashes.
create or replace function headgate.tokens()
returns table (id text, name text, scopes text[], streams text[], rate_limit int,
               created_at timestamptz, expires_at timestamptz, revoked_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select t.id, t.name, t.scopes, t.streams, t.rate_limit, t.created_at, t.expires_at, t.revoked_at
    from headgate.token t order by t.created_at desc, t.id
$$;

-- revoke_token(id) -> whether there was such a token, not yet revoked.
-- Writes: token.
create or replace function headgate.revoke_token(id text) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with r as (update headgate.token t set revoked_at = clock_timestamp()
             where t.id = revoke_token.id and t.revoked_at is null returning 1)
  select exists (select from r)
$$;

-- note_audit(who, address, action, status, token, scopes, stream, details): appends to audit.
-- `token` is the id of the token that called, `scopes` what it might do then; `stream` is the
-- stream that it was about.
-- Writes: audit.
create or replace function headgate.note_audit(
  who text, address text, action text, status int, token text default null,
  scopes text[] default null, stream text default null, details jsonb default null) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into headgate.audit (who, address, action, status, token, scopes, stream, details)
    values (note_audit.who, note_audit.address, left(note_audit.action, 2000), note_audit.status,
            note_audit.token, note_audit.scopes, left(note_audit.stream, 200), note_audit.details)
$$;

-- audit_log(max, before) -> administrative calls through HTTP, the newest first: who (the token),
-- from where, what, with which answer, and what was asked for.
create or replace function headgate.audit_log(max int default 100, before bigint default null)
returns table (id bigint, at timestamptz, who text, address text, action text, status int,
  token text, scopes text[], stream text, details jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select a.id, a.at, a.who, a.address, a.action, a.status, a.token, a.scopes, a.stream, a.details
    from headgate.audit a
   where audit_log.before is null or a.id < audit_log.before order by a.id desc limit audit_log.max
$$;

-- forget_audit(older, max) -> how many of the oldest administrative calls were removed: those from
-- so long ago, at most max. Skips what another call removes at this moment.
-- Locks: these rows (SKIP LOCKED).
-- Writes: audit.
create or replace function headgate.forget_audit(older interval, max int default 10000)
returns bigint
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with first as (select a.id, a.at from headgate.audit a order by a.id limit forget_audit.max
                    for update skip locked),
  gone as (delete from headgate.audit a using first f
           where a.id = f.id and f.at < clock_timestamp() - forget_audit.older returning 1)
  select count(*) from gone
$$;

-- last_seqs(streams) -> of each of these streams that exists, the last seq that was drawn. It moves
-- before what was sent commits: it says where to look, not what is there. Reads a row a stream.
create or replace function headgate.last_seqs(streams text[])
returns table (stream text, seq bigint)
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select s.name, headgate.last_seq(s.id) from headgate.stream s
   where s.name = any(last_seqs.streams)
$$;
