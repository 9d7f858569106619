"""Replays of the batch that `bisect` found bad, with changed records, another program, or other previous rows."""

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
from ....snapshot.bisect.verdict import RecordLocation, RecordPath, Verdict
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.line import Line
from ....snapshot.cut.moments import read_line
from ....snapshot.diff.equality import find_row_numbers, surplus_rows
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.batches import SubsetReplay, compute_sent_rows
from ..replay.compare import RowDifferences
from ..replay.inputs import InputRecords
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay
from ..replay.what_if import BadBatch

_MAX_LATER_VERSIONS = 16
"""Maximum number of versions after the bad commit that are searched for batches to replay."""


@dataclass(frozen=True)
class BadCommit:
    """First bad commit that a bisect found. Evaluates the bisect's predicate at moments with replayed versions."""

    program: LoadedProgram
    verdict: Verdict
    predicate: Predicate

    @property
    def commit(self) -> Manifest:
        return self.verdict.bad.stages[self.verdict.stage]

    @cached_property
    def batch(self) -> BadBatch:
        verdict = self.verdict
        return BadBatch.open(self.program, self.predicate, verdict.bad, verdict.stage, verdict.keys)

    @cached_property
    def line(self) -> Line:
        return read_line(self.program.store, self.verdict.app)

    def is_bad_with(self, manifest: Manifest, cut: Cut | None = None) -> bool:
        """Return True if a moment is bad once `manifest` replaces the moment's version of the same stage.

        The moment is `cut`, by default the first bad moment of the bisect.
        """
        cut, heads = cut or self.verdict.bad, self.line.heads.stages
        moment = dataclasses.replace(cut, stages={**cut.stages, manifest.stage: manifest}).with_renamed_stages(heads)
        return bool(self.predicate.rows(Context(self.program.store, self.program.cache, moment, heads), 1).num_rows)

    def replay(self, stage: str, version: int, channel: str = "") -> StageReplay:
        after = history.read(self.program.store, self.verdict.app, stage, version)
        return self.batch.batches.open(after).for_output(channel)

    def manifest_without(self, record: RecordLocation) -> Manifest:
        chosen = dict(self.batch.source_records())
        part, number = self.batch.find_record(record)
        chosen[part] = np.setdiff1d(chosen[part], [number])
        return SubsetReplay(self.batch.batches, chosen, self.batch.root).manifest(self.batch.root)

    def replay_later_batches(self, manifest: Manifest, batches: int) -> tuple[bool, int]:
        """Replay the batches after the bad batch, starting from the rows of `manifest`, until the moment is bad.

        Returns two values: True if a batch made the moment bad, and the number of replays. Replays at most `batches`
        batches, oldest first. Raises the errors of a replay.
        """
        store, current, count = self.program.store, manifest, 0
        later = history.iter_after(store, self.verdict.app, self.commit.stage, self.commit.version)
        for after in islice(later, _MAX_LATER_VERSIONS):
            if after.traits.ends_replays or count == batches:
                break
            if not after.traits.reads_records:
                continue
            count += 1
            replay = StageReplay.for_version(self.program, after)
            # The offsets that the batch read follow from the previous version, whose rows may differ.
            rows = replay.rows()
            replay = replay.with_previous(with_rows_of(replay.before, current))
            current = replay.manifest(replay.merge(rows))
            if self.is_bad_with(current, self.line.prefix_up_to(after)):
                return True, count
        return False, count

    def bad_record_addresses(self, guilty: RecordPath) -> tuple[RecordLocation, ...]:
        """Return the Kafka positions of records that make the moment bad without any other record.

        The positions are in the order in which the app read the records. Empty if the records are not known.
        """
        if guilty.records is None:
            return ()
        alone = guilty.records.filter(guilty.records["alone"])
        rows = alone.select(["topic", "partition", "offset", "row"]).to_pylist()
        return tuple(RecordLocation(**row) for row in rows)

    def source_address(self, replay: StageReplay, number: int) -> RecordLocation | None:
        """Return the Kafka position of the user's record that led to a record of the batch.

        `number` is the record's number in the batch. Returns None if a stage makes rows from several records. If
        several source records are equal, returns the position of one of them. Raises the errors of a replay.
        """
        name, records, at = replay.find_record(number)
        if not records.upstream:
            return records.location(at)
        version = int(records.versions[at])
        if not version or records.upstream not in self.program.app.stages:
            return None
        sender = self.replay(records.upstream, version, name)
        if sender.shape.bound is not None or not sender.knows_records:
            return None
        row, sent = replay.inputs(np.array([number]))[name], sender.rows()
        positions = find_row_numbers(row, compute_sent_rows(sender, sent, row))
        return self.source_address(sender, int(sender.record_of(sent)[positions[0]])) if len(positions) else None


MAX_BATCHES = 24
Step = tuple[str, int]


@dataclass
class CounterfactualReplay:
    """Replay of a batch, and of the upstream batches that sent rows to it, with another program or other rows."""

    program: LoadedProgram
    replacement_programs: Mapping[str, LoadedProgram] = field(default_factory=lambda: MappingProxyType({}))
    """Program to run, by the checksum of the program that ran originally.

    Batches of programs without an entry are replayed with `program`.
    """
    replacement_versions: Mapping[Step, Manifest] = field(default_factory=lambda: MappingProxyType({}))
    replayed_batches: Collection[Step] | None = None
    """Upstream batches to replay; None for all batches that sent rows to a replayed batch."""
    num_replays: int = 0

    def manifest(self, after: Manifest) -> Manifest:
        """Return the version that the batch commits in the replay.

        `after` is the original version. Raises `Refused` if more than `MAX_BATCHES` batches have to be replayed, and
        the errors of `StageReplay.for_version`.
        """
        self.num_replays = 0
        replay = self._replay(after)
        return replay.manifest(replay.merge(self._rows(replay)[0]))

    def _replay(self, after: Manifest, channel: str = "") -> StageReplay:
        self.num_replays += 1
        if self.num_replays > MAX_BATCHES:
            raise Refused(
                f"more than {MAX_BATCHES} batches would have to be replayed for {after.stage}@v{after.version}"
            )
        ran = after.program.checksum if after.program is not None else ""
        replay = StageReplay.for_version(self.replacement_programs.get(ran, self.program), after, channel)
        base = self.replacement_versions.get((after.stage, after.version))
        return replay if base is None else replay.with_previous(with_rows_of(replay.before, base))

    def _rows(self, replay: StageReplay) -> tuple[pa.Table, bool]:
        inputs = {name: self._input(replay, name, records) for name, records in replay.records.items()}
        if any(differs for _, differs in inputs.values()):
            return replay.run({name: rows for name, (rows, _) in inputs.items()}), True
        after, now = replay.after, program_of(replay.program.app)
        has_other_rows = (after.stage, after.version) in self.replacement_versions
        return replay.rows(), has_other_rows or after.is_by_other_program(now)

    def _input(self, replay: StageReplay, name: str, records: InputRecords) -> tuple[pa.Table, bool]:
        rows, differs = records.rows, False
        for version in np.unique(records.versions).tolist() if records.upstream else ():
            if not version or (
                self.replayed_batches is not None and (records.upstream, version) not in self.replayed_batches
            ):
                continue
            sender = self._replay(history.read(self.program.store, replay.after.app, records.upstream, version), name)
            new_rows, sender_differs = self._rows(sender)
            if sender_differs:
                sent_now = compute_sent_rows(sender, new_rows, rows)
                # Rejected records were sent too.
                both = records, replay.left_out[name]
                sent_then = pa.concat_tables([some.rows.filter(pa.array(some.versions == version)) for some in both])
                if different := RowDifferences.compare(sent_then, sent_now):
                    rows, differs = pa.concat_tables([surplus_rows(rows, different.missing), different.added]), True
        return rows, differs


def with_rows_of(manifest: Manifest, other: Manifest) -> Manifest:
    return replace(manifest, ssts=other.ssts, clock_ms=other.clock_ms)
