"""Look-ups by key: in the event loop if all SSTs are open, otherwise in threads, for many requests at once.

In a look-up for answers in Arrow, the first key takes long, and each further key takes little time. So while a look-up
is in progress, requests for the same columns of the same table and moment are queued, and form the next look-up. If a
look-up waits for the store, the next look-up starts immediately.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from ...client.show import values
from ...client.show.shown import encode_json
from ...common import runtime
from ...common.instants import now_ms
from ...errors import SlackwaterError, Usage
from ...snapshot.query.columns import check_columns, hashed_key, hashed_keys, select
from ...store.objects.memory import MemoryStore
from ...store.read.multi_get import ReadAhead, multi_get
from ...store.sst.hashing import hash_keys
from ...store.sst.schema import HASH, OP, SEQ
from ...store.sst.writer import write_sst
from ...store.versions.manifest import Column, Table
from ...store.versions.side_tables import has_parts
from .fresh import CachedMoment, TableAnswers

_MAX_KEYS = 2_000
"""Maximum number of keys of a look-up, unless a single request has more."""
_MAX_VALUES, _VALUES_PER_KEY = 12_000, 20
"""Maximum cost of an inline look-up, in values: some milliseconds that block the event loop.

A key costs as much as `_VALUES_PER_KEY` values.
"""
_READ_AHEAD = ReadAhead(index_bytes=512 << 10, max_unfiltered_probes=4, ahead_bytes=1 << 20)
"""Read settings for a store whose round trip takes as long as reading a megabyte or two."""
_NEWEST_READ_AHEAD = replace(_READ_AHEAD, whole_bytes=2 << 20)
"""Read settings for the newest moment: SSTs are fetched whole, and then stay open."""
_NEXT_BATCH_AFTER_S = 0.005
"""Seconds after which a look-up is assumed to wait for the store. The next look-up then starts concurrently."""

T = TypeVar("T")
Key = tuple[object, ...]


class ThreadRunner(Protocol):
    """Function that calls the given function in a thread, and returns its result."""

    def __call__(self, function: Callable[[], T], /) -> Coroutine[Any, Any, T]: ...


@dataclass(frozen=True, slots=True)
class LookUpResult:
    """Rows for one request, as JSON or, if requested, in Arrow."""

    json: Sequence[bytes] = ()
    """JSON of one row per key, null for a missing row."""
    table: pa.Table | None = None
    """One row per key; for a missing row, all columns but the key are null."""
    present: Sequence[bool] = ()
    """One flag per row of `table`: True if the key has a row."""


def look_up_inline(
    answers: TableAnswers, keys: Sequence[Key], columns: Sequence[str], seen_ms: int
) -> LookUpResult | None:
    """Return the rows of keys without a thread; None if an SST of these keys is not open, or there are too many keys.

    Raises `Usage` for a key that does not fit the table, and `NotFound` for an unknown column.
    """
    opened, declared, names = answers.open_rows, answers.declared, answers.columns
    # The parts of a long list share a hash, and are compared one by one here.
    if opened is None or has_parts(declared) or len(keys) * (_VALUES_PER_KEY + len(columns or names)) > _MAX_VALUES:
        return None
    if columns:
        check_columns(answers.name, names, columns)
        names = tuple(columns)
        if len({*names}) < len(names):  # duplicate columns get numbered names, which the inline path does not do
            return None
    hashed_inline = [hashed for key in keys if (hashed := hashed_key(declared, key)) is not None]
    hashed_rows = hashed_inline if len(hashed_inline) == len(keys) else hashed_keys(answers.name, declared, keys)
    if not all(opened.has_hash(hashed) for hashed, _ in hashed_rows):
        return None
    clock_ms = answers.clock_ms(seen_ms)
    return LookUpResult([answers.encode(opened.row(hashed, key, names, clock_ms)) for hashed, key in hashed_rows])


@dataclass(frozen=True, slots=True)
class _Request:
    keys: Sequence[Key]
    future: "asyncio.Future[LookUpResult]"


_QueueKey = tuple[int, str, tuple[str, ...], int, bool]
"""Key of a queue: moment, table, columns, `seen_ms`, and True for Arrow."""


class _Queue:
    """Queued requests for the same columns of a table at a moment."""

    def __init__(self, reading: CachedMoment, key: _QueueKey) -> None:
        self.reading, self.name = reading, key
        self.waiting: list[_Request] = []
        self.num_running = 0
        self.started_s = 0.0

    def take_batch(self) -> list[_Request]:
        batch: list[_Request] = []
        keys = 0
        while self.waiting and (not batch or keys + len(self.waiting[0].keys) <= _MAX_KEYS):
            batch.append(self.waiting.pop(0))
            keys += len(batch[-1].keys)
        return batch

    def look_up(self, batch: Sequence[_Request]) -> Sequence["LookUpResult | Exception"]:
        _, table, columns, seen_ms, in_arrow = self.name
        seen_ms = seen_ms or (now_ms() if self.reading.is_newest else 0)
        try:
            return _look_up_batch(self.reading, table, [request.keys for request in batch], columns, seen_ms, in_arrow)
        except Exception as error:
            return [error] * len(batch)


class SharedLookUps:
    """Look-ups in threads, shared by concurrent requests. Belongs to one event loop."""

    def __init__(self, in_thread: ThreadRunner) -> None:
        self._in_thread = in_thread
        self._queues: dict[_QueueKey, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def look_up(
        self,
        reading: CachedMoment,
        table: str,
        keys: Sequence[Key],
        columns: tuple[str, ...],
        *,
        seen_ms: int = 0,
        in_arrow: bool = False,
    ) -> LookUpResult:
        """Return the rows of keys, with some columns or all. Raises the errors of `Moment.get_many`.

        Rows with a time to live that expire by `seen_ms` are hidden; 0 means the moment's own time.
        """
        name = (id(reading), table, columns, seen_ms, in_arrow)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue(reading, name)
        request = _Request(keys, asyncio.get_running_loop().create_future())
        queue.waiting.append(request)
        if not queue.num_running or runtime.monotonic() - queue.started_s > _NEXT_BATCH_AFTER_S:
            self._start_batch(queue)
        return await request.future

    def _start_batch(self, queue: _Queue) -> None:
        queue.num_running += 1
        queue.started_s = runtime.monotonic()
        task = asyncio.create_task(self._run_batch(queue, queue.take_batch()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_batch(self, queue: _Queue, batch: Sequence[_Request]) -> None:
        results = await self._in_thread(lambda: queue.look_up(batch))
        queue.num_running -= 1
        _deliver(batch, results)
        if queue.waiting:
            self._start_batch(queue)
        elif not queue.num_running:
            self._queues.pop(queue.name, None)


def _deliver(batch: Sequence[_Request], results: Sequence["LookUpResult | Exception"]) -> None:
    for request, rows in zip(batch, results, strict=True):
        if request.future.done():  # the client has disconnected
            continue
        if isinstance(rows, Exception):
            request.future.set_exception(rows)
        else:
            request.future.set_result(rows)


def _look_up_batch(
    reading: CachedMoment,
    table: str,
    requests: Sequence[Sequence[Key]],
    columns: tuple[str, ...],
    seen_ms: int,
    in_arrow: bool,
) -> Sequence[LookUpResult | Exception]:
    """Return the rows for each request, or the error if its keys do not fit the table."""
    moment, parsed = reading.moment, list[pa.Table | Exception]()
    try:
        keys_table = moment.parse_key_values(table, [key for keys in requests for key in keys])
        counts = [len(keys) for keys in requests]
    except Usage:
        for keys in requests:
            try:
                parsed.append(moment.parse_key_values(table, keys))
            except SlackwaterError as error:
                parsed.append(error)
        good = [parsed_keys for parsed_keys in parsed if not isinstance(parsed_keys, Exception)]
        if not good:
            return [parsed_keys for parsed_keys in parsed if isinstance(parsed_keys, Exception)]
        keys_table = pa.concat_tables(good)
        counts = [0 if isinstance(parsed_keys, Exception) else parsed_keys.num_rows for parsed_keys in parsed]
    urgency = _NEWEST_READ_AHEAD if reading.is_newest else _READ_AHEAD
    rows, present = moment.read_rows(table, keys_table, seen_ms=seen_ms, read_ahead=urgency)
    rows = select(table, rows, columns)
    flags = present.tolist()
    as_json = [] if in_arrow else encode_rows(rows, flags)
    results: list[LookUpResult | Exception] = []
    start = 0
    for number, count in enumerate(counts):
        if parsed and isinstance(parsed[number], Exception):
            results.append(parsed[number])
            continue
        end = start + count
        results.append(
            LookUpResult((), rows.slice(start, count), flags[start:end])
            if in_arrow
            else LookUpResult(as_json[start:end])
        )
        start = end
    return results


def encode_rows(rows: pa.Table, present: Sequence[bool]) -> list[bytes]:
    rows_and_flags = zip(values.rows_as_dicts(rows), present, strict=True)
    return [encode_json(row) if is_present else b"null" for row, is_present in rows_and_flags]


def warm_up() -> None:
    """Look up a key in an in-memory SST, because the first look-up of a process takes 25 ms longer."""
    table, keys = Table((Column("k", "string"),), (Column("v", "int64"),), partitions=1), pa.table({"k": ["a"]})
    hashes, store = hash_keys(keys, ["k"]), MemoryStore()
    own = {HASH: hashes, "v": [1], SEQ: [1], OP: pa.array([0], pa.int8())}
    rows = pa.table({"k": keys["k"]} | own)
    sst = write_sst(store, None, app="a", stage="s", table=table, partition=0, rows=rows)
    multi_get(store, None, [sst], table, hashes, keys, read_ahead=_READ_AHEAD)
