"""SQL from elsewhere, in processes of its own: bounded in time, memory and rows, and ended where it does not end.

A call of a function may take minutes and gigabytes, and DuckDB looks at neither its clock nor its limit meanwhile. So
the operating system bounds the process's memory, and one that overruns its time is killed; another takes its place.
"""

import asyncio
import resource
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pebble import ProcessExpired, ProcessPool

from ..client import Client
from ..errors import SlackwaterError, TooMuch
from ..moments.query.sql import Bounds
from ..settings import Settings
from .errors import TooOften

A = TypeVar("A")
R = TypeVar("R")
_GRACE_S = 2.0
"""After DuckDB was told to stop."""
_SLACK_BYTES = 256 << 20
_WAITING = 32
"""Statements that wait for a process; whoever asks then is told to come again."""


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

    def table(self) -> pa.Table:
        """The rows."""
        return pa.ipc.open_stream(self.rows).read_all()


class Statements:
    """The processes, which begin when they are asked for. Of one event loop.

    Args:
        settings: of the client that each has.
        processes: how many.
        memory_bytes: what each may take besides what it takes at first; 0 for any amount.
        stays: whether a process answers more than once.
    """

    def __init__(self, settings: Settings, processes: int, memory_bytes: int, *, stays: bool = True) -> None:
        self._pool = ProcessPool(
            processes,
            max_tasks=0 if stays else 1,
            initializer=_begin,
            initargs=(settings, memory_bytes),
            context=get_context("spawn"),
        )
        self._under_way = 0

    def warm(self) -> None:
        """Start a process before it is asked for."""
        self._pool.schedule(_nothing)

    async def answer(self, statement: Question) -> Found:
        """What a statement returns. Raises `TooOften`, `TooMuch`, and as `Moment.answer`."""
        return await self.run(_answer, statement, statement.bounds.seconds)

    async def run(self, function: Callable[[A], R], asked: A, seconds: float) -> R:
        """Call a function of a module in a process, which is killed where it takes longer, or where this is cancelled.

        It finds the client by `here`. Raises `TooOften`, `TooMuch`, and as the function.
        """
        if self._under_way >= _WAITING:
            raise TooOften(f"{_WAITING} queries wait already")
        self._under_way += 1
        future = self._pool.schedule(function, args=(asked,), timeout=seconds + _GRACE_S)
        try:
            found: R = await asyncio.wrap_future(future)
            return found
        except TimeoutError:
            raise TooMuch(f"the query took more than {seconds:g} s") from None
        except (ProcessExpired, MemoryError, CancelledError):
            raise SlackwaterError("the query took more memory than it may", hint="ask for less at once") from None
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End them."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join(5)


_client: Client | None = None


def _nothing() -> None:
    pass


def _begin(settings: Settings, memory_bytes: int) -> None:
    global _client
    import duckdb  # noqa: F401  what it takes itself is no statement's

    from ..client import app  # noqa: F401

    _client = Client(settings)
    if not memory_bytes:
        return
    taken = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    most = int(taken.split()[1]) * 1024 + memory_bytes + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


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
    return Found(sink.getvalue().to_pybytes(), told, is_cut_off, tuple(notes))
