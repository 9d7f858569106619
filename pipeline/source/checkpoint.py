"""Writes Spark's checkpoint folder from a manifest. It is scratch, because the manifest is the only log.

Spark resumes after the last batch in `offsets/` that `commits/` confirms; it needs two of each to resume at a position.
Formats: OffsetSeqLog and CommitLog of Structured Streaming, version 1.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...state.records import Position


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
