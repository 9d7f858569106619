"""Calling a user's command when an invariant fails, with what happened in its environment."""

import os
import subprocess
from collections.abc import Mapping

from ...errors import Unavailable

TIMEOUT_S = 60.0
"""So long a command may take. It is to tell somebody, or to start what takes longer."""

_STDERR = 2


def call(command: str, environment: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
    """Run a command line by the shell, and wait for it. What it prints goes to this process's standard error.

    Raises:
        Unavailable: it cannot be run, or ends with another code than 0, or not in time: then it is killed.
    """
    try:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=_STDERR,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise Unavailable(f"on_failure cannot be run: {error.strerror or error}", quoted=command) from None
    except subprocess.TimeoutExpired:
        hint = "let it start what takes longer in the background, and end"
        raise Unavailable(f"on_failure had not ended after {timeout_s:g} s", quoted=command, hint=hint) from None
    if ended.returncode:
        raise Unavailable(f"on_failure ended with exit code {ended.returncode}", quoted=command)
