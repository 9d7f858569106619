"""Options of each question about an app. Each interface has its own argument for the app, moment, table or key."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Annotated, Literal, TypedDict

from ...common.arguments import Param
from ...store.versions.keys import NAME, TOPIC

When = str | date | timedelta
"""A moment: the text after the `@` of a ref, a `datetime`, a `date` (its start), or a `timedelta` before now."""
_NAME_OR_NONE = {"pattern": rf"^({NAME})?$", "max_length": 200, "examples": ["carriers"]}
_OFFSET = {"pattern": rf"^{TOPIC}:[0-9]{{1,6}}:[0-9]{{1,19}}$"}
_SQL = {"max_length": 100_000}
_REF = {"pattern": r"^[^\x00-\x1f]*$", "max_length": 200}


class MomentOptions(TypedDict, total=False):
    """Options that choose the moment from which a server answers."""

    stage: Annotated[str, Param("Name of a stage. Default: all stages.", limits=_NAME_OR_NONE)]
    min_offsets: Annotated[
        Sequence[str],
        Param(
            "`topic:partition:offset` of a record whose effect must be in the answer; may be repeated.",
            limits={"each": _OFFSET, "max_length": 1_000, "examples": [["orders:0:12672"]]},
        ),
    ]
    wait_ms: Annotated[
        int,
        Param("How long to wait for `min_offsets`, in milliseconds.", default=5_000, limits={"ge": 0, "le": 60_000}),
    ]


class DiffOptions(TypedDict, total=False):
    """Show the rows that differ between two moments.

    Shows rows that B added, removed or changed, with values on both sides, and the share of rows in which each column
    agrees. The cost is proportional to what changed. Refs of a table, as APP/TABLE@-5m, compare only that table. Exits
    with 1 if anything differs.
    """

    table: Annotated[str, Param("Only this table. Default: all.", "NAME", limits=_NAME_OR_NONE)]


class WrongOptions(TypedDict, total=False):
    """Options that define bad moments, and the range of moments to search."""

    where: Annotated[
        str, Param("Bad if this query returns rows, or if this condition is true for a row.", "SQL", limits=_SQL)
    ]
    check: Annotated[
        str,
        Param(
            "Good if this condition holds for every row; or a SELECT that returns the condition.",
            "CONDITION",
            limits=_SQL,
        ),
    ]
    good: Annotated[
        When | None,
        Param(
            "A good moment. Default: beginning, before the first commit.",
            "REF",
            default="",
            limits={**_REF, "examples": ["before-deploy"]},
        ),
    ]
    bad: Annotated[
        When | None, Param("A bad moment. Default: now.", "REF", default="", limits={**_REF, "examples": ["now"]})
    ]


class SearchOptions(WrongOptions, total=False):
    """Options of a bisect: the predicate, its table, the range of moments, and which of several changes to find."""

    table: Annotated[
        str,
        Param(
            "The table that the condition is about. Default: the only table with its columns.",
            "TABLE",
            limits=_NAME_OR_NONE,
        ),
    ]
    edge: Annotated[
        Literal["", "first", "last"], Param("Which change to find if there are several: first or last.", default="")
    ]


class VerifyOptions(TypedDict, total=False):
    """Options of a verification."""

    deep: Annotated[
        bool, Param("Read every object, the whole history and the records in Kafka, instead of listing sizes: slow.")
    ]


class RejectedOptions(TypedDict, total=False):
    """Show rejected records, each with its error, newest first.

    The table STAGE_rejected has them, with payload, headers and stack trace. With --retry, the runner processes them
    again between two batches; if the app is stopped, its next run does. Records that pass are marked as retried in the
    same commit; other records stay.
    """

    stage: Annotated[str, Param("Only records of this stage. Default: all.", "STAGE", limits=_NAME_OR_NONE)]
    every: Annotated[bool, Param("Also show retried records.", option="--all")]


class ReconcileOptions(TypedDict, total=False):
    """Compare a table with external numbers.

    The numbers are in a file (Parquet, CSV, JSON), a DuckDB query, a URL, or another table. Counts the keys that agree,
    differ, and are on one side only. For each differing key, shows the version since which the rows differ, and the
    missing records with the reason: never in the topic, not read yet, rejected, late, filtered, and so on. Exits with 1
    if anything differs.
    """

    on: Annotated[
        Mapping[str, str],
        Param(
            "A key column; COLUMN is its name on the other side. Default: the same names.",
            "KEY[=COLUMN]",
            pair="carrier=code",
        ),
    ]
    columns: Annotated[
        Mapping[str, str],
        Param(
            "A value column to compare; COLUMN is its name on the other side. Default: all that both sides have.",
            "COLUMN[=COLUMN]",
            option="--columns",
            pair="flights=n",
        ),
    ]
    tolerance: Annotated[
        float,
        Param(
            "Numbers that differ by at most this much count as equal. Default: 0; floats may have rounding errors.",
            "N",
            default=0.0,
            limits={"ge": 0},
        ),
    ]
    time: Annotated[
        str, Param("Their column with the time at which to read the table: a timestamp or a date.", "COLUMN")
    ]


class WhyNotOptions(TypedDict, total=False):
    """Show why records are not in a table's row.

    Finds the key's records in the input archive and in Kafka by the table's lineage. Follows each record from version
    to version: it was never in the topic, is not read yet, was rejected, was late, and so on. Unproved reasons and
    unknown facts are marked.
    """

    record: Annotated[str, Param("Only this record: topic[partition]@offset.", "RECORD")]
    where: Annotated[
        str,
        Param("Only records for which this condition over topic, key, value and so on is true.", "SQL", limits=_SQL),
    ]


_BATCHES = Param("Maximum batches to replay; 0 for all.", "N", default=100, limits={"ge": 0, "le": 100_000})


class WhyOptions(TypedDict, total=False):
    """Options of `why`, which shows the records that made a row."""

    minimal: Annotated[bool, Param("Also find the smallest set of records that gives the row.")]
    payloads: Annotated[bool, Param("Also show keys, values and headers of the records.")]
    limit: Annotated[int, _BATCHES]


class ImpactOptions(TypedDict, total=False):
    """Show everything that a record reached.

    Shows the rows that the program made from the record, later rows of their keys until a row is removed, rows sent
    downstream and to sinks, snapshots and clones. Replays the batches that read the record, and later batches that
    wrote or sent its keys. RECORD is a location as bisect and why print it, also in a repartition topic. The app is
    not touched.
    """

    limit: Annotated[int, _BATCHES]


class OperationsOptions(TypedDict, total=False):
    """Filters of the log of operations."""

    by: Annotated[str, Param("Only operations by this user or user@host.", "PERSON", limits={"max_length": 200})]
    verb: Annotated[str, Param("Only operations of this verb.", "VERB", limits={"max_length": 200})]
    since: Annotated[When, Param("Only operations from this time on (2026-11-21T07:12, -5m).", "TIME", limits=_REF)]
    until: Annotated[When, Param("Only operations up to this time.", "TIME", limits=_REF)]


class CheckOptions(TypedDict, total=False):
    """Check that a program is deterministic.

    Replays past versions on a local Spark with a changed clock, smaller batches, changed partitions, and with records
    reordered where no order is guaranteed. Lists differences with likely causes, and exits with 1 if there are any.
    Nondeterminism causes false differences in diff and trial. The app is not touched.
    """

    stages: Annotated[Sequence[str], Param("Check only this stage. Default: all.", "NAME")]
    versions: Annotated[
        int,
        Param("Versions to replay per stage: the newest that read records.", "N", default=3, limits={"ge": 1}),
    ]
    show_values: Annotated[bool, Param("Show the differing keys and rows, not only types and lengths.")]
