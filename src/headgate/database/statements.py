"""The SQL calls of the SDK. Parameters are %s in order; arrays are passed as `Array`."""

from __future__ import annotations

from ..settings import CONSUMER, STREAM, Settings, changeable

# An autocommit statement that relaxes its own commit: a crash of the database then loses at most the last moments of a
# consumer's progress, which means a redelivery. Never used inside a transaction that a user opened.
_RELAXED = "select r.* from (select set_config('synchronous_commit', 'off', true)) s, "

SEND_BATCH = (
    "select headgate.send_batch(%s, %s::text[], %s::text[], %s::text[]::jsonb[], %s::text[], "
    "%s::text[]::interval[], %s::text[])"
)
# With times among the delays (written `at 2026-01-31T12:00:00+00:00`): what is left until then, by the server's clock.
AT = "at "
_DELAYS = "%s::text[]::interval[]"
_AT_TIMES = (
    "(select array_agg(case when left(d.d, 3) = 'at ' then make_interval(secs => "
    "extract(epoch from cast(substr(d.d, 4) as timestamptz) - clock_timestamp())) else cast(d.d as interval) end "
    "order by d.n) from unnest(%s::text[]) with ordinality d (d, n))"
)
SEND_BATCH_AT = SEND_BATCH.replace(_DELAYS, _AT_TIMES)
# The function generated for a stream, which headgate.receive would call: {} is the stream's id. `false` says that the
# statement is a transaction of its own, so that it may relax its commit and make a tick.
RECEIVE = "select * from headgate.receive_{}(%s, %s, %s, %s::text[], false)"
RECEIVE_FOR = "select * from headgate.receive_{}(%s, %s, %s, %s::text[], false, %s::text::interval)"
ACK = "select r.acked, r.stale from headgate.ack(%s, %s, %s::text[]) r"
ACK_RELAXED = _RELAXED + "headgate.ack(%s, %s, %s::text[]) r"
NACK = "select r.nacked, r.stale from headgate.nack(%s, %s, %s::text[], %s::text::interval, %s) r"
NACK_RELAXED = _RELAXED + "headgate.nack(%s, %s, %s::text[], %s::text::interval, %s) r"
RELEASE = _RELAXED + "headgate.release(%s, %s, %s::text[]) r"
EXTEND = _RELAXED + "headgate.extend(%s, %s, %s::text[], %s::text::interval) r"

_CASTS = {
    "length": "::text::interval", "filter": "::text[]", "backoff": "::text::jsonb", "push": "::text::jsonb",
}  # fmt: skip


def _arguments(settings: Settings) -> str:
    """Settings as arguments by name, a parameter for each."""
    return ", ".join(f'"{name}" => %s{_CASTS.get(row.kind, "")}' for name, row in settings.items())


CREATE_STREAM = f"select headgate.create_stream(%s, {_arguments(STREAM)}, if_not_exists => %s)"
ALTER_STREAM = f"select headgate.alter_stream(%s, {_arguments(changeable(STREAM))}, clear => %s::text[])"
DROP_STREAM = "select headgate.drop_stream(%s)"
STREAM_SETTINGS = "select lanes, max_message_bytes from headgate.stream_settings(%s)"
TICK = "select headgate.tick(%s)"
SET_LANES = "select headgate.set_lanes(%s, %s)"

CREATE_CONSUMER = f"select headgate.create_consumer(%s, %s, {_arguments(CONSUMER)}, if_not_exists => %s)"
ALTER_CONSUMER = f"select headgate.alter_consumer(%s, %s, {_arguments(changeable(CONSUMER))}, clear => %s::text[])"
CONSUMER_SETTINGS = (
    'select stream_id, "order", ack_wait, backoff, leased, lease_time, slot_modulus, max_waiting '
    "from headgate.consumer_settings(%s, %s)"
)
JOIN = "select headgate.join_workers(%s, %s, %s)"
HEARTBEAT = "select headgate.heartbeat(%s, %s, %s)"
# (with the lease_time by which this heartbeat counts)
BEAT = (
    "select headgate.heartbeat(%s, %s, %s), extract(epoch from s.lease_time)::float8 "
    "from headgate.consumer_settings(%s, %s) s"
)
LEAVE = "select headgate.leave_workers(%s, %s, %s)"
DROP_CONSUMER = "select headgate.drop_consumer(%s, %s)"
PAUSE = "select headgate.pause(%s, %s)"
RESUME = "select headgate.resume(%s, %s)"
SEEK = "select headgate.seek(%s, %s, %s)"

DEAD_LETTERS = "select * from headgate.dead_letters(%s, %s, %s, %s)"
REDRIVE = "select headgate.redrive(%s, %s, %s::text[]::bigint[], %s::text[], %s, %s)"
PURGE_DEAD = "select headgate.purge_dead(%s, %s, %s::text[]::bigint[], %s::text[], %s, %s)"
RETRY_NOW = "select headgate.retry_now(%s, %s, %s::text[]::bigint[], %s)"
REPLAY = (
    "select replayed, not_found, passed_over, next_seq from headgate.replay(%s, %s, seqs => %s::text[]::bigint[], "
    "from_seq => %s, to_seq => %s, from_time => %s::text::timestamptz, to_time => %s::text::timestamptz, "
    "filter => %s::text[])"
)
DISCARD = """
select discarded, held, more
  from headgate.discard(%s, %s, %s::text[]::bigint[], %s::text[], %s, %s, %s, %s, open => false)
"""

PEEK = "select * from headgate.peek(%s, %s, %s, %s, %s::text[], %s, %s)"
MESSAGES_CUT = """
select m.seq, m.key, case when octet_length(m.data) > %s then left(m.data, %s) else m.data end, m.headers,
       m.deliver_at, m.created_at, case when octet_length(m.data) > %s then octet_length(m.data) end
  from headgate.messages(%s, %s, %s, %s::text[], %s, %s) m
"""
MESSAGES = "select * from headgate.messages(%s, %s, %s, %s::text[], %s, %s)"
MESSAGE_LIFE = "select at, consumer, event, attempt, worker, error, until from headgate.message_life(%s, %s)"
ATTEMPTS = "select * from headgate.attempts(%s, %s, %s, %s, %s)"
MESSAGE_STATES = "select * from headgate.message_states(%s, %s)"
STREAM_NAMES = "select stream from headgate.chosen_streams(filter => '{>}')"
CONSUMER_NAMES = "select name from headgate.consumers where stream = %s order by name limit 1000"
STREAMS = "select * from headgate.streams where %s::text is null or name = %s order by name"
CONSUMERS = (
    "select * from headgate.consumers where (%s::text is null or stream = %s) and (%s::text is null or name = %s) "
    "order by stream, name"
)
VERSIONS = (
    "select current_setting('server_version_num')::int, coalesce(v.migration, 0), v.digest, "
    "coalesce((to_jsonb(v) ->> 'functions')::int, 0) from headgate.installed_version() v"
)
IS_READ_ONLY = "select current_setting('transaction_read_only')::boolean"
DOCTOR = "select severity, subject, finding, advice from headgate.doctor(%s::text::interval)"
CHANNELS = (
    "select name, state, in_flight, parked, max_concurrency, release_interval, delivered, served_at, waiting, exact, "
    "oldest, delayed, complete, position from headgate.channel_backlog(%s, %s, %s, %s, %s, %s)"
)
SET_CHANNEL = "select headgate.set_channel(%s, %s, %s, %s, %s::text::interval, %s::text[])"
WORKERS = (
    "select * from headgate.workers where (%s::text is null or stream = %s) and (%s::text is null or consumer = %s) "
    "order by stream, consumer, joined_at, name"
)
SEGMENTS = "select * from headgate.segments where stream = %s order by id"
ARCHIVES = "select * from headgate.archives where stream = %s order by name"
DROP_ARCHIVE = "select headgate.drop_archive(%s, %s)"
NOTE_TIMINGS = (
    "select headgate.note_timings(%s, %s, %s::text[], %s::text[]::int[], %s::text[]::real[], %s::text[]::real[])"
)
CREATE_SOURCE = (
    "select headgate.create_source(%s, %s, kind => %s, scheme => %s, secret => %s::text[], "
    "settings => %s::text::jsonb, if_not_exists => %s)"
)
ALTER_SOURCE = (
    "select headgate.alter_source(%s, stream => %s, scheme => %s, secret => %s::text[], settings => %s::text::jsonb)"
)
DROP_SOURCE = "select headgate.drop_source(%s)"
SOURCES = "select * from headgate.sources where %s::text is null or name = %s order by name"
POSTGRES_SOURCES = "select * from headgate.postgres_sources() where %s::text is null or name = %s order by name"
CHECK_SOURCE_NAME = "select headgate.check_source_name(%s)"
ADD_POSTGRES_SOURCE = "select headgate.add_postgres_source(%s, %s, %s::text::jsonb)"
RESTART_POSTGRES_SOURCE = "select headgate.restart_postgres_source(%s, %s::text::jsonb)"
ALTER_POSTGRES_SOURCE = (
    "select headgate.alter_postgres_source(%s, stream => %s, url => %s, place => %s, tables => %s::text[], "
    "warn_bytes => %s, drop_bytes => %s, backfill_rate => %s, backfill_paused => %s)"
)
ROUTE_SOURCE = "select headgate.route_source(%s, %s, %s, %s::text[])"
SET_SOURCE_PAUSED = "select headgate.set_source_paused(%s, %s)"
DROP_POSTGRES_SOURCE = "select headgate.drop_postgres_source(%s)"
POSTGRES_SOURCE_ACCESS = (
    "select url, publication, slot, made, system_identifier, tables from headgate.postgres_source_access(%s)"
)
SOURCES_TO_READ = "select name, version, reader, is_free from headgate.sources_to_read()"
SOURCES_TO_WATCH = "select name, url, slot, drop_bytes from headgate.sources_to_watch(%s::text::interval)"
NOTE_SOURCE_SLOT = "select headgate.note_source_slot(%s, %s::text::pg_lsn, %s, %s)"
LOSE_SOURCE = "select headgate.lose_source(%s, %s, %s)"
TAKE_SOURCE = (
    "select version, stream, url, publication, slot, system_identifier, lsn, timeline, publication_oid, made, tables, "
    "drop_bytes, routes from headgate.take_source(%s, %s, %s::text::interval)"
)
KEEP_SOURCE = (
    "select headgate.keep_source(%s, %s, %s::text::interval, %s::text::pg_lsn, %s::text::pg_lsn, %s, %s, %s, "
    "%s::text[], %s)"
)
NOTE_SOURCE_PROGRESS = "select headgate.note_source_progress(%s, %s, %s::text::pg_lsn, %s, %s)"
NOTE_SOURCE_STATE = "select headgate.note_source_state(%s, %s, %s, %s, %s)"
LEAVE_SOURCE = "select headgate.leave_source(%s, %s)"
BACKFILL_SOURCE = "select headgate.backfill_source(%s, %s::text[], %s, %s, %s)"
CANCEL_BACKFILL = "select headgate.cancel_backfill(%s, %s::text[])"
NEXT_BACKFILL = (
    "select table_name, asked_at, last_key, again, from_column, from_value, finds_deleted, rate "
    "from headgate.next_backfill(%s)"
)
BEGIN_BACKFILL = "select headgate.begin_backfill(%s, %s, %s)"
NOTE_BACKFILL = "select headgate.note_backfill(%s, %s, %s, %s, %s::text[], %s::text[], %s, %s, %s)"
TELL_DELETED_ROWS = "select headgate.tell_deleted_rows(%s, %s, %s, %s, %s)"
SOURCE_BACKFILLS = (
    "select table_name, state, rows, estimate, error, asked_at, finished_at, from_column, from_value, finds_deleted, "
    "deleted from headgate.source_backfills(%s)"
)
SEND_CHANGES = "select count(*) from unnest(headgate.send_batch(%s, %s::text[], %s::text[]))"
HISTORY = "select * from headgate.history(%s, %s, %s::text::interval)"
MAY_ACT = "select has_function_privilege('headgate.pause(text,text)', 'execute')"
SEQ_AT = "select headgate.seq_at(%s, %s)"
DEAD_GROUPS = "select * from headgate.dead_groups(%s, %s)"
DEAD_OF_GROUP = "select * from headgate.dead_of_group(%s, %s, %s, %s, %s)"
WAITING_OF_KEY = "select * from headgate.waiting_of_key(%s, %s, %s, %s)"
TRY_FILTER = "select looked, passed, passing, others from headgate.try_filter(%s, %s::text[], %s)"
SEEK_PREVIEW = "select seq, again, passed_over, exact from headgate.seek_preview(%s, %s, %s)"
PIPELINES = "select * from headgate.pipeline_status()"
SEND_CHANGES_AND_NOTE = "select headgate.send_changes(%s, %s::text[], %s::text[], %s, %s, %s::text::pg_lsn, %s)"
COMPACT = "select headgate.compact(%s)"
MAINTAIN = "select task, subject, done from headgate.maintain()"

# What the HTTP server adds. Its statements share few connections: none may wait long for somebody's open transaction,
# such as one that has sent the same message id or drops the stream.
# (The stream's name refers to the setting, so that it is made first.)
SEND_SOON = (
    "select r.seqs from (select set_config('lock_timeout', '2s', true) as made) s, lateral ("
    "select headgate.send_batch(%s::text || left(s.made, 0), %s::text[], %s::text[], %s::text[]::jsonb[], "
    "%s::text[], %s::text[]::interval[], %s::text[]) as seqs) r"
)
SEND_SOON_AT = SEND_SOON.replace(_DELAYS, _AT_TIMES)
# Several acks of one consumer, each a list of ack_ids with a space between them: one commit, an answer each.
ACK_EACH = (
    "select r.* from (select set_config('synchronous_commit', 'off', true)) s, "
    "lateral (select t.n, a.acked, a.stale from unnest(%s::text[]) with ordinality t (ids, n) "
    "cross join lateral headgate.ack(%s, %s, string_to_array(t.ids, ' ')) a) r order by r.n"
)
LAST_SEQS = "select stream, seq from headgate.last_seqs(%s::text[])"
CREATE_TOKEN = "select headgate.create_token(%s, %s, %s, %s::text[], %s::text[], %s, %s::text::interval)"
CHECK_TOKENS = (
    "select u.id, t.name, t.hash, t.scopes, t.pattern, t.rate_limit "
    "from unnest(%s::text[]) u (id) cross join lateral headgate.check_token(u.id) t"
)
TOKENS = "select * from headgate.tokens()"
REVOKE_TOKEN = "select headgate.revoke_token(%s)"
NOTE_AUDIT = "select headgate.note_audit(%s, %s, %s, %s, %s, %s::text[], %s, %s::text::jsonb)"
AUDIT_LOG = "select * from headgate.audit_log(%s, %s)"
PUSH_VERSION = "select headgate.push_version()"
PUSH_TARGETS = "select * from headgate.push_targets()"
PUSH_GONE = "select headgate.push_gone(%s, %s, %s, %s)"
SOURCE_SETTINGS = "select stream, scheme, secrets, settings from headgate.source_settings(%s)"
FORGET_AUDIT = "select headgate.forget_audit(%s::text::interval)"
VITALS = "select name, subject, value from headgate.vitals()"
