"""State that a query of Spark keeps, as it is: rows of a checkpoint that slackwater is attached to."""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from ...errors import Refused
from .kind import Bound, Kind


class Attached(Kind, frozen=True, tag="attached"):
    """The rows of a stateful operator of somebody else's query. Nothing is computed from them here."""

    operator: str = ""
    """What it is, such as `aggregate`."""
    migrates: ClassVar[bool] = False
    elsewhere: ClassVar[str] = "the state of a query of Spark that slackwater is attached to"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        raise Refused(
            f"rows are {self.elsewhere}: no program makes them",
            hint="slackwater adopt CHECKPOINT PROGRAM --stage NAME makes them those of a stage",
        )
