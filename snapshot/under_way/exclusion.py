"""Mutual exclusion: one table of operations and things under way, with a rule in each cell.

A verb calls `check_exclusion` before it changes anything. If other verbs must see its note, it calls again
after writing the note: if two start at once, the later one sees the other. `check_exclusion` detects what
refuses the operation, by `signs`, and raises the error of that cell. Verbs implement the other rules themselves.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from .signs import SIGNS, Sign, UnderWay


class Intent(Enum):
    """Operation on an app, with its name in messages."""

    RUN = "a run"
    SNAPSHOT = "a snapshot by markers"
    PIN = "a snapshot with records in flight"
    REMOVE_SNAPSHOT = "removing the snapshot that keeps it"
    CLONE = "a clone"
    REFRESH = "making it anew"
    REMOVE = "its removal"
    RETRY = "a retry"
    RESCALE = "a rescale"
    RETIRE = "retiring a stage"
    COMPACT = "compaction"
    COLLECT = "garbage collection"
    ARCHIVE = "filling the archive"
    EDIT = "an edit"
    FORGET = "forgetting"
    MIGRATE = "a migration"
    REWIND = "a rewind"
    RESET = "a reset"
    PROMOTE = "a promotion"
    REPLICATE = "replicating"
    RECOVER = "a recovery"
    ADOPT = "adopting a query"


class Does(Enum):
    """Rule for an operation and a thing under way. A dry run is refused instead of finishing a thing."""

    BESIDE = "goes beside it"
    REFUSED = "is refused"
    WAITS = "waits for it"
    FENCES = "takes the stages from it"
    FINISHES = "finishes it first"
    WITHDRAWS = "withdraws it"


_B, _R, _W, _T, _F, _X = Does.BESIDE, Does.REFUSED, Does.WAITS, Does.FENCES, Does.FINISHES, Does.WITHDRAWS
_ROWS: Mapping[Intent, tuple[Does, ...]] = {
    # Columns as in `UnderWay`: REmoval, MaKing, COpy, LEft, RUnner, SNapshot, EDit, FOrgetting, CHange, PRomotion,
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
    Intent.FORGET:          (_R, _R, _R, _R, _B, _R, _R, _R, _B, _B, _R, _B, _R),
    Intent.MIGRATE:         (_R, _R, _R, _R, _T, _R, _B, _R, _F, _B, _B, _B, _R),
    Intent.REWIND:          (_R, _R, _R, _R, _R, _X, _B, _R, _F, _B, _B, _B, _R),
    Intent.RESET:           (_R, _R, _R, _R, _R, _B, _B, _R, _F, _B, _B, _B, _R),
    Intent.PROMOTE:         (_R, _R, _R, _R, _B, _X, _B, _B, _B, _F, _B, _B, _R),
    Intent.REPLICATE:       (_R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _B, _R),
    Intent.RECOVER:         (_R, _R, _B, _R, _B, _X, _B, _B, _X, _B, _B, _B, _F),
    Intent.ADOPT:           (_R, _R, _R, _R, _R, _B, _B, _B, _B, _B, _B, _B, _R),
}  # fmt: skip

LAW: Final[Mapping[Intent, Mapping[UnderWay, Does]]] = {
    intent: dict(zip(UnderWay, row, strict=True)) for intent, row in _ROWS.items()
}

_ELSEWHERE = "{intent} is possible only on the app itself"
_SNAPSHOT = "a snapshot could keep them, so none can be taken meanwhile"
_WHY: Final[Mapping[UnderWay, Mapping[Intent | None, str]]] = {
    UnderWay.COPY: {None: _ELSEWHERE},
    UnderWay.LEFT: {None: _ELSEWHERE},
    UnderWay.RECOVERY: {None: _ELSEWHERE, Intent.REPLICATE: "nothing is copied to it any more"},
    UnderWay.RUNNER: {Intent.ADOPT: "a stage cannot be adopted while the app runs"},
    UnderWay.SNAPSHOT: {
        Intent.FORGET: "it may capture in-flight records with keys to be forgotten",
        Intent.MIGRATE: "the migration changes inputs or names of stages that it waits for",
    },
    UnderWay.EDIT: {Intent.FORGET: "it may write a row with a key to be forgotten"},
    UnderWay.FORGETTING: {
        Intent.SNAPSHOT: _SNAPSHOT,
        Intent.PIN: _SNAPSHOT,
        Intent.CLONE: _SNAPSHOT,
        Intent.COLLECT: "its new files are not referenced yet, so nothing can be collected meanwhile",
        Intent.EDIT: "an edit could write them again, so none can be made meanwhile",
        # Each of these takes a snapshot first, with in-flight records.
        Intent.MIGRATE: _SNAPSHOT,
        Intent.REWIND: _SNAPSHOT,
        Intent.RESET: _SNAPSHOT,
        Intent.FORGET: "only one forget can run at a time",
    },
    UnderWay.CLONING: {None: "it uses the app's files", Intent.FORGET: "it would contain the keys to be forgotten"},
}
"""Reason of a refusal, appended to the sign's fact; None is the default of the column, and empty needs none."""

_THEN: Final[Mapping[tuple[UnderWay, Intent], str]] = {
    (UnderWay.RUNNER, Intent.ADOPT): "stop it; start it again with the program that has the stage"
}
"""Next step for a cell, if it differs from the sign's."""

HERE: Final = (UnderWay.COPY, UnderWay.LEFT)
"""Columns of an app that runs elsewhere."""


def check_exclusion(store: ObjectStore, app: str, intent: Intent, *columns: UnderWay, dry_run: bool = False) -> None:
    """Raise `Refused` if something under way refuses an operation; with `columns`, checks only these.

    A dry run is refused only by what the operation would have to finish first. Costs one or
    two requests for each column. Removal and creation of the app are reported by `history.list_stages`.
    """
    blocking = Does.FINISHES if dry_run else Does.REFUSED
    blockers = [column for column in columns or SIGNS if LAW[intent][column] is blocking]
    for detect in dict.fromkeys(SIGNS[column] for column in blockers):
        if (sign := detect(store, app)) is not None and sign.under_way in blockers:
            raise refusal(intent, sign)


def refusal(intent: Intent, sign: Sign) -> Refused:
    """Return the error of a cell for a detected sign."""
    reasons = _WHY.get(sign.under_way, {})
    why = reasons.get(intent, reasons.get(None, "")).format(intent=intent.value)
    return Refused(f"{sign.fact}: {why}" if why else sign.fact, hint=_THEN.get((sign.under_way, intent), sign.hint))
