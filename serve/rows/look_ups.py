"""Rows by key: at once where all is open in this process, else many requests' together, in a thread.

Where Arrow is asked, a look-up costs much for the first key and little for each further one. So while one is under
way, what comes for the same columns of a table at a moment is gathered, and goes as the next. One that waits for the
store keeps nobody waiting for long: then another is begun.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from ...client.show import values
from ...client.show.shown import encoded
from ...common.instants import now_ms
from ...errors import SlackwaterError, Usage
from ...snapshot.query.columns import check_columns, hashed_key, hashed_keys, select
from ...store.objects.memory import MemoryStore
from ...store.read.multi_get import ReadAhead, multi_get
from ...store.sst.hashing import hash_keys
from ...store.sst.types import HASH, OP, SEQ
from ...store.sst.writer import write
from ...store.versions.manifest import Column, Table
from .fresh import FreshMoment, TableAnswers

_MOST_KEYS = 2_000
"""Of one look-up, unless a single request has more."""
_MOST_VALUES, _VALUES_A_KEY = 12_000, 20
"""Of one request that waits for no thread: some milliseconds, in which the event loop answers nobody else. To find a
key takes as long as so many values."""
_HASTE = ReadAhead(index_bytes=512 << 10, unfiltered=4, ahead_bytes=1 << 20)
"""A round trip takes as long as a megabyte or two."""
_HASTE_NOW = replace(_HASTE, whole_bytes=2 << 20)
"""What is newest is to be open anyway. Such an SST takes no longer whole than by ranges."""
_PATIENCE_S = 0.005
"""A look-up that takes longer waits for something: whatever comes then need not wait for it."""

T = TypeVar("T")
Key = tuple[object, ...]


class InThread(Protocol):
    """Calls a function where it may wait, and gives what it gives."""

    def __call__(self, function: Callable[[], T], /) -> Coroutine[Any, Any, T]: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """What was found for one request: as JSON, or where that was asked for in Arrow."""

    json: Sequence[bytes] = ()
    """A row for each key, null where there is none."""
    table: pa.Table | None = None
    """A row for each key; where there is none, all but the key is null."""
    present: Sequence[bool] = ()
    """Of `table`, which are there."""


def at_once(about: TableAnswers, keys: Sequence[Key], columns: Sequence[str], seen_ms: int) -> Rows | None:
    """The rows of keys whose SSTs are open in this process; None where not all are, or that would take long.

    Raises as `SharedLookUps.rows`.
    """
    opened, declared, names = about.opened, about.declared, about.columns
    if opened is None or len(keys) * (_VALUES_A_KEY + len(columns or names)) > _MOST_VALUES:
        return None
    if columns:
        check_columns(about.name, names, columns)
        names = tuple(columns)
        if len({*names}) < len(names):  # in the answer they are numbered
            return None
    plain = [hashed for key in keys if (hashed := hashed_key(declared, key)) is not None]
    each = plain if len(plain) == len(keys) else hashed_keys(about.name, declared, keys)
    if not all(opened.has(hashed) for hashed, _ in each):
        return None
    clock_ms = about.clock_ms(seen_ms)
    return Rows([about.encode(opened.row(hashed, key, names, clock_ms)) for hashed, key in each])


@dataclass(frozen=True, slots=True)
class _Asked:
    keys: Sequence[Key]
    found: "asyncio.Future[Rows]"


_Name = tuple[int, str, tuple[str, ...], int, bool]
"""Of a moment, a table, columns, a time, and whether rows are wanted in Arrow."""


class _Queue:
    """Requests for the same columns of a table at a moment."""

    def __init__(self, reading: FreshMoment, name: _Name) -> None:
        self.reading, self.name = reading, name
        self.waiting: list[_Asked] = []
        self.under_way = 0
        self.begun_s = 0.0

    def batch(self) -> list[_Asked]:
        """What goes together now."""
        batch: list[_Asked] = []
        keys = 0
        while self.waiting and (not batch or keys + len(self.waiting[0].keys) <= _MOST_KEYS):
            batch.append(self.waiting.pop(0))
            keys += len(batch[-1].keys)
        return batch

    def look_up(self, batch: Sequence[_Asked]) -> Sequence["Rows | Exception"]:
        """What each request gets."""
        _, table, columns, seen_ms, in_arrow = self.name
        seen_ms = seen_ms or (now_ms() if self.reading.is_newest else 0)
        try:
            return _look_up(self.reading, table, [each.keys for each in batch], columns, seen_ms, in_arrow)
        except Exception as error:
            return [error] * len(batch)


class SharedLookUps:
    """Of one event loop."""

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        self._queues: dict[_Name, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def rows(
        self,
        reading: FreshMoment,
        table: str,
        keys: Sequence[Key],
        columns: tuple[str, ...],
        *,
        seen_ms: int = 0,
        in_arrow: bool = False,
    ) -> Rows:
        """The rows of keys, of some columns or all. Raises as `Moment.get_many`.

        Rows that expire by write time are seen as of `seen_ms`, 0 for the moment's own time.
        """
        name = (id(reading), table, columns, seen_ms, in_arrow)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue(reading, name)
        asked = _Asked(keys, asyncio.get_running_loop().create_future())
        queue.waiting.append(asked)
        if not queue.under_way or time.monotonic() - queue.begun_s > _PATIENCE_S:
            self._begin(queue)
        return await asked.found

    def _begin(self, queue: _Queue) -> None:
        queue.under_way += 1
        queue.begun_s = time.monotonic()
        task = asyncio.create_task(self._in_turn(queue, queue.batch()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_turn(self, queue: _Queue, batch: Sequence[_Asked]) -> None:
        found = await self._in_thread(lambda: queue.look_up(batch))
        queue.under_way -= 1
        _give(batch, found)
        if queue.waiting:
            self._begin(queue)
        elif not queue.under_way:
            self._queues.pop(queue.name, None)


def _give(batch: Sequence[_Asked], found: Sequence["Rows | Exception"]) -> None:
    for asked, rows in zip(batch, found, strict=True):
        if asked.found.done():  # whoever asked has gone away
            continue
        if isinstance(rows, Exception):
            asked.found.set_exception(rows)
        else:
            asked.found.set_result(rows)


def _look_up(
    reading: FreshMoment,
    table: str,
    asked: Sequence[Sequence[Key]],
    columns: tuple[str, ...],
    seen_ms: int,
    in_arrow: bool,
) -> Sequence[Rows | Exception]:
    """What each request gets, an error where its keys are none of the table's."""
    moment, parsed = reading.moment, list[pa.Table | Exception]()
    try:
        together = moment.keys_of(table, [key for keys in asked for key in keys])
        counts = [len(keys) for keys in asked]
    except Usage:
        for keys in asked:
            try:
                parsed.append(moment.keys_of(table, keys))
            except SlackwaterError as error:
                parsed.append(error)
        good = [each for each in parsed if not isinstance(each, Exception)]
        if not good:
            return [each for each in parsed if isinstance(each, Exception)]
        together = pa.concat_tables(good)
        counts = [0 if isinstance(each, Exception) else each.num_rows for each in parsed]
    haste = _HASTE_NOW if reading.is_newest else _HASTE
    rows, present = moment.rows_of(table, together, seen_ms=seen_ms, haste=haste)
    rows = select(table, rows, columns)
    there = present.tolist()
    as_json = [] if in_arrow else encode_rows(rows, there)
    found: list[Rows | Exception] = []
    at = 0
    for number, count in enumerate(counts):
        if parsed and isinstance(parsed[number], Exception):
            found.append(parsed[number])
            continue
        end = at + count
        found.append(Rows((), rows.slice(at, count), there[at:end]) if in_arrow else Rows(as_json[at:end]))
        at = end
    return found


def encode_rows(rows: pa.Table, present: Sequence[bool]) -> list[bytes]:
    """Each row as JSON, null where it is not there."""
    both = zip(values.rows(rows), present, strict=True)
    return [encoded(row) if is_there else b"null" for row, is_there in both]


def rehearse() -> None:
    """Look up a key of an SST in memory, as it is read from a store: what is begun with the first one costs 25 ms."""
    table, keys = Table((Column("k", "string"),), (Column("v", "int64"),), partitions=1), pa.table({"k": ["a"]})
    hashes, store = hash_keys(keys, ["k"]), MemoryStore()
    own = {HASH: hashes, "v": [1], SEQ: [1], OP: pa.array([0], pa.int8())}
    rows = pa.table({"k": keys["k"]} | own)
    sst = write(store, None, app="a", stage="s", table=table, partition=0, rows=rows)
    multi_get(store, None, [sst], table, hashes, keys, read_ahead=_HASTE)
