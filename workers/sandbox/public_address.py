"""Which hosts a tool may reach by the network: public ones only.

A model that was talked into it must not reach what only this machine or its network can: a database, a router, the
metadata service of a cloud. Names are looked up first, and the address that was checked is the one that is connected
to: a name that stands for another address a moment later is of no use.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import TypeAlias

import trio

from workers.sandbox.paths import visible
from workers.tools.tool import ToolError

IsAllowed: TypeAlias = Callable[[str], bool]

_IPv6 = ipaddress.IPv6Address
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def is_public(address: str) -> bool:
    """Whether the IP address belongs to the public internet; so must an IPv4 address that it carries inside.

    Source: the special-purpose registries of IANA; RFC 4291 (mapped), 3056 (6to4), 4380 (Teredo), 6052 (translated).
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, _IPv6):
        carried = _carried(parsed)
        if carried is not None:
            return all(is_public(str(inside)) for inside in carried)
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


def _carried(address: _IPv6) -> list[ipaddress.IPv4Address] | None:
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in _COMPATIBLE or any(address in network for network in _TRANSLATED):
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    return None


async def checked_addresses(host: str, port: int, is_allowed: IsAllowed = is_public) -> list[str]:
    """The addresses of ``host``; raises `ToolError` if it has none, or one that is not allowed."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolError(f"The name {visible(host)} can't be looked up.") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not addresses:
        raise ToolError(f"The name {visible(host)} has no address.")
    if not all(map(is_allowed, addresses)):
        raise ToolError(
            f"{visible(host)} is not on the public internet, so WebFetch may not reach it. "
            "For a server on this machine use Bash."
        )
    return addresses
