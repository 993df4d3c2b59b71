"""Detection of IPv6, which not every container has."""

from __future__ import annotations

import socket


def has_ipv6() -> bool:
    """Whether a server can listen on ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
