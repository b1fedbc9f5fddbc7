"""Where rewards may be sent: hosts by name, and the addresses that a name turns out to have.

Invariant: link-local, unspecified and multicast addresses and the metadata services of clouds are
never sent to, however they are written; addresses of one's own network only under an exact name.
"""

import ipaddress
import socket
from collections.abc import Mapping, Sequence

from rollart.core.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

HOSTS = "ROLLART_REWARD_HOSTS"
"""Environment variable with the hosts that rewards may be sent to, `*.example.com` for all below.

It is the operator's; where it is not set, those that the job's URLs name are allowed, and no other.
"""

METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Metadata services that are not at a link-local address: Alibaba, Oracle, AWS over IPv6."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def allowed_hosts(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The operator's list, or None where there is none; an empty one allows nothing."""
    given = environment.get(HOSTS)
    return (
        None if given is None else tuple(host for one in given.split(",") if (host := one.strip()))
    )


def literal(host: str) -> Address | None:
    """The address that a host is, in any notation that a resolver takes; None for a name."""
    try:
        return _inner(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:  # "2852039166", "0xa9fea9fe", "0251.0376.0251.0376" and "169.254.43518" are one address
        return ipaddress.IPv4Address(socket.inet_aton(host)) if host[:1].isdigit() else None
    except OSError:
        return None


def never(address: Address) -> bool:
    """Whether nothing is ever sent there."""
    address = _inner(address)
    return (
        address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address in METADATA
    )


def inside(address: Address) -> bool:
    """Whether it is of this machine or of a private network."""
    return not _inner(address).is_global


def is_loopback(host: str) -> bool:
    """Whether a host, by its name alone, is this machine."""
    address = literal(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def named(host: str, allow_hosts: Sequence[str] | None) -> bool:
    """Whether a job names this very host; by default its URLs do."""
    return allow_hosts is None or host in map(str.lower, allow_hosts)


def check_host(host: str, url: str, allow_hosts: Sequence[str] | None) -> None:
    """Raises `ConfigError` for a host that nothing may be sent to, with the remedy."""
    address = literal(host)
    if address is not None:
        if never(address):
            raise ConfigError(
                f"{url}: {host} is a link-local, unspecified or metadata address, which rewards "
                "are never sent to; give the function's own host"
            )
        if host != str(address):
            raise ConfigError(f"{url}: {host} is {address} in disguise; write {address}")
    if not (named(host, allow_hosts) or _below(host, allow_hosts or ())):
        raise ConfigError(
            f"{url}: {host} is not in {HOSTS}={','.join(allow_hosts or ())}; add it there, or send "
            "the reward elsewhere"
        )


def _below(host: str, allow_hosts: Sequence[str]) -> bool:
    return literal(host) is None and any(
        host.endswith(pattern[1:].lower())
        for pattern in allow_hosts
        if pattern.startswith("*.") and len(pattern) > 2
    )


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
