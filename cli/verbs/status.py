"""`slackwater status`: how far the apps of a store root are."""

import time
from contextlib import nullcontext

from ...durations import HOUR_MS
from ...errors import Usage
from ..options import argument, flag, span
from ..session import Session, verb


@verb(
    "slackwater status",
    "slackwater status flights --watch",
    "slackwater status flights --cost --since 1d          # requests, bytes, and S3's bill for a month",
    "slackwater status flights --json | jq '.[].stages[].inputs[].lag'",
    kafka=True,
)
def status(
    session: Session,
    app_name: str | None = argument("APP", "Only this app. Default: all in the store.", None),
    watch: bool = flag("--watch", "Show it again and again until Ctrl-C."),
    every: int = span("How often --watch looks. Default: 2s.", 2000, least_ms=100, bare_seconds=True),
    cost: bool = flag("--cost", "Show instead what the store is asked and keeps, and what a month costs."),
    since: int | None = span("With --cost: by the versions of this time. Default: 1h."),
) -> None:
    """Show how far every stage is, and what it has not read yet; of one app also how its tables do.

    The lag of users' topics needs Kafka; without it everything else is shown.
    """
    from ...client import status as of

    if cost and watch:
        raise Usage("--cost and --watch exclude each other")
    if since is not None and not cost:
        raise Usage("--since goes with --cost")
    if cost:
        session.show(of.cost(session.client, app_name, HOUR_MS if since is None else since))
        return
    with session.live() if watch else nullcontext(session.show) as show:
        while True:
            show(of.status(session.client, app_name))
            if not watch:
                break
            time.sleep(every / 1_000)
