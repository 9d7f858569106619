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
    """How two moments are compared."""

    table: Annotated[str, Param("Only this table. Default: all.", "NAME", limits=_NAME_OR_NONE)]


class ScanOptions(TypedDict, total=False):
    """What is wrong, and between which moments it became so."""

    where: Annotated[
        str, Param("A query that returns rows when something is wrong, or a condition for rows.", "SQL", limits=_SQL)
    ]
    check: Annotated[
        str,
        Param("Instead, a condition that must hold: over a table's columns, or a SELECT.", "CONDITION", limits=_SQL),
    ]
    table: Annotated[
        str, Param("The table that the condition is over, where its columns do not say.", "TABLE", limits=_NAME_OR_NONE)
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


class SearchOptions(ScanOptions, total=False):
    """The same, and which change is meant."""

    edge: Annotated[
        Literal["", "first", "last"], Param("Which change is meant, should the search meet several.", default="")
    ]


class VerifyOptions(TypedDict, total=False):
    """How a moment is proved."""

    deep: Annotated[
        bool, Param("Read every object and the whole history, and what Kafka still has, instead of sizes: slow.")
    ]


class RejectedOptions(TypedDict, total=False):
    """Which rejected records are shown."""

    stage: Annotated[str, Param("Only those of this stage. Default: all.", "STAGE", limits=_NAME_OR_NONE)]
    every: Annotated[bool, Param("Also records that were retried.", option="--all")]


class OperationsOptions(TypedDict, total=False):
    """Which of the things done to an app are shown."""

    by: Annotated[str, Param("Only what this user, or user@host, did.", "PERSON", limits={"max_length": 200})]
    verb: Annotated[str, Param("Only what this verb did.", "VERB", limits={"max_length": 200})]
    since: Annotated[When, Param("Only from this time on (2026-11-21T07:12, -5m).", "TIME", limits=_REF)]
    until: Annotated[When, Param("Only up to this time.", "TIME", limits=_REF)]
