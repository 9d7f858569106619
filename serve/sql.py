"""SQL from elsewhere, in processes of its own: bounded in time, memory and rows, and ended where it does not end.

A call of a function may take minutes and gigabytes, and DuckDB looks at neither its clock nor its limit meanwhile. So
the operating system bounds the process's memory, and a process that overruns its time is killed. After a failure for
want of memory or threads the process ends, too: an allocator that has met its limit leaves no room for the next
statement. Another process takes its place, forked from one that has all modules loaded.
"""

import asyncio
import errno
import os
import resource
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa
from pebble import ProcessExpired, ProcessPool

from ..client import Client
from ..errors import TooMuch
from ..settings import Settings
from ..snapshot.query.hidden import names_of
from ..snapshot.query.sql import Bounds
from .errors import TooOften

A = TypeVar("A")
R = TypeVar("R")
_GRACE_S = 2.0
"""After DuckDB was told to stop."""
_SLACK_BYTES = 256 << 20
_WAITING = 32
"""Statements of one asker that wait for a process; whoever asks then is told to come again."""
_STATEMENTS = 1_000
"""A process is replaced after so many."""
_ATTEMPTS = 3
"""Processes that a statement is given to: one that has too little memory left for it ends before it begins."""
_NO_MEMORY, _NO_ROOM = 41, 42
"""Exit codes: the statement took more memory than it may; the process had too little left to begin it."""
_OOM = "Out of Memory Error"
"""As Arrow quotes DuckDB while rows come."""
# Arrow imports pandas with the first value that it hands to Python, which takes as long as some ten statements.
_PRELOADED = ["duckdb", "pandas", "pyarrow.parquet", "slackwater.client.app", "slackwater.serve.acting.searching"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of which moment."""

    app: str
    """The folder's name."""
    ref: str
    """What stands behind the @; empty for these versions."""
    stage: str
    versions: dict[str, int]
    seen_ms: int
    sql: str
    max_rows: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Found:
    """The rows, and what is said beside them."""

    rows: bytes
    """Arrow's stream."""
    others: dict[str, dict[str, object]]
    is_cut_off: bool
    notes: tuple[str, ...] = ()
    """As `Moment.answer` gives them."""
    named: dict[str, object] = field(default_factory=dict)
    """What the names in the rows stand for, where values are hidden."""

    def table(self) -> pa.Table:
        """The rows."""
        return pa.ipc.open_stream(self.rows).read_all()


class Statements:
    """The processes, which begin when they are asked for. Of one event loop.

    Args:
        settings: of the client that each has.
        processes: statements of one asker that are carried out at a time. There is a process more, so that one asker's
            statements never take all.
        memory_bytes: what a statement may take besides what a process takes at first; 0 for any amount.
        replaced: told of each process that ended for want of memory, or because a statement overran its time.
        stays: whether a process answers more than once.
    """

    def __init__(
        self,
        settings: Settings,
        processes: int,
        memory_bytes: int,
        replaced: Callable[[], None] = lambda: None,
        *,
        stays: bool = True,
    ) -> None:
        self._settings, self._processes, self._memory_bytes, self._stays = settings, processes, memory_bytes, stays
        # A replay starts a JVM: its process is new, and begins with nothing.
        self._method: Literal["forkserver", "spawn"] = "forkserver" if stays else "spawn"
        self._pool = self._new_pool(self._method)
        self._starting, self._is_started = asyncio.Lock(), False
        self._of_asker = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(processes))
        self._waiting = defaultdict[str, int](int)
        self._replaced = replaced

    @property
    def under_way(self) -> int:
        """Statements that are carried out, or wait."""
        return sum(self._waiting.values())

    def _new_pool(self, method: Literal["forkserver", "spawn"]) -> ProcessPool:
        context = get_context(method)
        context.set_forkserver_preload(_PRELOADED)
        return ProcessPool(
            self._processes + self._stays,
            max_tasks=_STATEMENTS if self._stays else 1,
            initializer=_begin,
            initargs=(self._settings, self._memory_bytes, dict(os.environ)),
            context=context,
        )

    async def warm(self) -> None:
        """Start the processes, unless they are: all modules are loaded first, which takes a second or two."""
        async with self._starting:
            if not self._is_started:
                await asyncio.get_running_loop().run_in_executor(None, self._pool.schedule, _nothing)
                self._is_started = True

    async def answer(self, statement: Question, who: str = "") -> Found:
        """What a statement returns. Raises `TooOften`, `TooMuch`, and as `Moment.answer`."""
        return await self.run(_answer, statement, statement.bounds.seconds, who)

    async def run(self, function: Callable[[A], R], asked: A, seconds: float, who: str = "") -> R:
        """Call a function of a module in a process, which is killed where it takes longer, or where this is cancelled.

        It finds the client by `here`; `who` asks. Raises `TooOften`, `TooMuch`, and as the function.
        """
        if self._waiting[who] >= _WAITING:
            raise TooOften(f"{_WAITING} queries wait already")
        self._waiting[who] += 1
        try:
            async with self._of_asker[who]:
                return await self._carried_out(function, asked, seconds)
        except TimeoutError:
            self._replaced()
            raise TooMuch(f"the query took more than {seconds:g} s", hint="ask for less at once") from None
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._of_asker[who]

    async def _carried_out(self, function: Callable[[A], R], asked: A, seconds: float) -> R:
        await self.warm()
        code = _NO_ROOM
        for attempt in range(_ATTEMPTS):
            try:
                if not self._pool.active:
                    raise BrokenProcessPool
                future = self._pool.schedule(_called, args=(function, asked), timeout=seconds + _GRACE_S)
                found: R = await asyncio.wrap_future(future)
                return found
            except (ProcessExpired, CancelledError) as error:
                self._replaced()
                if (code := getattr(error, "exitcode", 0)) != _NO_ROOM:
                    break
            except BrokenProcessPool:  # a process without a statement was killed, or none can be forked any more
                if not self._pool.active:
                    broken, self._pool = self._pool, self._new_pool("spawn" if attempt else self._method)
                    asyncio.get_running_loop().run_in_executor(None, _end, broken)
        what = "the query took more memory than it may"
        if code not in (_NO_MEMORY, _NO_ROOM):
            what = f"the query's process ended with exit code {code}: for want of memory, or because somebody ended it"
        raise TooMuch(what, hint="ask for less at once") from None

    def close(self) -> None:
        """End them."""
        _end(self._pool)


def _end(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join(5)


_client: Client | None = None


def _nothing() -> None:
    pass


def _begin(settings: Settings, memory_bytes: int, environment: Mapping[str, str]) -> None:
    global _client, _most_at_start_bytes
    import duckdb

    from ..client import app  # noqa: F401

    os.environ.clear()
    os.environ.update(environment)  # what a process is forked from has that of an earlier time
    _client = Client(settings)
    duckdb.connect().close()  # what DuckDB takes itself is no statement's
    if memory_bytes:
        taken_bytes = _data_bytes()
        most = taken_bytes + memory_bytes + _SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        _most_at_start_bytes = taken_bytes + _SLACK_BYTES // 2


_most_at_start_bytes = 0
"""What a process may have in its memory when a statement begins, so that the statement has what it may take."""


def _data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmData")).split()[1]) * 1024


def _called(function: Callable[[A], R], asked: A) -> R:
    """Call it. Ends the process where that has no memory for it, or has none any more."""
    try:
        if 0 < _most_at_start_bytes < _data_bytes():
            os._exit(_NO_ROOM)
        return function(asked)
    except BaseException as error:
        if _is_of_memory(error):
            os._exit(_NO_MEMORY)
        raise


def _is_of_memory(error: BaseException | None) -> bool:
    """Say if an error, or what was behind it, is for want of memory or threads."""
    import duckdb

    while error is not None:
        if isinstance(error, MemoryError | duckdb.OutOfMemoryException | duckdb.FatalException):
            return True
        if isinstance(error, OSError) and (error.errno in (errno.ENOMEM, errno.EAGAIN) or _OOM in str(error)):
            return True
        if isinstance(error, RuntimeError) and "thread" in str(error):  # one that cannot start
            return True
        error = error.__cause__ or error.__context__
    return False


def here() -> Client:
    """The client of one of the processes, in it."""
    assert _client is not None  # noqa: S101  `_begin` made it
    return _client


def _answer(statement: Question) -> Found:
    app = here().called(statement.app)
    if statement.ref:
        moment = app.at(statement.ref, stage=statement.stage)
    else:
        moment = app.of_versions(statement.versions, seen_ms=statement.seen_ms)
    notes: list[str] = []
    here().note = notes.append
    rows, others = moment.answer(statement.sql, bounds=statement.bounds, max_rows=statement.max_rows + 1)
    is_cut_off = rows.num_rows > statement.max_rows
    if is_cut_off:
        rows = rows.slice(0, statement.max_rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    told: dict[str, dict[str, object]] = {
        ref: {"versions": each.versions, "thinned_out": each.thinned} for ref, each in others.items()
    }
    secret = statement.bounds.secret
    named = names_of(secret).known(rows) if secret else {}
    return Found(sink.getvalue().to_pybytes(), told, is_cut_off, tuple(notes), named)
