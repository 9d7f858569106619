"""Replays of a verdict's bad batch with changed records, another program, or other table rows before the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....errors import Refused
from ....pipeline.run.claim import program_of
from ....snapshot.bisect.predicate import Context, Predicate
from ....snapshot.bisect.verdict import Address, Guilty, Verdict
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.line import Line
from ....snapshot.cut.moments import line_of
from ....snapshot.diff.equality import only_in, places_of, unlike
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.batches import Choice, sent_as
from ..replay.inputs import Records
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay
from ..replay.what_if import BadBatch

_LOOKED_AT = 16
"""Maximum number of versions after the bad one that are searched for later batches."""


@dataclass(frozen=True)
class BadCommit:
    """Evaluates the predicate at the bad moment of a verdict, and at later moments, under assumptions."""

    program: LoadedProgram
    verdict: Verdict
    predicate: Predicate

    @property
    def commit(self) -> Manifest:
        return self.verdict.bad.stages[self.verdict.stage]

    @cached_property
    def batch(self) -> BadBatch:
        verdict = self.verdict
        return BadBatch.of(self.program, self.predicate, verdict.bad, verdict.stage, verdict.keys)

    @cached_property
    def line(self) -> Line:
        return line_of(self.program.store, self.verdict.app)

    def bad_with(self, manifest: Manifest, cut: Cut | None = None) -> bool:
        """Return True if the bad moment, or `cut`, is bad when `manifest` replaces the version of its stage."""
        cut, heads = cut or self.verdict.bad, self.line.heads.stages
        moment = dataclasses.replace(cut, stages={**cut.stages, manifest.stage: manifest}).under_names_of(heads)
        return bool(self.predicate.rows(Context(self.program.store, self.program.cache, moment, heads), 1).num_rows)

    def replay(self, stage: str, version: int, channel: str = "") -> StageReplay:
        after = history.read(self.program.store, self.verdict.app, stage, version)
        return self.batch.batches.of(after).of_output(channel)

    def without(self, record: Address) -> Manifest:
        chosen = dict(self.batch.source_records())
        part, number = self.batch.find(record)
        chosen[part] = np.setdiff1d(chosen[part], [number])
        return Choice(self.batch.batches, chosen, self.batch.root).manifest(self.batch.root)

    def turns_bad_after(self, manifest: Manifest, batches: int) -> tuple[bool, int]:
        """Return True if a later batch turns bad when `manifest` replaces the bad version, and the number of replays.

        Replays at most `batches` later batches, oldest first. Raises the errors of a replay.
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
        """Return addresses of records that are bad by themselves, in the app's order; empty if they are not known."""
        if guilty.records is None:
            return ()
        alone = guilty.records.filter(guilty.records["alone"])
        rows = alone.select(["topic", "partition", "offset", "row"]).to_pylist()
        return tuple(Address(**row) for row in rows)

    def source_of(self, replay: StageReplay, number: int) -> Address | None:
        """Return the source record, in a user's topic, of a record of a batch; None if a stage mixes records.

        If several source records are equal, one of them is returned. Raises the errors of a replay.
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


MAX_BATCHES = 24


Step = tuple[str, int]


@dataclass
class OtherBatches:
    """Replays batches with another program or table; inputs change if a sender then sends other rows."""

    program: LoadedProgram
    instead: Mapping[str, LoadedProgram] = field(default_factory=lambda: MappingProxyType({}))
    """Replacement programs, by the checksum of the program that ran; `program` replaces programs not listed here."""
    upon: Mapping[Step, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    through: Collection[Step] | None = None
    """Upstream batches to replay; None for all batches that sent rows to a replayed batch."""
    count: int = 0

    def manifest(self, after: Manifest) -> Manifest:
        """Return the version that a batch would have committed.

        Raises `Refused` if it needs more than `MAX_BATCHES` replays, and the errors of `StageReplay.for_version`.
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
        """Return the rows of a batch's function, and True if they may differ from the rows of the original run."""
        inputs = {name: self._input(replay, name, records) for name, records in replay.records.items()}
        if any(differs for _, differs in inputs.values()):
            return replay.run({name: rows for name, (rows, _) in inputs.items()}), True
        step = replay.after.stage, replay.after.version
        return replay.rows(), step in self.upon or _program_differs(replay)

    def _input(self, replay: StageReplay, name: str, records: Records) -> tuple[pa.Table, bool]:
        """Return the rows that a batch receives on one input, and True if the original batch received other rows."""
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
    ran, now = replay.after.program, program_of(replay.program.app)
    return ran is not None and now is not None and ran.checksum != now.checksum


def upon_rows_of(manifest: Manifest, other: Manifest) -> Manifest:
    return replace(manifest, ssts=other.ssts, clock_ms=other.clock_ms)


def _of_version(records: Records, version: int) -> pa.Table:
    return records.rows.filter(pa.array(records.versions == version))
