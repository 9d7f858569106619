"""What takes long, on behalf of a request: a search down to the record, a proof, a batch that is run again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any

from ...client.app import StoredApp
from ...client.declared.questions import SearchOptions, VerifyOptions
from ...client.show import verdict as shown
from ...errors import TooMuch
from ...snapshot.bisect.causes import Behind
from ...snapshot.bisect.verdict import Evaluation, Verdict
from ...snapshot.verify.verify import Report
from ...store.versions.manifest import Table
from ..service import Call
from .replays import cause_of, replayed
from .searching import Searcher, SearchStopped, check_asked

if TYPE_CHECKING:
    from ...operations.debugging.replay.compare import Comparison


@dataclass(frozen=True, slots=True)
class SearchFound:
    """What a search came to."""

    verdict: Verdict
    behind: Behind
    """What is behind it; as far as the store tells, where the server has no program of the app."""
    notes: tuple[str, ...]


async def find(asked: Call, of: StoredApp, wrong: SearchOptions, on_step: Callable[[Evaluation], None]) -> SearchFound:
    """Search, and replay the commit where the server has the program. Ends when it is cancelled.

    Raises `TooOften` and `TooMuch`, and as `check_asked` and `Searcher.search`.
    """
    check_asked(wrong)
    service, loop = asked.service, asyncio.get_running_loop()
    searcher = Searcher(service.statements, asked.bounds(of.name), service.options.sql_rows, asked.grant.name)

    def told(step: Evaluation) -> None:
        loop.call_soon_threadsafe(on_step, step)

    async def searched() -> SearchFound:
        with service.taking_long():  # until the thread has ended, whoever waits for it
            verdict = await service.in_thread(lambda: searcher.search(of, wrong, told))
            behind, notes = await searcher.wait_for(cause_of(service, verdict, of.called))
            return SearchFound(verdict, behind, notes)

    searching = asyncio.create_task(searched())
    searching.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody's, perhaps
    try:
        async with asyncio.timeout(service.options.long_s):
            return await asyncio.shield(searching)
    except TimeoutError:
        took = f"the search took more than {service.options.long_s:g} s"
        raise TooMuch(took, hint="narrow it with good and bad") from None
    finally:
        searcher.stop()


async def prove(
    asked: Call,
    of: StoredApp,
    ref: str,
    options: VerifyOptions,
    stage: str = "",
    *,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    """What verifying a moment, or one of a stage, finds. Ends when it is cancelled.

    Raises `TooOften`, and as `Moment.verify`.
    """
    stopped = Event()

    def told(line: str) -> None:
        if stopped.is_set():
            raise SearchStopped
        on_progress(line)

    whole = f"{of.name}/{stage}@{ref}" if stage else f"{of.name}@{ref}"
    try:
        with asked.service.taking_long():
            return await asked.service.in_thread(lambda: of.verify(whole, on_progress=told, **options))
    finally:
        stopped.set()


async def run_again(
    asked: Call, of: StoredApp, stage: str, version: int, key_of: Callable[[Table], tuple[object, ...]]
) -> "tuple[Comparison, tuple[str, ...]]":
    """A batch, run again, or only one key of it, and notes. Raises as `replayed`."""

    def understood() -> tuple[object, ...]:
        declared = of.at(f"v{version}", stage=stage).cut.stages[stage].table
        return key_of(declared) if declared is not None else ()

    with asked.service.taking_long():
        only = await asked.service.in_thread(understood)
        return await replayed(asked.service, of.called, f"{of.name}/{stage}@v{version}", only)


def probe(step: Evaluation) -> dict[str, Any]:
    """A moment that was looked at."""
    about = {"ref": step.ref, "versions": step.cut.versions, "time_ms": step.cut.time_ms, "outcome": step.answer}
    return about | {"why": step.why, "took_ms": step.took_ms, "number": step.number, "left": step.total - step.number}


def limited(found: SearchFound, limit: int) -> dict[str, Any]:
    """The document of what was found, with so many rows and keys at most; `cut_off` says whether there are more."""
    verdict = found.verdict
    keys = verdict.keys.head(limit) if verdict.keys is not None else None
    less = replace(verdict, rows=verdict.rows.slice(0, limit), keys=keys)
    data: Any = shown.verdict(less, found.behind, None, "", "").data
    data["cause"]["records"] = data["cause"]["records"][:limit]
    is_cut = verdict.more_rows or verdict.rows.num_rows > limit or len(verdict.keys or ()) > limit
    return {**data, "notes": found.notes, "cut_off": is_cut}
