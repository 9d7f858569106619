"""How waiting for the stages' answers to a request for a snapshot is shown, and whom old requests wait for."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .. import instants
from ..results.document import Table
from .output import Progress

if TYPE_CHECKING:
    from ..snapshot.cut.requests import Request
    from ..snapshot.take.taking import Answer
    from ..snapshot.take.waiting import Look
    from ..store.objects.protocol import ObjectStore

_ANSWERED_MS = 10_000
"""By then a stage that runs has answered, as a rule."""


def progress_of_answers(progress: Progress, app_name: str, name: str) -> "Callable[[Look], None]":
    """Shows the stages' answers as they come in: a line for each that is new, and a table of all."""
    before: dict[str, tuple[str, str]] = {}

    def on_look(look: "Look") -> None:
        nonlocal before
        title = f"snapshot {name} of {app_name}" + ("" if look.complete else f": {look.waited_s:.1f} s")
        states = {stage: _state(answer) for stage, answer in look.answers.items()}
        rows = [(stage, *state, instants.when(look.answers[stage].head_ms)) for stage, state in states.items()]
        news = [
            f"{stage} recorded v{answer.version}"
            + (f", awaits the marker on {', '.join(answer.awaited)}" if answer.awaited else "")
            for stage, answer in look.answers.items()
            if answer.version is not None and before.get(stage) != states[stage]
        ]
        for line in news or [""]:
            progress(line, title, Table.of(("stage", "marker", "recorded", "last commit"), rows))
        before = states

    return on_look


def waiting_for(store: "ObjectStore", app_name: str, asked: "Sequence[Request]") -> Iterator[str]:
    """A sentence for each snapshot under way that waits for stages which do nothing."""
    from ..snapshot.take.taking import answers
    from ..snapshot.take.waiting import ask_whether_gone, silent_stages

    for request in asked:
        if instants.now_ms() - request.created_ms < _ANSWERED_MS:
            continue
        found = answers(store, app_name, request)
        if silent := silent_stages(found):
            shown = ", ".join(f"{stage} (last commit {instants.when(found[stage].head_ms)})" for stage in silent)
            yield (
                f"snapshot {request.name} waits for {shown}, which {'does' if len(silent) == 1 else 'do'} not answer: "
                f"{ask_whether_gone(app_name, silent)}"
            )


def _state(answer: "Answer") -> tuple[str, str]:
    """What became of the marker at a stage, and the version that the stage recorded."""
    if answer.version is None:
        return "not seen", "…"
    return ("awaits " + ", ".join(answer.awaited) if answer.awaited else "passed on"), f"v{answer.version}"
