"""Waiting for the stages' answers to a request for a snapshot, with their progress in one place."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from ..errors import Refused, Unavailable
from . import humane
from .output import Output, Progress
from .tables import Grid
from .verbs.retire import ask_whether_gone

if TYPE_CHECKING:
    from ..snapshot.cut.requests import Request
    from ..snapshot.cut.stored import Snapshot
    from ..snapshot.take.capture import ChannelReader
    from ..snapshot.take.taking import Answer
    from ..store.objects.protocol import ObjectStore

__all__ = ["await_answers", "waiting_for", "withdrawn_on_failure"]

_POLL_S = 0.1
_LOOKS_A_SECOND = 10
_ANSWERED_MS = 10_000
"""By then a stage that runs has answered, as a rule."""
_GRACE_S = 3.0
"""How long the app itself may take to write a snapshot that every stage has answered; after that it is written here."""


def await_answers(
    store: "ObjectStore", app_name: str, asked: "Request", timeout_s: float, reader: "ChannelReader | None", out: Output
) -> "Snapshot":
    """Wait until the snapshot is complete.

    Raises:
        Unavailable: a stage has not answered after `timeout_s`; it is named.
        Refused: the app could not complete it.
    """
    from ..snapshot.cut.stored import find_snapshot
    from ..snapshot.take.taking import answers, try_complete

    started = time.monotonic()
    answered: float | None = None
    found: dict[str, Answer] = {}
    with out.progress() as tell:
        for look in count():
            snapshot = find_snapshot(store, app_name, asked.name)
            if answered is not None and snapshot is None:
                own_turn = time.monotonic() - answered > _GRACE_S
                snapshot = try_complete(store, app_name, asked, reader if own_turn else None)
            if snapshot is not None and snapshot.id == asked.id:
                _tell(tell, f"snapshot {asked.name} of {app_name}", found, _final(found, snapshot))
                return snapshot
            before, found = found, answers(store, app_name, asked)
            waited_s = time.monotonic() - started
            _tell(tell, f"snapshot {asked.name} of {app_name}: {waited_s:.1f} s", before, found)
            complete = bool(found) and all(answer.finished for answer in found.values())
            answered = (answered or time.monotonic()) if complete else None
            if look % _LOOKS_A_SECOND == 0 and _withdrawn(store, app_name, asked):
                raise _dropped(store, app_name, asked.name)
            if waited_s > timeout_s and not complete:
                raise _unanswered(app_name, asked.name, found, timeout_s)
            time.sleep(_POLL_S)
    raise AssertionError("count() ended")


def waiting_for(store: "ObjectStore", app_name: str, asked: "Sequence[Request]") -> Iterator[str]:
    """A sentence for each snapshot under way that waits for stages which do nothing."""
    from ..snapshot.take.taking import answers

    now_ms = humane.now_ms()
    for request in asked:
        if now_ms - request.created_ms < _ANSWERED_MS:
            continue
        found = answers(store, app_name, request)
        if silent := _perhaps_gone(found):
            shown = ", ".join(f"{stage} (last commit {humane.when(found[stage].head_ms, now_ms)})" for stage in silent)
            yield (
                f"snapshot {request.name} waits for {shown}, which {'does' if len(silent) == 1 else 'do'} not answer: "
                f"{ask_whether_gone(app_name, silent)}"
            )


@contextmanager
def withdrawn_on_failure(store: "ObjectStore", app_name: str, name: str, by: str, *, since_ms: int) -> Iterator[None]:
    """Whatever ends the block early withdraws the request that was made in it, or since then."""
    from ..snapshot.cut.requests import cancel, open_requests

    try:
        yield
    except BaseException:
        # By name, not by value: Ctrl-C may come when the request is written and its author does not know it yet.
        for asked in open_requests(store, app_name):
            if (asked.name, asked.by) == (name, by) and asked.created_ms >= since_ms:
                cancel(store, app_name, asked)
        raise


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


def _final(found: "Mapping[str, Answer]", snapshot: "Snapshot") -> "dict[str, Answer]":
    """The answers that a complete snapshot stands for: its stages may have forgotten theirs already."""
    from ..snapshot.take.taking import Answer

    return {
        stage: Answer(version, (), found[stage].head_ms if stage in found else snapshot.completed_ms)
        for stage, version in snapshot.stages.items()
    }


def _withdrawn(store: "ObjectStore", app_name: str, asked: "Request") -> bool:
    from ..snapshot.cut.requests import open_requests
    from ..snapshot.cut.stored import find_snapshot

    if any(other.id == asked.id for other in open_requests(store, app_name)):
        return False
    snapshot = find_snapshot(store, app_name, asked.name)
    return snapshot is None or snapshot.id != asked.id


def _perhaps_gone(found: "Mapping[str, Answer]") -> list[str]:
    """The stages that were asked and do not answer, while others do: where none does, the app does not run at all."""
    if all(answer.version is None for answer in found.values()):
        return []
    return [stage for stage, answer in found.items() if answer.version is None and answer.asked]


def _dropped(store: "ObjectStore", app_name: str, name: str) -> Refused:
    from ..snapshot.take.audit_log import list_operations

    said = [
        done.detail
        for done in list_operations(store, app_name, 20)
        if done.verb == "snapshot failed" and done.detail.startswith(f"{name}: ")
    ]
    why = said[0].removeprefix(f"{name}: ") if said else "somebody withdrew it"
    return Refused(f"snapshot {name!r} of {app_name} was not taken: {why}")


def _unanswered(app_name: str, name: str, found: "Mapping[str, Answer]", timeout_s: float) -> Unavailable:
    now_ms = humane.now_ms()
    silent = [
        f"{stage} (last commit {humane.when(answer.head_ms, now_ms)})"
        for stage, answer in found.items()
        if answer.version is None
    ]
    missing = [f"no answer from {', '.join(silent)}"] if silent else []
    missing += [
        f"{stage} awaits the marker on {', '.join(answer.awaited)}" for stage, answer in found.items() if answer.awaited
    ]
    who = "; ".join(missing) if missing else "no stage of it has committed a version yet"
    asked = _perhaps_gone(found)
    return Unavailable(
        f"snapshot {name!r} of {app_name} was not complete after {timeout_s:g} s and is withdrawn: {who}",
        hint=f"is every stage running? (`slackwater status {app_name}`) "
        "--timeout waits longer, --instant needs no running app"
        + (f"; {ask_whether_gone(app_name, asked)}" if asked else ""),
    )
