"""`monarch.tools.network`: addresses of hosts."""

from __future__ import annotations

import enum
import socket


class AddrType(enum.Enum):
    """Which address of a host."""

    Default = 1
    IPv4 = 2
    IPv6 = 3


_FAMILY = {AddrType.Default: socket.AF_UNSPEC, AddrType.IPv4: socket.AF_INET, AddrType.IPv6: socket.AF_INET6}


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """An address of a host; OSError when it has none of that kind.

    >>> get_ipaddr("127.0.0.1", 80)
    '127.0.0.1'
    """
    found = socket.getaddrinfo(hostname, port, _FAMILY[addr_type], socket.SOCK_STREAM)
    return str(found[0][4][0])


def get_sockaddr(hostname: str, port: int) -> str:
    """An address and the port, as "1.2.3.4:80" or "[::1]:80".

    >>> get_sockaddr("127.0.0.1", 80)
    '127.0.0.1:80'
    """
    address = get_ipaddr(hostname, port)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
