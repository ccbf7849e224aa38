"""What one HTTP send runs through: so few files that somebody can read them in one sitting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 15

SCRIPT = """
import http.client, json, os, signal, sys, threading
from pathlib import Path
from headgate.server import run
from headgate.server.settings import Settings

PACKAGE = str(Path(run.__file__).parent.parent) + os.sep
settings = Settings(sys.argv[1], port=0, token_file=Path(sys.argv[2]), maintain=False, push=False, read_sources=False,
                    audit_days=None)
found, files, ready, is_on = {}, set(), threading.Event(), False

def profile(frame, event, arg):
    if is_on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
        files.add(frame.f_code.co_filename.removeprefix(PACKAGE))

def listening(running):
    found.update(url=running.url, token=running.token_file.read_text().strip())
    ready.set()

def client():
    global is_on
    ready.wait(60)
    server = http.client.HTTPConnection(found["url"].partition("//")[2])
    headers = {"Authorization": "Bearer " + found["token"], "Content-Type": "application/json"}

    def post(path, body):
        server.request("POST", path, json.dumps(body), headers)
        answer = server.getresponse()
        answer.read()
        return answer.status

    message = {"messages": [{"data": {"n": 1}, "key": "a"}]}
    done = [post("/api/streams", {"name": "s"})] + [post("/api/streams/s/messages", message) for _ in range(3)]
    is_on = True
    done.append(post("/api/streams/s/messages", message))
    is_on = False
    print(json.dumps([done, sorted(files)]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

sys.setprofile(profile)
threading.Thread(target=client).start()
run.serve(settings, listening)
"""


def test_a_send_passes_few_files(database_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, database_url, str(tmp_path / "token")], capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    answers, files = json.loads(done.stdout)
    assert answers == [201, 200, 200, 200, 200]
    files = [f for f in files if f != "tokens.py"]  # a token is looked up anew after a second, whatever is called
    assert "server/api/messages.py" in files
    assert "aio/database.py" in files
    assert len(files) <= MOST, files
