"""Taking a snapshot and waiting until it is complete: what the command line and the Python API do."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...common import instants
from ...errors import Refused, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ..cut.kafka_topics import Topics
from ..cut.moments import heads_of
from ..cut.resolve import resolve
from ..cut.stored import Request, Snapshot, SnapshotKind, cancel, find_snapshot, notify, open_requests, own_request
from .audit_log import list_operations, record_once
from .snapshots import pin
from .taking import StageAnswer, answers, find_written, request, taken_already, try_complete

_POLLS_A_SECOND = 10
_GRACE_S = 3.0
"""How long the app itself may take to write a snapshot that every stage has answered; after that it is written here."""


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far a snapshot is."""

    waited_s: float
    answers: Mapping[str, StageAnswer]
    """By stage."""
    complete: bool


def take(
    store: ObjectStore,
    app: str,
    name: str,
    *,
    by: str,
    reader: Topics | None = None,
    instant: bool = False,
    timeout_s: float = 60.0,
    on_look: Callable[[SnapshotProgress], None] = lambda _look: None,
) -> tuple[Snapshot, bool]:
    """Take a snapshot of a running app, or pin its newest moment; a call that was interrupted is finished by the same.

    With a `reader` of Kafka, records in flight are kept. Without it the app itself keeps them, and an instant snapshot,
    which pins the newest consistent cut and asks no stage, has none. The request is withdrawn after `timeout_s`.
    `on_look` hears the stages' answers, some ten times a second.

    Returns the snapshot, and whether the same call had taken it before. Raises `Usage` (no snapshot can have this
    name), `NotFound` (there is no such app, or it has no version yet), `Refused` (the name is taken, or the app could
    not complete the snapshot, or records in flight are gone), `Corruption` (records in flight are not what was written)
    and `Unavailable` (a stage has not answered in time, and is named; or storage or Kafka did not).
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
        try:
            found = _wait(store, app, own or request(store, app, name, by), reader, timeout_s, on_look)
        except BaseException:
            # By name, not by value: Ctrl-C may come when the request is written and its author does not know it yet.
            since_ms = own.created_ms if own else now_ms
            for each in open_requests(store, app):
                if (each.name, each.by) == (name, by) and each.created_ms >= since_ms:
                    cancel(store, app, each)
            raise
    record_once(store, app, "snapshot take", name, by, since_ms=found.created_ms)
    return found, earlier is not None


def asks_nobody(store: ObjectStore, app: str) -> bool:
    """Whether its stages are the state of queries of Spark's: none answers, and each version is consistent as it is."""
    heads = heads_of(store, app, history.list_stages(store, app)).values()
    return bool(heads) and all(head.attached is not None for head in heads)


def ask(store: ObjectStore, app: str, name: str, *, by: str) -> tuple[Request, bool]:
    """Ask for a snapshot and do not wait for it; returns the request, and whether the same call had asked before.

    Raises as `take`, but for what happens while that waits.
    """
    own = own_request(store, app, name, by)
    asked = own or request(store, app, name, by)
    record_once(store, app, "snapshot take", name, by, since_ms=asked.created_ms)
    return asked, own is not None


def silent_stages(found: Mapping[str, StageAnswer]) -> list[str]:
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
    reader: Topics | None,
    timeout_s: float,
    on_look: Callable[[SnapshotProgress], None],
) -> Snapshot:
    started = time.monotonic()
    answered: float | None = None
    found: dict[str, StageAnswer] = {}
    polls = 0
    while True:
        snapshot = find_snapshot(store, app, asked.name)
        if answered is not None and snapshot is None:
            own_turn = time.monotonic() - answered > _GRACE_S
            snapshot = try_complete(store, app, asked, reader if own_turn else None)
        waited_s = time.monotonic() - started
        if snapshot is not None and snapshot.id == asked.id:
            # Its stages may have forgotten their answers already.
            times = {stage: answer.head_ms for stage, answer in found.items()}
            final = {
                stage: StageAnswer(version, (), times.get(stage, snapshot.completed_ms))
                for stage, version in snapshot.stages.items()
            }
            on_look(SnapshotProgress(waited_s, final, complete=True))
            return snapshot
        found = answers(store, app, asked)
        on_look(SnapshotProgress(waited_s, found, complete=False))
        complete = bool(found) and all(answer.finished for answer in found.values())
        answered = (answered or time.monotonic()) if complete else None
        if polls % _POLLS_A_SECOND == 0:
            is_open = any(each.id == asked.id for each in open_requests(store, app))
            if not is_open and find_written(store, app, asked) is None:
                raise _failed(store, app, asked.name)
        if waited_s > timeout_s and not complete:
            raise _unanswered(app, asked.name, found, timeout_s)
        time.sleep(1 / _POLLS_A_SECOND)
        polls += 1


def _failed(store: ObjectStore, app: str, name: str) -> Refused:
    details = (done.detail for done in list_operations(store, app, 20) if done.verb == "snapshot failed")
    reasons = (detail.removeprefix(f"{name}: ") for detail in details if detail.startswith(f"{name}: "))
    return Refused(f"snapshot {name!r} of {app} was not taken: {next(reasons, 'somebody withdrew it')}")


def _unanswered(app: str, name: str, found: Mapping[str, StageAnswer], timeout_s: float) -> Unavailable:
    silent = {stage: instants.when(each.head_ms) for stage, each in found.items() if each.version is None}
    last_commits = ", ".join(f"{stage} (last commit {time})" for stage, time in silent.items())
    missing = [f"no answer from {last_commits}"] if silent else []
    missing += (
        f"{stage} awaits the marker on {', '.join(each.awaited)}" for stage, each in found.items() if each.awaited
    )
    who = "; ".join(missing) if missing else "no stage of it has committed a version yet"
    asked = silent_stages(found)
    return Unavailable(
        f"snapshot {name!r} of {app} was not complete after {timeout_s:g} s and is withdrawn: {who}",
        hint=f"is every stage running? (`slackwater status {app}`) "
        "--timeout waits longer, --no-wait leaves it to the next runner, --instant needs no running app"
        + (f"; {ask_whether_gone(app, asked)}" if asked else ""),
    )
