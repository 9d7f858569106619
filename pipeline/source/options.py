"""What Spark gets with a source: its options, its private values, and the checkpoint from which a query resumes.

Spark shows options in its plans, UI and event log. So the client's properties, which have passwords, reach a source in
another way (`data_source.open_stream`).

The checkpoint folder is written from a manifest. It is scratch, because the manifest is the only log. Spark resumes
after the last batch in `offsets/` that `commits/` confirms; it needs two of each to resume at a position. Formats:
OffsetSeqLog and CommitLog of Structured Streaming, version 1.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...state.records import Position
from .worker import ERROR_MARK, ErrorMark

if TYPE_CHECKING:
    from ...store.objects.s3_settings import S3Settings


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a source, passed as JSON in its one Spark option. No secrets."""

    input: str
    """Declared name of the input."""
    topic: str
    """Kafka topic."""
    topic_id: str = ""
    """Id of a user's topic, as `Input.topic_id` has it."""
    upstream: str = ""
    """Stage that writes a repartition topic; empty for a user's topic."""
    patience_s: float = 120
    """Seconds that the broker or the store may be unavailable."""
    max_records: int | None = None
    """Maximum records (of a channel: rows) a batch; None for no limit."""
    trigger_ms: int = 0
    """Minimum time between two batches."""
    app: str = ""
    stage: str = ""
    """Stage that reads the input."""
    store: str = ""
    """Root of the store with the upstream stage's versions and the app's archives."""
    spool: str = ""
    """Folder on the tasks' machine where fetched records are kept for the archive; empty for none."""
    counts: str = ""
    """Folder where requests to the store are counted; empty for none."""
    told: str = ""
    """Folder of the runner's messages to planners (`wake.PlannerFiles`); empty for none."""
    wakes: bool = False
    """True if the runner wakes the stage through this input."""
    asks: bool = False
    """True if snapshot requests reach the stage through this input; otherwise by markers."""
    handled: tuple[str, ...] = ()
    """Ids of snapshots for which a batch of this topic has already ended."""
    until: tuple[int, ...] | None = None
    """End offsets of a user's topic for this reader, by partition; None to read to the topic's end."""


@dataclass(frozen=True, slots=True)
class Private:
    """Values of a source that must not be shown."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties."""
    s3: S3Settings | None = None
    """S3 client settings; None to read them from the environment."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The driver's environment variables for S3, for planning on the same machine."""
    error_mark: ErrorMark = ERROR_MARK
    """Mark of errors of reading, in tasks."""


@dataclass(frozen=True, slots=True)
class ScratchCheckpoint:
    """Scratch checkpoint of one query, in `folder`."""

    folder: Path

    def write(self, version: int, positions: Sequence[Position]) -> None:
        """Make Spark start with batch `version` + 1 at these positions, one for each use of a source, in order."""
        (self.folder / "offsets").mkdir(parents=True)
        (self.folder / "commits").mkdir()
        (self.folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        header = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        # Spark compares offsets as text: write them as its Python sources do.
        lines = "\n".join(json.dumps(position.json()) for position in positions)
        for batch in (version - 1, version):
            (self.folder / "offsets" / str(batch)).write_text(f"v1\n{header}\n{lines}")
            (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def planned(self, batch: int) -> dict[str, Position]:
        """Return the end of a batch by input, as Spark logged it before the batch started."""
        _version, _header, *lines = (self.folder / "offsets" / str(batch)).read_text().splitlines()
        ends: dict[str, Position] = {}
        for line in lines:
            position = Position.of(json.loads(line))
            # A source that is used several times in the plan is planned once.
            if ends.setdefault(position.input, position) != position:
                raise AssertionError(f"batch {batch} ends at two places of {position.input!r}: {lines}")
        return ends
