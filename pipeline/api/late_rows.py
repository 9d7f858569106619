"""The stage `<stage>_late`: what another one would have made of the rows that come too late for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import Usage
from ...fold.kinds.kind import Kind
from .topic import Repartition, repartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def late_channel(stage: str, key: tuple[str, ...], state: Kind | None) -> Repartition:
    """The channel to the table of a stage's late rows. Raises `Usage` where there can be no such table."""
    if state is not None and state.no_late_table:
        raise Usage(
            f"stage {stage!r} has a table of late rows, which would be {state.no_late_table}",
            hint='say late=slackwater.repartition(...), and keep what comes there in a stage of yours; or late="drop"',
        )
    if not key or state is None:
        raise Usage(
            f"stage {stage!r} has a table of late rows, and says no {'state' if state is None else 'key'} for it",
            hint="the table has the stage's own state= and key=[...], a window among the columns",
        )
    return repartition(f"{stage}-late", key)


def as_they_came(rows: DataFrame) -> DataFrame:
    """The function of a stage of late rows: another stage's has made them."""
    return rows
