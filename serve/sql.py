"""Untrusted SQL in separate processes, limited in time, memory and rows, and killed if it does not end.

One call of an SQL function may take minutes and gigabytes, and DuckDB checks neither time nor memory during the call.
So the operating system limits the memory of the process, and a process that exceeds its time limit is killed. A process
also ends after it has run out of memory or threads, because its allocator does not return memory for the next
statement. New processes are forked from a process that has all modules loaded.
"""

import asyncio
import errno
import os
import resource
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, resource_tracker
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa
from pebble import ProcessExpired, ProcessPool

from ..client import Client
from ..errors import TooMuch
from ..settings import Settings
from ..snapshot.query.hidden import pseudonyms_for
from ..snapshot.query.sql import Bounds
from .errors import TooOften

A = TypeVar("A")
R = TypeVar("R")
_GRACE_S = 2.0
"""Time in seconds between DuckDB's own timeout and the kill of the process."""
_SLACK_BYTES = 256 << 20
_MAX_QUEUED = 32
_MAX_STATEMENTS = 1_000
_ATTEMPTS = 3
"""Number of processes tried for a statement. A process with too little free memory exits before it runs a statement."""
_NO_MEMORY, _TOO_LITTLE_MEMORY = 41, 42
"""Exit codes: the statement exceeded its memory limit; the process had too little free memory before the statement."""
_OOM = "Out of Memory Error"
"""Text of DuckDB's out-of-memory error, as Arrow passes it on while streaming rows."""
# Preload pandas: Arrow imports it for the first value that it converts, which takes as long as about ten statements.
_PRELOADED = [
    "duckdb",
    "pandas",
    "pyarrow.parquet",
    "slackwater.client.app",
    *(f"slackwater.serve.acting.{name}" for name in ("searching", "fork_server")),
]


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """SQL statement, and the moment at which it runs."""

    app: str
    """Name of the app's folder."""
    ref: str
    """The part of a ref after the @; empty to use `versions`."""
    stage: str
    versions: dict[str, int]
    seen_ms: int
    sql: str
    max_rows: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class StatementResult:
    """Rows that a SQL statement returned, and notes about them."""

    rows: bytes
    other_moments: dict[str, dict[str, object]]
    is_cut_off: bool
    notes: tuple[str, ...] = ()
    named: dict[str, object] = field(default_factory=dict)
    """Value of each pseudonym in the rows, if values are hidden."""

    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.rows).read_all()


class SqlProcessPool:
    """Pool of processes that run SQL statements, started on first use. Belongs to one event loop.

    Args:
        settings: Settings of each process's client.
        processes: Maximum number of concurrent statements of one client. The pool has one process more, so that one
            client cannot use all.
        memory_bytes: Memory limit of a statement, on top of an idle process; 0 for none.
        on_replaced: Called for each process that ended for lack of memory, or because a statement exceeded its time.
        reuses_processes: True to use a process for several statements.
    """

    def __init__(
        self,
        settings: Settings,
        processes: int,
        memory_bytes: int,
        on_replaced: Callable[[], None] = lambda: None,
        *,
        reuses_processes: bool = True,
    ) -> None:
        self._settings, self._processes, self._memory_bytes, self._reuses_processes = (
            settings,
            processes,
            memory_bytes,
            reuses_processes,
        )
        # A replay starts a JVM, which needs a fresh process rather than a fork.
        self._method: Literal["forkserver", "spawn"] = "forkserver" if reuses_processes else "spawn"
        self._pool = self._new_pool(self._method)
        self._starting, self._is_started = asyncio.Lock(), False
        self._slots_by_caller = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(processes))
        self._waiting = defaultdict[str, int](int)
        self._on_replaced = on_replaced

    @property
    def num_pending(self) -> int:
        return sum(self._waiting.values())

    def _new_pool(self, method: Literal["forkserver", "spawn"]) -> ProcessPool:
        context = get_context(method)
        context.set_forkserver_preload(_PRELOADED)
        return ProcessPool(
            self._processes + self._reuses_processes,
            max_tasks=_MAX_STATEMENTS if self._reuses_processes else 1,
            initializer=_init_process,
            initargs=(self._settings, self._memory_bytes, dict(os.environ)),
            context=context,
        )

    async def warm(self) -> None:
        """Start the processes if needed: loading the modules takes a second or two."""
        async with self._starting:
            if not self._is_started:
                await asyncio.get_running_loop().run_in_executor(None, self._start)
                self._is_started = True

    def _start(self) -> None:
        # A terminal's Ctrl-C reaches all processes, and a fork server that is loading modules would end with a
        # traceback.
        resource_tracker.ensure_running()  # which unblocks the signal
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if self._reuses_processes else ())
        try:
            self._pool.schedule(_nothing)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    async def execute(self, statement: SqlStatement, who: str = "") -> StatementResult:
        return await self.run(_execute, statement, statement.bounds.seconds, who)

    async def run(self, function: Callable[[A], R], argument: A, seconds: float, who: str = "") -> R:
        """Call a module's function in a process. The process is killed on timeout, or if this call is cancelled.

        The function gets its client from `process_client`; `who` is the name of the caller's token. Raises `TooOften`,
        `TooMuch`, and the errors of the function.
        """
        if self._waiting[who] >= _MAX_QUEUED:
            raise TooOften(f"{_MAX_QUEUED} queries are already waiting")
        self._waiting[who] += 1
        try:
            async with self._slots_by_caller[who]:
                return await self._run_in_process(function, argument, seconds)
        except TimeoutError:
            self._on_replaced()
            raise TooMuch(f"the query took more than {seconds:g} s", hint="query less at once") from None
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._slots_by_caller[who]

    async def _run_in_process(self, function: Callable[[A], R], argument: A, seconds: float) -> R:
        await self.warm()
        code = _TOO_LITTLE_MEMORY
        for attempt in range(_ATTEMPTS):
            try:
                if not self._pool.active:
                    raise BrokenProcessPool
                future = self._pool.schedule(_call_guarded, args=(function, argument), timeout=seconds + _GRACE_S)
                result: R = await asyncio.wrap_future(future)
                return result
            except (ProcessExpired, CancelledError) as error:
                self._on_replaced()
                if (code := getattr(error, "exitcode", 0)) != _TOO_LITTLE_MEMORY:
                    break
            except BrokenProcessPool:  # an idle process was killed, or forking fails
                if not self._pool.active:
                    broken, self._pool = self._pool, self._new_pool("spawn" if attempt else self._method)
                    asyncio.get_running_loop().run_in_executor(None, _stop_pool, broken)
        message = "the query exceeded its memory limit"
        if code not in (_NO_MEMORY, _TOO_LITTLE_MEMORY):
            message = f"the query's process ended with exit code {code}: it ran out of memory, or was killed"
        raise TooMuch(message, hint="query less at once") from None

    def close(self) -> None:
        _stop_pool(self._pool)


def _stop_pool(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join(5)


_client: Client | None = None


def _nothing() -> None:
    pass


def _init_process(settings: Settings, memory_bytes: int, environment: Mapping[str, str]) -> None:
    global _client, _max_start_bytes
    import duckdb

    from ..client import app  # noqa: F401

    os.environ.clear()
    os.environ.update(environment)  # the fork server's environment is out of date
    _client = Client(settings)
    duckdb.connect().close()  # load DuckDB before measuring the idle process's memory
    if memory_bytes:
        taken_bytes = _data_bytes()
        most = taken_bytes + memory_bytes + _SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        _max_start_bytes = taken_bytes + _SLACK_BYTES // 2


_max_start_bytes = 0
"""Maximum memory of a process before a statement, so that the statement can use its full limit."""


def _data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmData")).split()[1]) * 1024


def _call_guarded(function: Callable[[A], R], argument: A) -> R:
    """Call the function. Exit the process if it has too little memory before the call, or runs out of memory."""
    try:
        if 0 < _max_start_bytes < _data_bytes():
            os._exit(_TOO_LITTLE_MEMORY)
        return function(argument)
    except BaseException as error:
        if _is_out_of_memory(error):
            os._exit(_NO_MEMORY)
        raise


def _is_out_of_memory(error: BaseException | None) -> bool:
    import duckdb

    while error is not None:
        if isinstance(error, MemoryError | duckdb.OutOfMemoryException | duckdb.FatalException):
            return True
        if isinstance(error, OSError) and (error.errno in (errno.ENOMEM, errno.EAGAIN) or _OOM in str(error)):
            return True
        if isinstance(error, RuntimeError) and "thread" in str(error):  # a thread cannot start
            return True
        error = error.__cause__ or error.__context__
    return False


def process_client() -> Client:
    assert _client is not None  # noqa: S101  set by `_begin`
    return _client


def _execute(statement: SqlStatement) -> StatementResult:
    app = process_client().unchecked_app(statement.app)
    if statement.ref:
        moment = app.at(statement.ref, stage=statement.stage)
    else:
        moment = app.at_versions(statement.versions, seen_ms=statement.seen_ms)
    notes: list[str] = []
    process_client().note = notes.append
    rows, other_moments = moment.query_rows(statement.sql, bounds=statement.bounds, max_rows=statement.max_rows + 1)
    is_cut_off = rows.num_rows > statement.max_rows
    if is_cut_off:
        rows = rows.slice(0, statement.max_rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    moments: dict[str, dict[str, object]] = {
        ref: {"versions": moment_.versions, "thinned_out": moment_.thinned} for ref, moment_ in other_moments.items()
    }
    secret = statement.bounds.secret
    names = pseudonyms_for(secret).remembered_values(rows) if secret else {}
    return StatementResult(sink.getvalue().to_pybytes(), moments, is_cut_off, tuple(notes), names)
