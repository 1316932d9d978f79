"""Addresses of model servers, as a person gives them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

CHAT_PATH = "/chat/completions"


def address_fault(address: str) -> str:
    """What is wrong with an address; empty if nothing is. It is not repeated: it may hold a password."""
    if not address.isascii() or not address.isprintable() or " " in address:
        return "holds characters that no address has"
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 - reading it is the check
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is an address that starts with http:// or https://"
    if parts.username is not None or parts.password is not None:
        return "may hold no user and password: give the key in its variable"
    if parts.query or parts.fragment:
        return "ends before any ? or #"
    if parts.path.endswith(CHAT_PATH):
        return f"ends before {CHAT_PATH}"
    return ""


def is_on_this_machine(address: str) -> bool:
    """Whether ``address`` is a loopback one, by its name or number; no name is looked up."""
    host = urlsplit(address).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
