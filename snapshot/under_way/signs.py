"""Things under way in an app, each with how it is detected (a note, a version, a sign of life) and its message."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ...common import instants
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.forgotten import under_way as forgetting
from ..cut import replicas
from ..cut.migrations import MIGRATIONS, Migration
from ..cut.moments import heads_of
from ..cut.stored import open_requests
from . import clones
from .edit_request import EDITS
from .runners import beats


class UnderWay(Enum):
    """A thing under way in an app, or what the app is meanwhile."""

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
    """A thing under way that was detected."""

    under_way: UnderWay
    fact: str
    """A sentence: what is under way, by whom, since when."""
    hint: str
    """The next step of whoever is refused for it."""


def _elsewhere(store: ObjectStore, app: str) -> Sign | None:
    found = replicas.find(store, app)
    if found is None or found.state == "recovered":
        return None
    here = f"{app} under {store.url}"
    if found.state == "left":
        fact = f"{here} was recovered elsewhere by {found.by}, and runs under {found.root} since"
        return Sign(UnderWay.LEFT, fact, f"say --store {found.root}")
    hint = f"say --store {found.root}; or, where that is lost: slackwater recover {app} --from {store.url}"
    return Sign(UnderWay.COPY, f"{here} is a replica of {found.root}", hint)


def _runner(store: ObjectStore, app: str) -> Sign | None:
    for beat in beats(store, app, instants.now_ms()):
        fact = f"{', '.join(sorted(beat.stages))} of {app} run, by {beat.by}"
        return Sign(UnderWay.RUNNER, fact, "stop that runner first, or say --fence: then it stops within seconds")
    return None


def _snapshot(store: ObjectStore, app: str) -> Sign | None:
    for asked in open_requests(store, app):
        fact = f"snapshot {asked.name!r} of {app} is under way, asked for by {asked.by}"
        hint = f"wait until it is complete, or withdraw it: slackwater snapshot rm {app} {asked.name}"
        return Sign(UnderWay.SNAPSHOT, fact, hint)
    return None


def _edit(store: ObjectStore, app: str) -> Sign | None:
    for asked in EDITS.all(store, app):
        fact = f"an edit of {app} is under way, asked for by {asked.edit.by}"
        return Sign(UnderWay.EDIT, fact, "let it end: the same `slackwater edit` again finishes it")
    return None


def _forgetting(store: ObjectStore, app: str) -> Sign | None:
    if (note := forgetting.find(store, app)) is None:
        return None
    hint = (
        "let that end, and try again; if it broke off, `slackwater forget` with the same keys finishes it, and "
        f"`slackwater forget {note.of} --give-up` ends it for those who do not have them"
    )
    return Sign(UnderWay.FORGETTING, f"{note.by} forgets keys of {note.of} since {instants.iso(note.time_ms)}", hint)


def _change(store: ObjectStore, app: str) -> Sign | None:
    if (last := MIGRATIONS.newest(store, app)) is None:
        return None
    behind = last.behind(heads_of(store, app, history.list_stages(store, app)))
    return half_done(last, behind) if behind else None


def half_done(change: Migration, behind: Sequence[str]) -> Sign:
    """The sign of a change that some stages did not go through."""
    fact = f"{change.what} of {change.app}, by {change.by}, is not done yet: {', '.join(behind)} did not go through it"
    return Sign(UnderWay.CHANGE, fact, "the next `slackwater migrate`, `rewind`, `reset` or `run` finishes it")


def _cloning(store: ObjectStore, app: str) -> Sign | None:
    for name in clones.being_made(store, app):
        hint = f"let it end, or type it again if it broke off; `slackwater app rm {name}` gives it up"
        return Sign(UnderWay.CLONING, f"a clone of {app}, {name}, is being made", hint)
    return None


def _clones(store: ObjectStore, app: str) -> Sign | None:
    for clone, root in clones.living(store, app):
        first = f"remove {clone} first"
        if name := apps.name_of(store.at(root), clone):
            first = f"merge what {name} shares (slackwater compact {name} --full), and let gc collect what came before"
        fact = f"app {clone!r}{clones.under(root)} lives from {app}: it is a clone, and shares its SSTs"
        hint = f"{first}; `slackwater app rm {app} --force` removes {app} all the same, and {clone} is damaged"
        return Sign(UnderWay.CLONES, fact, hint)
    return None


def _recovery(store: ObjectStore, app: str) -> Sign | None:
    found = replicas.find_recovery(store, app)
    copy = replicas.find(store, app) if found is not None else None
    if found is None or copy is None or copy.state != "copy":
        return None
    fact = f"{app} is recovered from {store.url} by {found.by}, since {instants.when(found.time_ms)}"
    return Sign(UnderWay.RECOVERY, fact, "it is the app itself once that is done")


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
"""How `check_exclusion` detects each, in this order. Listing stages detects the first two, promoting a promotion."""
