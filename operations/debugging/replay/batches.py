"""The batches between a bad commit and users' topics, and what they make of chosen records; all else stays as it was.

A batch got its records in parts: of a user's topic, or of one version of a stage upstream, whose batch can be replayed
in its turn. A choice says which records there are; a batch downstream gets what the batches upstream then send it. The
clock and the watermark of each batch are those of its manifest, whatever is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....errors import NotFound
from ....pipeline.batch.rerun import Numbers
from ....pipeline.run.claim import program_of
from ....snapshot.bisect.verdict import Address, CannotProve
from ....snapshot.cut.line import Line
from ....snapshot.cut.moments import line_of
from ....snapshot.cut.stored import ADDRESS
from ....snapshot.diff.equality import like, pairs
from ....snapshot.diff.stored_rows import TableSide
from ....store.sst import writer as sst
from ....store.sst.types import SEQ, completed, sst_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest, SideTable
from .inputs import PLACE
from .program import LoadedProgram
from .stage_replay import StageReplay

Place = tuple[int, int, int]
"""A commit's place on the app's line."""
_KEY = ["topic", "partition", "offset", "row"]
"""Of the table of rejected records."""


@dataclass(eq=False)
class InputPart:
    """The records that a batch got on one input from one sender."""

    batch: ReplayBatch = field(repr=False)
    name: str
    """The input's declared name."""
    upstream: str
    """The stage that sent them; empty for a user's topic."""
    version: int
    """Its version; 0 for a user's topic, and where it is not known."""
    numbers: Numbers
    """Their numbers in the batch, ascending."""
    sender: ReplayBatch | None = None
    """The batch that sent them, once `Batches.expand` has replayed it."""
    trace: tuple[Numbers, Numbers] | None = None
    """Of each record the number here, and in the sender's batch that of the one record that it was made of; None where
    it was made of several, or it is not known."""

    @cached_property
    def received(self) -> pa.Table:
        """The records as the batch's function gets them, in the order of `numbers`; rejected ones included."""
        replay, start = self.batch.replay, self.batch.first_left_out[self.name]
        taken = replay.inputs(self.numbers)[self.name]
        rejected = self.numbers[self.numbers >= replay.count] - start
        return pa.concat_tables([taken, replay.left_out[self.name].rows.take(pa.array(rejected))])


class ReplayBatch:
    """A version of a stage, to be replayed with any of its records.

    Records have the numbers of `StageReplay`; after these come the ones that the batch rejected.
    """

    def __init__(self, replay: StageReplay) -> None:
        self.replay = replay
        self.first_left_out: dict[str, int] = {}
        places, numbers, inputs = list[pa.Table](), list[Numbers](), list[Numbers]()
        count = replay.count
        for at, name in enumerate(replay.records):
            left_out = replay.left_out[name]
            self.first_left_out[name] = count
            places += [replay.records[name].place, left_out.place]
            numbers += [replay.numbers[name], np.arange(count, count + left_out.rows.num_rows)]
            inputs.append(np.full(len(numbers[-1]) + len(numbers[-2]), at))
            count += left_out.rows.num_rows
        order = np.argsort(np.concatenate(numbers), kind="stable")
        self.place = pa.concat_tables(places).take(pa.array(order)).combine_chunks()
        """The columns of `Records.place` by number."""
        self.inputs = np.concatenate(inputs)[order]
        """By number, which of the inputs a record is from, in the order in which the stage reads them."""
        self._replays = {"": replay}

    def __repr__(self) -> str:
        return f"{self.replay.after.stage}@v{self.replay.after.version}"

    @property
    def count(self) -> int:
        """How many records it read, rejected ones included."""
        return len(self.inputs)

    @cached_property
    def parts(self) -> tuple[InputPart, ...]:
        """Its records by where they come from."""
        return tuple(self._parts())

    def _parts(self) -> Iterator[InputPart]:
        versions = self.column(PLACE.names[4])
        for at, (name, records) in enumerate(self.replay.records.items()):
            mine = np.flatnonzero(self.inputs == at)
            for version in np.unique(versions[mine]).tolist():
                yield InputPart(self, name, records.upstream, version, mine[versions[mine] == version])

    def column(self, name: str) -> Numbers:
        """A column of `place`, by number."""
        return np.asarray(self.place[name].to_numpy(), np.int64)

    def address(self, number: int) -> Address:
        """Where a record is in Kafka."""
        records = list(self.replay.records.values())[int(self.inputs[number])]
        partition, offset, row = (int(self.place[name][number].as_py()) for name in ADDRESS)
        return Address(records.topic, partition, offset, row if records.upstream else None)

    def of_output(self, name: str) -> StageReplay:
        """Its replay, asked about a channel that it writes; empty for its tables."""
        if name not in self._replays:
            self._replays[name] = self.replay.of_output(name)
        return self._replays[name]

    @cached_property
    def side_rows(self) -> dict[str, tuple[pa.Table, Numbers]]:
        """The rows that it wrote to each table beside the stage's own, and of which record each is; -1 for none."""
        replay, seq = self.replay, self.replay.after.row_seq
        found = {}
        for name, side in replay.after.side_tables.items():
            stored = TableSide(replay.program.store, replay.program.cache, side.table, None)
            new = (each for each in side.ssts if each.seq_min <= seq <= each.seq_max)
            rows = pa.concat_tables(
                [stored.no_rows(values=True), *(stored.stored(each, SEQ, seq, seq, values=True) for each in new)]
            )
            numbers = np.full(rows.num_rows, -1, np.int64)
            mine, records = pairs(rows.select(_KEY).rename_columns(["_topic", *ADDRESS]), self._addresses)
            numbers[mine] = records
            found[name] = rows, numbers
        return found

    @cached_property
    def _addresses(self) -> pa.Table:
        topics = pa.array([records.topic for records in self.replay.records.values()], pa.string())
        return self.place.select(ADDRESS).add_column(0, "_topic", topics.take(pa.array(self.inputs)))

    def side_tables(self, chosen: Numbers) -> dict[str, SideTable]:
        """The tables beside the stage's own, as this batch would have left them with these records only."""
        before, after, program = self.replay.before, self.replay.after, self.replay.program
        made = dict(after.side_tables)
        for name, (rows, numbers) in self.side_rows.items():
            there = np.isin(numbers, chosen) | (numbers < 0)
            if there.all():
                continue
            old = before.side_tables.get(name) or SideTable(after.side_tables[name].table)
            made[name] = replace(old, table=after.side_tables[name].table)
            if there.any():
                table = made[name].table
                some = completed(rows.filter(pa.array(there)), sst_schema(table))
                write = partial(sst.write, program.scratch, None, app=after.app, stage=after.stage)
                new = write(table=table, partition=0, rows=some)
                made[name] = replace(made[name], ssts=(*old.ssts, replace(new, root=program.scratch.url)))
        return made


@dataclass
class Batches:
    """Batches of an app that were opened to be replayed."""

    program: LoadedProgram
    known: dict[tuple[str, int], ReplayBatch] = field(default_factory=dict)
    _places: dict[tuple[str, int], frozenset[Place]] = field(default_factory=dict)

    def of(self, after: Manifest) -> ReplayBatch:
        """The batch that committed a version. Raises as `StageReplay.of`, and as reading its records."""
        place = after.stage, after.version
        if place not in self.known:
            self.known[place] = ReplayBatch(StageReplay.of(self.program, after))
        return self.known[place]

    def before(self, batch: ReplayBatch) -> ReplayBatch | None:
        """The newest earlier batch of the stage that was opened."""
        stage, version = batch.replay.after.stage, batch.replay.after.version
        earlier = [other for of, other in self.known if of == stage and other < version]
        return self.known[stage, max(earlier)] if earlier else None

    def expand(self, part: InputPart) -> ReplayBatch:
        """Replay the batch that sent a part, and compare what it sends with what was received.

        Raises `CannotProve` where that differs, and as `of`.
        """
        if part.sender is not None:
            return part.sender
        if not part.version:
            raise CannotProve(
                f"{part.batch!r} read records that had been rejected, and were retried: which batch sent them is not "
                "known any more"
            )
        app = part.batch.replay.after.app
        sender = self.of(history.read(self.program.store, app, part.upstream, part.version))
        replay = sender.of_output(part.name)
        every = replay.rows()
        sent = sent_as(replay, every, part.received)
        rows, records = like(sent, part.received)
        if not len(rows) == sent.num_rows == part.received.num_rows:
            most = max(sent.num_rows, part.received.num_rows)
            raise CannotProve(
                f"a replay of {sender!r} does not send what it sent then: {most - len(rows):,} of {most:,} rows are "
                "different. "
                f"{why_different(self.program, replay.after)}"
            )
        if (made_of := replay.sent_records(every)) is not None:
            part.trace = part.numbers[records], made_of[rows]
        part.sender = sender
        return sender

    @cached_property
    def _line(self) -> Line:
        return line_of(self.program.store, self.program.app.name)

    def clusters(self, parts: Sequence[InputPart]) -> list[list[InputPart]]:
        """The parts in the app's order, which is that of the commits with which records of users' topics came in.

        Parts that are made of records of the same such commits, or of interleaving ones, are together.
        """
        if len(parts) == 1:
            return [list(parts)]
        if len({(part.batch, part.name) for part in parts}) == 1 and all(part.version for part in parts):
            # Versions of one channel are read in their order.
            return [[part] for part in sorted(parts, key=lambda part: part.version)]
        sources = {part: self._sources(part) for part in parts}
        spans = sorted(((min(places), max(places), part) for part, places in sources.items() if places), key=_of)
        # Where it is not known which batch sent them, they were read before.
        found = [[part] for part, places in sources.items() if not places]
        last: Place | None = None
        for first, end, part in spans:
            if last is None or first > last:
                found.append([])
            found[-1].append(part)
            last = end if last is None else max(last, end)
        return found

    def _sources(self, part: InputPart) -> frozenset[Place]:
        manifest = part.batch.replay.after
        if not part.upstream:
            return frozenset([self._line.place(manifest)])
        if not part.version:
            return frozenset()
        try:
            return self._sources_of(manifest.app, part.upstream, part.version)
        except NotFound:
            # Versions further up were collected: what is left of the order is that of the commits that sent the parts.
            return frozenset(
                [self._line.place(history.read(self.program.store, manifest.app, part.upstream, part.version))]
            )

    def _sources_of(self, app: str, stage: str, version: int) -> frozenset[Place]:
        """The places of the commits with which the records came into the app that a version is made of."""
        if (stage, version) not in self._places:
            self._places[stage, version] = frozenset(self._places_of(app, stage, version))
        return self._places[stage, version]

    def _places_of(self, app: str, stage: str, version: int) -> Iterator[Place]:
        store = self.program.store
        after = history.read(store, app, stage, version)
        before = history.before(store, after)
        for name, end in after.inputs.items():
            start = before.inputs.get(name) if before is not None else None
            if not end.upstream:
                if end.rows:
                    yield self._line.place(after)
                continue
            for sent in history.between(store, app, end.upstream, start.version if start else 0, end.version):
                yield from self._sources_of(app, sent.stage, sent.version)


def _of(span: tuple[Place, Place, InputPart]) -> tuple[Place, Place]:
    return span[:2]


def sent_as(replay: StageReplay, rows: pa.Table, received: pa.Table) -> pa.Table:
    """What a stage sends of its function's rows, with the columns with which it was received."""
    return replay.sent(rows).select(received.column_names).cast(received.schema)


def why_different(program: LoadedProgram, after: Manifest) -> str:
    """Why a replay gives something else than was committed, as far as the programs' files say."""
    now, then = program_of(program.app), after.program
    if now is None or then is None:
        return "Has the code changed, or does it give another result each time?"
    if now.checksum != then.checksum:
        return f"Has the code changed? {now.path} is not, byte for byte, the program that ran then, {then}"
    return (
        "The program's file is the one that ran then, so its result is not the same each time, or depends on something "
        "else: slackwater check FILE says on what"
    )


class Choice:
    """What batches make of chosen records.

    `chosen` has of some parts the numbers of their records, `more` rows that come with these. Records of other parts
    are those that their senders send, where these were replayed; else there are none. With `only`, `root` gets no
    other records than these.
    """

    def __init__(
        self,
        batches: Batches,
        chosen: Mapping[InputPart, Numbers],
        root: ReplayBatch | None = None,
        only: Numbers | None = None,
        more: Mapping[InputPart, pa.Table] | None = None,
    ) -> None:
        self._batches, self._chosen, self._root, self._only = batches, chosen, root, only
        self._more = more or {}
        self._inputs: dict[ReplayBatch, tuple[Numbers, dict[str, list[pa.Table]]]] = {}
        self._rows: dict[tuple[ReplayBatch, str], pa.Table] = {}
        self._whole: dict[ReplayBatch, bool] = {}
        self._manifests: dict[ReplayBatch, Manifest] = {}

    def is_whole(self, batch: ReplayBatch) -> bool:
        """Whether a batch has all its records, after the state that it had."""
        if batch not in self._whole:
            before = self._batches.before(batch)
            self._whole[batch] = (before is None or self.is_whole(before) or batch.replay.shape.bound is None) and all(
                self._has_all(part) for part in batch.parts
            )
        return self._whole[batch]

    def _has_all(self, part: InputPart) -> bool:
        if part in self._chosen:
            return len(self._chosen[part]) == len(part.numbers) and part not in self._more
        return part.sender is not None and self.is_whole(part.sender)

    def numbers(self, batch: ReplayBatch) -> Numbers:
        """The records that a batch has, of those that it had."""
        return self._of(batch)[0]

    def of_part(self, part: InputPart) -> Numbers:
        """The records that a batch has of a part, of those that it had."""
        return np.intersect1d(self.numbers(part.batch), part.numbers)

    def is_known(self, batch: ReplayBatch) -> bool:
        """Whether a batch has no records that it did not have."""
        return not self._of(batch)[1]

    def _of(self, batch: ReplayBatch) -> tuple[Numbers, dict[str, list[pa.Table]]]:
        """The numbers of the records that it has, and by input records that it did not have then."""
        if batch not in self._inputs:
            numbers, new = [np.empty(0, np.int64)], dict[str, list[pa.Table]]()
            for part in batch.parts:
                some, rows = self._part(part)
                numbers.append(some)
                if rows is not None and rows.num_rows:
                    new.setdefault(part.name, []).append(rows)
            mine = np.unique(np.concatenate(numbers))
            if batch is self._root and self._only is not None:
                mine = np.intersect1d(mine, self._only)
            self._inputs[batch] = mine, new
        return self._inputs[batch]

    def _part(self, part: InputPart) -> tuple[Numbers, pa.Table | None]:
        if part in self._chosen:
            return self._chosen[part], self._more.get(part)
        if part.sender is None:
            return np.empty(0, np.int64), None
        if self.is_whole(part.sender):
            return part.numbers, None
        if part.trace is not None and self.is_known(part.sender):
            mine, made_of = part.trace
            return mine[np.isin(made_of, self.numbers(part.sender))], None
        sent = sent_as(self._replay(part.sender, part.name), self.rows(part.sender, part.name), part.received)
        mine, other = like(sent, part.received)
        if len(mine) == sent.num_rows:
            return part.numbers[other], None
        rejected = mine[part.numbers[other] >= part.batch.replay.count]
        return part.numbers[:0], sent.take(pa.array(np.setdiff1d(np.arange(sent.num_rows), rejected)))

    def _replay(self, batch: ReplayBatch, output: str = "") -> StageReplay:
        replay, before = batch.of_output(output), self._batches.before(batch)
        if before is None or replay.shape.bound is None or self.is_whole(before):
            return replay
        return replay.based_on(self.manifest(before))

    def rows(self, batch: ReplayBatch, output: str = "") -> pa.Table:
        """What the stage's function makes of the records."""
        key = batch, "" if batch.replay.shape.bound is not None else output
        if key not in self._rows:
            replay, (numbers, new) = batch.of_output(key[1]), self._of(batch)
            taken = numbers[numbers < replay.count]
            if not new and not len(taken):
                # Of no records a stage's function is not asked.
                self._rows[key] = replay.rows().slice(0, 0)
            elif not new:
                self._rows[key] = replay.rows(None if len(taken) == replay.count else taken)
            else:
                inputs = {
                    name: pa.concat_tables([rows, *new.get(name, ())]) for name, rows in replay.inputs(taken).items()
                }
                self._rows[key] = replay.run(inputs)
        return self._rows[key]

    def manifest(self, batch: ReplayBatch) -> Manifest:
        """The version that the batch would have committed."""
        if batch not in self._manifests:
            replay, after = self._replay(batch), batch.replay.after
            if replay.shape.bound is not None:
                after = replay.manifest(replay.merged(self.rows(batch))[0])
            self._manifests[batch] = replace(after, side_tables=batch.side_tables(self.numbers(batch)))
        return self._manifests[batch]
