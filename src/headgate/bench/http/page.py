"""What the report on the HTTP server says beside the figures."""

from __future__ import annotations

from ..plan import MESSAGE_BYTES
from ..report import Page

HTTP_PAGE = Page(
    {
        "traffic": (
            "Traffic",
            "50 clients of one server: 20 send, 10 receive for each of three consumers and ack with the next receive. "
            "Senders may be 2,000 messages ahead of the slowest consumer.",
        ),
        "processes": (
            "Processes",
            "The same traffic through a server of two processes; baseline is one process. The ratio is the median of "
            "those of each round.",
        ),
        "single": (
            "Single sends",
            "One message a request over 50 connections; baseline is the same server with batching off. The ratio is "
            "the median of those of each round.",
        ),
        "probe": (
            "Beside the SDK",
            "The same sends over HTTP and, as baseline, straight through the SDK from four processes with a connection "
            "each.",
        ),
        "wake": (
            "Waking",
            "From the answer of a publish to the answer of a long poll that waited for it, through the same replica "
            "of the server and through another one.",
        ),
        "polls": (
            "Waiting",
            "Long polls that wait at the same time: the server's memory, and all connections to its database.",
        ),
    },
    {"traffic": ("figure", "batch"), "single": ("batch", "clients"), "wake": ("figure", "replica")},
    "`headgate bench http --report DIR`",
    (
        f"Messages of {MESSAGE_BYTES} bytes, one stream with 16 hashed lanes, tokens checked. Clients, server and "
        "PostgreSQL share the machine.",
        "A figure is the median of its rounds. Absolute figures belong to this machine and hour.",
        "Sends are answered once they are on disk.",
    ),
)
