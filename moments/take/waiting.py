"""Taking a snapshot and waiting until it is complete: what the command line and the Python API do."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from ... import instants
from ...errors import Refused, Unavailable
from ...store.objects.protocol import ObjectStore
from ..cut.resolve import resolve
from ..cut.stored import Request, Snapshot, SnapshotKind, cancel, find_snapshot, notify, open_requests, own_request
from .audit_log import list_operations, record_once
from .capture import ChannelReader
from .snapshots import pin
from .taking import Answer, answers, find_written, request, taken_already, try_complete

_POLL_S = 0.1
_LOOKS_A_SECOND = 10
_GRACE_S = 3.0
"""How long the app itself may take to write a snapshot that every stage has answered; after that it is written here."""


@dataclass(frozen=True, slots=True)
class Look:
    """How far a snapshot is."""

    waited_s: float
    answers: Mapping[str, Answer]
    """By stage."""
    complete: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that was asked for."""

    snapshot: Snapshot
    already: bool
    """Whether the same call had taken it before."""


def take(
    store: ObjectStore,
    app: str,
    name: str,
    *,
    by: str,
    reader: ChannelReader | None = None,
    instant: bool = False,
    timeout_s: float = 60.0,
    on_look: Callable[[Look], None] = lambda _look: None,
) -> Taken:
    """Take a snapshot of a running app, or pin its newest moment; a call that was interrupted is finished by the same.

    Args:
        store: where the app lives.
        app: its name.
        name: the snapshot's.
        by: user@host.
        reader: Kafka, whose records in flight are kept. Without it the app itself keeps them, and an instant snapshot
            has none.
        instant: pin the newest consistent cut, and ask no stage.
        timeout_s: the request is withdrawn after so long.
        on_look: told of the stages' answers, some ten times a second.

    Raises:
        Usage: no snapshot can have this name.
        NotFound: there is no such app, or it has no version yet.
        Refused: the name is taken, or the app could not complete the snapshot, or records in flight are gone.
        Corruption: records in flight are not what was written.
        Unavailable: a stage has not answered in time, and is named; or storage or Kafka did not.
    """
    now_ms = instants.now_ms()
    kind: SnapshotKind = "instant" if instant else "markers"
    found = earlier = taken_already(store, app, name, kind, by=by, now_ms=now_ms)
    if found is None and instant:
        found = pin(store, resolve(store, app, now_ms=now_ms), name, by=by, reader=reader)
    elif found is None:
        own = own_request(store, app, name, by)
        if own is not None:
            # Whoever asked may have died before saying so.
            notify(store, app)
        with _withdrawn_on_failure(store, app, name, by, since_ms=own.created_ms if own else now_ms):
            found = _wait(store, app, own or request(store, app, name, by), reader, timeout_s, on_look)
    record_once(store, app, "snapshot take", name, by, since_ms=found.created_ms)
    return Taken(found, earlier is not None)


def silent_stages(found: Mapping[str, Answer]) -> list[str]:
    """The stages that were asked and do not answer, while others do: where none does, the app does not run at all."""
    if all(answer.version is None for answer in found.values()):
        return []
    return [stage for stage, answer in found.items() if answer.version is None and answer.asked]


def ask_whether_gone(app: str, stages: Sequence[str]) -> str:
    """The question about stages that do not answer, with what to type when they are gone; receivers first."""
    gone = " and ".join(f"`slackwater retire {app}/{stage}`" for stage in stages)
    subject = f"{', '.join(stages)} still in the program? if {'it is' if len(stages) == 1 else 'one is'} gone for good"
    return f"{'is' if len(stages) == 1 else 'are'} {subject}: {gone}"


def _wait(
    store: ObjectStore,
    app: str,
    asked: Request,
    reader: ChannelReader | None,
    timeout_s: float,
    on_look: Callable[[Look], None],
) -> Snapshot:
    started = time.monotonic()
    answered: float | None = None
    found: dict[str, Answer] = {}
    for number in count():
        snapshot = find_snapshot(store, app, asked.name)
        if answered is not None and snapshot is None:
            own_turn = time.monotonic() - answered > _GRACE_S
            snapshot = try_complete(store, app, asked, reader if own_turn else None)
        waited_s = time.monotonic() - started
        if snapshot is not None and snapshot.id == asked.id:
            on_look(Look(waited_s, _final(found, snapshot), complete=True))
            return snapshot
        found = answers(store, app, asked)
        on_look(Look(waited_s, found, complete=False))
        complete = bool(found) and all(answer.finished for answer in found.values())
        answered = (answered or time.monotonic()) if complete else None
        if number % _LOOKS_A_SECOND == 0 and _withdrawn(store, app, asked):
            raise _failed(store, app, asked.name)
        if waited_s > timeout_s and not complete:
            raise _unanswered(app, asked.name, found, timeout_s)
        time.sleep(_POLL_S)
    raise AssertionError("count() ended")


@contextmanager
def _withdrawn_on_failure(store: ObjectStore, app: str, name: str, by: str, *, since_ms: int) -> Iterator[None]:
    """Whatever ends the block early withdraws the request that was made in it, or since then."""
    try:
        yield
    except BaseException:
        # By name, not by value: Ctrl-C may come when the request is written and its author does not know it yet.
        for asked in open_requests(store, app):
            if (asked.name, asked.by) == (name, by) and asked.created_ms >= since_ms:
                cancel(store, app, asked)
        raise


def _final(found: Mapping[str, Answer], snapshot: Snapshot) -> dict[str, Answer]:
    """The answers that a complete snapshot stands for: its stages may have forgotten theirs already."""
    return {
        stage: Answer(version, (), found[stage].head_ms if stage in found else snapshot.completed_ms)
        for stage, version in snapshot.stages.items()
    }


def _withdrawn(store: ObjectStore, app: str, asked: Request) -> bool:
    is_open = any(other.id == asked.id for other in open_requests(store, app))
    return not is_open and find_written(store, app, asked) is None


def _failed(store: ObjectStore, app: str, name: str) -> Refused:
    said = [
        done.detail
        for done in list_operations(store, app, 20)
        if done.verb == "snapshot failed" and done.detail.startswith(f"{name}: ")
    ]
    why = said[0].removeprefix(f"{name}: ") if said else "somebody withdrew it"
    return Refused(f"snapshot {name!r} of {app} was not taken: {why}")


def _unanswered(app: str, name: str, found: Mapping[str, Answer], timeout_s: float) -> Unavailable:
    silent = [
        f"{stage} (last commit {instants.when(answer.head_ms)})"
        for stage, answer in found.items()
        if answer.version is None
    ]
    missing = [f"no answer from {', '.join(silent)}"] if silent else []
    missing += [
        f"{stage} awaits the marker on {', '.join(answer.awaited)}" for stage, answer in found.items() if answer.awaited
    ]
    who = "; ".join(missing) if missing else "no stage of it has committed a version yet"
    asked = silent_stages(found)
    return Unavailable(
        f"snapshot {name!r} of {app} was not complete after {timeout_s:g} s and is withdrawn: {who}",
        hint=f"is every stage running? (`slackwater status {app}`) "
        "--timeout waits longer, --instant needs no running app"
        + (f"; {ask_whether_gone(app, asked)}" if asked else ""),
    )
