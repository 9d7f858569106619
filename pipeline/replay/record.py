"""From a bad commit to the input record behind it: replays of its batch, and of those upstream.

The order is BigSift's (Gulzar et al., 2017): first what provenance leaves, then halving by the user's predicate.
Prefixes of the records in the order of their time are replayed, until one is found that is bad and is not without its
last record. A row of a repartition topic leads to the version that sent it, and there the search goes on: with the same
predicate, over what the stages in between make of the rows that remain.

Of a change of a key, what is bad is that the row is as it was committed. Records that are bad each by itself are found
all at once, where a predicate looks at one row of the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ...errors import Corruption, Gone, NotFound, Refused, SlackwaterError
from ...fold.culprit import smallest, turning_point
from ...fold.failing import RECORD
from ...fold.kinds.kind import Groups
from ...fold.topics import id_in
from ...moments.cut.graph import Cut
from ...moments.cut.lineage import Window, direct, losses
from ...moments.diff.candidates import changed_keys
from ...moments.diff.key_changes import KeyChanges
from ...moments.diff.versions import Ancestry
from ...moments.query.row_local import ROW, differing, numbers_of, places_of, row_local
from ...search.predicate import Context, OfAllTables, Predicate
from ...search.verdict import MAX_ROWS, Address, CannotProve, Guilty, Hop, SourceMessage, Verdict
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import hash_keys, normalise_keys
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..batch.rerun import Numbers
from .program import LoadedProgram
from .stage_replay import StageReplay, of_keys


def bad_alone(replay: StageReplay, predicate: Predicate) -> Numbers | None:
    """The records that make the predicate true by themselves, ascending; None where that is not known.

    It is known where each of the function's rows comes of one record, and the predicate is SQL over single rows of
    the stage's table.
    """
    if not replay.knows_records or not predicate.sql or replay.before.table is None:
        return None
    try:
        stage, sql = row_local(predicate.sql, [replay.after.stage])
        return numbers_of(sql, stage, _each_alone(replay))
    except SlackwaterError:
        # The predicate is another one, or the state's function does not take a key several times.
        return None


def _each_alone(replay: StageReplay) -> pa.Table:
    """The table's rows as each record by itself would leave those of its keys, with the record's number as `ROW`."""
    step, table = replay.step, replay.table
    bound = step.state_now
    key = [column.name for column in table.key]
    rows = normalise_keys(step.split_late(replay.rows())[0], key)
    order = np.lexsort((rows["_hash"].to_numpy(), rows[RECORD].to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    records, hashes = rows[RECORD].to_numpy(), rows["_hash"].to_numpy()
    begins = np.append(True, (records[1:] != records[:-1]) | (hashes[1:] != hashes[:-1]))
    starts = np.flatnonzero(begins)
    keys = rows.select(key).take(pa.array(starts))
    each, first, place = np.unique(hashes[starts], return_index=True, return_inverse=True)
    old, _, _ = replay.stored.of_keys(each, keys.take(pa.array(first)))
    groups = Groups((np.cumsum(begins) - 1).astype(np.int32), starts)
    merged = bound.merge(rows.select([*key, *bound.needs]), groups, keys, old.take(pa.array(place)))
    made = pa.table(
        [*keys.columns, *merged.values.columns, pa.array(records[starts])],
        names=[*key, *merged.values.column_names, ROW],
    )
    return made if merged.deleted is None else made.filter(pa.array(~merged.deleted))


_MOST = 20
"""Replays, after which nobody asks any more which of the records before a guilty one are needed."""
_WHY = "Has the code changed, or does it give another result each time?"


@dataclass
class _Level:
    """One version of a stage on the way up from the bad commit."""

    replay: StageReplay
    commit: Callable[[pa.Table], Cut]
    """What the bad moment would be, had the stage's function made these rows only."""
    is_bad: Callable[[Cut], bool]
    candidates: Numbers
    """The records that may be guilty, in the order of time."""
    found: int = field(default=0, init=False)
    """Where among these the guilty one is."""
    alone: bool = field(default=True, init=False)
    """Whether it is bad without those before it."""
    needs: int | None = field(default=None, init=False)
    """Else, of how many of these none can be left out; None where that is not known."""
    replays: int = field(default=0, init=False)
    tried: bool = field(default=False, init=False)
    """Whether it was found by trying what is bad; else it is known what made the guilty row below."""

    @property
    def number(self) -> int:
        """Of the guilty record."""
        return int(self.candidates[self.found])

    @property
    def earlier(self) -> Numbers:
        """The candidates before it."""
        return self.candidates[: self.found]

    @property
    def hop(self) -> Hop:
        made, replay = self.replay.after, self.replay
        record = (made.stage, made.version, replay.address(self.number), replay.count)
        return Hop(*record, len(self.candidates), self.replays, self.alone, self.needs)

    def bad(self, chosen: Numbers) -> bool:
        self.replays += 1
        return self.is_bad(self.commit(self.replay.rows(chosen)))

    def search(self) -> None:
        """Find the record with which it turns bad. All candidates together are bad, which is not asked again."""
        self.tried = True
        self.found = turning_point(len(self.candidates), lambda count: self.bad(self.candidates[:count]))
        self.alone = self.found == 0 or self.bad(self.candidates[self.found : self.found + 1])
        if not self.alone:
            # What is asked for that is no part of the search.
            replays, items = self.replays, self.earlier.tolist()
            left, is_smallest = smallest(items, lambda some: self.bad(np.array([*some, self.number])), most=_MOST)
            self.replays = replays
            self.needs = len(left) if is_smallest else None

    def before_and_with(self) -> tuple[pa.Table, pa.Table]:
        """The function's rows right before the guilty record, and with it."""
        return self.replay.rows(self.earlier), self.replay.rows(self.candidates[: self.found + 1])


def find_record(
    program: LoadedProgram, verdict: Verdict, predicate: Predicate, on_hop: Callable[[Hop], None] = lambda _hop: None
) -> Guilty:
    """The record behind a verdict, as far as replays prove it.

    `predicate` is what it was found with; `on_hop` is told of each record that is found on the way up. Raises
    `Unavailable` where the store or Kafka did not answer, and as Spark does where the user's function fails in it.
    """
    return behind(program, predicate, verdict.bad, verdict.stage, verdict.keys, verdict.lineage.direct, on_hop)


def behind(
    program: LoadedProgram,
    predicate: Predicate,
    bad: Cut,
    stage: str,
    changed: KeyChanges | None,
    windows: tuple[Window, ...],
    on_hop: Callable[[Hop], None] = lambda _hop: None,
) -> Guilty:
    """The record behind the commit that `bad` ends with, which `changed` these keys and read these windows.

    Raises as `find_record`.
    """
    levels: list[_Level] = []
    reason, message = "", None
    try:
        level = _first(program, predicate, bad, stage, changed)
        while True:
            levels.append(level)
            on_hop(level.hop)
            if level.hop.record.row is None:
                break
            level = _above(program, level)
        message = _message(program, level.hop.record, id_in(level.replay.after, level.hop.record.topic))
    except (Refused, NotFound, Corruption) as error:
        reason = f"{error.message}; {error.hint}" if error.hint else error.message
    if not levels:
        return Guilty((), None, reason, windows, None)
    for upper, lower in pairwise(reversed(levels)):
        if upper.tried:
            _follow_down(upper, lower)
    hops = tuple(level.hop for level in levels)
    keys = _what_it_did(levels, stage, predicate)
    alone = bad_alone(levels[0].replay, predicate)
    others = None if alone is None else len(np.setdiff1d(alone, [levels[0].number]))
    last = hops[-1].record
    window = Window(last.topic, last.partition, last.offset, last.offset + 1)
    return Guilty(hops, message, reason, (window,), keys, others)


def _first(program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None) -> _Level:
    """The record of the bad commit itself."""
    after = bad.stages[stage]
    if predicate.channels:
        raise CannotProve("the predicate asks for records in flight, which a replay does not have")
    if after.table is None:
        raise CannotProve(f"stage {after.stage!r} keeps no table")
    if after.edited is not None:
        raise CannotProve(f"{stage}@v{after.version} is an edit by hand, by {after.edited.by}: {after.edited.what}")
    replay = StageReplay.of(program, after)
    every = replay.rows()
    stored = replay.written()
    if different := len(replay.differing_keys(stored, replay.merged(every)[0])):
        raise CannotProve(
            f"a replay of {stage}@v{after.version} does not give what was committed: {different} of "
            f"{stored.num_rows} keys are different. {_WHY}"
        )

    def commit(rows: pa.Table) -> Cut:
        return dataclasses.replace(bad, stages={**bad.stages, stage: replay.manifest(replay.merged(rows)[0])})

    def is_bad(cut: Cut) -> bool:
        return bool(predicate.rows(Context(program.store, program.cache, cut), 1).num_rows)

    if _without_records(replay) and (not replay.count or is_bad(commit(every.slice(0, 0)))):
        raise CannotProve(f"rows that fell due make {stage}@v{after.version} bad, whatever records it read")
    for candidates in _candidates(replay, every, changed):
        level = _Level(replay, commit, is_bad, candidates)
        if level.bad(candidates):
            level.search()
            return level
    raise CannotProve(f"a replay of {stage}@v{after.version} does not come out bad")


def _candidates(replay: StageReplay, every: pa.Table, keys: KeyChanges | None) -> Iterator[Numbers]:
    """The records that may be guilty: those that reach the bad keys, where that is known; then all."""
    if replay.knows_records and keys is not None and keys.named:
        yield np.unique(replay.record_of(of_keys(every, keys.changed().keys)))
    yield _makers(replay, every)


def _makers(replay: StageReplay, every: pa.Table) -> Numbers:
    """The records of which the function makes rows, where that is known; else all."""
    return np.unique(replay.record_of(every)) if replay.knows_records else np.arange(replay.count)


def _above(program: LoadedProgram, below: _Level) -> _Level:
    """The record that the version upstream made the guilty row of."""
    name, stage, version = below.replay.sender(below.number)
    replay = StageReplay.of(program, history.read(program.store, below.replay.after.app, stage, version), name)
    every, mine = replay.rows(), below.replay.numbers_of(name, version)
    received = below.replay.inputs(mine)[name]
    if differing(received, _sent(replay, every, received)).num_rows:
        raise CannotProve(f"a replay of {stage}@v{version} does not send what it sent then. {_WHY}")
    guilty = below.replay.inputs(np.array([below.number]))[name]
    if _without_records(replay) and len(places_of(guilty, _sent(replay, every.slice(0, 0), received))):
        raise CannotProve(f"it was emitted by a row that fell due at {stage}@v{version}, which no record there did")
    # Of rows that are the same, the record is found that sent as many of them.
    twins = int(np.searchsorted(mine[places_of(guilty, received)], below.number))
    rest = below.replay.inputs(np.setdiff1d(below.earlier, mine))

    def commit(rows: pa.Table) -> Cut:
        read = {**rest, name: pa.concat_tables([rest[name], _sent(replay, rows, received)])}
        return below.commit(below.replay.run(read))

    level = _Level(replay, commit, below.is_bad, _makers(replay, every))
    if replay.shape.bound is None and replay.knows_records:
        # Each row comes of one record: nothing has to be tried.
        makers = np.sort(replay.record_of(every)[places_of(guilty, every)])
        level.found = int(np.searchsorted(level.candidates, makers[twins]))
    elif replay.shape.bound is not None and level.bad(level.candidates):
        level.search()
    else:
        # What it sent as a whole is not bad with what came before: then the row itself is looked for.
        level.found = turning_point(
            len(level.candidates),
            lambda count: len(places_of(guilty, replay.sent(replay.rows(level.candidates[:count])))) > twins,
        )
    return level


def _without_records(replay: StageReplay) -> bool:
    """Whether the version may have done something that no record of it is behind."""
    return replay.shape.bound is not None and replay.due is not None and replay.due.pending


def _sent(replay: StageReplay, rows: pa.Table, received: pa.Table) -> pa.Table:
    """What a stage sends of its function's rows, with the columns with which it was received."""
    return replay.sent(rows).select(received.column_names).cast(received.schema)


def _follow_down(upper: _Level, lower: _Level) -> None:
    """Let the guilty record below be a row that the one above made: of several bad ones, another may have come first.

    Rows of one message have one time. So where the stage above read them in another order, the first of them there is
    the first in time.
    """
    name, _, version = lower.replay.sender(lower.number)
    mine = lower.replay.numbers_of(name, version)
    received = lower.replay.inputs(mine)[name]
    made = differing(*(_sent(upper.replay, rows, received) for rows in upper.before_and_with()))
    known = np.intersect1d(mine[places_of(made, received)], lower.candidates)
    if len(known) and lower.number not in known:
        lower.found = int(np.searchsorted(lower.candidates, known[0]))


def _what_it_did(levels: Sequence[_Level], stage: str, predicate: Predicate) -> KeyChanges | None:
    """The keys of the bad commit's table right before the guilty record and with it."""
    program, level = levels[0].replay.program, [level for level in levels if level.tried][-1]
    before, cut = (level.commit(rows) for rows in level.before_and_with())
    rows = predicate.rows(Context(program.store, program.cache, cut), MAX_ROWS)
    # Both were made of the version before it.
    shared = Ancestry(max((sst.seq_max for sst in levels[0].replay.before.ssts), default=0))
    keys = changed_keys(program.store, program.cache, before.stages[stage], cut.stages[stage], rows, shared)
    return keys.changed() if keys is not None else None


def _message(program: LoadedProgram, address: Address, topic_id: str) -> SourceMessage:
    where = (address.topic, address.partition, address.offset, address.offset + 1)
    for (message,) in program.kafka.read(*where, patience_s=program.patience_s, topic_id=topic_id):
        headers = tuple((name, value) for name, value in message.headers() or ())
        return SourceMessage(address, message.timestamp()[1], message.key(), message.value(), headers)
    raise Gone(f"there is no message at {dataclasses.replace(address, row=None)} any more")


def why(program: LoadedProgram, stage: str, version: int, key: pa.Table) -> Guilty:
    """The record with which a key's row became what a version committed, as far as replays prove it.

    Where several records of the batch reach the key, it is the one after which none changed the row any more;
    `Hop.candidates` says how many there are. `version` wrote the row, or removed it; `key` is one row of key columns,
    as `parse_key` gives it. Raises `NotFound` where a version is gone, and as `find_record`.
    """
    store, cache, app = program.store, program.cache, program.app.name
    before, after = (history.read(store, app, stage, number) for number in (version - 1, version))
    cut = Cut(app, {stage: after})
    predicate = _IsAsCommitted(
        "the row is what was committed", stage, key, _row(Context(store, cache, cut), after, key)
    )
    keys = changed_keys(store, cache, before, after, key)
    return behind(program, predicate, cut, stage, keys, direct(before, after, losses(after)))


@dataclass(frozen=True, slots=True)
class _IsAsCommitted(OfAllTables):
    """A predicate that says of a cut: the key's row, or that it has none, is what one version made of it."""

    stage: str
    key: pa.Table
    row: pa.Table

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        found = _row(at, at.cut.stages[self.stage], self.key)
        return self.key.slice(0, 0 if differing(self.row, found).num_rows else 1)


def _row(at: Context, manifest: Manifest, key: pa.Table) -> pa.Table:
    """The key's row at a version, as it is stored; no row where it has none."""
    table = manifest.table
    if table is None:
        return key.slice(0, 0)
    hashes = hash_keys(key, key.column_names)
    values, present = multi_get(at.store, at.cache, manifest.ssts, table, hashes, key, clock_ms=manifest.clock_ms)
    names = [*key.column_names, *values.column_names]
    return pa.table([*key.columns, *values.columns], names).slice(0, int(present[0]))
