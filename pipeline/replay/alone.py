"""The records of a bad batch that are bad by themselves, and those that are bad together: all that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...errors import SlackwaterError
from ...fold.culprit import TooMany, failing_alone
from ...fold.failing import RECORD
from ...fold.kinds.kind import Groups
from ...moments.query.row_local import ROW, numbers_of, row_local
from ...search.predicate import Predicate
from ...store.sst.hashing import normalise_keys
from ...store.versions.side_tables import table_name
from ..batch.rerun import Numbers
from .batches import Batch, Part
from .first import Found, Search
from .stage_replay import StageReplay
from .what_if import Item, by_part

_MOST_ALONE = 1_000
"""Records that are looked for by trying groups of them; where Spark says which row is whose, there is no bound."""
_MOST_REPLAYS = 100
"""Groups that are tried for them; an eighth, where Spark computes batches anew or a program of the user's is asked."""


def bad_records(search: Search, found: Found) -> tuple[pa.Table, bool, int | None]:
    """The bad records of the batch, in the app's order, and whether all that are bad by themselves are among them.

    And how many are bad by themselves: where not all are found, so many that the batch itself read; None where that is
    not known. For the columns see `Guilty.records`. What is not found for an error, or in so many replays, is left out.
    """
    alone, is_complete, count = _alone(search, found)
    named = (found.part, found.number)
    if found.alone and named not in alone:
        alone.append(named)
    together = [*(found.needs or ()), named] if not found.alone else []
    items = {**dict.fromkeys(together, False), **dict.fromkeys(alone, True)}
    return _table(search, items), is_complete, sum(items.values()) if is_complete else count


def _alone(search: Search, found: Found) -> tuple[list[Item], bool, int | None]:
    """The records that are bad by themselves, as far up as batches were replayed; and whether these are all.

    And how many records of the bad batch itself are, where that is known.
    """
    begun, count = search.replays, None
    try:
        known = bad_alone(search.root.replay, search.predicate) if search.own_table else bad_beside(search)
        if known is None:
            some, are_all = _by_groups(search, [found.part])
            # Other parts may have some, too.
            return some, are_all and len(search.root.parts) == 1, None
        count = len(known)
        return *_sources(search, [(part, np.intersect1d(part.numbers, known)) for part in search.root.parts]), count
    except Exception:
        return [], False, count
    finally:
        # What is asked for that is no part of the search.
        search.replays = begun


def _sources(search: Search, waiting: list[tuple[Part, Numbers]]) -> tuple[list[Item], bool]:
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
        if part.of_rows is None:
            some, are_all = _by_groups(search, sender.parts)
            waiting += by_part(some).items()
            is_complete &= are_all
            continue
        replay = sender.of_output(part.name)
        records = replay.record_of(replay.rows())[np.isin(part.of_rows, numbers)]
        waiting += [(each, np.intersect1d(each.numbers, records)) for each in sender.parts]
    return list(dict.fromkeys(found)), is_complete


def _by_groups(search: Search, parts: Sequence[Part]) -> tuple[list[Item], bool]:
    """Of the records of these parts those that are bad by themselves, by trying groups of them."""
    items = [(part, number) for part in parts for number in part.numbers.tolist()]
    begun = search.replays
    known = all(batch.replay.knows_records for batch in search.batches.known.values())
    is_cheap = known and bool(search.predicate.sql)
    most = _MOST_REPLAYS if is_cheap else _MOST_REPLAYS // 8

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


def _table(search: Search, items: dict[Item, bool]) -> pa.Table:
    """Records as `Guilty.records` has them."""
    by_batch: dict[Batch, list[Item]] = {}
    for part, number in items:
        by_batch.setdefault(part.batch, []).append((part, number))
    rows = list[tuple[object, ...]]()
    ordered = [part for cluster in search.batches.clusters([part for part, _ in items]) for part in cluster]
    for batch in dict.fromkeys(part.batch for part in ordered):
        for part, number in search.in_order(by_batch[batch]):
            at, records = batch.address(number), batch.replay.records[part.name]
            key = None if records.upstream else batch.value(part.name, number, "key")
            time_ms = int(batch.place["_time"][number].as_py())
            rows.append((at.topic, at.partition, at.offset, at.row, time_ms, key, items[part, number]))
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _RECORDS, strict=True)]
    return pa.Table.from_arrays(columns, schema=_RECORDS) if rows else _RECORDS.empty_table()


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


def bad_beside(search: Search) -> Numbers | None:
    """The records whose rows of a table beside the stage's own are each wrong; None where that is not known."""
    stage = search.root.replay.after.stage
    names = {table_name(stage, name): name for name in search.root.side_rows}
    try:
        table, sql = row_local(search.predicate.sql, names)
        rows, numbers = search.root.side_rows[names[table]]
        return numbers_of(sql, table, rows.append_column(ROW, pa.array(numbers)).filter(pa.array(numbers >= 0)))
    except SlackwaterError:
        return None


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
