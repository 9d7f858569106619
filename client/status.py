"""How far the apps of a store are, what they cost, and what snapshots under way wait for."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..common import instants
from ..common.durations import format_ms
from ..snapshot.cut.graph import Cut
from ..snapshot.cut.stored import Request, open_requests
from ..snapshot.status.overview import cost_of, overview, overviews, stages_at
from ..store.versions.apps import folder_of, list_apps
from .backends import Backends
from .show import status as shown
from .show.shown import Result, fields

_ANSWERED_MS = 10_000
"""By then a stage that runs has answered, as a rule."""
_KAFKA_TIMEOUT_S = 3.0


def status(client: Backends, app: str | None) -> Result:
    """How far every stage of all apps is, or of one with all details; the ends of topics need Kafka."""
    from ..pipeline.kafka.open import EndOffsets

    settings, app = client.settings, folder_of(client.store, app) if app else None
    ends = EndOffsets(settings.open_kafka(), timeout_s=_KAFKA_TIMEOUT_S) if settings.brokers else None
    found, damaged = overviews(client.store, app, ends or (lambda _topic: None))
    notes = [
        sentence
        for each in found
        if each.requested and not each.damaged
        for sentence in waiting_for(client, each.app, open_requests(client.store, each.app))
    ]
    if ends is not None and ends.silence:
        notes.append(f"the lag of users' topics is not known: {ends.silence}")
    notes += (f"{why[:1].upper()}{why[1:]}" for why in (ends.another.values() if ends is not None else ()))
    return shown.status(found, in_detail=app is not None, damaged=damaged, notes=notes, empty=_empty(client))


def stages(client: Backends, app: str, cut: Cut | None) -> dict[str, object]:
    """The stages of an app now, or at another moment, and the snapshots under way, for machines.

    Now, Kafka is asked for the ends of topics; `waiting` says how far each snapshot's markers have come.
    """
    if cut is not None:
        return {"now": False, "stages": stages_at(cut), "waiting": ()}
    from ..pipeline.kafka.open import EndOffsets
    from ..snapshot.take.taking import answers

    settings = client.settings
    ends = EndOffsets(settings.open_kafka(), timeout_s=_KAFKA_TIMEOUT_S) if settings.brokers else None
    found = overview(client.store, app, ends or (lambda _topic: None))
    waiting = (
        fields(each, "name", "created_ms", "by", stages=answers(client.store, app, each))
        for each in (open_requests(client.store, app) if found.requested else ())
    )
    more = fields(found, "created_ms", "origin", "names", "archives", "replicas", "damaged")
    return {"now": True, "stages": found.stages, "waiting": tuple(waiting), **more}


def cost(client: Backends, app: str | None, since_ms: int) -> Result:
    """What the store is asked and keeps for all apps, or one, by the versions of the last `since_ms`; and its price."""
    store, prices, began_ms = client.store, client.settings.prices, instants.now_ms() - since_ms
    costs = tuple(
        cost_of(store, name, began_ms, prices) for name in ((folder_of(store, app),) if app else list_apps(store))
    )
    return shown.cost(costs, format_ms(since_ms), _empty(client))


def waiting_for(client: Backends, app: str, requests: Sequence[Request]) -> Iterator[str]:
    """A sentence for each snapshot under way that waits for stages which do nothing."""
    if not requests:
        return
    # They bring Arrow along, which takes longer to load than the rest of `status` to answer.
    from ..snapshot.take.taking import answers
    from ..snapshot.take.waiting import ask_whether_gone, silent_stages

    for request in requests:
        if instants.now_ms() - request.created_ms < _ANSWERED_MS:
            continue
        found = answers(client.store, app, request)
        if silent := silent_stages(found):
            stages = ", ".join(f"{stage} (last commit {instants.when(found[stage].head_ms)})" for stage in silent)
            waits = f"{stages}, which {'does' if len(silent) == 1 else 'do'} not answer"
            yield f"snapshot {request.name} waits for {waits}: {ask_whether_gone(app, silent)}"


def _empty(client: Backends) -> str:
    # A root with a typing error looks like one that nothing was written to yet; a folder can tell the two apart.
    if client.root.startswith("/") and not Path(client.root).exists():
        return f"no app in this store yet, and no folder {client.root}; `slackwater run FILE` makes both"
    return "no app in this store yet; `slackwater run FILE` makes one"
