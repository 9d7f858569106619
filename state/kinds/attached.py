"""State of a Spark query that slackwater only follows: rows of the query's checkpoint."""

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from ...errors import Refused
from .kind import BoundState, Kind


class Attached(Kind, frozen=True, tag="attached"):
    """Rows of a stateful operator in a Spark query that slackwater does not run."""

    operator: str = ""
    migrates: ClassVar[bool] = False
    external_owner: ClassVar[str] = "the state of a Spark query that slackwater is attached to"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        raise Refused(
            f"rows are {self.external_owner}, so no program can write them",
            hint="slackwater adopt CHECKPOINT PROGRAM --stage NAME turns them into the state of a stage",
        )
