"""Processes for tests to kill while they write, forked from one that has already imported everything.

`python -m tests.operations.victims MODULE` reads lines of JSON, each with a function of the module and its argument;
for each, it prints the process id, and later the exit status.
"""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Self


class Victims:
    """Starts victims that run functions of a module: `with Victims(MODULE) as victims:`.

    The functions take one string.
    """

    def __init__(self, module: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.operations.victims", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, function: str, argument: str, seconds: float | None = None) -> float:
        """Run a victim, and kill it after this many seconds. Returns its lifetime.

        With None, it runs to its end, and must succeed.
        """
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([function, argument]) + "\n")
        server.stdin.flush()
        pid, began = int(server.stdout.readline()), time.monotonic()
        if seconds is not None:
            time.sleep(seconds)  # it goes at any instant
            os.kill(pid, signal.SIGKILL)  # until it is waited for, its id is no other's
        server.stdin.write("\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        assert status == 0 or seconds is not None
        return time.monotonic() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()


def _serve(module: str) -> None:
    functions = import_module(module)
    for line in sys.stdin:
        function, argument = json.loads(line)
        pid = os.fork()
        if not pid:
            sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
            os.dup2(2, 1)
            try:
                getattr(functions, function)(argument)
            except BaseException as error:
                sys.stderr.write(f"{function}: {error!r}\n")
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)  # noqa: T201
        sys.stdin.readline()
        print(os.waitpid(pid, 0)[1], flush=True)  # noqa: T201


if __name__ == "__main__":
    _serve(sys.argv[1])
