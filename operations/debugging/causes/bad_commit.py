"""The bad batch of a verdict replayed under assumptions, and the batches after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ....snapshot.bisect.predicate import Context, Predicate
from ....snapshot.bisect.verdict import Address, Guilty, Verdict
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.line import Line
from ....snapshot.cut.moments import line_of
from ....snapshot.diff.equality import places_of
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.batches import Choice, sent_as
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay
from ..replay.what_if import BadBatch
from .other_batches import upon_rows_of

_LOOKED_AT = 16
"""Versions after the bad one to search for the next batches."""


@dataclass(frozen=True)
class BadCommit:
    """Evaluates the bad moment of a verdict, and later moments, under assumptions."""

    program: LoadedProgram
    verdict: Verdict
    predicate: Predicate

    @property
    def commit(self) -> Manifest:
        """The bad commit."""
        return self.verdict.bad.stages[self.verdict.stage]

    @cached_property
    def batch(self) -> BadBatch:
        """The bad batch. Raises as `StageReplay.of`."""
        verdict = self.verdict
        return BadBatch.of(self.program, self.predicate, verdict.bad, verdict.stage, verdict.keys)

    @cached_property
    def line(self) -> Line:
        """The app's line."""
        return line_of(self.program.store, self.verdict.app)

    def bad_with(self, manifest: Manifest, cut: Cut | None = None) -> bool:
        """Return True if the bad moment, or `cut`, is still bad after replacing the stage's version by this one."""
        cut, heads = cut or self.verdict.bad, self.line.heads.stages
        moment = dataclasses.replace(cut, stages={**cut.stages, manifest.stage: manifest}).under_names_of(heads)
        return bool(self.predicate.rows(Context(self.program.store, self.program.cache, moment, heads), 1).num_rows)

    def replay(self, stage: str, version: int, channel: str = "") -> StageReplay:
        """Return the replay of a version, for one of its channels or its table. Raises as `StageReplay.of`."""
        after = history.read(self.program.store, self.verdict.app, stage, version)
        return self.batch.batches.of(after).of_output(channel)

    def without(self, record: Address) -> Manifest:
        """Return the version that the bad batch would have committed without a record. Raises as `BadBatch.find`."""
        chosen = dict(self.batch.source_records())
        part, number = self.batch.find(record)
        chosen[part] = np.setdiff1d(chosen[part], [number])
        return Choice(self.batch.batches, chosen, self.batch.root).manifest(self.batch.root)

    def turns_bad_after(self, manifest: Manifest, batches: int) -> tuple[bool, int]:
        """Return True if a later batch turns bad when `manifest` replaces the bad version, and the number of replays.

        Replays at most `batches` later batches, in their order. Raises as replays do.
        """
        store, current, count = self.program.store, manifest, 0
        later = history.after(store, self.verdict.app, self.commit.stage, self.commit.version)
        for after in islice(later, _LOOKED_AT):
            if after.traits.ends_replays or count == batches:
                break
            if not after.traits.reads_records:
                continue
            count += 1
            replay = StageReplay.of(self.program, after)
            # The offsets that the batch read follow from the previous version, whose rows may differ.
            rows = replay.rows()
            replay = replay.based_on(upon_rows_of(replay.before, current))
            current = replay.manifest(replay.merged(rows)[0])
            if self.bad_with(current, self.line.up_to(after)):
                return True, count
        return False, count

    def addresses(self, guilty: Guilty) -> tuple[Address, ...]:
        """Return the records that are bad by themselves, in the app's order; empty if not known."""
        if guilty.records is None:
            return ()
        alone = guilty.records.filter(guilty.records["alone"])
        rows = alone.select(["topic", "partition", "offset", "row"]).to_pylist()
        return tuple(Address(**row) for row in rows)

    def source_of(self, replay: StageReplay, number: int) -> Address | None:
        """Return the record of a user's topic that a batch's record was made from; None if stages mix records.

        If several records are equal, one of them is returned. Raises as a replay does.
        """
        name, upstream, version = replay.sender(number)
        if not upstream:
            return replay.address(number)
        if not version or upstream not in self.program.app.stages:
            return None
        sender = self.replay(upstream, version, name)
        if sender.shape.bound is not None or not sender.knows_records:
            return None
        row, sent = replay.inputs(np.array([number]))[name], sender.rows()
        positions = places_of(row, sent_as(sender, sent, row))
        return self.source_of(sender, int(sender.record_of(sent)[positions[0]])) if len(positions) else None


def number_of(replay: StageReplay, address: Address) -> int | None:
    """Return the number of a record in a batch; None if the batch did not process the record."""
    expected: Mapping[str, int] = dict(
        zip(("_partition", "_offset", "_row"), (address.partition, address.offset, address.row or 0), strict=True)
    )
    for name, records in replay.records.items():
        if records.topic == address.topic:
            matches = [records.place[column].to_numpy() == value for column, value in expected.items()]
            at = np.flatnonzero(np.logical_and.reduce(matches))
            if len(at):
                return int(replay.numbers[name][at[0]])
    return None
