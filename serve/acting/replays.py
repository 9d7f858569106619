"""Replays of batches, each in a new process with Spark, with the programs given at the start of the server.

The process ends after one replay, and is killed if the replay exceeds its time limit or is cancelled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...client.replays import explain_verdict, open_batch
from ...errors import Refused
from ...snapshot.bisect.causes import TracedCause
from ...snapshot.bisect.verdict import Verdict
from ..service import Service
from ..sql import process_client

if TYPE_CHECKING:
    from ...operations.debugging.replay.compare import Comparison

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Request to replay a batch in another process."""

    ref: str
    """`APP/STAGE@VERSION`, with the name of the app's folder."""
    key: tuple[object, ...]
    """Key to replay; empty for the whole batch."""
    program: Path


async def explain_in_process(service: Service, verdict: Verdict, called: str) -> tuple[TracedCause, tuple[str, ...]]:
    """Return the cause of a verdict, and notes. Without the app's program, uses only data of the store.

    Raises `TooOften` and `TooMuch`.
    """
    program = service.options.programs.get(called)
    if program is None or verdict.candidates:
        return await service.in_thread(lambda: (explain_verdict(service.client, verdict, None), ()))
    return await service.replays.run(_cause, (verdict, program), service.options.long_timeout_s)


async def replay_in_process(
    service: Service, called: str, ref: str, key: tuple[object, ...]
) -> tuple["Comparison", tuple[str, ...]]:
    """Replay a batch in a process of its own, and compare it with the committed batch.

    Raises `Refused` without the app's program, `TooOften` and `TooMuch`.
    """
    program = service.options.programs.get(called)
    if program is None:
        raise Refused(
            f"cannot replay {called}: the server was started without its program",
            hint=f"start the server with --code {called}=FILE; bisect, history and diff work without",
        )
    return await service.replays.run(_replay, ReplayRequest(ref, key, program), service.options.long_timeout_s)


def _cause(verdict_and_program: tuple[Verdict, Path]) -> tuple[TracedCause, tuple[str, ...]]:
    verdict, program = verdict_and_program
    return _with_notes(lambda: explain_verdict(process_client(), verdict, [program]))


def _replay(request: ReplayRequest) -> tuple["Comparison", tuple[str, ...]]:
    def compared() -> "Comparison":
        with open_batch(process_client(), request.ref, request.program, request.key) as (batch, sent, only):
            from ...operations.debugging.replay.compare import compare  # needs Spark, as `open_batch` has checked

            return compare(batch, sent, only)

    return _with_notes(compared)


def _with_notes(action: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    notes: list[str] = []
    process_client().note = notes.append
    return action(), tuple(notes)
