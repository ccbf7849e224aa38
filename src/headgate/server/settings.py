"""What the server can be told."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InvalidArgument

PORT = 7376
MOST_PROCESSES = 256
COLOURS = ("red", "amber", "green", "blue", "violet", "grey")  # of an environment
LEAST_CONNECTIONS = 4  # of one process to the database


@dataclass(frozen=True)
class Settings:
    """How to run the server. `database=None` is the private PostgreSQL in `directory`."""

    database: str | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    processes: int = 1  # that serve; `headgate up` has one for each core, up to 8
    auth: bool = True
    directory: str | None = None  # of the private PostgreSQL and the first token
    token_file: Path | None = None  # where the first token is written; by default `token` in the directory
    first_token: bool = True  # make a token for administrators when there is none in the file
    max_connections: int = 8  # to the database, beside the one for maintenance; of more processes, 4 each
    pooler: bool = False
    maintain: bool = True
    batching: bool = True
    body_limit: int = 32 * 1024 * 1024  # bytes of one request
    bodies_limit: int = 256 * 1024 * 1024  # bytes of all requests in work
    in_work: int = 4000  # requests at once, those that wait for messages apart
    waiting: int = 20_000  # polls at once that wait for messages
    rate_limit: int | None = None  # requests a second of each token without a limit of its own
    connections: int = 24_000  # of callers at once, idle ones included
    access_log: bool = False  # a line at level info for each request; else it has level debug
    audit_days: int | None = 90  # how long administrative calls are remembered; None: for ever
    head_timeout: float = 20.0  # seconds for the head of a request to come
    timeout: float = 30.0  # seconds of work on one request, waiting for messages apart
    read_sources: bool = True  # read the tables of sources
    push: bool = True  # post the messages of push consumers
    push_private: bool = False  # to any address, also of the network that the server stands in
    push_allow: tuple[str, ...] = ()  # hosts and networks that are allowed besides public addresses
    hide: tuple[str, ...] = ()  # parts of messages that only administrators see: data.card.number, headers.x, data
    environment: str = ""  # what the console calls this place, and its colour: "production:red"
    webhook_body_limit: int = 4 * 1024 * 1024  # bytes of one incoming webhook
    webhooks_in_work: int = 500  # incoming webhooks at once: who needs no token must not keep the others out
    webhook_bodies_limit: int = 64 * 1024 * 1024  # bytes of all of them
    webhook_rate_limit: int = 500  # incoming webhooks a second of one address, before anything is looked at

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidArgument(f"there is no port {self.port}", hint="choose 1 to 65535, or 0 for a free one")
        if not 1 <= self.processes <= MOST_PROCESSES:
            raise InvalidArgument(
                f"{self.processes} processes are not possible", hint=f"choose 1 to {MOST_PROCESSES}: one for each core"
            )
        name, _, colour = self.environment.rpartition(":") if ":" in self.environment else (self.environment, "", "")
        if len(name) > 40 or (colour and colour not in COLOURS):
            raise InvalidArgument(
                f'"{self.environment[:60]}" is no name of an environment',
                hint="choose production:red; " + ", ".join(COLOURS),
            )
        if self.connections < 1:
            raise InvalidArgument(f"{self.connections} connections are not possible", hint="choose 1 or more")
        if self.audit_days is not None and not 1 <= self.audit_days <= 36_500:
            raise InvalidArgument(f"{self.audit_days} days are not possible", hint="choose 1 to 36500, or 0 for ever")
        if not self.auth and not is_loopback(self.host):
            raise InvalidArgument(
                f"without tokens the server does not listen on {self.host}",
                hint="leave authentication on, or listen on 127.0.0.1",
            )

    def of_process(self, slot: int) -> Settings:
        """The part of one of several processes. What is done once is done by the first."""
        n = self.processes

        def part(whole: int, least: int = 1) -> int:
            return max(-(-whole // n), least)

        mine = replace(
            self, max_connections=part(self.max_connections, LEAST_CONNECTIONS), connections=part(self.connections),
            in_work=part(self.in_work), waiting=part(self.waiting), webhooks_in_work=part(self.webhooks_in_work),
            bodies_limit=part(self.bodies_limit, self.body_limit),
            webhook_bodies_limit=part(self.webhook_bodies_limit, self.webhook_body_limit),
        )  # fmt: skip
        return (
            mine
            if slot == 0
            else replace(mine, maintain=False, push=False, read_sources=False, first_token=False, audit_days=None)
        )

    @property
    def home(self) -> Path:
        """The directory of the private PostgreSQL and the first token."""
        return Path(self.directory or os.environ.get("HEADGATE_EMBEDDED_DIR") or ".headgate").expanduser()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
