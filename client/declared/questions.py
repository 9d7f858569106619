"""Questions about an app: what may be asked besides its subject."""

from datetime import date, timedelta
from typing import Annotated, Literal, TypedDict

from ...common.parameters import Param
from ...store.versions.keys import NAME

When = str | date | timedelta
"""What stands behind the `@` of a ref; a `datetime`; a `date`, whose first instant is meant; or so long ago."""
_NAME_OR_NONE = {"pattern": rf"^({NAME})?$", "max_length": 200, "examples": ["carriers"]}
_SQL = {"max_length": 100_000}
_REF = {"pattern": r"^[^\x00-\x1f]*$", "max_length": 200}


class DiffOptions(TypedDict, total=False):
    """How two moments are compared."""

    table: Annotated[str, Param("Only this table.", metavar="NAME", limits=_NAME_OR_NONE)]


class ScanOptions(TypedDict, total=False):
    """What is wrong, and between which moments it became so."""

    where: Annotated[
        str,
        Param(
            "A query that returns rows when something is wrong, or a condition for rows.", metavar="SQL", limits=_SQL
        ),
    ]
    check: Annotated[
        str,
        Param("Instead, a condition that must hold for rows, or a SELECT of it.", metavar="CONDITION", limits=_SQL),
    ]
    table: Annotated[
        str,
        Param(
            "The table that the condition is over, where its columns do not say.", metavar="TABLE", limits=_NAME_OR_NONE
        ),
    ]
    good: Annotated[
        When | None,
        Param(
            "A moment at which nothing is wrong. Default: beginning, before the first commit.",
            default="",
            metavar="REF",
            limits={**_REF, "examples": ["before-deploy"]},
        ),
    ]
    bad: Annotated[
        When | None,
        Param(
            "A moment at which something is. Default: now.",
            default="",
            metavar="REF",
            limits={**_REF, "examples": ["now"]},
        ),
    ]


class SearchOptions(ScanOptions, total=False):
    """The same, and which change is meant."""

    edge: Annotated[
        Literal["", "first", "last"], Param("Which change is meant, should the search meet several.", default="")
    ]
