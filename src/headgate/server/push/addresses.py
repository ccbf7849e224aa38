"""Where the server may post to: nobody who can set up a push consumer may reach the network that the server stands in.

A name is resolved, its addresses are checked, and the connection goes to an address that was checked: what the name
stands for a moment later does not matter.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

import anyio
import httpcore

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Not for everybody, although not all versions of Python say so; the last one is Azure's way to its machines.
_CLOSED = [ipaddress.ip_network(n) for n in ("192.0.0.0/24", "198.18.0.0/15", "fec0::/10", "168.63.129.16/32")]
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(Exception):
    """An address that the server does not post to."""


def is_public(address: Address) -> bool:
    """Whether an address is one of the open network: neither private, loopback, link-local, multicast nor reserved.

    An IPv6 address that stands for an IPv4 one (mapped, compatible, 6to4, Teredo, NAT64) is as public as that.
    """
    if isinstance(address, ipaddress.IPv6Address) and (inner := _inner(address)) is not None:
        return is_public(inner)
    if any(address in network for network in _CLOSED if network.version == address.version):
        return False
    return address.is_global and not (
        address.is_multicast
        or address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_reserved
        or address.is_unspecified
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    number = int(address)
    if address in _NAT64 or (number >> 32 == 0 and number > 1):  # the second: compatible, as it was once
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    return None


class Guard:
    """What may be posted to: public addresses, everything, or public ones and the hosts and networks allowed."""

    def __init__(self, *, private: bool = False, allowed: Iterable[str] = ()) -> None:
        self._private = private
        self._hosts: set[str] = set()
        self._networks: list[Network] = []
        for text in allowed:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                self._hosts.add(text.lower().rstrip("."))

    def permits(self, host: str, address: Address) -> bool:
        """Whether this address of that host may be connected to."""
        if self._private or host.lower().rstrip(".") in self._hosts:
            return True
        plain = _inner(address) if isinstance(address, ipaddress.IPv6Address) else None
        for one in (address, plain):
            if one is not None and any(one in n for n in self._networks if n.version == one.version):
                return True
        return is_public(address)

    def check_literal(self, host: str) -> None:
        """Refuses what is plainly not allowed, before anything is stored. Names are checked when they are used."""
        bare = host.strip("[]").lower().rstrip(".")
        try:
            address: Address = ipaddress.ip_address(bare)
        except ValueError:
            if bare != "localhost" and not bare.endswith(".localhost"):
                return
            address = ipaddress.IPv4Address("127.0.0.1")
        if not self.permits(bare, address):
            raise Refused(f"{bare} is not a public address")

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host that may be connected to, or Refused."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        texts = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        permitted = [t for t in texts if self.permits(host.strip("[]"), ipaddress.ip_address(t))]
        if not permitted:
            raise Refused("the host has no public address")  # which ones it has is nobody's business
        return permitted


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses only. TLS still asks for the certificate of the name: that is done above this."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore has it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first permitted address that takes one."""
        failure: Exception = Refused("the host has no address")
        with anyio.fail_after(timeout):
            addresses = await self._guard.resolve(host, port)
            for address in addresses:
                try:
                    return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
                except (httpcore.ConnectError, httpcore.ConnectTimeout, OSError) as error:
                    failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore has it
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise Refused("not a host")

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)
