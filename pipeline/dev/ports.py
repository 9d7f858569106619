"""Choice of ports for servers on the loopback interface."""

import secrets
import socket

from ...errors import Unavailable

HOST = "127.0.0.1"

# Below the ports that systems hand out to outgoing connections (from 32768 on Linux, 49152 on macOS). A
# client that keeps trying to reach a stopped server on one of those can end up connected to itself, and then
# holds the port.
_FIRST, _NUM = 20_000, 10_000
_TRIES = 100


def is_port_open(port: int) -> bool:
    """Return True if a server listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def is_port_free(port: int) -> bool:
    """Return True if a server could listen on the port."""
    # Checked as well, because some systems allow binding to one address while a server listens on all addresses.
    if is_port_open(port):
        return False
    with socket.socket() as probe:
        # As servers do: ignore connections in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_port(*preferred: int) -> int:
    """Return the first preferred port that is free, else any free one. Raises `Unavailable` if none is found."""
    for port in preferred:
        if is_port_free(port):
            return port
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_NUM)
        if is_port_free(port):
            return port
    raise Unavailable(f"no free port was found on {HOST} in {_TRIES} tries from {_FIRST} to {_FIRST + _NUM - 1}")
