"""Status, cost and commits of a store's apps, and the stages for which pending snapshot requests wait."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..common import instants
from ..common.durations import format_ms
from ..errors import Refused, Unavailable
from ..settings import Settings
from ..snapshot.cut.graph import Cut
from ..snapshot.cut.stored import SnapshotRequest, open_requests
from ..snapshot.query.log import LogEntry, log_entries
from ..snapshot.status.cost import cost_of
from ..snapshot.status.overview import overview, overviews, stages_at
from ..store.objects.many import map_concurrently
from ..store.versions.apps import folder_of, list_apps
from .backends import Backends
from .show import status as shown
from .show.document import TableBlock
from .show.shown import Result, attributes

_ANSWER_EXPECTED_MS = 10_000
_KAFKA_TIMEOUT_S = 3.0


def status(client: Backends, app: str | None) -> Result:
    """Return the status of all apps, or of one app with details. The lag behind users' topics needs Kafka."""
    from ..pipeline.kafka.open import EndOffsets

    settings, app = client.settings, folder_of(client.store, app) if app else None
    ends = EndOffsets(settings.open_kafka(), timeout_s=_KAFKA_TIMEOUT_S) if settings.brokers else None
    overviews_found, damaged = overviews(client.store, app, ends or (lambda _topic: None))
    notes = [
        sentence
        for app_overview in overviews_found
        if app_overview.requested and not app_overview.damaged
        for sentence in waiting_sentences(client, app_overview.app, open_requests(client.store, app_overview.app))
    ]
    if ends is not None and ends.timeout_message:
        notes.append(f"the lag of users' topics is unknown: {ends.timeout_message}")
    notes += (f"{why[:1].upper()}{why[1:]}" for why in (ends.missing_reasons.values() if ends is not None else ()))
    return shown.status_result(
        overviews_found, in_detail=app is not None, damaged=damaged, notes=notes, empty=_empty_store_line(client)
    )


def commits(
    client: Backends, app: str, limit: int, *, stage: str = "", replayable: bool = False
) -> tuple[LogEntry, ...]:
    """Return the newest commits of the app with this folder; see `StoredApp.log`."""
    topics = client.channels_of(app) if replayable else None
    if topics is not None:
        try:
            return log_entries(client.store, app, limit, stage=stage, remaining_of=topics.held())
        except (Unavailable, Refused) as error:
            client.note(f"note: cannot tell which versions can be replayed: {error.message}")
    return log_entries(client.store, app, limit, stage=stage)


def log(client: Backends, app: str, limit: int, *, stage: str = "") -> Result:
    """Return the newest commits of an app, each with a flag that is true if its input can still be read."""
    from .show.history import log_result  # imports Arrow

    return log_result(commits(client, folder_of(client.store, app), limit, stage=stage, replayable=True), app)


def stages(client: Backends, app: str, cut: Cut | None, *, seen: Mapping[str, int] | None = None) -> dict[str, object]:
    """Return the status of an app's stages at the moment `cut`, as data for JSON; without `cut`, now.

    Without `cut`, the end offsets of topics are read from Kafka, and `waiting` has the progress of each snapshot's
    markers. `seen` has recent newest versions of stages, which saves requests.
    """
    if cut is not None:
        return {"now": False, "stages": stages_at(cut), "waiting": ()}
    from ..pipeline.kafka.open import EndOffsets
    from ..snapshot.take.taking import read_answers

    settings = client.settings
    ends = EndOffsets(settings.open_kafka(), timeout_s=_KAFKA_TIMEOUT_S) if settings.brokers else None
    app_overview = overview(client.store, app, ends or (lambda _topic: None), hints=seen or {})
    waiting = (
        attributes(request, "name", "created_ms", "by", stages=read_answers(client.store, app, request))
        for request in (open_requests(client.store, app) if app_overview.requested else ())
    )
    more = attributes(app_overview, "created_ms", "origin", "names", "archives", "replicas", "damaged")
    return {"now": True, "stages": app_overview.stages, "waiting": tuple(waiting), **more}


def cost(client: Backends, app: str | None, since_ms: int) -> Result:
    """Return requests, storage and price of all apps or one, measured over the last `since_ms` milliseconds."""
    store, prices, began_ms = client.store, client.settings.prices, instants.now_ms() - since_ms
    names = (folder_of(store, app),) if app else list_apps(store)
    costs = tuple(map_concurrently(lambda name: cost_of(store, name, began_ms, prices), names))
    return shown.cost_result(costs, format_ms(since_ms), _empty_store_line(client))


def waiting_sentences(client: Backends, app: str, requests: Sequence[SnapshotRequest]) -> Iterator[str]:
    """Yield a sentence for each open snapshot request that waits for inactive stages."""
    if not requests:
        return
    # These modules import Arrow, which takes longer than the rest of `status`.
    from ..snapshot.take.taking import read_answers, retire_question, silent_stages

    for request in requests:
        if instants.now_ms() - request.created_ms < _ANSWER_EXPECTED_MS:
            continue
        answers_found = read_answers(client.store, app, request)
        if silent := silent_stages(answers_found):
            stages = ", ".join(
                f"{stage} (last commit {instants.format_with_age(answers_found[stage].head_ms)})" for stage in silent
            )
            waits = f"{stages}, which {'does' if len(silent) == 1 else 'do'} not answer"
            yield f"snapshot {request.name} waits for {waits}: {retire_question(app, silent)}"


def _empty_store_line(client: Backends) -> str:
    # A mistyped root looks like an empty store. For a folder, the two cases can be distinguished.
    if client.root.startswith("/") and not Path(client.root).exists():
        return f"no app in this store yet, and no folder {client.root}; `slackwater run FILE` makes both"
    return "no app in this store yet; `slackwater run FILE` makes one"


def examination(settings: Settings, requested: Sequence[str], *, writes: bool) -> Result:
    """Return the result of examining this machine. It fails if something requested or configured does not exist."""
    from ..operations.maintenance.doctor import Configuration, examine

    kafka = settings.kafka() if settings.brokers else None
    diagnoses = tuple(examine(Configuration(settings.store, kafka, settings.s3), requested, writes=writes))
    rows = ((diagnosis.name, diagnosis.state, diagnosis.detail) for diagnosis in diagnoses)
    steps = (f"{diagnosis.name}: {diagnosis.next_step}" for diagnosis in diagnoses if diagnosis.next_step)
    failed = any(diagnosis.state in ("missing", "failed") for diagnosis in diagnoses)
    return Result(diagnoses, TableBlock.from_rows(("", "state", "detail"), rows), *steps, failed=failed)
