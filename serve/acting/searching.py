"""A search for the commit that made something wrong, of which each evaluation runs in a process for SQL from elsewhere.

The search itself is the library's, in a thread: it reads manifests, and asks a predicate at moments. What was asked is
SQL of somebody who is not to be trusted, so each evaluation is a statement like any other (`serve.sql`): bounded in
time, memory and rows, without access to the machine.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any, TypeVar

import pyarrow as pa

from ...client.app import StoredApp
from ...client.declared.questions import SearchOptions
from ...errors import Refused, Usage
from ...snapshot.bisect.predicate import Context, Where, check, where
from ...snapshot.bisect.verdict import Evaluation, Verdict
from ...snapshot.cut.graph import Cut
from ...snapshot.query.clauses import understand
from ...snapshot.query.sql import Bounds
from ...store.versions.forgotten import index as forgotten
from ...store.versions.manifest import Manifest
from ..sql import Statements, here

A = TypeVar("A")
R = TypeVar("R")


def check_asked(wrong: SearchOptions) -> None:
    """Raise `Usage` unless one of `where` and `check` says what is wrong."""
    if bool(wrong["where"]) == bool(wrong["check"]):
        raise Usage("say what is wrong by one of where and check", hint="where is a query that returns what is wrong")


class Searcher:
    """Searches one app at a time, on behalf of somebody who may go away. Of one event loop.

    Args:
        statements: the processes that evaluate.
        bounds: what an evaluation may take and see.
        max_rows: that an evaluation may return.
        who: asks.
    """

    def __init__(self, statements: Statements, bounds: Bounds, max_rows: int, who: str = "") -> None:
        self._statements, self._bounds, self._max_rows, self._who = statements, bounds, max_rows, who
        self._loop = asyncio.get_running_loop()
        self._stopped, self._lock = Event(), Lock()
        self._waited_for: Future[Any] | asyncio.Future[Any] | None = None

    def search(self, app: StoredApp, wrong: SearchOptions, on_step: Callable[[Evaluation], None]) -> Verdict:
        """The verdict; in a thread. Raises as `StoredApp.bisect`, and `SearchStopped`."""
        make: Callable[..., Where] = check if wrong["check"] else where
        asked_for = CheckAsked(app.name, wrong["check"] or wrong["where"], wrong["table"], self._bounds, make)
        made: Where = self._run(_checked, asked_for)
        good, bad = app.whole_ref(wrong["good"]), app.whole_ref(wrong["bad"])
        asked = _Elsewhere(made.sql, made.typed, made.bounds, ask=self._rows)
        verdict = app.search(asked, edge=wrong["edge"], good=good, bad=bad, on_step=on_step)
        is_cut = verdict.rows.num_rows >= self._max_rows
        return replace(verdict, predicate=made, more_rows=verdict.more_rows or is_cut)

    def stop(self) -> None:
        """Have the search end, which is in another thread, and what it waits for."""
        with self._lock:
            self._stopped.set()
            if self._waited_for is not None:
                self._waited_for.cancel()

    async def wait_for(self, running: Coroutine[Any, Any, R]) -> R:
        """What is done after the search, which `stop` ends, too. Raises `SearchStopped`."""
        with self._lock:
            task = asyncio.ensure_future(running)
            self._waited_for = task
            if self._stopped.is_set():
                task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise SearchStopped from None

    def _rows(self, where: Where, at: Context, max_rows: int) -> pa.Table:
        cut, later = replace(at.cut, stages=dict(at.cut.stages)), dict(at.later)
        return self._run(_asked, Probe(where, cut, later, at.only, at.ref, min(max_rows, self._max_rows)))

    def _run(self, function: Callable[[A], R], asked: A) -> R:
        with self._lock:
            if self._stopped.is_set():
                raise SearchStopped
            running = self._statements.run(function, asked, self._bounds.seconds, self._who)
            future = asyncio.run_coroutine_threadsafe(running, self._loop)
            self._waited_for = future
        try:
            return future.result()
        except BaseException:
            if self._stopped.is_set():
                raise SearchStopped from None
            raise


class SearchStopped(Refused):
    """Whoever asked has gone, or the time is over."""

    def __init__(self) -> None:
        super().__init__("the search was stopped")


@dataclass(frozen=True, slots=True)
class _Elsewhere(Where):
    """SQL that is asked in another process."""

    ask: Callable[[Where, Context, int], pa.Table] = field(kw_only=True)

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        """As `Predicate` has it."""
        return self.ask(Where(self.sql, self.typed, self.bounds), at, max_rows)


@dataclass(frozen=True, slots=True)
class Probe:
    """What is asked at a moment: a `Context` without what a process has itself."""

    where: Where
    cut: Cut
    later: dict[str, Manifest]
    only: Collection[str] | None
    ref: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class CheckAsked:
    """A condition, or a query, of which a predicate is to be made."""

    app: str
    """The folder's name."""
    text: str
    table: str
    bounds: Bounds
    make: Callable[..., Where]
    """`check` or `where`."""


def _asked(probe: Probe) -> pa.Table:
    client = here()
    forgotten.newest(client.store, probe.cut.app)  # what was forgotten since is not in what this process knows of it
    reader = client.channels_of(probe.cut.app) if probe.where.channels else None
    at = Context(client.store, client.cache, probe.cut, probe.later, probe.only, reader, probe.ref)
    return probe.where.rows(at, probe.max_rows)


def _checked(asked: CheckAsked) -> Where:
    asked.bounds.check(understand(asked.text))
    return replace(asked.make(here().store, asked.app, asked.text, asked.table), bounds=asked.bounds)
