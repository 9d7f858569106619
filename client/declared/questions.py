"""Questions about an app: what may be asked besides its subject."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Literal, TypedDict

from ...common.parameters import Param
from ...store.versions.keys import NAME

When = str | date | timedelta
"""What stands behind the `@` of a ref; a `datetime`; a `date`, whose first instant is meant; or so long ago."""
_NAME_OR_NONE = {"pattern": rf"^({NAME})?$", "max_length": 200, "examples": ["carriers"]}
_OFFSET = {"pattern": r"^[a-zA-Z0-9._-]{1,249}:[0-9]{1,6}:[0-9]{1,19}$"}
_SQL = {"max_length": 100_000}
_REF = {"pattern": r"^[^\x00-\x1f]*$", "max_length": 200}


class MomentOptions(TypedDict, total=False):
    """Which moment a server answers from."""

    stage: Annotated[str, Param("Name of a stage; without it, all stages are meant.", limits=_NAME_OR_NONE)]
    min_offsets: Annotated[
        Sequence[str],
        Param(
            "`topic:partition:offset` of a record whose effect must be in the answer; several times for many.",
            limits={"each": _OFFSET, "max_length": 1_000, "examples": [["orders:0:12672"]]},
        ),
    ]
    wait_ms: Annotated[
        int,
        Param("How long to wait for `min_offsets`, in milliseconds.", default=5_000, limits={"ge": 0, "le": 60_000}),
    ]


class DiffOptions(TypedDict, total=False):
    """Show which rows differ between two moments.

    For each table the rows that B added to A, removed or changed, with their values on both sides, and how far each
    column agrees. What both have is not read: versions of one app, or of an app and its clone, share most of their
    state. Refs that name one table, as APP/TABLE@-5m, compare only that. Exits with 1 when something differs.
    """

    table: Annotated[str, Param("Only this table. Default: all.", "NAME", limits=_NAME_OR_NONE)]


class WrongOptions(TypedDict, total=False):
    """What is wrong, and between which moments it became so."""

    where: Annotated[
        str, Param("A query that returns rows when something is wrong, or a condition for rows.", "SQL", limits=_SQL)
    ]
    check: Annotated[
        str,
        Param("Instead, a condition that must hold: over a table's columns, or a SELECT.", "CONDITION", limits=_SQL),
    ]
    good: Annotated[
        When | None,
        Param(
            "A moment at which nothing is wrong. Default: beginning, before the first commit.",
            "REF",
            default="",
            limits={**_REF, "examples": ["before-deploy"]},
        ),
    ]
    bad: Annotated[
        When | None,
        Param("A moment at which something is. Default: now.", "REF", default="", limits={**_REF, "examples": ["now"]}),
    ]


class SearchOptions(WrongOptions, total=False):
    """The same, and which change is meant."""

    table: Annotated[
        str, Param("The table that the condition is over, where its columns do not say.", "TABLE", limits=_NAME_OR_NONE)
    ]
    edge: Annotated[
        Literal["", "first", "last"], Param("Which change is meant, should the search meet several.", default="")
    ]


class VerifyOptions(TypedDict, total=False):
    """How a moment is proved."""

    deep: Annotated[
        bool, Param("Read every object and the whole history, and what Kafka still has, instead of sizes: slow.")
    ]


class RejectedOptions(TypedDict, total=False):
    """Show the records that batches left out, each with its error.

    Each made a batch fail; the newest comes first. They are in the table STAGE_rejected, beside that of the stage,
    with payload, headers and stack. With --retry, the runner puts those that wait through its program, between two
    batches; when none runs, the next one does, first of all. Each that passes is marked as retried in the same
    commit; one that fails again stays.
    """

    stage: Annotated[str, Param("Only those of this stage. Default: all.", "STAGE", limits=_NAME_OR_NONE)]
    every: Annotated[bool, Param("Also records that were retried.", option="--all")]


class OperationsOptions(TypedDict, total=False):
    """Which of the things done to an app are shown."""

    by: Annotated[str, Param("Only what this user, or user@host, did.", "PERSON", limits={"max_length": 200})]
    verb: Annotated[str, Param("Only what this verb did.", "VERB", limits={"max_length": 200})]
    since: Annotated[When, Param("Only from this time on (2026-11-21T07:12, -5m).", "TIME", limits=_REF)]
    until: Annotated[When, Param("Only up to this time.", "TIME", limits=_REF)]


class CheckOptions(TypedDict, total=False):
    """Check that a program is a function of its input.

    Past versions are run again in other ways, and what differs is named. Each version is run again as it was,
    at another time, with its records in another order where none is promised, in more batches, and on other
    partitions, on a Spark of this machine; nothing of the app is touched. A program that differs by any of these
    makes noise of every diff and trial. Exits with 1 when one does.
    """

    stages: Annotated[Sequence[str], Param("Check only this stage. Default: all of them.", "NAME")]
    versions: Annotated[
        int,
        Param("Of each stage, so many of the newest versions that read records.", "N", default=3, limits={"ge": 1}),
    ]
    show_values: Annotated[bool, Param("Show the keys and rows that differ, not only their types and lengths.")]
