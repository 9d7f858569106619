"""Hold of an app during a repair: runners stop reading users' topics, and stages read their channels to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ....common import runtime
from ....errors import Refused, SlackwaterError
from ....pipeline.run.background import background_thread
from ....snapshot.change.switch import reachable_position, why_not_reached
from ....snapshot.under_way import runners
from ....snapshot.under_way.runners import Hold
from ....store.objects.protocol import ObjectStore
from ....store.versions.manifest import Manifest

_POLL_S = 0.2
Heads = Callable[[], Mapping[str, Manifest]]


@contextmanager
def holding(store: ObjectStore, app: str, by: str, heads: Heads) -> Iterator[None]:
    """Hold the app's runners at their current offsets."""
    renewed, lock = 0, runtime.lock()

    def renew() -> None:
        nonlocal renewed
        with lock:
            at = reachable_position(heads().values())
            hold = Hold(app, app, app, by, renewed, dict(at.offsets), at.clock_ms)
            runners.put_holds(store, [hold], wake_runners=not renewed)
            renewed += 1

    def keep_renewing(over: runtime.Event) -> None:
        # A replay may take longer than a hold lasts.
        while not over.wait(runners.HOLD_RENEW_S):
            with suppress(SlackwaterError):
                renew()

    try:
        renew()
        with background_thread("repair-hold", keep_renewing):
            yield
    finally:
        runners.release_holds(store, [app])


def await_rest(store: ObjectStore, app: str, heads: Heads, timeout_s: float, on_wait: Callable[[str], None]) -> None:
    """Wait until all stages have read their channels. Raises `Refused` after `timeout_s`."""
    last_reason, deadline = "", runtime.monotonic() + timeout_s
    while True:
        now = heads()
        at = reachable_position(now.values())
        reasons = (why_not_reached(store, head, at) for head in now.values())
        if not (why := next(filter(None, reasons), "")):
            return
        if runtime.monotonic() > deadline:
            raise Refused(
                f"the stages of {app} did not finish their batches within {timeout_s:g} s: {why}",
                hint="repeat the command, with a longer --timeout",
            )
        if why != last_reason:
            on_wait(why)
            last_reason = why
        runtime.sleep(_POLL_S)
