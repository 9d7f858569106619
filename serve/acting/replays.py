"""Batches that are run again with the programs that a server was started with, in a process of their own, with Spark.

Nothing stays of it: the process ends with each replay, and is killed where that takes too long or nobody waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...client.replays import batch_of, cause_behind
from ...errors import Refused
from ...snapshot.bisect.causes import Behind
from ...snapshot.bisect.verdict import Verdict
from ..service import Service
from ..sql import here

if TYPE_CHECKING:
    from ...operations.debugging.replay.compare import Comparison

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchAsked:
    """A batch that is to be run again."""

    ref: str
    """`APP/STAGE@VERSION`, of the app's folder."""
    key: tuple[object, ...]
    """Only this key of the stage's table; empty for all."""
    program: Path


async def cause_of(service: Service, verdict: Verdict, called: str) -> tuple[Behind, tuple[str, ...]]:
    """What is behind a verdict, and notes; without a program of the app, as far as the store tells. Raises as `run`."""
    program = service.options.programs.get(called)
    if program is None or verdict.candidates:
        return await service.in_thread(lambda: (cause_behind(service.client, verdict, None), ()))
    return await service.replays.run(_cause, (verdict, program), service.options.long_s)


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


def _cause(asked: tuple[Verdict, Path]) -> tuple[Behind, tuple[str, ...]]:
    verdict, program = asked
    return _noted(lambda: cause_behind(here(), verdict, [program]))


def _replay(asked: BatchAsked) -> tuple["Comparison", tuple[str, ...]]:
    from ...operations.debugging.replay.compare import compare

    def compared() -> "Comparison":
        with batch_of(here(), asked.ref, asked.program, asked.key) as (batch, sent, only):
            return compare(batch, sent, only)

    return _noted(compared)


def _noted(done: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    notes: list[str] = []
    here().note = notes.append
    return done(), tuple(notes)
