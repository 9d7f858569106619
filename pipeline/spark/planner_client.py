"""Script that Spark runs in place of a planner: asks a server to run the planner, or executes the planner itself.

The server is `planner_server.py`. A script with minimal imports: `python -IS planner_client.py SOCKET PYTHON -m MODULE
WORD...`.
"""

import os
import socket
import sys


def main(address: str, *command: str) -> None:
    """Ask the server at `address` to run the command, and wait for the end of the process that the server forks.

    A planner gets a thread instead of a process, so there is nothing to wait for. Without a server, executes the
    command in this process.
    """
    arguments = [word.encode() for word in command[2:]]
    environment = [name + b"=" + value for name, value in os.environb.items()]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
            socket.send_fds(server, [b"\0".join(arguments) + b"\0\0"], [0, 1, 2])
            server.sendall(b"\0".join(environment))
            server.shutdown(socket.SHUT_WR)
            is_served = server.recv(1)
        except OSError:
            is_served = b""
        if is_served:
            # The exit code is not used.
            server.recv(1)
            return
    os.execv(command[0], command)  # noqa: S606  the command that Spark runs


if __name__ == "__main__":
    main(*sys.argv[1:])
