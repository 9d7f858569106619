"""Long operations of a request: a bisect that finds the input record, a verification, and questions by replays."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...client.app import StoredApp
from ...client.backends import OtherTable, split_table_ref
from ...client.declared.questions import (
    ImpactOptions,
    ReconcileOptions,
    SearchOptions,
    VerifyOptions,
    WhyNotOptions,
    WhyOptions,
)
from ...client.show import verdict as shown
from ...common import runtime
from ...errors import TooMuch
from ...snapshot.bisect.causes import TracedCause
from ...snapshot.bisect.explained import Impact, RowExplanation
from ...snapshot.bisect.verdict import Evaluation, RecordLocation, Verdict
from ...snapshot.verify.verify import Report
from ...store.versions.manifest import Table
from ..service import Call
from .replays import answer_in_process, explain_in_process, replay_in_process
from .searching import Searcher, SearchStopped, check_one_predicate

if TYPE_CHECKING:
    from ...operations.debugging.reconcile.explain import Absence, Reconciliation
    from ...operations.debugging.replay.compare import Comparison


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a bisect, with the cause of the bad commit."""

    verdict: Verdict
    explanation: TracedCause
    """Cause of the bad commit. Without the app's program on the server, only stored data is evidence."""
    notes: tuple[str, ...]


async def bisect_and_explain(
    call: Call, stored_app: StoredApp, wrong: SearchOptions, on_step: Callable[[Evaluation], None]
) -> SearchResult:
    """Bisect, then replay the first bad commit if the server has the app's program. Stops if the request is cancelled.

    Raises `TooOften`, `TooMuch`, and the errors of `check_one_predicate` and `Searcher.search`.
    """
    check_one_predicate(wrong)
    service, loop = call.service, asyncio.get_running_loop()
    searcher = Searcher(service.statements, call.bounds(stored_app.name), service.options.sql_rows, call.grant.name)

    def forward(step: Evaluation) -> None:
        loop.call_soon_threadsafe(on_step, step)

    async def search() -> SearchResult:
        with service.long_operation():  # count the search until its thread ends, even after a timeout
            verdict = await service.in_thread(lambda: searcher.search(stored_app, wrong, forward))
            cause, notes = await searcher.run_cancellable(explain_in_process(service, verdict, stored_app.called))
            return SearchResult(verdict, cause, notes)

    task = asyncio.create_task(search())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # after a timeout nobody awaits the task
    try:
        async with asyncio.timeout(service.options.long_timeout_s):
            return await asyncio.shield(task)
    except TimeoutError:
        message = f"the search took more than {service.options.long_timeout_s:g} s"
        raise TooMuch(message, hint="narrow the range with good and bad") from None
    finally:
        searcher.stop()


async def verify_moment(
    call: Call,
    stored_app: StoredApp,
    ref: str,
    options: VerifyOptions,
    stage: str = "",
    *,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Verify a moment of an app or a stage, and return the report. Stops if the request is cancelled.

    Raises `TooOften`, and the errors of `Moment.verify`.
    """
    stopped = runtime.event()

    def forward(line: str) -> None:
        if stopped.is_set():
            raise SearchStopped
        on_progress(line)

    whole_ref = f"{stored_app.name}/{stage}@{ref}" if stage else f"{stored_app.name}@{ref}"
    try:
        with call.service.long_operation():
            return await call.service.in_thread(lambda: stored_app.verify(whole_ref, on_progress=forward, **options))
    finally:
        stopped.set()


async def replay_batch(
    call: Call, stored_app: StoredApp, stage: str, version: int, key_of: Callable[[Table], tuple[object, ...]]
) -> "tuple[Comparison, tuple[str, ...]]":
    """Replay a batch, or only one key of it. Returns the comparison with the commit, and notes.

    Raises `Refused` without the app's program, `TooOften` if too many long operations are running, and `TooMuch`.
    """

    def parse_key() -> tuple[object, ...]:
        declared = stored_app.at(f"v{version}", stage=stage).cut.stages[stage].table
        return key_of(declared) if declared is not None else ()

    with call.service.long_operation():
        key = await call.service.in_thread(parse_key)
        return await replay_in_process(call.service, stored_app.called, f"{stored_app.name}/{stage}@v{version}", key)


async def explain_row(
    call: Call,
    stored_app: StoredApp,
    table: str,
    ref: str,
    options: WhyOptions,
    key_of: Callable[[Table], tuple[object, ...]],
) -> tuple[RowExplanation, tuple[str, ...]]:
    """Return the records that made a key's row at a moment, and notes. Raises the errors of `replay_batch`."""
    with call.service.long_operation():
        key = await call.service.in_thread(lambda: key_of(stored_app.at().table_declaration(table)))
        asked = table, key, ref
        return await answer_in_process(call.service, stored_app.called, stored_app.name, "why", asked, options)


async def trace_impact(
    call: Call, stored_app: StoredApp, record: str, options: ImpactOptions
) -> tuple[Impact, tuple[str, ...]]:
    """Return everything that a record reached, and notes. Raises the errors of `replay_batch`."""
    RecordLocation.parse(record)
    with call.service.long_operation():
        asked = (record,)
        return await answer_in_process(call.service, stored_app.called, stored_app.name, "impact", asked, options)


async def reconcile_tables(
    call: Call, stored_app: StoredApp, table: str, ref: str, theirs: str, limit: int, options: ReconcileOptions
) -> tuple["Reconciliation", tuple[str, ...]]:
    """Compare a table at a moment with the table `app/table@moment`. Returns the comparison, and notes.

    Batches are replayed if the server has the app's program. Raises `Denied`, `TooOften`, `TooMuch` and the errors of
    `AppHistory.reconcile`.
    """
    other, other_table, _ = split_table_ref(theirs)
    call.grant.check_app(other)
    call.grant.check_table(other_table)
    with call.service.long_operation():
        how = {"at": ref, "limit": limit, **options}
        place = stored_app.called, stored_app.name
        asked = table, OtherTable(theirs)
        return await answer_in_process(call.service, *place, "reconcile", asked, how, is_replay=False)


async def explain_absence(
    call: Call,
    stored_app: StoredApp,
    table: str,
    ref: str,
    options: WhyNotOptions,
    key_of: Callable[[Table], tuple[object, ...]],
) -> tuple["Absence", tuple[str, ...]]:
    """Return the reasons why records are not in a key's row at a moment, and notes; see `reconcile_tables`."""
    with call.service.long_operation():
        key = await call.service.in_thread(lambda: key_of(stored_app.at().table_declaration(table)))
        how = {"at": ref, "bounds": call.bounds(stored_app.name), **options}
        place = stored_app.called, stored_app.name
        return await answer_in_process(call.service, *place, "why_not", (table, key), how, is_replay=False)


def evaluation_data(step: Evaluation) -> dict[str, Any]:
    about = {"ref": step.ref, "versions": step.cut.versions, "time_ms": step.cut.time_ms, "outcome": step.answer}
    return about | {"why": step.why, "took_ms": step.took_ms, "number": step.number, "left": step.total - step.number}


def limit_result(result: SearchResult, limit: int) -> dict[str, Any]:
    """Return the JSON document of a result with at most `limit` rows and keys."""
    verdict = result.verdict
    keys = verdict.keys.head(limit) if verdict.keys is not None else None
    limited_verdict = replace(verdict, rows=verdict.rows.slice(0, limit), keys=keys)
    data: Any = shown.verdict_result(limited_verdict, result.explanation, None, "", "").data
    data["cause"]["records"] = data["cause"]["records"][:limit]
    is_cut = verdict.more_rows or verdict.rows.num_rows > limit or len(verdict.keys or ()) > limit
    return {**data, "notes": result.notes, "cut_off": is_cut}
