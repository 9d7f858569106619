"""Exclusion of operations: a rule for each pair of an operation and a condition of its app.

Each condition has a detector function, which searches for an object, a version or a heartbeat, and returns a message. A
verb calls `check_exclusion` before it changes anything. Some verbs write an object by which other verbs detect them.
These verbs call `check_exclusion` again after writing the object. So if two verbs start concurrently, at least the
later writer detects the other verb. `check_exclusion` raises an error for the conditions under which the operation is
refused. Verbs implement the other rules themselves.

The pin of a clone, in the clone's source, names the clone. A clone of a clone pins only its direct source, but its
first versions name SSTs of the first app as well, so the manifests themselves are read. Later versions of a stage name
no additional SSTs of other apps, so only the oldest remaining version is read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from ...common import instants
from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.forgotten import find_journal as forgetting
from ...store.versions.side_tables import named_objects
from ..cut import replicas
from ..cut.migrations import MIGRATIONS, Migration
from ..cut.moments import heads_of
from ..cut.stored import Snapshot, list_snapshots, open_requests
from .runners import EDITS, live_heartbeats


def clones_using_files(store: ObjectStore, app: str) -> Iterator[tuple[str, str]]:
    """Yield the clones that use an app's files, as pairs of the clone's name and store root.

    Searches the app's own root, and the roots that the app's pins name. A promoted clone is left out once none of its
    remaining versions names an SST of the app. Raises `Refused` if a clone may exist under a root that is unreachable
    from here, and `Unavailable` if a clone's store did not answer.
    """
    pins = _pins(store, app)
    names = cache(lambda root: apps.promoted_names(store.at(root)))
    pinned = (
        (pin.clone, pin.clone_root)
        for pin in pins
        if clone_exists(store, pin) and not apps.promoted_name(names(pin.clone_root), pin.clone)
    )
    sharing = (
        (other, root) for root in _roots(pins) for other, objects in apps_sharing_objects(store, app, root) if objects
    )
    return chain(pinned, sharing)


def unfinished_clones(store: ObjectStore, app: str) -> Iterator[str]:
    for root in _roots(_pins(store, app)):
        clone_store = store.at(root)
        for name in apps.list_unfinished_clones(clone_store):
            note = apps.find_clone_journal(clone_store, name)
            origin = note.info.origin if note is not None and note.root in ("", store.url) else None
            if origin is not None and origin.app == app:
                yield name


def _pins(store: ObjectStore, app: str) -> list[Snapshot]:
    # A half-removed app without an identity has no valid snapshots.
    snapshots = list_snapshots(store, app) if apps.find_app(store, app) is not None else ()
    return [snapshot for snapshot in snapshots if snapshot.kind == "clone"]


def _roots(pins: list[Snapshot]) -> list[str]:
    return sorted({"", *(pin.clone_root for pin in pins)})


def clone_exists(store: ObjectStore, snapshot: Snapshot) -> bool:
    """Return True if the clone for which this snapshot was pinned exists, or is being created.

    Raises `Refused` if the clone's store is unreachable from here.
    """
    elsewhere = snapshot.clone_root not in ("", store.url)
    target = store.at(snapshot.clone_root)
    if (note := apps.find_clone_journal(target, snapshot.clone)) is not None:
        origin = note.info.origin
        return origin is not None and (origin.app, note.snapshot) == (snapshot.app, snapshot.name)
    info = apps.find_app(target, snapshot.clone)
    if info is None:
        # An unmounted disk, or a disk of another machine, looks like an empty store.
        if elsewhere and next(iter(target.list_folders("")), None) is None:
            raise Refused(
                f"app {snapshot.clone!r} was cloned from snapshot {snapshot.name!r} of {snapshot.app} "
                f"under {snapshot.clone_root}, which cannot be read from here: the clone may still exist",
                hint=f"run this where {snapshot.clone_root} can be read; or, if the clone is gone, remove its "
                f"snapshot: slackwater snapshot rm {snapshot.app} {snapshot.name} --force",
            )
        return False
    origin = info.origin
    return origin is not None and (origin.app, origin.snapshot) == (snapshot.app, snapshot.name)


def apps_sharing_objects(store: ObjectStore, app: str, root: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each other app under a root that names objects of `app`, with the keys of these objects.

    Objects are SSTs and leaves. An empty `root` is the store root of `app`.
    """
    other_store = store.at(root)
    roots = {"", store.url} if other_store is store else {store.url}
    for other in apps.list_apps(other_store):
        if other_store is store and other == app:
            continue
        shared: set[str] = set()
        for stage in history.list_stages(other_store, other):
            for version in history.list_versions(other_store, other, stage)[:1]:
                named = named_objects(history.read(other_store, other, stage, version))
                shared |= {key for object_root, key in named if object_root in roots and key.startswith(f"{app}/")}
        yield other, frozenset(shared)


def root_suffix(root: str) -> str:
    return f" under {root}" if root else ""


class AppCondition(Enum):
    """Condition of an app that can block an operation: another operation, a running process, or a lasting state."""

    REMOVAL = "the app is being removed"
    MAKING = "the app is an incomplete clone, or its adoption is incomplete"
    COPY = "the app is a replica"
    LEFT = "the app was recovered under another store root"
    RUNNER = "a runner of the app is running"
    SNAPSHOT = "a requested snapshot is incomplete"
    EDIT = "a requested edit is not applied yet"
    FORGETTING = "keys of the app are being forgotten"
    CHANGE = "a migration, rewind or reset is incomplete"
    PROMOTION = "a promotion is prepared and not decided"
    CLONING = "a clone of the app is being created"
    CLONES = "clones share SSTs of the app"
    RECOVERY = "a recovery from this replica is incomplete"


class Evidence(NamedTuple):
    """Evidence that a condition holds for an app: a sentence, and a hint for the user."""

    condition: AppCondition
    fact: str
    hint: str


def _detect_replica(store: ObjectStore, app: str) -> Evidence | None:
    replica = replicas.find_replica_state(store, app)
    if replica is None or replica.state == "recovered":
        return None
    label = f"{app} under {store.url}"
    if replica.state == "left":
        fact = f"{label} was recovered elsewhere by {replica.by}, and now runs under {replica.root}"
        return Evidence(AppCondition.LEFT, fact, f"use --store {replica.root}")
    hint = f"use --store {replica.root}; or, if that store is lost: slackwater recover {app} --from {store.url}"
    return Evidence(AppCondition.COPY, f"{label} is a replica of {replica.root}", hint)


def _detect_runner(store: ObjectStore, app: str) -> Evidence | None:
    for beat in live_heartbeats(store, app, instants.now_ms()):
        fact = f"{', '.join(sorted(beat.stages))} of {app} run on {beat.by}"
        return Evidence(
            AppCondition.RUNNER, fact, "stop that runner first, or add --fence, which stops it within seconds"
        )
    return None


def _detect_snapshot_request(store: ObjectStore, app: str) -> Evidence | None:
    for open_request in open_requests(store, app):
        fact = f"snapshot {open_request.name!r} of {app} is under way, requested by {open_request.by}"
        hint = f"wait until it is complete, or withdraw it: slackwater snapshot rm {app} {open_request.name}"
        return Evidence(AppCondition.SNAPSHOT, fact, hint)
    return None


def _detect_edit_request(store: ObjectStore, app: str) -> Evidence | None:
    for open_request in EDITS.all(store, app):
        kind = open_request.kind
        fact = f"{'an' if kind == 'edit' else 'a'} {kind} of {app} is under way, requested by {open_request.edit.by}"
        return Evidence(AppCondition.EDIT, fact, f"wait for it; repeating the same `slackwater {kind}` finishes it")
    return None


def _detect_forget(store: ObjectStore, app: str) -> Evidence | None:
    if (note := forgetting(store, app)) is None:
        return None
    hint = (
        "wait until it is done; if it was interrupted, `slackwater forget` with the same keys finishes it, and "
        f"`slackwater forget {note.of} --give-up` abandons it if the keys are lost"
    )
    return Evidence(
        AppCondition.FORGETTING,
        f"{note.by} has been forgetting keys of {note.of} since {instants.format_iso(note.time_ms)}",
        hint,
    )


def _detect_incomplete_migration(store: ObjectStore, app: str) -> Evidence | None:
    if (last := MIGRATIONS.newest(store, app)) is None:
        return None
    missing = last.missing_stages(heads_of(store, app, history.list_stages(store, app)))
    return evidence_of_incomplete(last, missing) if missing else None


def evidence_of_incomplete(change: Migration, missing: Sequence[str]) -> Evidence:
    fact = f"{change.label} of {change.app}, by {change.by}, is incomplete: {', '.join(missing)} did not apply it yet"
    return Evidence(AppCondition.CHANGE, fact, "the next `slackwater migrate`, `rewind`, `reset` or `run` finishes it")


def _detect_unfinished_clone(store: ObjectStore, app: str) -> Evidence | None:
    for name in unfinished_clones(store, app):
        hint = f"wait for it, or repeat the command if it was interrupted; `slackwater app rm {name}` abandons it"
        return Evidence(AppCondition.CLONING, f"a clone of {app}, {name}, is being made", hint)
    return None


def _detect_clones(store: ObjectStore, app: str) -> Evidence | None:
    for clone, root in clones_using_files(store, app):
        first = f"remove {clone} first"
        if name := apps.find_promoted_name(store.at(root), clone):
            first = f"let {name} stop sharing files: slackwater compact {name} --full, then gc"
        fact = f"app {clone!r}{root_suffix(root)} is a clone that still uses files of {app}"
        hint = f"{first}; `slackwater app rm {app} --force` removes {app} anyway, and damages {clone}"
        return Evidence(AppCondition.CLONES, fact, hint)
    return None


def _detect_recovery(store: ObjectStore, app: str) -> Evidence | None:
    recovery = replicas.find_recovery(store, app)
    copy = replicas.find_replica_state(store, app) if recovery is not None else None
    if recovery is None or copy is None or copy.state != "copy":
        return None
    fact = (
        f"{app} is being recovered from {store.url} by {recovery.by}, since "
        f"{instants.format_with_age(recovery.time_ms)}"
    )
    return Evidence(AppCondition.RECOVERY, fact, "wait until the recovery is done")


DETECTORS: Final[Mapping[AppCondition, Callable[[ObjectStore, str], Evidence | None]]] = {
    AppCondition.COPY: _detect_replica,
    AppCondition.LEFT: _detect_replica,
    AppCondition.RUNNER: _detect_runner,
    AppCondition.SNAPSHOT: _detect_snapshot_request,
    AppCondition.EDIT: _detect_edit_request,
    AppCondition.FORGETTING: _detect_forget,
    AppCondition.CHANGE: _detect_incomplete_migration,
    AppCondition.CLONING: _detect_unfinished_clone,
    AppCondition.CLONES: _detect_clones,
    AppCondition.RECOVERY: _detect_recovery,
}
"""Detectors by condition, in the order of the checks.

Three conditions have no detector here. `history.list_stages` detects the removal and the creation of the app, and the
code that promotes detects promotions.
"""


class Intent(Enum):
    """Operation that is about to start, with its command. `Intent.REMOVE` is also `clone rm`."""

    RUN = "`run`"
    SNAPSHOT = "`snapshot take`"
    PIN = "`snapshot take --instant`"
    REMOVE_SNAPSHOT = "`snapshot rm` of a clone's snapshot"
    CLONE = "`clone`"
    REFRESH = "`clone refresh`"
    REMOVE = "`app rm`"
    RETRY = "`rejected --retry`"
    RESCALE = "`rescale`"
    RETIRE = "`retire`"
    COMPACT = "`compact`"
    COLLECT = "`gc`"
    ARCHIVE = "`archive`"
    EDIT = "`edit`"
    REPAIR = "`repair`"
    FORGET = "`forget`"
    MIGRATE = "`migrate`"
    REWIND = "`rewind`"
    RESET = "`reset`"
    PROMOTE = "`promote`"
    REPLICATE = "`replicate`"
    RECOVER = "`recover`"
    ADOPT = "`adopt`"


class ExclusionRule(Enum):
    """Rule for a condition (such as an operation under way) and an operation that is about to start.

    With the rule `FINISHES`, a command finishes the operation under way before its own work. The dry run of such a
    command is refused, because a dry run must not change anything. All other rules permit a dry run.
    """

    BESIDE = "run at the same time as"
    REFUSED = "refused for"
    WAITS = "asked to carry out"
    FENCES = "fenced by"
    FINISHES = "finished first by"
    WITHDRAWS = "withdrawn by"


_B, _R, _W, _T, _F, _X = ExclusionRule
_ROWS: Mapping[Intent, tuple[ExclusionRule, ...]] = {
    # Columns as in `AppCondition`: REmoval, MaKing, COpy, LEft, RUnner, SNapshot, EDit, FOrgetting, CHange, PRomotion,
    # ClonING, CLones, RECovery.
    #                       RE  MK  CO  LE  RU  SN  ED  FO  CH  PR  ING CL  REC
    Intent.RUN:             (_R, _R, _R, _R, _T, _B, _B, _B, _F, _X, _B, _B, _R),
    Intent.SNAPSHOT:        (_R, _R, _R, _R, _B, _B, _B, _R, _B, _B, _B, _B, _R),
    Intent.PIN:             (_R, _R, _B, _B, _B, _B, _B, _R, _B, _B, _B, _B, _B),
    Intent.REMOVE_SNAPSHOT: (_B, _B, _R, _R, _B, _B, _B, _B, _B, _B, _R, _R, _R),
    Intent.CLONE:           (_R, _R, _B, _B, _B, _B, _B, _R, _B, _B, _B, _B, _B),
    Intent.REFRESH:         (_R, _R, _R, _R, _R, _B, _B, _B, _B, _X, _R, _R, _R),
    Intent.REMOVE:          (_F, _X, _B, _B, _R, _B, _B, _B, _B, _X, _R, _R, _B),
    Intent.RETRY:           (_R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.RESCALE:         (_R, _R, _R, _R, _T, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.RETIRE:          (_R, _R, _R, _R, _T, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.COMPACT:         (_R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.COLLECT:         (_R, _R, _R, _R, _B, _B, _B, _R, _B, _B, _B, _B, _R),
    Intent.ARCHIVE:         (_R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.EDIT:            (_R, _R, _R, _R, _W, _B, _B, _R, _B, _B, _B, _B, _R),
    Intent.REPAIR:          (_R, _R, _R, _R, _W, _B, _B, _R, _B, _B, _B, _B, _R),
    Intent.FORGET:          (_R, _R, _R, _R, _B, _R, _R, _R, _B, _B, _R, _B, _R),
    Intent.MIGRATE:         (_R, _R, _R, _R, _T, _R, _B, _R, _F, _B, _B, _B, _R),
    Intent.REWIND:          (_R, _R, _R, _R, _R, _X, _B, _R, _F, _B, _B, _B, _R),
    Intent.RESET:           (_R, _R, _R, _R, _R, _B, _B, _R, _F, _B, _B, _B, _R),
    Intent.PROMOTE:         (_R, _R, _R, _R, _B, _X, _B, _B, _B, _F, _B, _B, _R),
    Intent.REPLICATE:       (_R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.RECOVER:         (_R, _R, _B, _R, _B, _X, _B, _B, _X, _B, _B, _B, _F),
    Intent.ADOPT:           (_R, _R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _R),
}  # fmt: skip

RULES: Final[Mapping[Intent, Mapping[AppCondition, ExclusionRule]]] = {
    intent: dict(zip(AppCondition, row, strict=True)) for intent, row in _ROWS.items()
}

_ELSEWHERE = "{intent} is possible only where the app runs"
_SNAPSHOT = "a snapshot taken now could keep these keys"
_REFUSAL_REASONS: Final[Mapping[AppCondition, Mapping[Intent | None, str]]] = {
    AppCondition.COPY: {None: _ELSEWHERE},
    AppCondition.LEFT: {None: _ELSEWHERE},
    AppCondition.RECOVERY: {None: _ELSEWHERE, Intent.REPLICATE: "nothing is copied to it any more"},
    AppCondition.RUNNER: {Intent.ADOPT: "a stage cannot be adopted while the app runs"},
    AppCondition.SNAPSHOT: {
        Intent.FORGET: "it may capture in-flight records with keys to be forgotten",
        Intent.MIGRATE: "the migration changes inputs or names of stages that it waits for",
    },
    AppCondition.EDIT: {Intent.FORGET: "it may write a row with a key to be forgotten"},
    AppCondition.FORGETTING: {
        Intent.SNAPSHOT: _SNAPSHOT,
        Intent.PIN: _SNAPSHOT,
        Intent.CLONE: _SNAPSHOT,
        Intent.COLLECT: "no version refers to the rewritten files yet, so garbage collection could delete them",
        Intent.EDIT: "an edit could write these keys again",
        Intent.REPAIR: "a repair could write these keys again",
        # Each of these operations first takes a snapshot with in-flight records.
        Intent.MIGRATE: _SNAPSHOT,
        Intent.REWIND: _SNAPSHOT,
        Intent.RESET: _SNAPSHOT,
        Intent.FORGET: "only one forget can run at a time",
    },
    AppCondition.CLONING: {None: "it uses the app's files", Intent.FORGET: "it would contain the keys to be forgotten"},
}
"""Reasons by condition and operation, appended to the sentence in `Evidence.fact`.

The reason under the key None applies to all operations that are not listed. Without a reason, the sentence of
`Evidence.fact` is the whole message.
"""

_NEXT_STEPS: Final[Mapping[tuple[AppCondition, Intent], str]] = {
    (AppCondition.RUNNER, Intent.ADOPT): "stop it; start it again with the program that has the stage"
}

RUNS_ELSEWHERE: Final = (AppCondition.COPY, AppCondition.LEFT)
"""Conditions of an app that runs under a second root."""


def check_exclusion(
    store: ObjectStore, app: str, intent: Intent, *columns: AppCondition, dry_run: bool = False
) -> None:
    """Raise `Refused` if a condition of the app excludes an operation.

    Checks the given conditions; if none are given, all conditions. A dry run is refused only if the operation under way
    would have to be finished first (`ExclusionRule.FINISHES`). Makes one or two requests for each checked condition.
    The removal and the creation of the app are not checked here: `history.list_stages` detects them.
    """
    blocking = ExclusionRule.FINISHES if dry_run else ExclusionRule.REFUSED
    blockers = [column for column in columns or DETECTORS if RULES[intent][column] is blocking]
    for detect in dict.fromkeys(DETECTORS[column] for column in blockers):
        if (sign := detect(store, app)) is not None and sign.condition in blockers:
            raise refusal_error(intent, sign)


def refusal_error(intent: Intent, sign: Evidence) -> Refused:
    reasons = _REFUSAL_REASONS.get(sign.condition, {})
    why = reasons.get(intent, reasons.get(None, "")).format(intent=intent.value)
    return Refused(
        f"{sign.fact}: {why}" if why else sign.fact, hint=_NEXT_STEPS.get((sign.condition, intent), sign.hint)
    )
