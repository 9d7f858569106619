"""How waiting for the stages' answers to a request for a snapshot is shown, and whom old requests wait for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from . import humane
from .output import Progress
from .tables import Grid

if TYPE_CHECKING:
    from ..snapshot.cut.requests import Request
    from ..snapshot.take.taking import Answer
    from ..snapshot.take.waiting import Look
    from ..store.objects.protocol import ObjectStore

__all__ = ["teller", "waiting_for"]

_ANSWERED_MS = 10_000
"""By then a stage that runs has answered, as a rule."""


def teller(tell: Progress, app_name: str, name: str) -> "Callable[[Look], None]":
    """Shows the stages' answers as they come in: a line for each that is new, and a table of all."""
    before: Mapping[str, Answer] = {}

    def on_look(look: "Look") -> None:
        nonlocal before
        title = f"snapshot {name} of {app_name}" + ("" if look.complete else f": {look.waited_s:.1f} s")
        _tell(tell, title, before, look.answers)
        before = look.answers

    return on_look


def waiting_for(store: "ObjectStore", app_name: str, asked: "Sequence[Request]") -> Iterator[str]:
    """A sentence for each snapshot under way that waits for stages which do nothing."""
    from ..snapshot.take.taking import answers
    from ..snapshot.take.waiting import ask_whether_gone, silent_stages

    now_ms = humane.now_ms()
    for request in asked:
        if now_ms - request.created_ms < _ANSWERED_MS:
            continue
        found = answers(store, app_name, request)
        if silent := silent_stages(found):
            shown = ", ".join(f"{stage} (last commit {humane.when(found[stage].head_ms, now_ms)})" for stage in silent)
            yield (
                f"snapshot {request.name} waits for {shown}, which {'does' if len(silent) == 1 else 'do'} not answer: "
                f"{ask_whether_gone(app_name, silent)}"
            )


def _tell(tell: Progress, title: str, before: "Mapping[str, Answer]", found: "Mapping[str, Answer]") -> None:
    """A line for each stage that answered since, and a table of all."""
    now_ms = humane.now_ms()
    rows = [(stage, *_described(answer), humane.when(answer.head_ms, now_ms)) for stage, answer in found.items()]
    picture = (title, Grid.of(("stage", "marker", "recorded", "last commit"), rows))
    news = [
        f"{stage} recorded v{answer.version}{_still(answer)}"
        for stage, answer in found.items()
        if answer.version is not None and _is_news(before.get(stage), answer)
    ]
    for line in news or [""]:
        tell(line, *picture)


def _is_news(before: "Answer | None", answer: "Answer") -> bool:
    return before is None or (before.version, before.awaited) != (answer.version, answer.awaited)


def _described(answer: "Answer") -> tuple[str, str]:
    if answer.version is None:
        return "not seen", "…"
    return ("awaits " + ", ".join(answer.awaited) if answer.awaited else "passed on"), f"v{answer.version}"


def _still(answer: "Answer") -> str:
    return f", awaits the marker on {', '.join(answer.awaited)}" if answer.awaited else ""
