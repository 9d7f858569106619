"""What a stage runner asks when a batch fails, where the stage rejects records instead of stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Aside, Manifest
from ..source.planner import Position
from .task import Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is to be computed, all of it or in part.

    Attributes:
        base: The version that it is built on.
        after: Where it ends on each input, by declared name.
        clock_ms: By which its keys are looked up.
        compute: Its job over rows of the stage's function: what the tasks report.
        check: The same, but nothing is written; raises what computing raises.
        store, cache: Where its SSTs are, on the driver.
        stopping: Whether the stage is to stop, so that nothing more need be tried.
    """

    base: Manifest
    after: Mapping[str, Position]
    clock_ms: int
    compute: Callable[[DataFrame], tuple[Result, ...]]
    check: Callable[[DataFrame], object]
    store: ObjectStore
    cache: SstCache
    stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a batch's tasks report, and the tables beside the stage's own that it changed."""

    results: tuple[Result, ...] = ()
    aside: Mapping[str, Aside] = field(default_factory=dict)


class Rejecter(Protocol):
    """Computes a batch that failed without the records that are to blame."""

    def rescue(self, batch: Batch, error: Exception) -> Computed:
        """The batch without the records for which it fails, which are in the table of those that were rejected.

        Raises:
            Refused: More are rejected than may be, or their topic does not take them.
            Exception: `error` itself, where no record is to blame; or as computing and reading the batch does.
        """
        ...

    def retry(self, batch: Batch) -> Computed:
        """The rejected records that wait, put through as a batch of their own: those that pass are marked as retried.

        Raises:
            Refused: The program does not read what they are of. Others as computing does.
        """
        ...
