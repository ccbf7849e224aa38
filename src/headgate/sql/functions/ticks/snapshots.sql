-- What a transaction sees and has: its snapshot, its id, and what others left behind.

-- has_fixed_snapshot() -> whether all statements of this transaction see what its first one saw:
-- what others have committed since is out of sight, also to functions that look again after they
-- got a lock.
create or replace function headgate.has_fixed_snapshot() returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select current_setting('transaction_isolation') in ('repeatable read', 'serializable')
$$;

-- in_user_transaction() -> whether the user seems to have had a transaction open before this call,
-- so that what it locks would stay locked. (In the extended protocol a statement alone starts a
-- little later than its transaction, too.) A guess: the first statement after BEGIN looks like one
-- alone, so nothing that must hold may depend on it.
create or replace function headgate.in_user_transaction() returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin  -- (not SQL, and has_fixed_snapshot in place: plain SQL calls ask with each receive)
  return statement_timestamp() - now() > interval '2 milliseconds'
      or pg_current_xact_id_if_assigned() is not null
      or current_setting('transaction_isolation') in ('repeatable read', 'serializable');
end $$;

-- need_read_committed(function): HG016 where the snapshot is fixed, for functions that must see
-- what others have committed.
create or replace function headgate.need_read_committed(p_function text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  if headgate.has_fixed_snapshot() then
    perform headgate.fail('HG016',
      format(
        'headgate.%s() cannot work in a transaction at %s: it has to see what others have committed since it began',
             p_function, upper(current_setting('transaction_isolation'))),
      'call it in a transaction of its own that starts with: begin isolation level read committed');
  end if;
end $$;

-- sees_all_of(snapshot, other) -> whether everything that is visible in the other one is visible in
-- it. (When a tick was made does not tell: it may have had its snapshot some time before.)
create or replace function headgate.sees_all_of(p_snap pg_snapshot, p_other pg_snapshot)
returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select pg_snapshot_xmax(p_snap) >= pg_snapshot_xmax(p_other)
     and not exists (select from pg_snapshot_xip(p_snap) x where pg_visible_in_snapshot(x, p_other))
$$;

-- snapshot_of_others() -> the current snapshot, in which this transaction counts as running:
-- PostgreSQL does not list one's own id, so that ids above it that have ended would make it look
-- ended, and hide what this transaction sends after the tick.
create or replace function headgate.snapshot_of_others() returns pg_snapshot
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  snap pg_snapshot := pg_current_snapshot();
  own xid8 := pg_current_xact_id_if_assigned();
begin
  if own < pg_snapshot_xmax(snap) then
    snap := (
      select format('%s:%s:%s', least(pg_snapshot_xmin(snap)::text::bigint, own::text::bigint),
                    pg_snapshot_xmax(snap),
                           string_agg(x, ',' order by x::bigint))
               from (select pg_snapshot_xip(snap)::text union select own::text) r (x))::pg_snapshot;
  end if;
  return snap;
end $$;
