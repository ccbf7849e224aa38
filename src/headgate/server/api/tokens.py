"""Tokens and the audit log: for administrators of all streams."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ...database import statements
from ...types import AuditInfo, TokenInfo
from ..http.errors import Problem
from ..http.routing import Call, Routes
from .fields import Body, Count, Filter, Limit, Nothing, Response, Seq, fields_of, seconds

routes = Routes()


class NewToken(Body):
    """A token to make. Without `streams` it is for all of them; their patterns are written like key filters."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[list[Literal["admin", "produce", "consume", "monitor"]], Meta(min_length=1, max_length=4)]
    streams: Filter | None = None
    rate_limit: Count | None = None
    lifetime_ms: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None = None


class MadeToken(Struct):
    """A new token: `token` is shown this once."""

    id: str
    token: str


class Token(fields_of(TokenInfo), Response):  # type: ignore[misc]
    """A token, without its secret."""


class AuditQuery(Body):
    """How many, and before which."""

    limit: Limit = 100
    before: Seq | None = None


class Audited(fields_of(AuditInfo), Response):  # type: ignore[misc]
    """An administrative call: the token and its scopes then, the stream, and what was asked for (no secrets)."""


@routes.route("POST", "/api/tokens", scope="admin", everywhere=True, body=NewToken, response=MadeToken, status=201)
async def create_token(call: Call) -> MadeToken:
    """Makes a token; it is shown this once."""
    new: NewToken = call.body
    id, token = await call.server.tokens.create(
        new.name, list(new.scopes), new.streams, new.rate_limit, seconds(new.lifetime_ms)
    )
    call.noted["token"] = id
    return MadeToken(id, token)


@routes.route("GET", "/api/tokens", scope="admin", everywhere=True, response=list[Token])
async def list_tokens(call: Call) -> list[Token]:
    """All tokens, the newest first."""
    return [Token.of(TokenInfo(*row)) for row in await call.server.hg.run(statements.TOKENS, ())]


@routes.route("DELETE", "/api/tokens/{token}", scope="admin", everywhere=True, response=Nothing)
async def revoke_token(call: Call) -> Nothing:
    """Revokes a token by its id. Other replicas notice within a second."""
    id = call.path["token"]
    [(was_valid,)] = await call.server.hg.run(statements.REVOKE_TOKEN, (id,))
    call.server.revoke(id)
    if not was_valid:
        raise Problem(404, "token_not_found", "there is no such token", "GET /api/tokens lists them")
    return Nothing()


@routes.route("GET", "/api/audit", scope="admin", everywhere=True, query=AuditQuery, response=list[Audited])
async def list_audit(call: Call) -> list[Audited]:
    """Administrative calls, the newest first."""
    rows = await call.server.hg.run(statements.AUDIT_LOG, (call.query.limit, call.query.before))
    return [Audited.of(AuditInfo(*row)) for row in rows]
