from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sandbox.public_address import checked_addresses, is_public
from workers.tools.tool import ToolError

PUBLIC = ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
NOT_PUBLIC = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fd00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:c0a8:101::1",
    "not an address",
    "",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_public_internet_are_taken(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_all_others_are_not(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses(v=4).filter(lambda address: not is_public(str(address))))
def test_an_address_that_is_not_public_is_none_inside_another_either(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for carrier in (
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1",
        f"::{address}",
    ):
        assert not is_public(carrier)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "::1", "0"])
async def test_this_machine_is_refused_by_whatever_name(host: str) -> None:
    with pytest.raises(ToolError, match=r"not on the public internet|can't be looked up"):
        await checked_addresses(host, 80)


async def test_one_address_that_is_not_allowed_spoils_the_name() -> None:
    assert await checked_addresses("127.0.0.1", 80, lambda _address: True) == ["127.0.0.1"]
    with pytest.raises(ToolError, match="not on the public internet"):
        await checked_addresses("localhost", 80, lambda address: address not in ("127.0.0.1", "::1"))


async def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ToolError, match="can't be looked up"):
        await checked_addresses("a" * 300, 80)
