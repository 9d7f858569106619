"""Take a snapshot and wait until it is complete, for the command line and the Python API."""

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
"""Time for the app to write a completed snapshot, before this process writes it instead."""


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """Progress of a snapshot."""

    waited_s: float
    answers: Mapping[str, StageAnswer]
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
    """Take a snapshot of a running app, or pin its newest moment. Safe to repeat after an interruption.

    With a `reader` of Kafka, in-flight records are captured. Without it, the app itself captures them; an instant
    snapshot, which pins the newest consistent cut without asking any stage, then has none. The request is withdrawn
    after `timeout_s`. `on_look` receives the stages' answers about ten times a second.

    Returns the snapshot, and True if an earlier attempt had taken it. Raises `Usage` (invalid name),
    `NotFound` (the app does not exist, or has no version yet), `Refused` (the name is taken, the app could
    not complete the snapshot, or in-flight records are gone), `Corruption` (in-flight records are damaged)
    and `Unavailable` (a named stage did not answer in time; or storage or Kafka did not).
    """
    now_ms = instants.now_ms()
    kind: SnapshotKind = "instant" if instant else "markers"
    snapshot = earlier = taken_already(store, app, name, kind, by=by, now_ms=now_ms)
    if snapshot is None and instant:
        snapshot = pin(store, resolve(store, app, now_ms=now_ms), name, by=by, reader=reader)
    elif snapshot is None:
        own = own_request(store, app, name, by)
        if own is not None:
            # The earlier attempt may have died before notifying the runners.
            notify(store, app)
        try:
            snapshot = _wait(store, app, own or request(store, app, name, by), reader, timeout_s, on_look)
        except BaseException:
            # Find the request by name: Ctrl-C may have come after the put and before its return.
            since_ms = own.created_ms if own else now_ms
            for open_request in open_requests(store, app):
                if (open_request.name, open_request.by) == (name, by) and open_request.created_ms >= since_ms:
                    cancel(store, app, open_request)
            raise
    record_once(store, app, "snapshot take", name, by, since_ms=snapshot.created_ms)
    return snapshot, earlier is not None


def asks_nobody(store: ObjectStore, app: str) -> bool:
    """Return True if all stages are attached Spark queries, which answer no snapshot request.

    Each of their versions is consistent by itself.
    """
    heads = heads_of(store, app, history.list_stages(store, app)).values()
    return bool(heads) and all(head.attached is not None for head in heads)


def ask(store: ObjectStore, app: str, name: str, *, by: str) -> tuple[Request, bool]:
    """Request a snapshot without waiting; returns the request, and True if an earlier attempt had made it.

    Raises the errors of `request`.
    """
    own = own_request(store, app, name, by)
    pending = own or request(store, app, name, by)
    record_once(store, app, "snapshot take", name, by, since_ms=pending.created_ms)
    return pending, own is not None


def silent_stages(answers: Mapping[str, StageAnswer]) -> list[str]:
    """Return the stages that were asked and do not answer; empty if no stage does, since the app is not running."""
    if all(answer.version is None for answer in answers.values()):
        return []
    return [stage for stage, answer in answers.items() if answer.version is None and answer.asked]


def ask_whether_gone(app: str, stages: Sequence[str]) -> str:
    """Return a question about stages that do not answer, with the command to retire them; receivers first."""
    commands = " and ".join(f"`slackwater retire {app}/{stage}`" for stage in stages)
    subject = f"{', '.join(stages)} still in the program? if {'it is' if len(stages) == 1 else 'one is'} gone for good"
    return f"{'is' if len(stages) == 1 else 'are'} {subject}: {commands}"


def _wait(
    store: ObjectStore,
    app: str,
    pending: Request,
    reader: Topics | None,
    timeout_s: float,
    on_look: Callable[[SnapshotProgress], None],
) -> Snapshot:
    started = time.monotonic()
    answered: float | None = None
    stage_answers: dict[str, StageAnswer] = {}
    polls = 0
    while True:
        snapshot = find_snapshot(store, app, pending.name)
        if answered is not None and snapshot is None:
            own_turn = time.monotonic() - answered > _GRACE_S
            snapshot = try_complete(store, app, pending, reader if own_turn else None)
        waited_s = time.monotonic() - started
        if snapshot is not None and snapshot.id == pending.id:
            # The stages may have dropped their answers already.
            times = {stage: answer.head_ms for stage, answer in stage_answers.items()}
            final = {
                stage: StageAnswer(version, (), times.get(stage, snapshot.completed_ms))
                for stage, version in snapshot.stages.items()
            }
            on_look(SnapshotProgress(waited_s, final, complete=True))
            return snapshot
        stage_answers = answers(store, app, pending)
        on_look(SnapshotProgress(waited_s, stage_answers, complete=False))
        complete = bool(stage_answers) and all(answer.finished for answer in stage_answers.values())
        answered = (answered or time.monotonic()) if complete else None
        if polls % _POLLS_A_SECOND == 0:
            is_open = any(open_request.id == pending.id for open_request in open_requests(store, app))
            if not is_open and find_written(store, app, pending) is None:
                raise _failure(store, app, pending.name)
        if waited_s > timeout_s and not complete:
            raise _timeout_error(app, pending.name, stage_answers, timeout_s)
        time.sleep(1 / _POLLS_A_SECOND)
        polls += 1


def _failure(store: ObjectStore, app: str, name: str) -> Refused:
    details = (done.detail for done in list_operations(store, app, 20) if done.verb == "snapshot failed")
    reasons = (detail.removeprefix(f"{name}: ") for detail in details if detail.startswith(f"{name}: "))
    return Refused(f"snapshot {name!r} of {app} was not taken: {next(reasons, 'it was withdrawn')}")


def _timeout_error(app: str, name: str, answers: Mapping[str, StageAnswer], timeout_s: float) -> Unavailable:
    silent = {stage: instants.when(answer.head_ms) for stage, answer in answers.items() if answer.version is None}
    last_commits = ", ".join(f"{stage} (last commit {time})" for stage, time in silent.items())
    missing = [f"no answer from {last_commits}"] if silent else []
    missing += (
        f"{stage} awaits the marker on {', '.join(answer.awaited)}"
        for stage, answer in answers.items()
        if answer.awaited
    )
    who = "; ".join(missing) if missing else "no stage has committed a version yet"
    unresponsive = silent_stages(answers)
    return Unavailable(
        f"snapshot {name!r} of {app} was not complete after {timeout_s:g} s and is withdrawn: {who}",
        hint=f"is every stage running? (`slackwater status {app}`) "
        "--timeout waits longer, --no-wait leaves it to the next runner, --instant needs no running app"
        + (f"; {ask_whether_gone(app, unresponsive)}" if unresponsive else ""),
    )
