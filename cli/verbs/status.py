"""`slackwater status`: how far the apps of a store root are."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ... import instants
from ...durations import HOUR_MS, format_ms
from ...errors import Usage
from .. import options
from ..session import Session, verb
from .snapshot import waiting_for

if TYPE_CHECKING:
    from ...pipeline.kafka.open import EndOffsets
    from ...settings import Settings
    from ...store.objects.protocol import ObjectStore

_KAFKA_TIMEOUT_S = 3.0


@verb(
    "slackwater status",
    "slackwater status flights --watch",
    "slackwater status flights --cost --since 1d          # requests, bytes, and S3's bill for a month",
    "slackwater status flights --json | jq '.[].stages[].inputs[].lag'",
    kafka=True,
)
def status(
    session: Session,
    app_name: str | None = options.argument("APP", "Only this app. Default: all in the store.", None),
    watch: bool = options.flag("--watch", "Show it again and again until Ctrl-C."),
    every: int = options.span("How often --watch looks. Default: 2s.", 2000, least_ms=100, bare_seconds=True),
    cost: bool = options.flag("--cost", "Show instead what the store is asked and keeps, and what a month costs."),
    since: int | None = options.span("With --cost: by the versions of this time. Default: 1h."),
) -> None:
    """Show how far every stage is, and what it has not read yet; of one app also how its tables do.

    The lag of users' topics needs Kafka; without it everything else is shown.
    """
    from ...moments.cut.stored import open_requests
    from ...moments.status.overview import overviews
    from ...results.status import status as shown

    if cost and watch:
        raise Usage("--cost and --watch exclude each other")
    if since is not None and not cost:
        raise Usage("--since goes with --cost")
    if cost:
        _show_cost(session, app_name, HOUR_MS if since is None else since)
        return
    with session.output.live() if watch else nullcontext(session.show) as show:
        while True:
            ends = _end_offsets(session.settings)
            found, damaged = overviews(session.store, app_name, ends or (lambda _topic: None))
            waiting = (
                sentence
                for each in found
                if each.requested and not each.damaged
                for sentence in waiting_for(session.store, each.app, open_requests(session.store, each.app))
            )
            silence = [f"the lag of users' topics is not known: {ends.silence}"] if ends and ends.silence else []
            detail, notes = app_name is not None, (*waiting, *silence)
            show(shown(found, in_detail=detail, damaged=damaged, notes=notes, empty=_empty(session.store)))
            if not watch:
                break
            time.sleep(every / 1_000)


def _show_cost(session: Session, app_name: str | None, span_ms: int) -> None:
    from ...moments.status.cost import cost_of
    from ...results.status import cost
    from ...store.versions.apps import list_apps

    names, since_ms = (app_name,) if app_name else list_apps(session.store), instants.now_ms() - span_ms
    costs = tuple(cost_of(session.store, name, since_ms, session.settings.prices) for name in names)
    session.show(cost(costs, format_ms(span_ms), _empty(session.store)))


def _end_offsets(settings: "Settings") -> "EndOffsets | None":
    """None where nothing says where Kafka is."""
    if not settings.brokers:
        return None
    from ...pipeline.kafka.open import EndOffsets

    return EndOffsets(settings.open_kafka(), timeout_s=_KAFKA_TIMEOUT_S)


def _empty(store: "ObjectStore") -> str:
    # A root with a typing error looks like one that nothing was written to yet; a folder can tell the two apart.
    if store.url.startswith("/") and not Path(store.url).exists():
        return f"no app in this store yet, and no folder {store.url}; `slackwater run FILE` makes both"
    return "no app in this store yet; `slackwater run FILE` makes one"
