"""The law: what goes beside what. Every cell of the one table in this file is an operation and a thing under way.

A verb calls `check_exclusion` before it changes anything. Where others have to see its own note, it calls that again
when the note is there: of two that begin at once, the later one sees the other. `check_exclusion` looks for what
refuses the operation, by `signs`, and raises that cell's sentence. What the other cells say, verbs do themselves.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from .signs import SIGNS, Sign, UnderWay


class Intent(Enum):
    """An operation on an app, by its name in messages."""

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
    """What an operation does about a thing that is under way. A dry run, which finishes nothing, is refused instead."""

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

_ELSEWHERE = "{intent} is for the app itself"
_SNAPSHOT = "what a snapshot keeps could have them, so none is taken meanwhile"
_WHY: Final[Mapping[UnderWay, Mapping[Intent | None, str]]] = {
    UnderWay.COPY: {None: _ELSEWHERE},
    UnderWay.LEFT: {None: _ELSEWHERE},
    UnderWay.RECOVERY: {None: _ELSEWHERE, Intent.REPLICATE: "nothing is copied there any more"},
    UnderWay.RUNNER: {Intent.ADOPT: "it would not know the app while a stage is adopted"},
    UnderWay.SNAPSHOT: {
        Intent.FORGET: "it may keep records in flight that hold what is to be forgotten",
        Intent.MIGRATE: "it waits for stages that would read other inputs or have other names",
    },
    UnderWay.EDIT: {Intent.FORGET: "it may make a row of what is to be forgotten"},
    UnderWay.FORGETTING: {
        Intent.SNAPSHOT: _SNAPSHOT,
        Intent.PIN: _SNAPSHOT,
        Intent.CLONE: _SNAPSHOT,
        Intent.COLLECT: "what it has written is named by nothing yet, so nothing is collected meanwhile",
        Intent.EDIT: "an edit could have them, so none is made meanwhile",
        # Each keeps the records in flight with the moment before.
        Intent.MIGRATE: _SNAPSHOT,
        Intent.REWIND: _SNAPSHOT,
        Intent.RESET: _SNAPSHOT,
        Intent.FORGET: "no others are meanwhile",
    },
    UnderWay.CLONING: {None: "it lives from the app", Intent.FORGET: "it would have what is to be forgotten"},
}
"""Why a cell refuses, behind what is under way; None has the column's words, and a cell without any needs none."""

_THEN: Final[Mapping[tuple[UnderWay, Intent], str]] = {
    (UnderWay.RUNNER, Intent.ADOPT): "stop it; start it again with the program that has the stage"
}
"""The next step of a cell, where it is another one than the sign's."""

HERE: Final = (UnderWay.COPY, UnderWay.LEFT)
"""The columns of an app that runs elsewhere."""


def check_exclusion(store: ObjectStore, app: str, intent: Intent, *columns: UnderWay, dry_run: bool = False) -> None:
    """Raise `Refused` where something is under way that refuses an operation; with `columns`, of these alone.

    A dry run changes nothing, so nothing is in its way but what the operation would have to finish first. A request or
    two for each column. That an app is being removed, or made, `history.list_stages` says to everybody.
    """
    in_the_way = Does.FINISHES if dry_run else Does.REFUSED
    looked_for = [each for each in columns or SIGNS if LAW[intent][each] is in_the_way]
    for look in dict.fromkeys(SIGNS[each] for each in looked_for):
        if (sign := look(store, app)) is not None and sign.under_way in looked_for:
            raise refusal(intent, sign)


def refusal(intent: Intent, sign: Sign) -> Refused:
    """The error of a cell, for what was found."""
    words = _WHY.get(sign.under_way, {})
    why = words.get(intent, words.get(None, "")).format(intent=intent.value)
    return Refused(f"{sign.fact}: {why}" if why else sign.fact, hint=_THEN.get((sign.under_way, intent), sign.hint))
