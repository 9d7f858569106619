"""Options of a Structured Streaming source, and private values, which Spark must not show.

Spark shows options in its plans, UI and event log. So the Kafka client's properties, which have passwords, are passed
to a source in another way (`data_source.open_stream`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...common import runtime
from ...state.records import Position
from .worker import ERROR_TAG, ErrorTag

if TYPE_CHECKING:
    from ...store.objects.s3_settings import S3Settings


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a source, passed to Spark as the JSON value of a single option. No secrets."""

    input: str
    topic: str
    topic_id: str = ""
    upstream: str = ""
    """Stage that writes a repartition topic; empty for a user's topic."""
    patience_s: float = 120
    max_records: int | None = None
    """Maximum records of a batch, or rows for a channel; None for no limit."""
    tasks: int = 1
    """Maximum number of tasks that read a batch."""
    in_any_order: bool = False
    """True if several tasks may read a partition's records, because the stage does not need their order."""
    trigger_ms: int = 0
    app: str = ""
    stage: str = ""
    store: str = ""
    spool: str = ""
    """Folder on the tasks' machine where fetched records are kept for the archive; empty for none."""
    counts_folder: str = ""
    planner_folder: str = ""
    """Folder of `PlannerFiles`; empty without a runner."""
    starts_woken_batches: bool = False
    """True if this input's planner starts batches when the runner wakes the stage because rows are due."""
    starts_snapshot_batches: bool = False
    """True if this input's planner starts batches for snapshot requests; False if markers announce snapshots."""
    handled_snapshots: tuple[str, ...] = ()
    """Ids of the snapshots for which a batch of this input has already ended."""
    end_offsets: tuple[int, ...] | None = None
    """End offsets by partition up to which to read a user's topic; None to read to the topic's end."""


@dataclass(frozen=True, slots=True)
class PrivateOptions:
    """Values of a source that Spark must not show, such as passwords."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    s3: S3Settings | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The driver's environment variables for S3. Planners use them, since they run on the driver's machine."""
    error_tag: ErrorTag = ERROR_TAG


@dataclass(frozen=True, slots=True)
class ScratchCheckpoint:
    """Spark's checkpoint of one query, in a scratch folder. Created from a version before each start of the query."""

    folder: Path

    def write(self, version: int, positions: Sequence[Position]) -> None:
        """Make Spark start with batch `version` + 1 at these positions, one for each source, in the plan's order."""
        (self.folder / "offsets").mkdir(parents=True)
        (self.folder / "commits").mkdir()
        (self.folder / "metadata").write_text(json.dumps({"id": str(runtime.uuid())}))
        header = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        # Spark compares offsets as text: write them as its Python sources do.
        lines = "\n".join(json.dumps(position.to_json()) for position in positions)
        for batch in (version - 1, version):
            (self.folder / "offsets" / str(batch)).write_text(f"v1\n{header}\n{lines}")
            (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def read_positions(self, batch: int) -> dict[str, Position]:
        """Return the end position of each input of a batch, from the log that Spark writes before the batch starts."""
        _version, _header, *lines = (self.folder / "offsets" / str(batch)).read_text().splitlines()
        ends: dict[str, Position] = {}
        for line in lines:
            position = Position.from_json(json.loads(line))
            # A source that is used several times in the plan is planned once.
            if ends.setdefault(position.input, position) != position:
                raise AssertionError(f"batch {batch} ends at two places of {position.input!r}: {lines}")
        return ends
