"""Hosts that nothing is sent to, however they are written."""

from ipaddress import ip_address

import pytest

from rollart.backends.rewards.addresses import (
    HOSTS,
    allowed_hosts,
    check_host,
    inside,
    is_loopback,
    never,
)
from rollart.core.errors import ConfigError

METADATA = [
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "100.100.100.200",
    "0.0.0.0",
    "0",
    "::",
    "224.0.0.1",
]


@pytest.mark.parametrize("host", METADATA)
def test_metadata_services_are_refused_in_every_notation(host: str) -> None:
    for allow_hosts in (None, (host,), ("*",)):
        with pytest.raises(ConfigError, match="never sent to"):
            check_host(host, "https://…", allow_hosts)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "::ffff:127.0.0.1", "10.1"])
def test_an_address_in_disguise_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="in disguise"):
        check_host(host, "https://…", None)


def test_hosts_are_those_that_are_allowed_and_by_default_those_that_are_named() -> None:
    check_host("judge.example.com", "u", None)
    check_host("127.0.0.1", "u", None)
    check_host("judge.example.com", "u", ("Judge.Example.com",))
    check_host("judge.example.com", "u", ("*.example.com",))
    check_host("a.b.example.com", "u", ("*.example.com",))
    for host in ("example.com", "evil-example.com", "example.com.evil.org", "10.0.0.1"):
        with pytest.raises(ConfigError, match=HOSTS):
            check_host(host, "u", ("*.example.com", "*.0.0.1", "*."))


def test_what_is_of_this_machine_or_a_private_network_is_inside() -> None:
    for address in ("127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "::1", "fd00::1"):
        assert inside(ip_address(address))
        assert not never(ip_address(address))
    assert not inside(ip_address("8.8.8.8"))
    assert is_loopback("localhost")
    assert is_loopback("127.8.8.8")
    assert is_loopback("::1")
    assert not is_loopback("localhost.example.com")


def test_the_operators_list_is_read_as_it_was_meant() -> None:
    assert allowed_hosts({}) is None
    assert allowed_hosts({HOSTS: ""}) == ()
    assert allowed_hosts({HOSTS: " a.example , ,*.b.example,"}) == ("a.example", "*.b.example")
