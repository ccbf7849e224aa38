"""Tokens and the audit log: for administrators of all streams."""

from __future__ import annotations

from ...database import statements
from ..http.call import Call
from ..http.errors import Problem
from ..http.routing import Routes
from .answers import Audited, MadeToken, Nothing, Token
from .fields import seconds
from .requests import AuditQuery, NewToken

routes = Routes()


@routes.route("POST", "/api/tokens", scope="admin", everywhere=True, body=NewToken, answer=MadeToken, status=201)
async def create_token(call: Call) -> MadeToken:
    """Makes a token; it is shown this once."""
    new: NewToken = call.body
    id, token = await call.server.tokens.create(
        new.name, list(new.scopes), new.streams, new.rate_limit, seconds(new.lifetime_ms)
    )
    call.noted["token"] = id
    return MadeToken(id, token)


@routes.route("GET", "/api/tokens", scope="admin", everywhere=True, answer=list[Token])
async def list_tokens(call: Call) -> list[Token]:
    """All tokens, the newest first."""
    return [Token(*row) for row in await call.server.hg.run(statements.TOKENS, ())]


@routes.route("DELETE", "/api/tokens/{token}", scope="admin", everywhere=True, answer=Nothing)
async def revoke_token(call: Call) -> Nothing:
    """Revokes a token by its id. Other replicas notice within a second."""
    id = call.path["token"]
    [(was_valid,)] = await call.server.hg.run(statements.REVOKE_TOKEN, (id,))
    call.server.revoke(id)
    if not was_valid:
        raise Problem(404, "token_not_found", "there is no such token", "GET /api/tokens lists them")
    return Nothing()


@routes.route("GET", "/api/audit", scope="admin", everywhere=True, query=AuditQuery, answer=list[Audited])
async def list_audit(call: Call) -> list[Audited]:
    """Administrative calls, the newest first."""
    rows = await call.server.hg.run(statements.AUDIT_LOG, (call.query.limit, call.query.before))
    return [Audited(*row) for row in rows]
