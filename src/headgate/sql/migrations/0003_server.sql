-- What the HTTP server keeps: tokens and the audit log.

-- A token is <id>.<secret>; of the secret only the sha256 is here.
create table headgate.token (
  id text primary key,
  name text not null,
  hash bytea not null check (length(hash) = 32),
  scopes text[] not null check (cardinality(scopes) > 0 and scopes <@ array['admin', 'produce', 'consume', 'monitor']),
  streams text[],             -- patterns of stream names, written like key filters; null: all streams
  pattern text,               -- the same as one regular expression
  rate_limit int check (rate_limit > 0), -- requests a second; null: the server's default
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  revoked_at timestamptz
);

-- Administrative calls. Appended only.
create table headgate.audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  who text not null,          -- the token's id and name
  address text,
  action text not null,       -- method and path
  status int not null
);
