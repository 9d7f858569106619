"""Batches that are run again with the programs that a server was started with, in a process of their own, with Spark.

Nothing stays of it: the process ends with each replay, and is killed where that takes too long or nobody waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...client.replays import batch_of, record_if_any
from ...errors import Refused
from ...search.verdict import Guilty, Verdict
from ..service import Service
from ..sql import here

if TYPE_CHECKING:
    from ...pipeline.replay.compare import Comparison

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchAsked:
    """A batch that is to be run again."""

    ref: str
    """`APP/STAGE@VERSION`, of the app's folder."""
    key: tuple[object, ...]
    """Only this key of the stage's table; empty for all."""
    program: Path


async def record_behind(service: Service, verdict: Verdict, called: str) -> tuple[Guilty | None, tuple[str, ...]]:
    """The input record behind a verdict, and notes; None where there is no program of the app. Raises as `run`."""
    program = service.options.programs.get(called)
    if program is None or verdict.candidates:
        return None, ()
    return await service.replays.run(_record, (verdict, program), service.options.long_s)


async def replayed(
    service: Service, called: str, ref: str, key: tuple[object, ...]
) -> tuple["Comparison", tuple[str, ...]]:
    """A batch, run again and compared with what was committed. Raises `Refused` without a program, and as `run`."""
    program = service.options.programs.get(called)
    if program is None:
        raise Refused(
            f"the server was started without the program of {called}, so nothing of it is replayed",
            hint=f"whoever runs it can start it with --code {called}=FILE; bisect, history and diff need none",
        )
    return await service.replays.run(_replay, BatchAsked(ref, key, program), service.options.long_s)


def _record(asked: tuple[Verdict, Path]) -> tuple[Guilty | None, tuple[str, ...]]:
    return _noted(lambda: record_if_any(here(), *asked, lambda _doing: None))


def _replay(asked: BatchAsked) -> tuple["Comparison", tuple[str, ...]]:
    from ...pipeline.replay.compare import compare

    def compared() -> "Comparison":
        with batch_of(here(), asked.ref, asked.program, asked.key) as (batch, sent, only):
            return compare(batch, sent, only)

    return _noted(compared)


def _noted(done: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    notes: list[str] = []
    here().note = notes.append
    return done(), tuple(notes)
