"""A bad batch as it would have come out under an assumption: with another program, without records, with no row late.

The batches upstream are replayed under it too. Of what a batch received, only the rows change that its senders then
send otherwise; all else stays as it was committed.
"""

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
from ....moments.cut.graph import Cut
from ....moments.cut.line import Line
from ....moments.cut.moments import line_of
from ....moments.query.row_local import only_in, places_of
from ....search.predicate import Context, Predicate
from ....search.verdict import Address, Verdict
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ...claim.claim import program_of
from ..inputs import Records
from ..program import LoadedProgram
from ..stage_replay import StageReplay

MAX_BATCHES = 24
"""Batches that one assumption replays."""

Step = tuple[str, int]
"""A stage and one of its versions."""


@dataclass(frozen=True)
class Replays:
    """Batches that were opened to be replayed, by program, step and channel."""

    known: dict[tuple[int, str, int, str], StageReplay] = field(default_factory=dict)

    def of(self, program: LoadedProgram, after: Manifest, channel: str = "") -> StageReplay:
        """The replay of a version. Raises as `StageReplay.of`."""
        place = id(program), after.stage, after.version, channel
        if place not in self.known:
            self.known[place] = StageReplay.of(program, after, channel)
        return self.known[place]


@dataclass(frozen=True)
class Otherwise:
    """An assumption about some batches."""

    program: LoadedProgram
    replays: Replays
    instead: Mapping[str, LoadedProgram] = MappingProxyType({})
    """By the checksum of a program that ran, the one in its place, where that is not `program`."""
    left_out: Collection[Address] = ()
    """Records of users' topics that did not come."""
    through: Collection[Step] | None = None
    """The batches upstream that are replayed; None for all that sent something."""
    never_late: bool = False
    """Whether rows of the last batch are in time, however late."""
    count: list[int] = field(default_factory=lambda: [0])

    def manifest(self, after: Manifest, before: Manifest | None = None) -> Manifest:
        """The version that a batch would have committed, upon `before` in the place of what it was upon.

        Raises `Refused` where that takes too many batches, and as `StageReplay.of`.
        """
        replay = self._replay(after)
        rows, _ = self._rows(replay)
        if before is not None:
            replay = replay.based_on(before)
        if self.never_late:
            # Nothing is before a watermark that is not known.
            replay = replay.based_on(_without_watermark(replay.before))
        return replay.manifest(replay.merged(rows)[0])

    def _replay(self, after: Manifest, channel: str = "") -> StageReplay:
        self.count[0] += 1
        if self.count[0] > MAX_BATCHES:
            raise Refused(f"more than {MAX_BATCHES} batches are behind {after.stage}@v{after.version}")
        return self.replays.of(self._program_of(after), after, channel)

    def _program_of(self, after: Manifest) -> LoadedProgram:
        ran = after.program.checksum if after.program is not None else ""
        return self.instead.get(ran, self.program)

    def _rows(self, replay: StageReplay) -> tuple[pa.Table, bool]:
        """What a batch's function makes of what it gets; and whether it, or what it gets, is other than it was."""
        inputs = {name: self._input(replay, name, records) for name, records in replay.records.items()}
        if any(other for _, other in inputs.values()):
            return replay.run({name: rows for name, (rows, _) in inputs.items()}), True
        return replay.rows(), _is_another(replay)

    def _input(self, replay: StageReplay, name: str, records: Records) -> tuple[pa.Table, bool]:
        """What a batch gets on one input, and whether that is other than it was."""
        if not records.upstream:
            if not self.left_out:
                return records.rows, False
            left = [at for at in range(records.rows.num_rows) if address_of(records, at) not in self.left_out]
            return records.rows.take(pa.array(left, pa.int64())), len(left) < records.rows.num_rows
        rows, other = records.rows, False
        rejected = replay.left_out[name]
        for version in np.unique(records.versions).tolist():
            if not version or (self.through is not None and (records.upstream, version) not in self.through):
                continue
            sender = history.read(self.program.store, replay.after.app, records.upstream, version)
            sent = self._replay(sender, name)
            made, is_other = self._rows(sent)
            if is_other:
                now = sent.sent(made).select(rows.column_names).cast(rows.schema)
                # What the batch rejected was sent, too.
                then = pa.concat_tables([_of_version(each, version) for each in (records, rejected)])
                gone, new = only_in(then, now), only_in(now, then)
                if gone.num_rows or new.num_rows:
                    rows, other = pa.concat_tables([only_in(rows, gone), new]), True
        return rows, other


def _is_another(replay: StageReplay) -> bool:
    """Whether another program replays a batch than ran then, as far as that is known."""
    ran, now = replay.after.program, program_of(replay.program.app)
    return ran is not None and now is not None and ran.checksum != now.checksum


def _of_version(records: Records, version: int) -> pa.Table:
    return records.rows.filter(pa.array(records.versions == version))


def _without_watermark(manifest: Manifest) -> Manifest:
    times = manifest.event_time
    return replace(manifest, event_time=replace(times, watermark_ms=None) if times is not None else None)


def address_of(records: Records, at: int) -> Address:
    """Where a record is in Kafka, by its place among those of its input."""
    partition, offset, row = (int(records.place[name][at].as_py()) for name in records.place.column_names[:3])
    return Address(records.topic, partition, offset, row if records.upstream else None)


def number_of(replay: StageReplay, address: Address) -> int | None:
    """The number of a record in a batch; None where the batch did not take it."""
    for name, records in replay.records.items():
        if records.topic == address.topic:
            wanted = (address.partition, address.offset, address.row or 0)
            columns = [records.place[column].to_numpy() for column in records.place.column_names[:3]]
            at = np.flatnonzero(np.logical_and.reduce([c == w for c, w in zip(columns, wanted, strict=True)]))
            if len(at):
                return int(replay.numbers[name][at[0]])
    return None


@dataclass(frozen=True)
class Trial:
    """The bad moment of a verdict under assumptions, and moments after it."""

    program: LoadedProgram
    verdict: Verdict
    predicate: Predicate
    replays: Replays = field(default_factory=Replays)

    @property
    def commit(self) -> Manifest:
        """The bad commit."""
        return self.verdict.bad.stages[self.verdict.stage]

    def replay(self, stage: str, version: int, channel: str = "") -> StageReplay:
        """The batch of a version, asked about a channel or its table. Raises as `StageReplay.of`."""
        after = history.read(self.program.store, self.verdict.app, stage, version)
        return self.replays.of(self.program, after, channel)

    def assuming(self, **what: object) -> Otherwise:
        """An assumption, by the fields of `Otherwise`."""
        return Otherwise(self.program, self.replays, **what)  # type: ignore[arg-type]

    def is_bad(self, cut: Cut) -> bool:
        """Whether the predicate finds something wrong at a moment that need not have been committed."""
        heads = self.line.heads.stages
        at = Context(self.program.store, self.program.cache, cut.under_names_of(heads), heads)
        return bool(self.predicate.rows(at, 1).num_rows)

    def bad_with(self, manifest: Manifest, cut: Cut | None = None) -> bool:
        """Whether the bad moment, or another one, is bad with this version of the stage in the place of its own."""
        cut = cut or self.verdict.bad
        return self.is_bad(dataclasses.replace(cut, stages={**cut.stages, manifest.stage: manifest}))

    def stays_good(self, assumed: Otherwise, batches: int) -> tuple[bool, int]:
        """Whether the batches after the bad one stay good upon what an assumption makes of that; and how many there are.

        They are replayed as they came. Raises as `Otherwise.manifest`.
        """
        before, commit, app, count = assumed.manifest(self.commit), self.commit, self.verdict.app, 0
        for after in islice(history.after(self.program.store, app, commit.stage, commit.version), 4 * batches):
            if after.kind in ("edit", "rewind", "migration", "backfill", "forget", "retire", "rename"):
                break
            if after.kind != "batch":
                continue
            count += 1
            before = Otherwise(self.program, self.replays, through=()).manifest(after, before)
            if self.bad_with(before, self.line.up_to(after)):
                return False, count
            if count == batches:
                break
        return True, count

    @cached_property
    def line(self) -> Line:
        """The app's line."""
        return line_of(self.program.store, self.verdict.app)


def source_of(trial: Trial, replay: StageReplay, number: int) -> Address | None:
    """The record of a user's topic that a record of a batch was made of; None where stages mix them.

    Of rows that are the same, it is one of them. Raises as a replay does.
    """
    name, upstream, version = replay.sender(number)
    if not upstream:
        return replay.address(number)
    if not version or upstream not in trial.program.app.stages:
        return None
    sender = trial.replay(upstream, version, name)
    if sender.shape.bound is not None or not sender.knows_records:
        return None
    row = replay.inputs(np.array([number]))[name]
    sent = sender.rows()
    places = places_of(row, sender.sent(sent).select(row.column_names).cast(row.schema))
    return source_of(trial, sender, int(sender.record_of(sent)[places[0]])) if len(places) else None
