"""Things under way in an app, each with how it is detected (a note, a version, a heartbeat) and its message."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ...common import instants
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions import forgotten as forgetting
from ..cut import replicas
from ..cut.migrations import MIGRATIONS, Migration
from ..cut.moments import heads_of
from ..cut.stored import open_requests
from . import clones
from .edit_request import EDITS
from .runners import beats


class UnderWay(Enum):
    """Thing under way in an app, or state of the app meanwhile."""

    REMOVAL = "it is being removed"
    MAKING = "it is a clone, or an adoption, that is not whole yet"
    COPY = "it is a replica"
    LEFT = "it was recovered elsewhere"
    RUNNER = "a runner has it"
    SNAPSHOT = "a snapshot was asked for and is not complete"
    EDIT = "an edit was asked for and is not done"
    FORGETTING = "keys are being forgotten"
    CHANGE = "a migration, rewind or reset is not done in all stages"
    PROMOTION = "a promotion is prepared and not decided"
    CLONING = "a clone of it is being made"
    CLONES = "clones share its SSTs"
    RECOVERY = "it is being made of its replica"


class Sign(NamedTuple):
    """Detected thing under way."""

    under_way: UnderWay
    fact: str
    """Sentence that says what is under way, by whom, since when."""
    hint: str
    """Next step for the refused operation."""


def _elsewhere(store: ObjectStore, app: str) -> Sign | None:
    replica = replicas.find(store, app)
    if replica is None or replica.state == "recovered":
        return None
    label = f"{app} under {store.url}"
    if replica.state == "left":
        fact = f"{label} was recovered elsewhere by {replica.by}, and now runs under {replica.root}"
        return Sign(UnderWay.LEFT, fact, f"use --store {replica.root}")
    hint = f"use --store {replica.root}; or, if that store is lost: slackwater recover {app} --from {store.url}"
    return Sign(UnderWay.COPY, f"{label} is a replica of {replica.root}", hint)


def _runner(store: ObjectStore, app: str) -> Sign | None:
    for beat in beats(store, app, instants.now_ms()):
        fact = f"{', '.join(sorted(beat.stages))} of {app} run on {beat.by}"
        return Sign(UnderWay.RUNNER, fact, "stop that runner first, or add --fence, which stops it within seconds")
    return None


def _snapshot(store: ObjectStore, app: str) -> Sign | None:
    for open_request in open_requests(store, app):
        fact = f"snapshot {open_request.name!r} of {app} is under way, requested by {open_request.by}"
        hint = f"wait until it is complete, or withdraw it: slackwater snapshot rm {app} {open_request.name}"
        return Sign(UnderWay.SNAPSHOT, fact, hint)
    return None


def _edit(store: ObjectStore, app: str) -> Sign | None:
    for open_request in EDITS.all(store, app):
        fact = f"an edit of {app} is under way, requested by {open_request.edit.by}"
        return Sign(UnderWay.EDIT, fact, "wait for it; repeating the same `slackwater edit` finishes it")
    return None


def _forgetting(store: ObjectStore, app: str) -> Sign | None:
    if (note := forgetting.under_way(store, app)) is None:
        return None
    hint = (
        "wait until it is done; if it was interrupted, `slackwater forget` with the same keys finishes it, and "
        f"`slackwater forget {note.of} --give-up` abandons it if the keys are lost"
    )
    return Sign(
        UnderWay.FORGETTING, f"{note.by} has been forgetting keys of {note.of} since {instants.iso(note.time_ms)}", hint
    )


def _change(store: ObjectStore, app: str) -> Sign | None:
    if (last := MIGRATIONS.newest(store, app)) is None:
        return None
    missing = last.behind(heads_of(store, app, history.list_stages(store, app)))
    return half_done(last, missing) if missing else None


def half_done(change: Migration, missing: Sequence[str]) -> Sign:
    """Return the sign of a change that some stages have not applied."""
    fact = f"{change.what} of {change.app}, by {change.by}, is incomplete: {', '.join(missing)} did not apply it yet"
    return Sign(UnderWay.CHANGE, fact, "the next `slackwater migrate`, `rewind`, `reset` or `run` finishes it")


def _cloning(store: ObjectStore, app: str) -> Sign | None:
    for name in clones.being_made(store, app):
        hint = f"wait for it, or repeat the command if it was interrupted; `slackwater app rm {name}` abandons it"
        return Sign(UnderWay.CLONING, f"a clone of {app}, {name}, is being made", hint)
    return None


def _clones(store: ObjectStore, app: str) -> Sign | None:
    for clone, root in clones.living(store, app):
        first = f"remove {clone} first"
        if name := apps.name_of(store.at(root), clone):
            first = f"let {name} stop sharing files: slackwater compact {name} --full, then gc"
        fact = f"app {clone!r}{clones.under(root)} is a clone that still uses files of {app}"
        hint = f"{first}; `slackwater app rm {app} --force` removes {app} anyway, and damages {clone}"
        return Sign(UnderWay.CLONES, fact, hint)
    return None


def _recovery(store: ObjectStore, app: str) -> Sign | None:
    recovery = replicas.find_recovery(store, app)
    copy = replicas.find(store, app) if recovery is not None else None
    if recovery is None or copy is None or copy.state != "copy":
        return None
    fact = f"{app} is being recovered from {store.url} by {recovery.by}, since {instants.when(recovery.time_ms)}"
    return Sign(UnderWay.RECOVERY, fact, "wait until the recovery is done")


SIGNS: Final[Mapping[UnderWay, Callable[[ObjectStore, str], Sign | None]]] = {
    UnderWay.COPY: _elsewhere,
    UnderWay.LEFT: _elsewhere,
    UnderWay.RUNNER: _runner,
    UnderWay.SNAPSHOT: _snapshot,
    UnderWay.EDIT: _edit,
    UnderWay.FORGETTING: _forgetting,
    UnderWay.CHANGE: _change,
    UnderWay.CLONING: _cloning,
    UnderWay.CLONES: _clones,
    UnderWay.RECOVERY: _recovery,
}
"""Detector of each thing, in the order in which `check_exclusion` calls them.

Listing stages detects removal and creation; promoting detects a promotion.
"""
