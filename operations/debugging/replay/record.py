"""Search for the input record that caused a bad commit, by replays of its batch and of upstream batches.

The approach is BigSift's (Gulzar et al., 2017): restrict the records by provenance, then bisect by the user's
predicate. `first.py` finds the first bad record. This module adds the path from the commit to the record, the changes
that the record made, and other bad records.

`find_record_of_key` searches for the cause of one key's row. Its predicate is true if the row after a replay equals the
committed row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....errors import Gone
from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.kafka.protocol import Kafka
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.predicate import AnyTablePredicate, Context, Predicate
from ....snapshot.bisect.verdict import (
    BAD_RECORDS,
    Hop,
    RecordLocation,
    RecordPath,
    SourceRecord,
    UnprovedRecord,
    Verdict,
)
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.lineage import Window, direct_windows, skipped_windows
from ....snapshot.diff.candidates import changed_keys
from ....snapshot.diff.equality import pair_similar_rows
from ....snapshot.diff.key_changes import KeyChanges
from ....state.failing import TooManyFailing, find_failing_alone, find_turning_point
from ....state.records import topic_id_in
from ....store.read.multi_get import multi_get
from ....store.sst.hashing import hash_keys
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .batches import InputPart, SubsetReplay, explain_difference
from .first import FirstRecord, RecordQueue, RecordSearch
from .joined import find_join_partner, is_joined, trace_upstream
from .program import LoadedProgram
from .what_if import PartRecord, group_by_part

_MAX_ALONE = 1_000
"""Maximum number of bad records that are found by trying groups of records."""
_MAX_GROUPS = 60
"""Maximum number of groups of records to try; a fifth if each try needs a Spark job or runs a user's program."""


def find_record(
    program: LoadedProgram, verdict: Verdict, predicate: Predicate, on_hop: Callable[[Hop], None] = lambda _hop: None
) -> RecordPath:
    """Return the record that caused the bad commit found by a bisect, as far as replays prove it.

    `predicate` is the predicate of the bisect. When the whole path is known, `on_hop` receives each hop of the path. An
    error in a replay ends the path; the result then has the error's message as `reason`.
    """
    return find_record_of_commit(
        program, predicate, verdict.bad, verdict.stage, verdict.keys, verdict.lineage.direct, on_hop
    )


def find_record_of_commit(
    program: LoadedProgram,
    predicate: Predicate,
    bad: Cut,
    stage: str,
    changed: KeyChanges | None,
    windows: tuple[Window, ...],
    on_hop: Callable[[Hop], None] = lambda _hop: None,
    *,
    last: bool = False,
) -> RecordPath:
    """Return the record that caused the last commit of the moment `bad`.

    This commit changed the keys `changed` of `stage`, and read the offsets `windows`. With `last`, the result is the
    last record that changed the committed rows, otherwise the first bad record. Errors are reported in the result's
    `reason`.
    """
    hops, reason = list[Hop](), ""
    search: RecordSearch | None = None
    first: FirstRecord | None = None
    guilty = RecordPath((), None, "", windows, None)
    try:
        search = _open_search(program, predicate, bad, stage, changed, last=last)
        first = search.run()
        if first is None:
            return dataclasses.replace(
                guilty, reason=_no_record_reason(search), recordless_batch=search.no_record_finding
            )
        way = list[PartRecord]()
        for item in _trace_path(search, first):
            way.append(item)
            hops.append(_hop(search, first, *item))
            on_hop(hops[-1])
        reason = search.reason
    except Exception as error:
        reason = reason_of(error)
    if search is None or first is None or not hops:
        return dataclasses.replace(guilty, reason=reason)
    tied = tuple(address for address in first.tied if address.topic == hops[-1].record.topic or not is_joined(way))
    guilty = dataclasses.replace(guilty, hops=tuple(hops), proved=first.proved, tied=tied)
    guilty = _with_source_message(program, guilty, *way[-1], reason)
    with suppress(Exception):
        # Failure to find the record's changes and other bad records must not hide the result.
        guilty = dataclasses.replace(
            guilty,
            keys=search.changed_keys_between(
                search.cut_with_records(first.records_before), search.cut_with_records(first.records_until)
            ),
        )
        if last:
            reached = search.relevant_records
            return dataclasses.replace(guilty, of_key=0 if reached is None else len(reached))
        if guilty.source_record is not None and (other := _follow_join(search, first, guilty, way)) is not None:
            return other
        records, is_complete, alone = _bad_records(search, first)
        num_others = None if alone is None else alone - first.alone
        return dataclasses.replace(guilty, records=records, is_complete=is_complete, others=num_others)
    return guilty


def _with_source_message(
    program: LoadedProgram, guilty: RecordPath, part: InputPart, number: int, reason: str
) -> RecordPath:
    address = part.batch.address(number)
    source_message: SourceRecord | None = None
    if part.upstream and not reason:
        reason = f"cannot trace {address} to the records that {part.upstream}@v{part.version} made it from"
    if not reason:
        try:
            source_message = read_message(
                program.kafka, address, topic_id_in(part.batch.replay.after, address.topic), program.patience_s
            )
        except Exception as error:
            reason = reason_of(error)
    window = Window(address.topic, address.partition, address.offset, address.offset + 1)
    return dataclasses.replace(guilty, source_record=source_message, reason=reason, windows=(window,))


def _follow_join(
    search: RecordSearch, first: FirstRecord, guilty: RecordPath, way: Sequence[PartRecord]
) -> RecordPath | None:
    if (other := find_join_partner(search, first, way)) is None:
        return None
    program, after, hops = search.batches.program, other.batch.replay.after, guilty.hops[: other.path_index + 1]
    nothing = dataclasses.replace(guilty, hops=hops, source_record=None, proved=False, tied=())
    if len(other.records) == 1:
        up = trace_upstream(search, other.batch, int(other.records[0]))
        # The partner record is bad only together with the first bad record, which was read later.
        part, number = up[-1]
        partner = dataclasses.replace(
            first, part=part, number=number, alone=False, needs=[way[-1]], candidates={part: np.array([number])}
        )
        hops += tuple(_hop(search, partner, *item) for item in up)
        return _with_source_message(program, dataclasses.replace(guilty, hops=hops, tied=()), *up[-1], "")
    if len(other.records) or not other.version:
        fact = "several records have them" if len(other.records) else "they were in its table already"
        return dataclasses.replace(
            nothing,
            reason=f"{way[-1][0].batch.address(way[-1][1])} was joined with bad values at {other.batch!r}: {fact}",
        )
    earlier = find_record_of_key(program, after.stage, other.version, other.key)
    return dataclasses.replace(
        earlier, hops=(*hops, *earlier.hops), keys=guilty.keys, of_key=0, proved=earlier.proved and earlier.of_key == 1
    )


def _open_search(
    program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None, *, last: bool
) -> RecordSearch:
    after = bad.stages[stage]
    if predicate.reads_channels:
        raise UnprovedRecord("the predicate reads in-flight records, which a replay does not have")
    if after.table is None and not after.side_tables:
        raise UnprovedRecord(f"stage {after.stage!r} has no table")
    if after.edited is not None:
        noun, edited = after.traits.noun, after.edited
        raise UnprovedRecord(f"{stage}@v{after.version} is {noun}, by {edited.by}: {edited.what}")
    search = RecordSearch.open(program, predicate, bad, stage, changed)
    search.find_last = last
    replay = search.root.replay
    if replay.shape.bound is not None:
        stored, whole_choice = replay.written_rows(), SubsetReplay(search.batches, search.all_records)
        if different := len(replay.differing_keys(stored, replay.merge(whole_choice.rows(search.root)).new)):
            raise UnprovedRecord(
                f"a replay of {stage}@v{after.version} does not give what was committed: {different} of "
                f"{stored.num_rows} keys are different. {explain_difference(program, after)}"
            )
    if not search.is_bad_at(search.cut_with_records(search.all_records)):
        raise UnprovedRecord(f"a replay of {stage}@v{after.version} does not turn bad")
    return search


def _no_record_reason(search: RecordSearch) -> str:
    nothing = search.no_record_finding
    assert nothing is not None  # noqa: S101
    version_text = f"{nothing.stage}@v{nothing.version}"
    if (nothing.stage, nothing.version) != (search.root.replay.after.stage, search.root.replay.after.version):
        return f"a row that fell due at {version_text} emitted it, not a record"
    if nothing.expired.num_rows:
        return f"rows that expired make {version_text} bad, whatever records it read"
    if nothing.fell_due.num_rows:
        return f"rows that fell due make {version_text} bad, whatever records it read"
    return f"{version_text} is bad whatever records it read"


def _trace_path(search: RecordSearch, first: FirstRecord) -> Iterator[PartRecord]:
    with_, without = (SubsetReplay(search.batches, chosen) for chosen in (first.records_until, first.records_before))
    for part in _part_path(search, first.part, with_, without):
        yield part, first.number if part is first.part else _received_record(search, part, with_, without)


def _hop(search: RecordSearch, first: FirstRecord, part: InputPart, number: int) -> Hop:
    batch, after = part.batch, part.batch.replay.after
    replays = next((level.replays for level in search.levels if part in level.parts), 0)
    is_last = part is first.part
    candidates = sum(map(len, first.candidates.values())) if is_last else len(search.candidates_of(part))
    needs = None if first.needs is None or first.alone else len(first.needs)
    record = after.stage, after.version, batch.address(number), batch.count
    return Hop(*record, candidates, replays, first.alone, needs)


def _part_path(search: RecordSearch, end: InputPart, with_: SubsetReplay, without: SubsetReplay) -> list[InputPart]:
    way = [end]
    while (batch := way[0].batch) is not search.root:
        every = [part for level in search.levels for part in level.parts if part.sender is batch]
        way.insert(0, next((part for part in every if len(_added_records(part, with_, without))), every[0]))
    return way


def _added_records(part: InputPart, with_: SubsetReplay, without: SubsetReplay) -> RecordNumbers:
    return np.setdiff1d(with_.numbers_of_part(part), without.numbers_of_part(part))


def _received_record(search: RecordSearch, part: InputPart, with_: SubsetReplay, without: SubsetReplay) -> int:
    replays_before = search.replays
    gained = _added_records(part, with_, without)
    if len(involved := np.intersect1d(gained, search.candidates_of(part))):
        gained = involved
    base = without.numbers_of_part(part)
    if not len(gained):
        # The state sent different rows, so the received rows are searched for the row that turns the state bad.
        gained, base = part.numbers, part.numbers[:0]
    try:
        if len(gained) == 1:
            return int(gained[0])
        at = find_turning_point(
            len(gained), lambda count: search.is_bad(search.fixed | {part: np.union1d(base, gained[:count])})
        )
        return int(gained[at])
    finally:
        # Replays for extra findings do not count as part of the search.
        search.replays = replays_before


def _bad_records(search: RecordSearch, first: FirstRecord) -> tuple[pa.Table, bool, int | None]:
    alone, is_complete, count = _bad_alone(search, first)
    item = (first.part, first.number)
    if first.alone and item not in alone:
        alone.append(item)
    needed_items = [*(first.needs or ()), item] if not first.alone else []
    items = {**dict.fromkeys(needed_items, False), **dict.fromkeys(alone, True)}
    return _table(search, items), is_complete, sum(items.values()) if is_complete else count


def _bad_alone(search: RecordSearch, first: FirstRecord) -> tuple[list[PartRecord], bool, int | None]:
    replays_before, count = search.replays, None
    try:
        numbers = search.records_bad_alone
        if numbers is None:
            some, are_all = _search_by_groups(search, first.candidates)
            # Other parts may have bad records too.
            return some, are_all and len(search.root.parts) == 1, None
        count = len(numbers)
        waiting = [(part, np.intersect1d(part.numbers, numbers)) for part in search.root.parts]
        return *_trace_sources(search, waiting), count
    except Exception:
        return [], False, count
    finally:
        # Replays for extra findings do not count as part of the search.
        search.replays = replays_before


def _trace_sources(
    search: RecordSearch, waiting: list[tuple[InputPart, RecordNumbers]]
) -> tuple[list[PartRecord], bool]:
    items, is_complete = list[PartRecord](), True
    while waiting:
        part, numbers = waiting.pop()
        if not len(numbers):
            continue
        if not part.upstream:
            items += [(part, number) for number in numbers.tolist()]
            continue
        try:
            sender = search.batches.replay_sender(part)
        except Exception:
            # The sender cannot be replayed, so the rows that it sent are the last known source.
            items += [(part, number) for number in numbers.tolist()]
            is_complete = False
            continue
        if part.trace is None:
            chosen = {source_part: search.candidates_of(source_part) for source_part in sender.parts}
            some, are_all = _search_by_groups(search, chosen)
            waiting += group_by_part(some).items()
            is_complete &= are_all
            continue
        own_numbers, made_of = part.trace
        records = made_of[np.isin(own_numbers, numbers)]
        waiting += [(source_part, np.intersect1d(source_part.numbers, records)) for source_part in sender.parts]
    return list(dict.fromkeys(items)), is_complete


def _search_by_groups(search: RecordSearch, chosen: Mapping[InputPart, RecordNumbers]) -> tuple[list[PartRecord], bool]:
    items = [(part, number) for part, numbers in chosen.items() for number in numbers.tolist()]
    replays_before = search.replays
    is_traceable = all(batch.replay.knows_records for batch in search.batches.opened.values())
    is_cheap = is_traceable and bool(search.predicate.sql)
    most = _MAX_GROUPS if is_cheap else _MAX_GROUPS // 5

    def fails(groups: Sequence[RecordNumbers]) -> list[bool]:
        if search.replays - replays_before + len(groups) > most:
            raise TooManyFailing([])
        return [search.is_bad(group_by_part(items[at] for at in group.tolist())) for group in groups]

    try:
        every = np.arange(len(items), dtype=np.int64)
        if not fails([every])[0]:
            return [], True
        return [items[at] for at in find_failing_alone(every, fails, _MAX_ALONE)], True
    except TooManyFailing:
        return [], False


def _table(search: RecordSearch, items: Mapping[PartRecord, bool]) -> pa.Table:
    chosen, alone = group_by_part(items), group_by_part(item for item, is_alone in items.items() if is_alone)
    ordered = [part for cluster in search.batches.cluster_parts(tuple(chosen)) for part in cluster]
    tables = [BAD_RECORDS.empty_table()]
    for batch in dict.fromkeys(part.batch for part in ordered):
        parts = [part for part in ordered if part.batch is batch]
        queue = RecordQueue.from_parts(parts)
        tables.append(_queue_rows(queue, queue.positions(chosen), alone))
    return pa.concat_tables(tables)


def _queue_rows(queue: RecordQueue, positions: RecordNumbers, alone: Mapping[InputPart, RecordNumbers]) -> pa.Table:
    of, numbers, tables = queue.part_indexes[positions], queue.numbers[positions], [BAD_RECORDS.empty_table()]
    for at, part in enumerate(queue.parts):
        part_numbers = numbers[of == at]
        partition, offset, row, time = (part.batch.origin.take(pa.array(part_numbers)).columns)[:4]
        topic = pa.repeat(part.batch.replay.records[part.name].topic, len(part_numbers))
        if part.upstream:
            key = pa.nulls(len(part_numbers), pa.binary())
        else:
            key = part.received["key"].take(pa.array(np.searchsorted(part.numbers, part_numbers)))
            row = pa.nulls(len(part_numbers), pa.int32())
        is_alone = pa.array(np.isin(part_numbers, alone.get(part, part_numbers[:0])))
        columns = [topic, partition, offset, row, time.cast(BAD_RECORDS.field("time").type), key, is_alone]
        tables.append(pa.Table.from_arrays(columns, schema=BAD_RECORDS))
    back = np.argsort(np.concatenate([np.flatnonzero(of == at) for at in range(len(queue.parts))]))
    return pa.concat_tables(tables).take(pa.array(back))


def with_place(kafka: Kafka, address: RecordLocation) -> RecordLocation:
    return dataclasses.replace(address, place=kafka.place(address.topic, address.offset))


def read_message(kafka: Kafka, address: RecordLocation, topic_id: str, patience_s: float) -> SourceRecord:
    """Read the message at a topic, partition and offset from Kafka. Raises `Gone` if Kafka no longer has it."""
    where = (address.topic, address.partition, address.offset, address.offset + 1)
    for (message,) in kafka.read(*where, patience_s=patience_s, topic_id=topic_id):
        headers = tuple((name, value) for name, value in message.headers() or ())
        address = with_place(kafka, address)
        return SourceRecord(address, message.timestamp()[1], message.key(), message.value(), headers)
    raise Gone(f"there is no message at {dataclasses.replace(address, row=None)} any more")


def find_record_of_key(program: LoadedProgram, stage: str, version: int, key: pa.Table) -> RecordPath:
    """Return the record that caused a key's row, or its deletion, as far as replays prove it.

    `version` wrote or deleted the row. `key` is one row of key columns, as returned by `parse_key`. If several records
    of the batch lead to the key (`RecordPath.of_key`), the result is the last record that changed the row. Raises
    `NotFound` if a version was collected.
    """
    store, cache, app = program.store, program.cache, program.app.name
    previous, after = (history.read(store, app, stage, number) for number in (version - 1, version))
    cut, predicate = Cut(app, {stage: after}), IsAsCommitted.of(program, after, key)
    keys = changed_keys(store, cache, previous, after, key)
    windows = direct_windows(previous, after, skipped_windows(after))
    return find_record_of_commit(program, predicate, cut, stage, keys, windows, last=True)


@dataclass(frozen=True, slots=True)
class IsAsCommitted(AnyTablePredicate):
    """Predicate that selects a key if its row equals the committed row, or if both have no row."""

    stage: str
    key: pa.Table
    row: pa.Table

    @classmethod
    def of(cls, program: LoadedProgram, after: Manifest, key: pa.Table) -> IsAsCommitted:
        context = Context(program.store, program.cache, Cut(after.app, {after.stage: after}))
        return cls("the row is what was committed", after.stage, key, _row(context, after, key))

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        row = _row(at, at.cut.stages[self.stage], self.key)
        return self.key.slice(
            0, 1 if len(pair_similar_rows(self.row, row)[0]) == self.row.num_rows == row.num_rows else 0
        )


def _row(at: Context, manifest: Manifest, key: pa.Table) -> pa.Table:
    table = manifest.table
    if table is None:
        return key.slice(0, 0)
    hashes = hash_keys(key, key.column_names)
    values, present = multi_get(at.store, at.cache, manifest.ssts, table, hashes, key, clock_ms=manifest.clock_ms)
    names = [*key.column_names, *values.column_names]
    return pa.table([*key.columns, *values.columns], names).slice(0, int(present[0]))
