"""Replays of a bad batch, and of the upstream batches that sent rows to it, with a subset of their records.

The records that a batch received are divided into parts. Each part is from a user's topic, or from one version of an
upstream stage, whose batch can also be replayed. A `SubsetReplay` determines which records are present. Downstream
batches receive the rows that the upstream replays send. Each batch keeps the clock and the watermark of its manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....errors import NotFound
from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.run.claim import program_of
from ....snapshot.bisect.verdict import RecordLocation, UnprovedRecord
from ....snapshot.cut.line import Line
from ....snapshot.cut.moments import read_line
from ....snapshot.cut.stored import ADDRESS_COLUMNS
from ....snapshot.diff.equality import pair_equal_rows, pair_similar_rows
from ....snapshot.diff.stored_rows import TableSide
from ....store.sst import writer as sst
from ....store.sst.schema import add_missing_columns, sst_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest, SideTable
from ....store.versions.side_tables import REJECTED, as_main_table, table_name
from .inputs import ORIGIN_SCHEMA
from .program import LoadedProgram
from .stage_replay import StageReplay, run_together

LinePosition = tuple[int, int, int]
"""Sort key of a commit in the order of all commits of an app (the app's line)."""
_TOGETHER = 50_000
"""Maximum number of records of several batches over which a function runs together."""
_KEY = ["topic", "partition", "offset", "row"]


@dataclass(eq=False)
class InputPart:
    """Records that a batch received on one input from one sender."""

    batch: ReplayBatch = field(repr=False)
    name: str
    upstream: str
    version: int
    numbers: RecordNumbers
    """Numbers of the part's records within the batch, ascending."""
    sender: ReplayBatch | None = None
    """Batch that sent the records; None until `OpenBatches.replay_sender` has replayed that batch."""
    trace: tuple[RecordNumbers, RecordNumbers] | None = None
    """Two arrays: record numbers in this batch, and the number of each record's source in the sender's batch.

    None if a record was made from several records, or if the numbers are unknown.
    """

    @cached_property
    def received(self) -> pa.Table:
        """Rows of the part for the batch's function, in the order of `numbers`, including rejected records."""
        replay, start = self.batch.replay, self.batch.first_left_out[self.name]
        processed = replay.inputs(self.numbers)[self.name]
        rejected = self.numbers[self.numbers >= replay.count] - start
        return pa.concat_tables([processed, replay.left_out[self.name].rows.take(pa.array(rejected))])


class ReplayBatch:
    """Batch whose stage can be replayed with any subset of its records.

    Processed records have the numbers of `StageReplay`. Rejected records have the next higher numbers.
    """

    def __init__(self, replay: StageReplay) -> None:
        self.replay = replay
        self.first_left_out: dict[str, int] = {}
        place_tables, numbers, inputs = list[pa.Table](), list[RecordNumbers](), list[RecordNumbers]()
        count = replay.count
        for at, name in enumerate(replay.records):
            left_out = replay.left_out[name]
            self.first_left_out[name] = count
            place_tables += [replay.records[name].origin, left_out.origin]
            numbers += [replay.numbers[name], np.arange(count, count + left_out.rows.num_rows)]
            inputs.append(np.full(len(numbers[-1]) + len(numbers[-2]), at))
            count += left_out.rows.num_rows
        order = np.argsort(np.concatenate(numbers), kind="stable")
        self.origin = pa.concat_tables(place_tables).take(pa.array(order)).combine_chunks()
        """Columns of `Records.place`, by record number."""
        self.inputs = np.concatenate(inputs)[order]
        """Input index of each record, by record number; inputs in the order of the stage."""
        self._replays = {"": replay}

    def __repr__(self) -> str:
        return f"{self.replay.after.stage}@v{self.replay.after.version}"

    @property
    def count(self) -> int:
        return len(self.inputs)

    @cached_property
    def parts(self) -> tuple[InputPart, ...]:
        return tuple(self._parts())

    def _parts(self) -> Iterator[InputPart]:
        versions = self.column(ORIGIN_SCHEMA.names[4])
        for at, (name, records) in enumerate(self.replay.records.items()):
            numbers = np.flatnonzero(self.inputs == at)
            for version in np.unique(versions[numbers]).tolist():
                yield InputPart(self, name, records.upstream, version, numbers[versions[numbers] == version])

    def column(self, name: str) -> RecordNumbers:
        return np.asarray(self.origin[name].to_numpy(), np.int64)

    def address(self, number: int) -> RecordLocation:
        records = list(self.replay.records.values())[int(self.inputs[number])]
        return dataclasses.replace(records, origin=self.origin).location(number)

    def time_ms(self, number: int) -> int:
        return int(self.column(ORIGIN_SCHEMA.names[3])[number])

    def for_output(self, name: str) -> StageReplay:
        """Return the replay for a channel that the stage writes; if `name` is empty, for the stage's tables."""
        if name not in self._replays:
            self._replays[name] = self.replay.for_output(name)
        return self._replays[name]

    @cached_property
    def side_rows(self) -> dict[str, tuple[pa.Table, RecordNumbers]]:
        """Rows that the batch wrote to each side table, with the record number of each row; -1 for no record."""
        program, after, result = self.replay.program, self.replay.after, {}
        for name, side in after.side_tables.items():
            if name != REJECTED:
                continue
            version = as_main_table(after, table_name(after.stage, name))
            rows = TableSide(program.store, program.cache, side.table, version).read_written(after.row_seq)
            numbers = np.full(rows.num_rows, -1, np.int64)
            row_numbers, records = pair_equal_rows(
                rows.select(_KEY).rename_columns(["_topic", *ADDRESS_COLUMNS]), self._addresses
            )
            numbers[row_numbers] = records
            result[name] = rows, numbers
        return result

    @cached_property
    def _addresses(self) -> pa.Table:
        topics = pa.array([records.topic for records in self.replay.records.values()], pa.string())
        return self.origin.select(ADDRESS_COLUMNS).add_column(0, "_topic", topics.take(pa.array(self.inputs)))

    def side_tables(self, chosen: RecordNumbers) -> dict[str, SideTable]:
        previous, after, program = self.replay.before, self.replay.after, self.replay.program
        tables = {name: after.side_tables[name] for name in self.side_rows}
        for name, (rows, numbers) in self.side_rows.items():
            present = np.isin(numbers, chosen) | (numbers < 0)
            if present.all():
                continue
            old = previous.side_tables.get(name) or SideTable(after.side_tables[name].table)
            tables[name] = replace(old, table=after.side_tables[name].table)
            if present.any():
                table = tables[name].table
                present_rows = add_missing_columns(rows.filter(pa.array(present)), sst_schema(table))
                write = partial(sst.write_sst, program.scratch, None, app=after.app, stage=after.stage)
                new = write(table=table, partition=0, rows=present_rows)
                tables[name] = replace(tables[name], ssts=old.ssts.plus((replace(new, root=program.scratch.url),)))
        return tables


@dataclass
class OpenBatches:
    """Batches of an app that are open for replays; each is opened once."""

    program: LoadedProgram
    max_batches: int = 0
    """Number of open batches at which `is_full` returns True; 0 for no limit."""
    opened: dict[tuple[str, int], ReplayBatch] = field(default_factory=dict)
    _commits_by_version: dict[tuple[str, int], frozenset[LinePosition]] = field(default_factory=dict)

    def open(self, after: Manifest) -> ReplayBatch:
        """Return the batch that committed the version `after`, for replays.

        Raises the errors of `StageReplay.for_version` and of reading records.
        """
        place = after.stage, after.version
        if place not in self.opened:
            self.opened[place] = ReplayBatch(StageReplay.for_version(self.program, after))
        return self.opened[place]

    def open_together(self, versions: Sequence[Manifest]) -> None:
        """Open batches of one stage, and run its function over the records of many batches at once.

        Raises the errors of `open`.
        """
        chunks, size = [list[StageReplay]()], 0
        for after in versions:
            if (after.stage, after.version) in self.opened:
                continue
            replay = self.open(after).replay
            if size > _TOGETHER:
                chunks.append([])
                size = 0
            chunks[-1].append(replay)
            size += replay.count
        for replays in chunks:
            if len(replays) > 1:
                run_together(replays)

    def is_full(self, stage: str, version: int) -> bool:
        """Return True if this batch is not open, and the maximum number of batches is open."""
        return (stage, version) not in self.opened and 0 < self.max_batches <= len(self.opened)

    def previous(self, batch: ReplayBatch) -> ReplayBatch | None:
        """Return the newest opened batch of the same stage before `batch`; None if there is none."""
        stage, version = batch.replay.after.stage, batch.replay.after.version
        earlier = [other for of, other in self.opened if of == stage and other < version]
        return self.opened[stage, max(earlier)] if earlier else None

    def replay_sender(self, part: InputPart) -> ReplayBatch:
        """Replay the batch that sent a part, and check that the replay sends the received rows.

        Raises `UnprovedRecord` if the rows differ, and the errors of `open`.
        """
        if part.sender is not None:
            return part.sender
        if not part.version:
            raise UnprovedRecord(
                f"{part.batch!r} read rejected records that were retried: the batch that sent them is no longer known"
            )
        app = part.batch.replay.after.app
        sender = self.open(history.read(self.program.store, app, part.upstream, part.version))
        replay = sender.for_output(part.name)
        every = replay.rows()
        sent = compute_sent_rows(replay, every, part.received)
        rows, records = pair_similar_rows(sent, part.received)
        if not len(rows) == sent.num_rows == part.received.num_rows:
            most = max(sent.num_rows, part.received.num_rows)
            raise UnprovedRecord(
                f"a replay of {sender!r} sends other rows than it did then: {most - len(rows):,} of {most:,} differ. "
                f"{explain_difference(self.program, replay.after)}"
            )
        if (made_of := replay.sent_records(every)) is not None:
            part.trace = part.numbers[records], made_of[rows]
        part.sender = sender
        return sender

    @cached_property
    def _line(self) -> Line:
        return read_line(self.program.store, self.program.app.name)

    def cluster_parts(self, parts: Sequence[InputPart]) -> list[list[InputPart]]:
        """Group parts into clusters, sorted by the commits that read the parts' source records.

        Source records are records of users' topics. Two parts are in the same cluster if the same commits, or
        interleaved commits, read their source records.
        """
        if len(parts) == 1:
            return [list(parts)]
        if len({(part.batch, part.name) for part in parts}) == 1 and all(part.version for part in parts):
            # Readers consume the versions of a channel in order.
            return [[part] for part in sorted(parts, key=lambda part: part.version)]
        sources = {part: self._source_commits(part) for part in parts}
        spans = ((min(commits), max(commits), part) for part, commits in sources.items() if commits)
        # Parts from an unknown batch are retried records, which were read earlier.
        clusters = [[part] for part, commits in sources.items() if not commits]
        last: LinePosition | None = None
        for first, end, part in sorted(spans, key=lambda span: span[:2]):
            if last is None or first > last:
                clusters.append([])
            clusters[-1].append(part)
            last = end if last is None else max(last, end)
        return clusters

    def _source_commits(self, part: InputPart) -> frozenset[LinePosition]:
        manifest = part.batch.replay.after
        if not part.upstream:
            return frozenset([self._line.sort_key(manifest)])
        if not part.version:
            return frozenset()
        try:
            return self._source_commits_of_version(manifest.app, part.upstream, part.version)
        except NotFound:
            # Versions further upstream were collected, so order by the commits that sent the parts.
            return frozenset(
                [self._line.sort_key(history.read(self.program.store, manifest.app, part.upstream, part.version))]
            )

    def _source_commits_of_version(self, app: str, stage: str, version: int) -> frozenset[LinePosition]:
        if (stage, version) not in self._commits_by_version:
            self._commits_by_version[stage, version] = frozenset(self._find_source_commits(app, stage, version))
        return self._commits_by_version[stage, version]

    def _find_source_commits(self, app: str, stage: str, version: int) -> Iterator[LinePosition]:
        store = self.program.store
        after = history.read(store, app, stage, version)
        previous = history.previous_version(store, after)
        for name, end in after.inputs.items():
            start = previous.inputs.get(name) if previous is not None else None
            if not end.upstream:
                if end.rows:
                    yield self._line.sort_key(after)
                continue
            for sent in history.iter_between(store, app, end.upstream, start.version if start else 0, end.version):
                yield from self._source_commits_of_version(app, sent.stage, sent.version)


def compute_sent_rows(replay: StageReplay, rows: pa.Table, received: pa.Table) -> pa.Table:
    """Return the rows that a stage sends after its function returned `rows`, with the columns of `received`."""
    return replay.sent_rows(rows).select(received.column_names).cast(received.schema)


def explain_difference(program: LoadedProgram, after: Manifest) -> str:
    """Return a sentence on why a replay may differ from the committed result.

    The sentence depends on whether the current program file is the file that ran the batch.
    """
    now, then = program_of(program.app), after.program
    if now is None or then is None:
        return "Has the code changed, or is it nondeterministic?"
    if now.checksum != then.checksum:
        return f"Has the code changed? {now.path} is not, byte for byte, the program that ran then, {then}"
    return (
        "The program's file is the one that ran then, so the program is nondeterministic: `slackwater check FILE` "
        "finds the cause"
    )


class SubsetReplay:
    """Replays of batches with only a subset of the records.

    `chosen` has the numbers of the present records, by part. `extra_rows` has additional rows, by part. A part outside
    of `chosen` has the records that its sender sends in the replay, or no records if the sender is not replayed. `only`
    limits the records of the batch `root`.
    """

    def __init__(
        self,
        batches: OpenBatches,
        chosen: Mapping[InputPart, RecordNumbers],
        root: ReplayBatch | None = None,
        only: RecordNumbers | None = None,
        extra_rows: Mapping[InputPart, pa.Table] | None = None,
    ) -> None:
        self._batches, self._chosen, self._root, self._only = batches, chosen, root, only
        self._extra_rows = extra_rows or {}
        self._inputs: dict[ReplayBatch, tuple[RecordNumbers, dict[str, list[pa.Table]]]] = {}
        self._rows: dict[tuple[ReplayBatch, str], pa.Table] = {}
        self._whole: dict[ReplayBatch, bool] = {}
        self._manifests: dict[ReplayBatch, Manifest] = {}

    def has_all_records(self, batch: ReplayBatch) -> bool:
        """Return True if the replay of a batch has all its original records and its original state."""
        if batch not in self._whole:
            previous = self._batches.previous(batch)
            self._whole[batch] = (
                previous is None or self.has_all_records(previous) or batch.replay.shape.bound is None
            ) and all(self._has_all(part) for part in batch.parts)
        return self._whole[batch]

    def _has_all(self, part: InputPart) -> bool:
        if part in self._chosen:
            return len(self._chosen[part]) == len(part.numbers) and part not in self._extra_rows
        return part.sender is not None and self.has_all_records(part.sender)

    def numbers(self, batch: ReplayBatch) -> RecordNumbers:
        return self._present(batch)[0]

    def numbers_of_part(self, part: InputPart) -> RecordNumbers:
        return np.intersect1d(self.numbers(part.batch), part.numbers)

    def _present(self, batch: ReplayBatch) -> tuple[RecordNumbers, dict[str, list[pa.Table]]]:
        if batch not in self._inputs:
            numbers, new = [np.empty(0, np.int64)], dict[str, list[pa.Table]]()
            for part in batch.parts:
                part_numbers, rows = self._part(part)
                numbers.append(part_numbers)
                if rows is not None and rows.num_rows:
                    new.setdefault(part.name, []).append(rows)
            present = np.unique(np.concatenate(numbers))
            if batch is self._root and self._only is not None:
                present = np.intersect1d(present, self._only)
            self._inputs[batch] = present, new
        return self._inputs[batch]

    def _part(self, part: InputPart) -> tuple[RecordNumbers, pa.Table | None]:
        if part in self._chosen:
            return self._chosen[part], self._extra_rows.get(part)
        if part.sender is None:
            return np.empty(0, np.int64), None
        if self.has_all_records(part.sender):
            return part.numbers, None
        present, new_rows = self._present(part.sender)
        if part.trace is not None and not new_rows:
            own_numbers, made_of = part.trace
            return own_numbers[np.isin(made_of, present)], None
        sent = compute_sent_rows(self._replay(part.sender, part.name), self.rows(part.sender, part.name), part.received)
        own_numbers, received_rows = pair_similar_rows(sent, part.received)
        if len(own_numbers) == sent.num_rows:
            return part.numbers[received_rows], None
        rejected = own_numbers[part.numbers[received_rows] >= part.batch.replay.count]
        return part.numbers[:0], sent.take(pa.array(np.setdiff1d(np.arange(sent.num_rows), rejected)))

    def _replay(self, batch: ReplayBatch, output: str = "") -> StageReplay:
        replay, previous = batch.for_output(output), self._batches.previous(batch)
        if previous is None or replay.shape.bound is None or self.has_all_records(previous):
            return replay
        return replay.with_previous(self.manifest(previous))

    def rows(self, batch: ReplayBatch, output: str = "") -> pa.Table:
        key = batch, "" if batch.replay.shape.bound is not None else output
        if key not in self._rows:
            replay, (numbers, new) = batch.for_output(key[1]), self._present(batch)
            processed = numbers[numbers < replay.count]
            if not new and not len(processed):
                # Without records, the stage's function does not run.
                self._rows[key] = replay.rows().slice(0, 0)
            elif not new:
                self._rows[key] = replay.rows(None if len(processed) == replay.count else processed)
            else:
                inputs = {
                    name: pa.concat_tables([rows, *new.get(name, ())])
                    for name, rows in replay.inputs(processed).items()
                }
                self._rows[key] = replay.run(inputs)
        return self._rows[key]

    def manifest(self, batch: ReplayBatch) -> Manifest:
        if batch not in self._manifests:
            replay, after = self._replay(batch), batch.replay.after
            if replay.shape.bound is not None:
                after = replay.manifest(replay.merge(self.rows(batch)))
            self._manifests[batch] = replace(
                after, side_tables=after.side_tables | batch.side_tables(self.numbers(batch))
            )
        return self._manifests[batch]
