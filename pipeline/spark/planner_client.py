"""Stands for a process of Spark's that plans batches, which a server forks (`planner_server.py`); else becomes it.

A script, which imports nothing but what it needs: `python -IS planner_client.py SOCKET PYTHON -m MODULE WORD...`.
"""

import os
import socket
import sys


def main(address: str, *command: str) -> None:
    """Ask the server at an address for the process of a command, and wait until it ends; run it where none answers."""
    words = [word.encode() for word in command[2:]]
    environment = [name + b"=" + value for name, value in os.environb.items()]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
            socket.send_fds(server, [b"\0".join(words) + b"\0\0"], [0, 1, 2])
            server.sendall(b"\0".join(environment))
            server.shutdown(socket.SHUT_WR)
            is_there = server.recv(1)
        except OSError:
            is_there = b""
        if is_there:
            # It may end in any way, and nobody asks in which.
            server.recv(1)
            return
    os.execv(command[0], command)  # noqa: S606  it is what Spark asked for


if __name__ == "__main__":
    main(*sys.argv[1:])
