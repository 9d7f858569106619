"""From a bad commit to the input record behind it: replays of its batch, and of those upstream.

The order is BigSift's (Gulzar et al., 2017): first what provenance leaves, then halving by the user's predicate.
`first.py` finds the record: of all prefixes of the records in the app's order, the shortest bad one ends with it. Here
stands what is told of it: the way from the commit up to it, what it did, and which other records are bad.

Of a change of a key, what is bad is that the row is as it was committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....errors import Gone
from ....pipeline.batch.rerun import Numbers
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.predicate import Context, OfAllTables, Predicate
from ....snapshot.bisect.verdict import Address, CannotProve, Guilty, Hop, SourceMessage, Verdict
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.lineage import Window, direct, losses
from ....snapshot.diff.candidates import changed_keys
from ....snapshot.diff.equality import like
from ....snapshot.diff.key_changes import KeyChanges
from ....state.culprit import TooMany, failing_alone, turning_point
from ....state.topics import id_in
from ....store.read.multi_get import multi_get
from ....store.sst.hashing import hash_keys
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .batches import Choice, InputPart, why_different
from .first import FirstRecord, Queue, RecordSearch
from .joined import climb, is_joined, met
from .program import LoadedProgram
from .what_if import Item, by_part

_MOST_ALONE = 1_000
"""Records that are looked for by trying groups of them; where Spark says which row is whose, there is no bound."""
_MOST_REPLAYS = 60
"""Groups that are tried for them; a fifth, where Spark computes batches anew or a program of the user's is asked."""


def find_record(
    program: LoadedProgram, verdict: Verdict, predicate: Predicate, on_hop: Callable[[Hop], None] = lambda _hop: None
) -> Guilty:
    """The record behind a verdict, as far as replays prove it.

    `predicate` is what it was found with; `on_hop` is told of each record on the way up, when all are found. Whatever a
    replay raises is the `reason` why the way ends before.
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
    *,
    last: bool = False,
) -> Guilty:
    """The record behind the commit that `bad` ends with, which `changed` these keys and read these windows.

    With `last`, that after which nothing changed any more; else the first. Errors are told as by `find_record`.
    """
    hops, reason = list[Hop](), ""
    search: RecordSearch | None = None
    found: FirstRecord | None = None
    guilty = Guilty((), None, "", windows, None)
    try:
        search = _open(program, predicate, bad, stage, changed, last=last)
        found = search.run()
        if found is None:
            return dataclasses.replace(guilty, reason=_no_record(search), no_record=search.nothing)
        way = list[Item]()
        for item in _way_up(search, found):
            way.append(item)
            hops.append(_hop(search, found, *item))
            on_hop(hops[-1])
        reason = search.reason
    except Exception as error:
        reason = reason_of(error)
    if search is None or found is None or not hops:
        return dataclasses.replace(guilty, reason=reason)
    tied = tuple(address for address in found.tied if address.topic == hops[-1].record.topic or not is_joined(way))
    guilty = dataclasses.replace(guilty, hops=tuple(hops), proved=found.proved, tied=tied)
    guilty = _ending(program, guilty, *way[-1], reason)
    with suppress(Exception):
        # What it did, and which others are bad, is not told where it cannot be.
        guilty = dataclasses.replace(
            guilty, keys=search.keys_between(search.cut(found.before), search.cut(found.until))
        )
        if last:
            reached = search.relevant
            return dataclasses.replace(guilty, of_key=0 if reached is None else len(reached))
        if guilty.message is not None and (other := _with_bad_values(search, found, guilty, way)) is not None:
            return other
        records, is_complete, alone = _bad_records(search, found)
        others = None if alone is None else alone - found.alone
        return dataclasses.replace(guilty, records=records, is_complete=is_complete, others=others)
    return guilty


def _ending(program: LoadedProgram, guilty: Guilty, part: InputPart, number: int, reason: str) -> Guilty:
    """The way, with the message at its end; or with the reason why there is none."""
    address = part.batch.address(number)
    message: SourceMessage | None = None
    if part.upstream and not reason:
        reason = f"it is not known of which records {part.upstream}@v{part.version} made {address}"
    if not reason:
        try:
            message = _message(program, address, id_in(part.batch.replay.after, address.topic))
        except Exception as error:
            reason = reason_of(error)
    window = Window(address.topic, address.partition, address.offset, address.offset + 1)
    return dataclasses.replace(guilty, message=message, reason=reason, windows=(window,))


def _with_bad_values(search: RecordSearch, found: FirstRecord, guilty: Guilty, way: Sequence[Item]) -> Guilty | None:
    """The record that the one that was found met in a join, where that one has the bad values; None elsewhere."""
    if (other := met(search, found, way)) is None:
        return None
    program, after, hops = search.batches.program, other.batch.replay.after, guilty.hops[: other.at + 1]
    nothing = dataclasses.replace(guilty, hops=hops, message=None, proved=False, tied=())
    if len(other.records) == 1:
        up = climb(search, other.batch, int(other.records[0]))
        # It needs the one that it met, which came later.
        part, number = up[-1]
        theirs = dataclasses.replace(
            found, part=part, number=number, alone=False, needs=[way[-1]], candidates={part: np.array([number])}
        )
        hops += tuple(_hop(search, theirs, *item) for item in up)
        return _ending(program, dataclasses.replace(guilty, hops=hops, tied=()), *up[-1], "")
    if len(other.records) or not other.version:
        what = "several records brought them" if len(other.records) else "they waited in its table"
        return dataclasses.replace(
            nothing, reason=f"{way[-1][0].batch.address(way[-1][1])} met bad values at {other.batch!r}: {what}"
        )
    earlier = why(program, after.stage, other.version, other.key)
    return dataclasses.replace(
        earlier, hops=(*hops, *earlier.hops), keys=guilty.keys, of_key=0, proved=earlier.proved and earlier.of_key == 1
    )


def _open(
    program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None, *, last: bool
) -> RecordSearch:
    """The search, where the batch can be replayed, and gives what was committed. Raises `CannotProve` elsewhere."""
    after = bad.stages[stage]
    if predicate.channels:
        raise CannotProve("the predicate asks for records in flight, which a replay does not have")
    if after.table is None and not after.side_tables:
        raise CannotProve(f"stage {after.stage!r} has no table")
    if after.edited is not None:
        raise CannotProve(f"{stage}@v{after.version} is an edit by hand, by {after.edited.by}: {after.edited.what}")
    found = RecordSearch.of(program, predicate, bad, stage, changed)
    found.last = last
    replay = found.root.replay
    if replay.shape.bound is not None:
        stored, every = replay.written(), Choice(found.batches, found.everything)
        if different := len(replay.differing_keys(stored, replay.merged(every.rows(found.root))[0])):
            raise CannotProve(
                f"a replay of {stage}@v{after.version} does not give what was committed: {different} of "
                f"{stored.num_rows} keys are different. {why_different(program, after)}"
            )
    if not found.is_bad_at(found.cut(found.everything)):
        raise CannotProve(f"a replay of {stage}@v{after.version} does not come out bad")
    return found


def _no_record(search: RecordSearch) -> str:
    """What made it bad with none of its records, in words."""
    nothing = search.nothing
    assert nothing is not None  # noqa: S101
    what = f"{nothing.stage}@v{nothing.version}"
    if (nothing.stage, nothing.version) != (search.root.replay.after.stage, search.root.replay.after.version):
        return f"it was emitted by a row that fell due at {what}, which no record there did"
    if nothing.expired.num_rows:
        return f"rows that expired make {what} bad, whatever records it read"
    if nothing.fell_due.num_rows:
        return f"rows that fell due make {what} bad, whatever records it read"
    return f"{what} is bad whatever records it read"


def _way_up(search: RecordSearch, found: FirstRecord) -> Iterator[Item]:
    """The records on the way from the commit up to the one that was found, each as what it was received."""
    with_, without = (Choice(search.batches, chosen) for chosen in (found.until, found.before))
    for part in _way(search, found.part, with_, without):
        yield part, found.number if part is found.part else _received(search, part, with_, without)


def _hop(search: RecordSearch, found: FirstRecord, part: InputPart, number: int) -> Hop:
    batch, after = part.batch, part.batch.replay.after
    replays = next((level.replays for level in search.levels if part in level.parts), 0)
    is_last = part is found.part
    candidates = sum(map(len, found.candidates.values())) if is_last else _candidates(search, part)
    needs = None if found.needs is None or found.alone else len(found.needs)
    record = after.stage, after.version, batch.address(number), batch.count
    return Hop(*record, candidates, replays, found.alone, needs)


def _candidates(search: RecordSearch, part: InputPart) -> int:
    some = search.reach(part, search.relevant)
    return len(part.numbers) if some is None else len(some)


def _way(search: RecordSearch, end: InputPart, with_: Choice, without: Choice) -> list[InputPart]:
    """The parts from one of the bad batch up to this one, each sent by the batch of the next.

    Where a batch sent several, one is taken with which the record comes, if there is one.
    """
    way = [end]
    while (batch := way[0].batch) is not search.root:
        every = [part for level in search.levels for part in level.parts if part.sender is batch]
        way.insert(0, next((part for part in every if len(_gained(part, with_, without))), every[0]))
    return way


def _gained(part: InputPart, with_: Choice, without: Choice) -> Numbers:
    """The records of a part that one choice has more than the other."""
    return np.setdiff1d(with_.of_part(part), without.of_part(part))


def _received(search: RecordSearch, part: InputPart, with_: Choice, without: Choice) -> int:
    """The record of a part as which the one that was found, or what a state made of it, was received."""
    begun = search.replays
    gained = _gained(part, with_, without)
    if (reached := search.reach(part, search.relevant)) is not None and len(np.intersect1d(gained, reached)):
        gained = np.intersect1d(gained, reached)
    base = without.of_part(part)
    if not len(gained):
        # A state sent other rows than these: of those that were received then, the one with which it turned bad.
        gained, base = part.numbers, part.numbers[:0]
    try:
        if len(gained) == 1:
            return int(gained[0])
        at = turning_point(
            len(gained), lambda count: search.is_bad(search.fixed | {part: np.union1d(base, gained[:count])})
        )
        return int(gained[at])
    finally:
        # What is asked for that is no part of the search.
        search.replays = begun


def _bad_records(search: RecordSearch, found: FirstRecord) -> tuple[pa.Table, bool, int | None]:
    """The bad records of the batch, in the app's order, and whether all that are bad by themselves are among them.

    And how many are bad by themselves: where not all are found, so many that the batch itself read; None where that is
    not known. For the columns see `Guilty.records`. What is not found for an error, or in so many replays, is left out.
    """
    alone, is_complete, count = _bad_alone(search, found)
    named = (found.part, found.number)
    if found.alone and named not in alone:
        alone.append(named)
    together = [*(found.needs or ()), named] if not found.alone else []
    items = {**dict.fromkeys(together, False), **dict.fromkeys(alone, True)}
    return _table(search, items), is_complete, sum(items.values()) if is_complete else count


def _bad_alone(search: RecordSearch, found: FirstRecord) -> tuple[list[Item], bool, int | None]:
    """The records that are bad by themselves, as far up as batches were replayed; and whether these are all.

    And how many records of the bad batch itself are, where that is known.
    """
    begun, count = search.replays, None
    try:
        known = search.alone
        if known is None:
            some, are_all = _by_groups(search, found.candidates)
            # Other parts may have some, too.
            return some, are_all and len(search.root.parts) == 1, None
        count = len(known)
        return *_sources(search, [(part, np.intersect1d(part.numbers, known)) for part in search.root.parts]), count
    except Exception:
        return [], False, count
    finally:
        # What is asked for that is no part of the search.
        search.replays = begun


def _sources(search: RecordSearch, waiting: list[tuple[InputPart, Numbers]]) -> tuple[list[Item], bool]:
    """The records of users' topics of which records of a batch are made; and whether each was traced up to there."""
    found, is_complete = list[Item](), True
    while waiting:
        part, numbers = waiting.pop()
        if not len(numbers):
            continue
        if not part.upstream:
            found += [(part, number) for number in numbers.tolist()]
            continue
        try:
            sender = search.batches.expand(part)
        except Exception:
            # Not replayed: the rows that it sent are what is known.
            found += [(part, number) for number in numbers.tolist()]
            is_complete = False
            continue
        if part.trace is None:
            reached = {each: search.reach(each, search.relevant) for each in sender.parts}
            chosen = {each: each.numbers if some is None else some for each, some in reached.items()}
            some, are_all = _by_groups(search, chosen)
            waiting += by_part(some).items()
            is_complete &= are_all
            continue
        mine, made_of = part.trace
        records = made_of[np.isin(mine, numbers)]
        waiting += [(each, np.intersect1d(each.numbers, records)) for each in sender.parts]
    return list(dict.fromkeys(found)), is_complete


def _by_groups(search: RecordSearch, chosen: Mapping[InputPart, Numbers]) -> tuple[list[Item], bool]:
    """Of these records those that are bad by themselves, by trying groups of them; and whether these are all."""
    items = [(part, number) for part, numbers in chosen.items() for number in numbers.tolist()]
    begun = search.replays
    known = all(batch.replay.knows_records for batch in search.batches.known.values())
    is_cheap = known and bool(search.predicate.sql)
    most = _MOST_REPLAYS if is_cheap else _MOST_REPLAYS // 5

    def fails(groups: Sequence[Numbers]) -> list[bool]:
        if search.replays - begun + len(groups) > most:
            raise TooMany([])
        return [search.is_bad(by_part(items[at] for at in group.tolist())) for group in groups]

    try:
        every = np.arange(len(items), dtype=np.int64)
        if not fails([every])[0]:
            return [], True
        return [items[at] for at in failing_alone(every, fails, _MOST_ALONE)], True
    except TooMany:
        return [], False


def _table(search: RecordSearch, items: Mapping[Item, bool]) -> pa.Table:
    """Records as `Guilty.records` has them; of each it is said whether it is bad by itself."""
    chosen, alone = by_part(items), by_part(item for item, is_alone in items.items() if is_alone)
    ordered = [part for cluster in search.batches.clusters(tuple(chosen)) for part in cluster]
    tables = [_RECORDS.empty_table()]
    for batch in dict.fromkeys(part.batch for part in ordered):
        parts = [part for part in ordered if part.batch is batch]
        queue = Queue.of_parts(parts)
        tables.append(_rows(queue, queue.places(chosen), alone))
    return pa.concat_tables(tables)


def _rows(queue: Queue, places: Numbers, alone: Mapping[InputPart, Numbers]) -> pa.Table:
    """The records at some places of a queue."""
    of, numbers, tables = queue.of[places], queue.numbers[places], [_RECORDS.empty_table()]
    for at, part in enumerate(queue.parts):
        mine = numbers[of == at]
        partition, offset, row, time = (part.batch.place.take(pa.array(mine)).columns)[:4]
        topic = pa.repeat(part.batch.replay.records[part.name].topic, len(mine))
        if part.upstream:
            key = pa.nulls(len(mine), pa.binary())
        else:
            key = part.received["key"].take(pa.array(np.searchsorted(part.numbers, mine)))
            row = pa.nulls(len(mine), pa.int32())
        is_alone = pa.array(np.isin(mine, alone.get(part, mine[:0])))
        columns = [topic, partition, offset, row, time.cast(_RECORDS.field("time").type), key, is_alone]
        tables.append(pa.Table.from_arrays(columns, schema=_RECORDS))
    back = np.argsort(np.concatenate([np.flatnonzero(of == at) for at in range(len(queue.parts))]))
    return pa.concat_tables(tables).take(pa.array(back))


_RECORDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("row", pa.int32()),
        ("time", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("alone", pa.bool_()),
    ]
)


def _message(program: LoadedProgram, address: Address, topic_id: str) -> SourceMessage:
    where = (address.topic, address.partition, address.offset, address.offset + 1)
    for (message,) in program.kafka.read(*where, patience_s=program.patience_s, topic_id=topic_id):
        headers = tuple((name, value) for name, value in message.headers() or ())
        return SourceMessage(address, message.timestamp()[1], message.key(), message.value(), headers)
    raise Gone(f"there is no message at {dataclasses.replace(address, row=None)} any more")


def why(program: LoadedProgram, stage: str, version: int, key: pa.Table) -> Guilty:
    """The record with which a key's row became what a version committed, as far as replays prove it.

    Where several records of the batch reach the key (`Guilty.of_key`), it is the last that changed the row. `version`
    wrote the row, or removed it; `key` is one row of key columns, as `parse_key` gives it. Raises `NotFound` where a
    version is gone.
    """
    store, cache, app = program.store, program.cache, program.app.name
    before, after = (history.read(store, app, stage, number) for number in (version - 1, version))
    cut = Cut(app, {stage: after})
    predicate = _IsAsCommitted(
        "the row is what was committed", stage, key, _row(Context(store, cache, cut), after, key)
    )
    keys = changed_keys(store, cache, before, after, key)
    windows = direct(before, after, losses(after))
    return behind(program, predicate, cut, stage, keys, windows, last=True)


@dataclass(frozen=True, slots=True)
class _IsAsCommitted(OfAllTables):
    """A predicate that says of a cut: the key's row, or that it has none, is what one version made of it."""

    stage: str
    key: pa.Table
    row: pa.Table

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        found = _row(at, at.cut.stages[self.stage], self.key)
        return self.key.slice(0, 1 if len(like(self.row, found)[0]) == self.row.num_rows == found.num_rows else 0)


def _row(at: Context, manifest: Manifest, key: pa.Table) -> pa.Table:
    """The key's row at a version, as it is stored; no row where it has none."""
    table = manifest.table
    if table is None:
        return key.slice(0, 0)
    hashes = hash_keys(key, key.column_names)
    values, present = multi_get(at.store, at.cache, manifest.ssts, table, hashes, key, clock_ms=manifest.clock_ms)
    names = [*key.column_names, *values.column_names]
    return pa.table([*key.columns, *values.columns], names).slice(0, int(present[0]))
