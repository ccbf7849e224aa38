"""The sockets that a server listens on."""

from __future__ import annotations

import errno
import socket

from ...errors import Error

BACKLOG = 4096


def cannot_listen(host: str, port: int, error: OSError | None = None) -> Error:
    """What is said when there is no listening there."""
    if error is not None and error.errno == errno.EADDRINUSE:
        return Error(
            f"port {port} of {host} is in use: another program listens there",
            hint="is `headgate up` running already? choose another port with --port, or 0 for a free one",
        )
    reason = f": {error.strerror or error}" if error is not None else ""
    return Error(
        f"the server cannot listen on {host} port {port}{reason}",
        hint="choose another address or port: --host, --port",
    )


def listen(host: str, port: int) -> list[socket.socket]:
    """Listens on all addresses of a host, on one port. Nobody else can listen there then."""
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError:  # of a family that this machine has not
                continue
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = made[0].getsockname()[1] if len(made) > 1 else port
            one.bind((address[0], chosen, *address[2:]))
            one.listen(BACKLOG)
            one.setblocking(False)
        if not made:
            raise OSError(f"{host} has no address here")
    except OSError as error:
        for one in made:
            one.close()
        raise cannot_listen(host, port, error) from error
    return made


def url_of(host: str, port: int) -> str:
    """Where requests are sent to."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
