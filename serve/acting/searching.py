"""A bisect whose evaluations run in separate processes, because their SQL comes from untrusted clients.

The search itself is the library's and runs in a thread: it reads manifests and has a predicate evaluated at
moments. Every evaluation is a statement of `serve.sql`: limited in time, memory and rows, without access to the
machine.
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
from ...store.versions import forgotten
from ...store.versions.manifest import Manifest
from ..sql import Statements, here

A = TypeVar("A")
R = TypeVar("R")


def check_asked(wrong: SearchOptions) -> None:
    """Raise `Usage` unless exactly one of `where` and `check` is given."""
    if bool(wrong["where"]) == bool(wrong["check"]):
        raise Usage("give exactly one of where and check", hint="where is a query that returns the wrong rows")


class Searcher:
    """Bisects one app for a client that may disconnect. Belongs to one event loop.

    Args:
        statements: Processes that evaluate.
        bounds: Limits of an evaluation, and the tables that its SQL may read.
        max_rows: Maximum rows of an evaluation.
        who: Name of the client's token.
    """

    def __init__(self, statements: Statements, bounds: Bounds, max_rows: int, who: str = "") -> None:
        self._statements, self._bounds, self._max_rows, self._who = statements, bounds, max_rows, who
        self._loop = asyncio.get_running_loop()
        self._stopped, self._lock = Event(), Lock()
        self._waited_for: Future[Any] | asyncio.Future[Any] | None = None

    def search(self, app: StoredApp, wrong: SearchOptions, on_step: Callable[[Evaluation], None]) -> Verdict:
        """Search for the first bad commit; call this in a thread.

        Raises `SearchStopped`, and the errors of `StoredApp.bisect`.
        """
        make: Callable[..., Where] = check if wrong["check"] else where
        request = CheckAsked(app.name, wrong["check"] or wrong["where"], wrong["table"], self._bounds, make)
        predicate: Where = self._run(_build_predicate, request)
        good, bad = app.whole_ref(wrong["good"]), app.whole_ref(wrong["bad"])
        remote_predicate = _RemoteWhere(predicate.sql, predicate.typed, predicate.bounds, ask=self._rows)
        verdict = app.search(remote_predicate, edge=wrong["edge"], good=good, bad=bad, on_step=on_step)
        is_cut = verdict.rows.num_rows >= self._max_rows
        return replace(verdict, predicate=predicate, more_rows=verdict.more_rows or is_cut)

    def stop(self) -> None:
        """Cancel the search, which runs in another thread, and its current evaluation."""
        with self._lock:
            self._stopped.set()
            if self._waited_for is not None:
                self._waited_for.cancel()

    async def wait_for(self, running: Coroutine[Any, Any, R]) -> R:
        """Await work that follows the search, so that `stop` cancels it too. Raises `SearchStopped`."""
        with self._lock:
            task = asyncio.ensure_future(running)
            self._waited_for = task
            if self._stopped.is_set():
                task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise SearchStopped from None

    def _rows(self, where: Where, context: Context, max_rows: int) -> pa.Table:
        cut, later = replace(context.cut, stages=dict(context.cut.stages)), dict(context.later)
        return self._run(_evaluate, Probe(where, cut, later, context.only, context.ref, min(max_rows, self._max_rows)))

    def _run(self, function: Callable[[A], R], argument: A) -> R:
        with self._lock:
            if self._stopped.is_set():
                raise SearchStopped
            running = self._statements.run(function, argument, self._bounds.seconds, self._who)
            future = asyncio.run_coroutine_threadsafe(running, self._loop)
            self._waited_for = future
        try:
            return future.result()
        except BaseException:
            if self._stopped.is_set():
                raise SearchStopped from None
            raise


class SearchStopped(Refused):
    """The search was cancelled, since the client disconnected or the time limit was reached."""

    def __init__(self) -> None:
        super().__init__("the search was stopped")


@dataclass(frozen=True, slots=True)
class _RemoteWhere(Where):
    ask: Callable[[Where, Context, int], pa.Table] = field(kw_only=True)

    def rows(self, context: Context, max_rows: int) -> pa.Table:
        return self.ask(Where(self.sql, self.typed, self.bounds), context, max_rows)


@dataclass(frozen=True, slots=True)
class Probe:
    """Request to evaluate a predicate at a moment in another process.

    Has the fields of a `Context` that the other process does not have.
    """

    where: Where
    cut: Cut
    later: dict[str, Manifest]
    only: Collection[str] | None
    ref: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class CheckAsked:
    """Request to build a predicate from a condition or a query."""

    app: str
    """Name of the app's folder."""
    text: str
    table: str
    bounds: Bounds
    make: Callable[..., Where]


def _evaluate(probe: Probe) -> pa.Table:
    client = here()
    forgotten.newest(client.store, probe.cut.app)  # update this process's cache of forgotten keys
    reader = client.channels_of(probe.cut.app) if probe.where.channels else None
    context = Context(client.store, client.cache, probe.cut, probe.later, probe.only, reader, probe.ref)
    return probe.where.rows(context, probe.max_rows)


def _build_predicate(request: CheckAsked) -> Where:
    request.bounds.check(understand(request.text))
    return replace(request.make(here().store, request.app, request.text, request.table), bounds=request.bounds)
