"""Replays of batches, each in a new process with Spark, with the programs given at the start of the server.

The process ends after one replay, and is killed if the replay exceeds its time limit or is cancelled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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


@dataclass(frozen=True, slots=True)
class Question:
    """A call of a method of `AppHistory` that replays batches, or that reads too much for the server's process."""

    app: str
    """Name of the app's folder."""
    method: Literal["why", "impact", "reconcile", "why_not"]
    arguments: tuple[object, ...]
    options: Mapping[str, Any]
    program: Path | None


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
    """Replay a batch in a separate process, and compare it with the committed batch.

    Raises `Refused` without the app's program, `TooOften` and `TooMuch`.
    """
    request = ReplayRequest(ref, key, _program_of(service, called))
    return await service.replays.run(_replay, request, service.options.long_timeout_s)


async def answer_in_process(
    service: Service,
    called: str,
    app: str,
    method: Literal["why", "impact", "reconcile", "why_not"],
    arguments: tuple[object, ...],
    options: Mapping[str, Any],
    *,
    is_replay: bool = True,
) -> tuple[Any, tuple[str, ...]]:
    """Call a method of `AppHistory` in a separate process. Returns its full answer, and notes.

    `app` is the name of the app's folder. The app's program is needed only if the method replays. Raises `Refused`
    without a needed program, `TooOften` and `TooMuch`.
    """
    program = _program_of(service, called) if is_replay else service.options.programs.get(called)
    question = Question(app, method, arguments, options, program)
    return await service.replays.run(_answer, question, service.options.long_timeout_s)


def _program_of(service: Service, called: str) -> Path:
    program = service.options.programs.get(called)
    if program is None:
        raise Refused(
            f"cannot replay {called}: the server was started without its program",
            hint=f"start the server with --code {called}=FILE; bisect, history and diff work without",
        )
    return program


def _cause(verdict_and_program: tuple[Verdict, Path]) -> tuple[TracedCause, tuple[str, ...]]:
    verdict, program = verdict_and_program
    return _with_notes(lambda: explain_verdict(process_client(), verdict, [program]))


def _replay(request: ReplayRequest) -> tuple["Comparison", tuple[str, ...]]:
    def compared() -> "Comparison":
        with open_batch(process_client(), request.ref, request.program, request.key) as (batch, sent, only):
            from ...operations.debugging.replay.compare import compare  # needs Spark, as `open_batch` has checked

            return compare(batch, sent, only)

    return _with_notes(compared)


def _answer(question: Question) -> tuple[Any, tuple[str, ...]]:
    def answered() -> Any:
        app = process_client().unchecked_app(question.app)
        answer = getattr(app, question.method)(*question.arguments, code=question.program, **question.options)
        return getattr(answer, _FULL_ANSWERS[question.method])

    return _with_notes(answered)


_FULL_ANSWERS = {
    "why": "full_explanation",
    "impact": "full_impact",
    "reconcile": "full_result",
    "why_not": "full_result",
}


def _with_notes(action: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    notes: list[str] = []
    process_client().note = notes.append
    return action(), tuple(notes)
