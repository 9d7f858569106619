"""Replays of batches, each in a new process with Spark, with the programs given at the start of the server.

The process ends after one replay, and is killed if the replay exceeds its time limit or is cancelled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...client.declared.questions import ImpactOptions, WhyOptions
from ...client.replays import explain_verdict, open_batch
from ...errors import Refused
from ...snapshot.bisect.causes import TracedCause
from ...snapshot.bisect.explained import Impact, RowExplanation
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
class WhyRequest:
    """Request for the records that made a row."""

    app: str
    table: str
    at: str
    key: tuple[object, ...]
    options: WhyOptions
    program: Path


@dataclass(frozen=True, slots=True)
class ImpactRequest:
    """Request for everything that a record reached."""

    app: str
    record: str
    options: ImpactOptions
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
    """Replay a batch in a separate process, and compare it with the committed batch.

    Raises `Refused` without the app's program, `TooOften` and `TooMuch`.
    """
    request = ReplayRequest(ref, key, _program_of(service, called))
    return await service.replays.run(_replay, request, service.options.long_timeout_s)


async def explain_row_in_process(
    service: Service, called: str, ref: tuple[str, str, str], key: tuple[object, ...], options: WhyOptions
) -> tuple[RowExplanation, tuple[str, ...]]:
    """Return the records that made a row, by replays in a separate process, and notes.

    `ref` has the name of the app's folder, the table and the moment. Raises `Refused` without the app's program,
    `TooOften` and `TooMuch`.
    """
    request = WhyRequest(*ref, key, options, _program_of(service, called))
    return await service.replays.run(_why, request, service.options.long_timeout_s)


async def trace_impact_in_process(
    service: Service, called: str, app: str, record: str, options: ImpactOptions
) -> tuple[Impact, tuple[str, ...]]:
    """Return everything that a record reached, by replays in a separate process, and notes.

    Raises `Refused` without the app's program, `TooOften` and `TooMuch`.
    """
    request = ImpactRequest(app, record, options, _program_of(service, called))
    return await service.replays.run(_impact, request, service.options.long_timeout_s)


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


def _why(request: WhyRequest) -> tuple[RowExplanation, tuple[str, ...]]:
    return _with_notes(
        lambda: (
            process_client()
            .unchecked_app(request.app)
            .why(request.table, request.key, request.at, code=request.program, **request.options)
            .full_explanation
        )
    )


def _impact(request: ImpactRequest) -> tuple[Impact, tuple[str, ...]]:
    return _with_notes(
        lambda: (
            process_client()
            .unchecked_app(request.app)
            .impact(request.record, code=request.program, **request.options)
            .full_impact
        )
    )


def _with_notes(action: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
    notes: list[str] = []
    process_client().note = notes.append
    return action(), tuple(notes)
