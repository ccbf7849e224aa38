"""A test build of the engine that stops where it is told to, and the director who tells it.

The functions of `sql/functions`, and those of `sql/templates`, name points with a comment of its own:
`-- point: a lane is claimed`. In the test build each is a call of `headgate.at_point`. A session stops at one point,
which it has in its setting `torture.stop_at`, by waiting for an advisory lock that the director holds. No table is
touched, so that nothing else changes for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import psycopg

from headgate.database import schema

GATE = 7376002  # the advisory lock is (GATE, 0)

_POINT = re.compile(r"^( *)-- point: (.+)$", re.MULTILINE)

# An assertion is the one statement that changes neither FOUND nor ROW_COUNT. `torture.stop_at` is a number and a name:
# "2 a lane is claimed" stops when the point is passed for the second time. What a subtransaction counted is undone with
# it: then it stops again, where the gate is open by now.
AT_POINT = f"""
create function headgate.at_point(p_name text) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  stop text := current_setting('torture.stop_at', true);
begin
  if current_setting('torture.trace', true) = 'on' then raise notice 'point: %', p_name; end if;
  if substr(stop, strpos(stop, ' ') + 1) = p_name then
    if split_part(stop, ' ', 1)::int > 1 then
      perform set_config('torture.stop_at', split_part(stop, ' ', 1)::int - 1 || ' ' || p_name, false);
    else
      perform set_config('torture.stop_at', '', false);
      perform headgate.wait_at_gate();
    end if;
  end if;
  return true;
end $$;
create function headgate.wait_at_gate() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = 0 as $$
begin
  perform pg_advisory_lock_shared({GATE}, 0);
  perform pg_advisory_unlock_shared({GATE}, 0);
end $$;
"""

AT_GATE = f"""
select exists (select from pg_locks l
                where l.pid = %s and l.locktype = 'advisory' and l.classid = {GATE} and not l.granted)
"""

# Whether a session waits for another one's lock, and whether it has gone to sleep to try again.
WAITS = """
select pg_blocking_pids(%(pid)s) <> '{}',
       coalesce((select a.wait_event = 'PgSleep' from pg_stat_activity a where a.pid = %(pid)s), false)
"""

POLL = 0.001
NAPS = 8  # so many looks that find a session asleep: it is waiting for somebody, and not for a moment


def names(script: str | None = None) -> list[str]:
    """The points of the engine, in the order of its files."""
    return [name for _, name in _POINT.findall(script or schema.functions_script())]


def stopping_build(script: str | None = None) -> str:
    """The installation script (or another one, with a fault in it) with a stop at each point."""
    return _POINT.sub(r"\1assert headgate.at_point('\2');", script or schema.install_sql()) + AT_POINT


class Director:
    """Holds the gate shut while sessions are to stop, and sees what they wait for."""

    def __init__(self, url: str) -> None:
        self.db = psycopg.connect(url, autocommit=True, application_name="director")

    def shut(self) -> None:
        self.db.execute("select pg_advisory_lock(%s, 0)", [GATE])

    def open(self) -> None:
        self.db.execute("select pg_advisory_unlock(%s, 0)", [GATE])

    def see_stop(self, pid: int, ended: Callable[[], bool]) -> bool:
        """Waits until a session has come to the gate, or has ended without."""
        while not ended():
            if self.db.execute(AT_GATE, [pid]).fetchall()[0][0]:
                return True
            time.sleep(POLL)
        return False

    def see_end(self, pid: int, ended: Callable[[], bool], patience: float) -> bool:
        """Waits until a session has ended, or, which is false, others hold it up or the patience is at its end."""
        until, naps = time.monotonic() + patience, 0
        while not ended():
            is_held, naps_now = self.db.execute(WAITS, {"pid": pid}).fetchall()[0]
            naps = naps + 1 if naps_now else 0
            if is_held or naps >= NAPS or time.monotonic() > until:
                return False
            time.sleep(POLL)
        return True

    def close(self) -> None:
        self.db.close()
