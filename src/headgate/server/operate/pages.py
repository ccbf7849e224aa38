"""Pages for people with a browser: plain, without scripts, and with nothing that comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html

HTML = b"text/html; charset=utf-8"

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse}td{padding:.2rem .8rem .2rem 0;vertical-align:top}code,pre{font-size:90%}"
    "pre{overflow-x:auto}"
)
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

# A browser shows this page and loads, runs, sends and frames nothing.
GUARDS = [
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'".encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


def page(title: str, body: str) -> bytes:
    """A whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>{body}</body></html>\n"
    ).encode()


def is_wanted(accept: bytes) -> bool:
    """Whether a page was asked for, as browsers do: curl and other programs take anything, and get JSON."""
    return b"text/html" in accept.lower()


def welcome(links: dict[str, str], needs_token: bool) -> bytes:
    """What is at /."""
    rows = "".join(
        f'<tr><td><a href="{p}">{p}</a></td><td>{html.escape(about)}</td></tr>' for p, about in links.items()
    )
    return page("Headgate", _WELCOME.format(rows=rows, token=_TOKEN if needs_token else _NO_TOKEN))


_WELCOME = """
<p>A message queue and an event stream inside PostgreSQL. This is its HTTP server, and it works.</p>
<table>{rows}</table>
{token}
<h2>What next</h2>
<pre>headgate stream add orders
headgate consumer add orders billing
headgate send orders '{{"quantity": 4}}'
headgate receive orders billing --ack
headgate stream list --as-curl            # the same over HTTP: any command prints its call
headgate doctor                           # what is wrong, in sentences</pre>
"""
_TOKEN = """<h2>A token</h2>
<p>Calls of the API carry one. The first, for administrators, is in the file that <code>headgate up</code> names when it
starts: <code>.headgate/token</code>, where it was started. Others are made by <code>headgate token add NAME --scope
produce</code> (or consume, monitor, admin).</p>
<pre>export HEADGATE_TOKEN=$(cat .headgate/token)
curl -H "Authorization: Bearer $HEADGATE_TOKEN" http://localhost:7376/api/streams    # or where this server is</pre>"""
_NO_TOKEN = """<h2>No token</h2>
<p>This server was started with <code>--no-auth</code>: it takes calls from its own machine without a token.</p>
<pre>curl http://localhost:7376/api/streams    # or where this server is</pre>"""
