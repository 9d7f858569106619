"""From a bad commit to the input record behind it: replays of one batch, and of those upstream that it came from.

The order is BigSift's (Gulzar et al., 2017): first what provenance leaves, then halving by the user's predicate.
Prefixes of the records in the order of their time are replayed, until one is found that is bad and is not without its
last record. A row of a repartition topic leads to the version that sent it, and there the search goes on: with the same
predicate, over what the stages in between make of the rows that remain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Corruption, NotFound, Refused
from ...snapshot.bisect.changed_keys import ChangedKeys, changed_keys, written_rows
from ...snapshot.bisect.delta import turning_point
from ...snapshot.bisect.predicate import At, Predicate
from ...snapshot.bisect.record import Address, CannotProve, Guilty, Hop, Message
from ...snapshot.bisect.same_rows import differing, places_of
from ...snapshot.bisect.verdict import MAX_ROWS, Verdict
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.lineage import Window
from ...store.sst.hashing import hash_keys
from ...store.versions import history
from ..kafka.records import message_at
from .program import Program
from .stage_replay import Numbers, StageReplay


@dataclass
class _Level:
    """One version of a stage on the way, and how to tell whether what its function makes is bad."""

    replay: StageReplay
    is_bad: Callable[[pa.Table], bool]
    """Of rows of the function: whether the predicate comes out bad below."""
    candidates: Numbers
    """The records that may be guilty, in the order of time."""
    found: int = field(default=0, init=False)
    """Where among these the guilty one is."""
    replays: int = field(default=0, init=False)

    @property
    def number(self) -> int:
        """The guilty record."""
        return int(self.candidates[self.found])

    @property
    def earlier(self) -> Numbers:
        """The candidates before it."""
        return self.candidates[: self.found]

    def bad(self, chosen: Numbers) -> bool:
        """Whether these records are bad."""
        self.replays += 1
        return self.is_bad(self.replay.rows(chosen))

    def search(self) -> Hop:
        """The record with which it turns bad. All candidates together are bad, which is not asked again."""
        self.found = turning_point(len(self.candidates), lambda count: self.bad(self.candidates[:count]))
        return self.hop(alone=self.found == 0 or self.bad(self.candidates[self.found : self.found + 1]))

    def hop(self, *, alone: bool) -> Hop:
        """What is told of the record that was found."""
        made = self.replay.after
        address, size = self.replay.address(self.number), len(self.candidates)
        return Hop(made.stage, made.version, address, self.replay.count, size, self.replays, alone)


def find_record(
    program: Program, verdict: Verdict, predicate: Predicate, on_hop: Callable[[Hop], None] = lambda _hop: None
) -> Guilty:
    """The record behind a verdict, as far as replays prove it.

    Args:
        program: What is replayed.
        verdict: The commit that bisect found.
        predicate: What it was found with.
        on_hop: Told of each record that is found on the way.

    Raises:
        Unavailable: The store or Kafka did not answer. Others as the user's program raises.
    """
    hops: list[Hop] = []
    windows, keys = verdict.lineage.direct, None
    try:
        level, hop = _first(program, verdict, predicate)
        keys = _what_it_did(level, verdict, predicate)
        while True:
            hops.append(hop)
            on_hop(hop)
            windows = (_window(hop.record),)
            if hop.record.row is None:
                return Guilty(tuple(hops), _message(program, hop.record), "", windows, keys)
            level, hop = _above(program, level)
    except (Refused, NotFound, Corruption) as error:
        return Guilty(tuple(hops), None, error.message, windows, keys)


def _first(program: Program, verdict: Verdict, predicate: Predicate) -> tuple[_Level, Hop]:
    """The record of the bad commit itself."""
    after = verdict.bad.stages[verdict.stage]
    if predicate.channels:
        raise CannotProve("the predicate asks for records in flight, which a replay does not have")
    if after.table is None:
        raise CannotProve(f"stage {after.stage!r} keeps no table")
    replay = StageReplay.of(program, after)
    every = replay.rows()
    _check_committed(replay, every)

    def is_bad(rows: pa.Table) -> bool:
        return predicate.rows(At(program.store, program.cache, _cut(verdict, replay, rows)), 1).num_rows > 0

    for candidates in _candidates(replay, every, verdict.keys):
        level = _Level(replay, is_bad, candidates)
        if level.bad(candidates):
            return level, level.search()
    raise CannotProve(f"a replay of {after.stage}@v{after.version} does not come out bad")


def _cut(verdict: Verdict, replay: StageReplay, rows: pa.Table) -> Cut:
    """The bad moment, had the stage's function made these rows only."""
    return dataclasses.replace(verdict.bad, stages={**verdict.bad.stages, verdict.stage: replay.manifest(rows)})


def _check_committed(replay: StageReplay, every: pa.Table) -> None:
    """Raise `CannotProve` unless the function's rows make what the version committed."""
    after, table = replay.after, replay.before.table
    assert table is not None  # noqa: S101  asked before
    made, _ = replay.merged(every)
    columns = [column.name for column in (*table.key, *table.values)]
    stored = written_rows(replay.program.store, replay.program.cache, after, table).select([*columns, "_op"])
    wrong = differing(stored, made.select(stored.column_names).cast(stored.schema))
    if wrong.num_rows:
        keys = len({*zip(*(wrong[column.name].to_pylist() for column in table.key), strict=True)})
        raise CannotProve(
            f"a replay of {after.stage}@v{after.version} does not give what was committed: {keys} of "
            f"{stored.num_rows} keys are different. Has the code changed, or does it give another result each time?"
        )


def _candidates(replay: StageReplay, every: pa.Table, keys: ChangedKeys | None) -> Iterator[Numbers]:
    """The records that may be guilty: those that reach the bad keys, where that is known; then all."""
    if replay.apart and keys is not None and keys.named:
        changed = keys.changed().keys
        hashes = pa.array(hash_keys(changed, changed.column_names))
        yield np.unique(replay.record_of(every.filter(pc.is_in(every["_hash"], hashes))))
    yield np.unique(replay.record_of(every)) if replay.apart else np.arange(replay.count)


def _what_it_did(level: _Level, verdict: Verdict, predicate: Predicate) -> ChangedKeys | None:
    """The keys of the bad commit's table right before the guilty record and with it."""
    program, replay = level.replay.program, level.replay
    before = replay.manifest(replay.rows(level.earlier))
    cut = _cut(verdict, replay, replay.rows(level.candidates[: level.found + 1]))
    rows = predicate.rows(At(program.store, program.cache, cut), MAX_ROWS)
    keys = changed_keys(program.store, program.cache, before, cut.stages[verdict.stage], rows)
    return keys.changed() if keys is not None else None


def _above(program: Program, below: _Level) -> tuple[_Level, Hop]:
    """The record that the version upstream made the guilty row of."""
    name, stage, version = below.replay.sender(below.number)
    app = below.replay.after.app
    replay = StageReplay.of(program, history.read(program.store, app, stage, version), name)
    every, mine = replay.rows(), below.replay.numbers_of(name, version)
    received = below.replay.inputs(mine)[name]
    sent = replay.sent(every, name)
    if differing(received, sent.select(received.column_names).cast(received.schema)).num_rows:
        raise CannotProve(
            f"a replay of {stage}@v{version} does not send what it sent then. Has the code changed, or does it give "
            "another result each time?"
        )
    guilty = below.replay.row(below.number)
    twin = int(np.searchsorted(mine[places_of(guilty, received)], below.number))
    rest = below.replay.inputs(np.setdiff1d(below.earlier, mine))

    def is_bad(rows: pa.Table) -> bool:
        made = replay.sent(rows, name).select(received.column_names).cast(received.schema)
        return below.is_bad(below.replay.run({**rest, name: pa.concat_tables([rest[name], made])}))

    def sends_it(rows: pa.Table) -> bool:
        return len(places_of(guilty, replay.sent(rows, name))) > twin

    candidates = np.unique(replay.record_of(every)) if replay.apart else np.arange(replay.count)
    level = _Level(replay, is_bad, candidates)
    if replay.shape.bound is None and replay.apart:
        # Each row comes of one record: nothing has to be tried.
        makers = np.sort(replay.record_of(every)[places_of(guilty, every)])
        level.found = int(np.searchsorted(candidates, makers[twin]))
        return level, level.hop(alone=True)
    if replay.shape.bound is None or not level.bad(candidates):
        level = _Level(replay, sends_it, candidates)
        hop = level.search()
        level.is_bad = is_bad
        return level, hop
    return level, level.search()


def _window(address: Address) -> Window:
    return Window(address.topic, address.partition, address.offset, address.offset + 1)


def _message(program: Program, address: Address) -> Message:
    key, value, time_ms, headers = message_at(
        program.kafka, address.topic, address.partition, address.offset, patience_s=program.patience_s
    )
    return Message(address, time_ms, key, value, headers)
