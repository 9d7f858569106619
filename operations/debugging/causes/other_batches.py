"""Replays of a batch with another program, or on another state, including the upstream batches that sent to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....errors import Refused
from ....pipeline.run.claim import program_of
from ....snapshot.diff.equality import only_in, unlike
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.batches import sent_as
from ..replay.inputs import Records
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay

MAX_BATCHES = 24
"""Maximum number of batches replayed for one result."""


Step = tuple[str, int]
"""Stage and version."""


@dataclass
class OtherBatches:
    """Replays with another program or state. Inputs change only where an upstream batch sends different rows."""

    program: LoadedProgram
    instead: Mapping[str, LoadedProgram] = field(default_factory=lambda: MappingProxyType({}))
    """Program to use instead, by the checksum of the program that ran; `program` for all others."""
    upon: Mapping[Step, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    """Version whose rows replace the state before a batch, by batch."""
    through: Collection[Step] | None = None
    """Upstream batches to replay; None for all that sent rows."""
    count: int = 0

    def manifest(self, after: Manifest) -> Manifest:
        """Return the version that a batch would have committed.

        Raises `Refused` if more than `MAX_BATCHES` batches are involved, and as `StageReplay.of`.
        """
        self.count = 0
        replay = self._replay(after)
        return replay.manifest(replay.merged(self._rows(replay)[0])[0])

    def _replay(self, after: Manifest, channel: str = "") -> StageReplay:
        self.count += 1
        if self.count > MAX_BATCHES:
            raise Refused(
                f"more than {MAX_BATCHES} batches would have to be replayed for {after.stage}@v{after.version}"
            )
        ran = after.program.checksum if after.program is not None else ""
        replay = StageReplay.of(self.instead.get(ran, self.program), after, channel)
        base = self.upon.get((after.stage, after.version))
        return replay if base is None else replay.based_on(upon_rows_of(replay.before, base))

    def _rows(self, replay: StageReplay) -> tuple[pa.Table, bool]:
        """Return the rows of a batch's function, and True if they may differ from the original ones."""
        inputs = {name: self._input(replay, name, records) for name, records in replay.records.items()}
        if any(differs for _, differs in inputs.values()):
            return replay.run({name: rows for name, (rows, _) in inputs.items()}), True
        step = replay.after.stage, replay.after.version
        return replay.rows(), step in self.upon or _program_differs(replay)

    def _input(self, replay: StageReplay, name: str, records: Records) -> tuple[pa.Table, bool]:
        """Return the rows that a batch receives on one input, and True if they differ from the original ones."""
        rows, differs = records.rows, False
        for version in np.unique(records.versions).tolist() if records.upstream else ():
            if not version or (self.through is not None and (records.upstream, version) not in self.through):
                continue
            sender = self._replay(history.read(self.program.store, replay.after.app, records.upstream, version), name)
            new_rows, sender_differs = self._rows(sender)
            if sender_differs:
                sent_now = sent_as(sender, new_rows, rows)
                # Rejected records were sent too.
                sent_then = pa.concat_tables([_of_version(part, version) for part in (records, replay.left_out[name])])
                missing, new = (
                    side.filter(pa.array(flags))
                    for side, flags in zip((sent_then, sent_now), unlike(sent_then, sent_now), strict=True)
                )
                if missing.num_rows or new.num_rows:
                    rows, differs = pa.concat_tables([only_in(rows, missing), new]), True
        return rows, differs


def _program_differs(replay: StageReplay) -> bool:
    """Return True if the replaying program is known to differ from the one that ran."""
    ran, now = replay.after.program, program_of(replay.program.app)
    return ran is not None and now is not None and ran.checksum != now.checksum


def upon_rows_of(manifest: Manifest, other: Manifest) -> Manifest:
    """Return a version with the rows of another one."""
    return replace(manifest, ssts=other.ssts, clock_ms=other.clock_ms)


def _of_version(records: Records, version: int) -> pa.Table:
    return records.rows.filter(pa.array(records.versions == version))
