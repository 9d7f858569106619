"""What must always hold of an app: a predicate, how often it is asked, and what is called when it does not hold."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import Unavailable, Usage
from ...store.objects.protocol import ObjectStore
from .predicate import check

TIMEOUT_S = 60.0
"""So long a command may take. It is to tell somebody, or to start what takes longer."""

_STDERR = 2


@dataclass(frozen=True, slots=True)
class Invariant:
    """A standing invariant, as `[invariants.NAME]` of `slackwater.toml` says it."""

    name: str
    where: str
    """SQL over the app's tables that returns rows when it does not hold; empty while it is a `check`."""
    every_ms: int
    on_failure: str = ""
    """A command line for the shell, called when it has begun to fail; empty for none."""
    app: str = ""
    """The only app of which it must hold; empty for any."""
    check: str = ""
    """The condition that must hold instead, as `bisect --check` takes it."""
    table: str = ""
    """Which table the condition is over, where its columns do not say."""

    def __post_init__(self) -> None:
        if self.every_ms <= 0:
            raise Usage(f"invariant {self.name!r}: it is asked every {self.every_ms} ms; expected a longer span")

    def of(self, store: ObjectStore, app: str) -> "Invariant":
        """The same with a query in place of a condition, which the app's tables complete. Raises as `check` does."""
        return replace(self, where=check(store, app, self.check, self.table).sql) if self.check else self


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
