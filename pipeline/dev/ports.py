"""Ports of this machine for servers that only this machine may reach."""

import secrets
import socket

from ...errors import Unavailable

HOST = "127.0.0.1"

# Below the ports that systems hand out to outgoing connections (from 32768 on Linux, 49152 on macOS). A
# client that keeps trying to reach a stopped server on one of those can end up connected to itself, and then
# holds the port.
_FIRST, _NUM = 20_000, 10_000
_TRIES = 100


def is_open(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    # Asked as well, because some systems let one address be taken from a server that listens on all of them.
    if is_open(port):
        return False
    with socket.socket() as probe:
        # As servers do it: connections that are still being wound up are not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(*preferred: int) -> int:
    """The first of the preferred ports that is free, else any free one. Raises `Unavailable` when none was found."""
    for port in preferred:
        if is_free(port):
            return port
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_NUM)
        if is_free(port):
            return port
    raise Unavailable(f"no free port was found on {HOST} in {_TRIES} tries from {_FIRST} to {_FIRST + _NUM - 1}")
