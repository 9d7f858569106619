"""A bisect whose evaluations run in separate processes, because their SQL comes from untrusted clients.

The library's search function runs in a thread of the server: it reads manifests and requests evaluations of the
predicate. Each evaluation runs as a statement of `serve.sql`: limited in time, memory and rows, without access to the
machine.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa

from ...client.app import StoredApp
from ...client.declared.questions import SearchOptions
from ...common import runtime
from ...common.runtime import Future
from ...errors import Refused, Usage
from ...snapshot.bisect.predicate import Context, SqlPredicate, parse_check, parse_where
from ...snapshot.bisect.verdict import Evaluation, Verdict
from ...snapshot.cut.graph import Cut
from ...snapshot.query.clauses import parse_statement
from ...snapshot.query.sql import Bounds
from ...store.versions import forgotten
from ...store.versions.manifest import Manifest
from ..sql import SqlProcessPool, process_client

A = TypeVar("A")
R = TypeVar("R")


def check_one_predicate(wrong: SearchOptions) -> None:
    """Raise `Usage` unless exactly one of `where` and `check` is given."""
    if bool(wrong["where"]) == bool(wrong["check"]):
        raise Usage("give exactly one of 'where' and 'check'", hint="'where' is a query that returns the wrong rows")


class Searcher:
    """Bisects one app for a client that may disconnect. Belongs to one event loop.

    Args:
        statements: Pool of processes that evaluate the predicate.
        bounds: Limits of an evaluation, and the tables that its SQL may read.
        max_rows: Maximum rows of an evaluation.
        who: Name of the client's token.
    """

    def __init__(self, statements: SqlProcessPool, bounds: Bounds, max_rows: int, who: str = "") -> None:
        self._statements, self._bounds, self._max_rows, self._who = statements, bounds, max_rows, who
        self._loop = asyncio.get_running_loop()
        self._stopped, self._lock = runtime.event(), runtime.lock()
        self._pending: Future[Any] | asyncio.Future[Any] | None = None

    def search(self, app: StoredApp, wrong: SearchOptions, on_step: Callable[[Evaluation], None]) -> Verdict:
        """Search for the first bad commit; call this in a thread.

        Raises `SearchStopped`, and the errors of `StoredApp.bisect`.
        """
        make: Callable[..., SqlPredicate] = parse_check if wrong["check"] else parse_where
        request = PredicateRequest(app.name, wrong["check"] or wrong["where"], wrong["table"], self._bounds, make)
        predicate: SqlPredicate = self._run(_build_predicate, request)
        good, bad = app.search_endpoint(wrong["good"]), app.search_endpoint(wrong["bad"])
        remote_predicate = _RemoteWhere(
            predicate.sql, predicate.typed, predicate.bounds, evaluate=self._evaluate_in_process
        )
        verdict = app.search(remote_predicate, edge=wrong["edge"], good=good, bad=bad, on_step=on_step)
        is_cut = verdict.rows.num_rows >= self._max_rows
        return replace(verdict, predicate=predicate, more_rows=verdict.more_rows or is_cut)

    def stop(self) -> None:
        """Cancel the search, which runs in another thread, and its current evaluation."""
        with self._lock:
            self._stopped.set()
            if self._pending is not None:
                self._pending.cancel()

    async def run_cancellable(self, running: Coroutine[Any, Any, R]) -> R:
        """Await a coroutine that belongs to the search, so that `stop` cancels it as well. Raises `SearchStopped`."""
        with self._lock:
            task = asyncio.ensure_future(running)
            self._pending = task
            if self._stopped.is_set():
                task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise SearchStopped from None

    def _evaluate_in_process(self, where: SqlPredicate, context: Context, max_rows: int) -> pa.Table:
        cut, later = replace(context.cut, stages=dict(context.cut.stages)), dict(context.later)
        return self._run(
            _evaluate, EvaluationRequest(where, cut, later, context.only, context.ref, min(max_rows, self._max_rows))
        )

    def _run(self, function: Callable[[A], R], argument: A) -> R:
        with self._lock:
            if self._stopped.is_set():
                raise SearchStopped
            running = self._statements.run(function, argument, self._bounds.seconds, self._who)
            future = asyncio.run_coroutine_threadsafe(running, self._loop)
            self._pending = future
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
class _RemoteWhere(SqlPredicate):
    evaluate: Callable[[SqlPredicate, Context, int], pa.Table] = field(kw_only=True)

    def rows(self, context: Context, max_rows: int) -> pa.Table:
        return self.evaluate(SqlPredicate(self.sql, self.typed, self.bounds), context, max_rows)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Request to evaluate a predicate at a moment in a separate process.

    Has the fields of a `Context` that the process cannot determine by itself.
    """

    where: SqlPredicate
    cut: Cut
    later: dict[str, Manifest]
    only: Collection[str] | None
    ref: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class PredicateRequest:
    """Request to build a predicate from a condition or a query."""

    app: str
    """Name of the app's folder."""
    text: str
    table: str
    bounds: Bounds
    make: Callable[..., SqlPredicate]


def _evaluate(probe: EvaluationRequest) -> pa.Table:
    client = process_client()
    forgotten.newest(client.store, probe.cut.app)  # update this process's cache of forgotten keys
    reader = client.channels_of(probe.cut.app) if probe.where.reads_channels else None
    context = Context(client.store, client.cache, probe.cut, probe.later, probe.only, reader, probe.ref)
    return probe.where.rows(context, probe.max_rows)


def _build_predicate(request: PredicateRequest) -> SqlPredicate:
    request.bounds.check_statement(parse_statement(request.text))
    return replace(
        request.make(process_client().store, request.app, request.text, request.table), bounds=request.bounds
    )
