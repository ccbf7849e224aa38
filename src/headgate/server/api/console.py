"""What the console needs besides the API that everybody uses: its files, a login, and its first page in one answer."""

from __future__ import annotations

from msgspec import Struct

from ... import __version__
from ..console import assets, sessions
from ..http.errors import Problem
from ..http.routing import Call, Routes
from ..operate.auth import refuse_pages
from .fields import Nothing

routes = Routes()


class Me(Struct):
    """Who calls. `everywhere`: the token is for all streams; without `auth`, nobody needs one.

    `environment`: what the server calls this place, and its colour: "production:red".
    """

    id: str
    name: str
    scopes: list[str]
    everywhere: bool
    auth: bool
    version: str
    environment: str


class Session(Struct):
    """Who a browser is logged in as, if it is."""

    me: Me | None


async def _file(call: Call, name: str) -> assets.File:
    found = assets.find(name)
    if found is None:
        raise Problem(404, "not_found", "the console has no such file")
    call.sent += [*assets.GUARDS, (b"etag", found.tag)]
    return found


@routes.route("GET", "/console/{file}", scope=None, response="text/javascript", is_hidden=True)
async def get_console_file(call: Call) -> assets.File:
    """A file of the console."""
    return await _file(call, call.path["file"])


@routes.route("GET", "/console/pages/{file}", scope=None, response="text/javascript", is_hidden=True)
async def get_console_page(call: Call) -> assets.File:
    """A page of the console."""
    return await _file(call, "pages/" + call.path["file"])


@routes.route("GET", "/session", scope=None, response=Session, is_hidden=True)
async def get_session(call: Call) -> Session:
    """Who this browser is logged in as; nobody is no error."""
    server = call.server
    if not server.settings.auth:
        refuse_pages(call.headers, server.settings.host)
        return Session(_me(call))
    try:
        call.caller = await server.tokens.caller(sessions.authorization(call.headers))
    except Problem as problem:
        if problem.status != 401:
            raise
        return Session(None)
    return Session(_me(call))


@routes.route("POST", "/login", scope="any", response=Me, is_hidden=True)
async def login(call: Call) -> Me:
    """Keeps a browser logged in with the token that this request carries."""
    sessions.refuse_foreign(call.headers)
    token = call.headers.get(b"authorization", b"").rpartition(b" ")[2]
    if token:
        call.sent.append(sessions.set_cookie(call.headers, token.decode("ascii")))
    return _me(call)


@routes.route("POST", "/logout", scope=None, response=Nothing, is_hidden=True)
async def logout(call: Call) -> Nothing:
    """Forgets it."""
    sessions.refuse_foreign(call.headers)
    call.sent.append(sessions.set_cookie(call.headers, ""))
    return Nothing()


@routes.route("GET", "/api/me", scope="any", response=Me)
async def get_me(call: Call) -> Me:
    """Who calls, and what the token may do."""
    return _me(call)


def _me(call: Call) -> Me:
    caller, server = call.caller, call.server
    return Me(
        caller.id, caller.name, sorted(caller.scopes), caller.pattern is None, server.settings.auth, __version__,
        server.settings.environment,
    )  # fmt: skip
