"""A batch as another program makes it, or upon another state: its stage's, and those upstream that sent to it."""

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
"""Batches that are replayed for one that is asked about."""


Step = tuple[str, int]
"""A stage and one of its versions."""


@dataclass
class OtherBatches:
    """Batches with another program or state. Of what a batch received, only what is sent otherwise changes."""

    program: LoadedProgram
    instead: Mapping[str, LoadedProgram] = field(default_factory=lambda: MappingProxyType({}))
    """By the checksum of a program that ran, the one in its place, where that is not `program`."""
    upon: Mapping[Step, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    """By batch, the version whose rows it has in the place of those of the version before it."""
    through: Collection[Step] | None = None
    """The batches upstream that are replayed; None for all that sent something."""
    count: int = 0

    def manifest(self, after: Manifest) -> Manifest:
        """The version that a batch would have committed.

        Raises `Refused` where more than `MAX_BATCHES` are behind it, and as `StageReplay.of`.
        """
        self.count = 0
        replay = self._replay(after)
        return replay.manifest(replay.merged(self._rows(replay)[0])[0])

    def _replay(self, after: Manifest, channel: str = "") -> StageReplay:
        self.count += 1
        if self.count > MAX_BATCHES:
            raise Refused(f"more than {MAX_BATCHES} batches are behind {after.stage}@v{after.version}")
        ran = after.program.checksum if after.program is not None else ""
        replay = StageReplay.of(self.instead.get(ran, self.program), after, channel)
        base = self.upon.get((after.stage, after.version))
        return replay if base is None else replay.based_on(upon_rows_of(replay.before, base))

    def _rows(self, replay: StageReplay) -> tuple[pa.Table, bool]:
        """What a batch's function makes of what it gets; and whether it, or what it gets, is other than it was."""
        inputs = {name: self._input(replay, name, records) for name, records in replay.records.items()}
        if any(is_other for _, is_other in inputs.values()):
            return replay.run({name: rows for name, (rows, _) in inputs.items()}), True
        step = replay.after.stage, replay.after.version
        return replay.rows(), step in self.upon or _is_another(replay)

    def _input(self, replay: StageReplay, name: str, records: Records) -> tuple[pa.Table, bool]:
        """What a batch gets on one input, and whether that is other than it was."""
        rows, is_other = records.rows, False
        for version in np.unique(records.versions).tolist() if records.upstream else ():
            if not version or (self.through is not None and (records.upstream, version) not in self.through):
                continue
            sender = self._replay(history.read(self.program.store, replay.after.app, records.upstream, version), name)
            made, is_another = self._rows(sender)
            if is_another:
                now = sent_as(sender, made, rows)
                # What the batch rejected was sent, too.
                then = pa.concat_tables([_of_version(each, version) for each in (records, replay.left_out[name])])
                gone, new = (
                    side.filter(pa.array(flags)) for side, flags in zip((then, now), unlike(then, now), strict=True)
                )
                if gone.num_rows or new.num_rows:
                    rows, is_other = pa.concat_tables([only_in(rows, gone), new]), True
        return rows, is_other


def _is_another(replay: StageReplay) -> bool:
    """Whether another program replays a batch than ran then, as far as that is known."""
    ran, now = replay.after.program, program_of(replay.program.app)
    return ran is not None and now is not None and ran.checksum != now.checksum


def upon_rows_of(manifest: Manifest, other: Manifest) -> Manifest:
    """A version with the rows of another one."""
    return replace(manifest, ssts=other.ssts, clock_ms=other.clock_ms)


def _of_version(records: Records, version: int) -> pa.Table:
    return records.rows.filter(pa.array(records.versions == version))
