"""Snapshots of a running app: request, answers of the stages, and writing of the snapshot.

Until the request is deleted, the newest manifest of each stage states the version that the stage recorded, and the
channels whose marker the stage awaits. So any process can complete the snapshot after reading the newest manifest of
each stage.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...chandy_lamport.events import ProtocolError
from ...chandy_lamport.global_state import StageChannels, completed_cut
from ...common import instants, runtime
from ...errors import Corruption, Refused, Unavailable
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, VersionSpan
from ..cut.graph import Cut
from ..cut.in_flight import InFlight, in_flight
from ..cut.kafka_topics import KafkaTopics
from ..cut.moments import heads_of, retired_since
from ..cut.refs import check_new_name
from ..cut.resolve import resolve
from ..cut.stored import (
    SNAPSHOT_REQUESTS,
    SNAPSHOTS,
    Snapshot,
    SnapshotKind,
    SnapshotRequest,
    check_not_asked,
    find_snapshot,
    notify_runners,
    open_requests,
    own_request,
    withdraw_request,
)
from ..under_way.exclusion import AppCondition, Intent, check_exclusion
from .audit_log import list_operations, record_operation_once
from .capture import capture_in_flight, delete_captured
from .snapshots import name_is_taken, pin_cut

RETRY_WINDOW_MS = 600_000
"""After completion, an equal request within this time (ms) is a retry and returns the same snapshot.

A later request fails, because the name is in use.
"""


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """Answer of a stage to an open snapshot request, read from the stage's head."""

    version: int | None
    awaited: tuple[str, ...]
    """Channels whose marker has not arrived; empty until the stage has recorded a version."""
    head_ms: int
    asked: bool = True
    """True if the stage has certainly seen the request: it reads only users' topics, or a sender has answered.

    A stage that has certainly seen the request, and does not answer, is not running.
    """

    @property
    def finished(self) -> bool:
        return self.version is not None and not self.awaited


def request_snapshot(store: ObjectStore, app: str, name: str, by: str) -> SnapshotRequest:
    """Request a snapshot of a running app, whose stages answer one after the other.

    Raises `Usage` (invalid name), `NotFound` (the app does not exist) and `Refused` (the name is taken or requested
    already; every stage is retired; or keys are being forgotten).
    """
    check_new_name("snapshot", name)
    apps.read_app(store, app)
    if retired_since(store, app, history.list_stages(store, app)):
        raise Refused(
            f"every stage of {app} is retired, so none can answer",
            hint=f"to bring them back, run a program that declares them; {app}/STAGE is the last moment of a stage",
        )
    if (written := find_snapshot(store, app, name)) is not None:
        raise name_is_taken(written)
    check_not_asked(store, app, name)
    check_exclusion(store, app, Intent.SNAPSHOT)
    migration = min((head.migration for head in _active_heads(store, app).values()), default=0)
    ulid = runtime.ulid()
    pending = SnapshotRequest(id=str(ulid), name=name, created_ms=ulid.milliseconds, by=by, migration=migration)
    # The key is unique, so it is safe to retry a put whose response was lost.
    SNAPSHOT_REQUESTS.put(store, pending, app)
    try:
        # A forget checks for requests only after it has written its journal, so check again.
        check_exclusion(store, app, Intent.SNAPSHOT, AppCondition.FORGETTING)
    except Refused:
        withdraw_request(store, app, pending)
        raise
    notify_runners(store, app)
    return pending


def find_earlier_snapshot(
    store: ObjectStore, app: str, name: str, kind: SnapshotKind, *, by: str, now_ms: int
) -> Snapshot | None:
    """Return the snapshot that an interrupted earlier call has taken under this name; None for none.

    The snapshot must be of this kind, by the same user on the same machine, and at most `RETRY_WINDOW_MS` old. Deletes
    the request of the earlier call.
    """
    snapshot = find_snapshot(store, app, name)
    if (
        snapshot is None
        or (snapshot.kind, snapshot.by) != (kind, by)
        or now_ms - snapshot.completed_ms > RETRY_WINDOW_MS
    ):
        return None
    for open_request in open_requests(store, app):
        if open_request.id == snapshot.id:
            withdraw_request(store, app, open_request)
    return snapshot


def read_answers(store: ObjectStore, app: str, request: SnapshotRequest) -> dict[str, StageAnswer]:
    """Read the answer of each active stage to a snapshot request. One read for each stage.

    Retired stages and stages without a version are left out: they are in no cut.
    """
    heads = _active_heads(store, app)
    result = {}
    for stage, head in heads.items():
        senders = {source.upstream for source in head.inputs.values() if source.upstream}
        is_asked = not senders or any(name in heads and request.id in heads[name].recorded for name in senders)
        result[stage] = StageAnswer(
            head.recorded.get(request.id), head.awaited.get(request.id, ()), head.time_ms, is_asked
        )
    return result


def try_complete(
    store: ObjectStore, app: str, request: SnapshotRequest, reader: KafkaTopics | None = None
) -> Snapshot | None:
    """Write the snapshot if every stage has finished; returns None while a stage has not finished.

    Any process may call this, repeatedly. Without a `reader`, returns None if the snapshot has in-flight records: a
    process with a reader must capture these. A request that can never be answered is deleted.

    Raises `Refused` (another snapshot took the name; in-flight records are gone from Kafka; or a stage reads a channel
    that no stage has ever written, so that no marker can reach it), `Corruption` (the stages captured other records
    than the cut has in flight) and `Unavailable` (storage or Kafka did not answer).
    """
    heads = _active_heads(store, app)
    versions = _cut_by_markers(app, heads, request)
    if versions is None:
        # Another process may have completed the snapshot; the stages then drop their answers.
        return find_written(store, app, request)
    cut = Cut(app, {stage: history.read(store, app, stage, version) for stage, version in versions.items()})
    states = tuple(state for state in in_flight(store, cut) if state.receiver)
    _check_captures(heads, cut, states, request)
    if states and reader is None:
        return None
    captured = capture_in_flight(store, app, request.name, states, reader) if reader is not None else ()
    if all(other.id != request.id for other in open_requests(store, app)):
        # The request was withdrawn, or another process has completed it meanwhile.
        delete_captured(store, captured)
        return find_written(store, app, request)
    snapshot = Snapshot(
        name=request.name,
        id=request.id,
        app=app,
        created_ms=request.created_ms,
        completed_ms=instants.now_ms(),
        kind="markers",
        stages=versions,
        by=request.by,
        channels=captured,
    )
    written = SNAPSHOTS.add(store, snapshot)
    if written.channels != captured:
        delete_captured(store, captured)
    withdraw_request(store, app, request)
    if written.id != request.id:
        raise Refused(
            f"snapshot {request.name!r} of {app} was taken by {written.by} while this one was under way",
            hint="choose another name",
        )
    return written


def find_written(store: ObjectStore, app: str, request: SnapshotRequest) -> Snapshot | None:
    written = find_snapshot(store, app, request.name)
    return written if written is not None and written.id == request.id else None


def _check_captures(
    heads: Mapping[str, Manifest], cut: Cut, states: tuple[InFlight, ...], request: SnapshotRequest
) -> None:
    for state in states:
        actual = heads[state.receiver].captured.get(request.id, {}).get(state.channel)
        expected = VersionSpan(state.after, state.up_to)
        if actual != expected:
            raise Corruption(
                f"snapshot {request.name!r} of {cut.app}: stage {state.receiver!r} captured {_describe_span(actual)} "
                f"of channel {state.channel!r}; the cut has {_describe_span(expected)} in flight",
                object_key=SNAPSHOT_REQUESTS.key(request, cut.app),
            )


def _describe_span(span: VersionSpan | None) -> str:
    return f"versions {span.after + 1} to {span.up_to}" if span else "nothing"


def _active_heads(store: ObjectStore, app: str) -> dict[str, Manifest]:
    heads = heads_of(store, app, history.list_stages(store, app))
    return {
        stage: head for stage, head in heads.items() if not head.retired or (head.called and head.called not in heads)
    }


def _cut_by_markers(app: str, heads: Mapping[str, Manifest], request: SnapshotRequest) -> dict[str, int] | None:
    """Return the recorded versions if every stage has finished the snapshot by the marker protocol; else None."""
    if not heads:
        return None
    network, finished = {}, {}
    for stage, head in heads.items():
        inputs = frozenset(name for name, source in head.inputs.items() if source.upstream)
        network[stage] = StageChannels(inputs, frozenset(head.outputs))
        if request.id in head.recorded and not head.awaited.get(request.id):
            finished[stage] = head.recorded[request.id]
    try:
        return completed_cut(network, finished)
    except ProtocolError as error:
        raise Refused(
            f"no snapshot of {app} can complete: {error}", hint="run every stage once, or take it with --instant"
        ) from error


_POLLS_A_SECOND = 10
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """Progress of a requested snapshot."""

    waited_s: float
    answers: Mapping[str, StageAnswer]
    complete: bool


def take_snapshot(
    store: ObjectStore,
    app: str,
    name: str,
    *,
    by: str,
    reader: KafkaTopics | None = None,
    instant: bool = False,
    timeout_s: float = 60.0,
    on_progress: Callable[[SnapshotProgress], None] = lambda _look: None,
) -> tuple[Snapshot, bool]:
    """Take a snapshot of a running app, or pin its newest moment. Safe to repeat after an interruption.

    With a `reader` of Kafka, this process captures in-flight records. Without a `reader`, the app captures them. An
    `instant` snapshot pins the newest consistent cut without asking any stage; without a `reader`, it has no in-flight
    records. The request is withdrawn after `timeout_s`. `on_progress` receives the stages' answers about ten times a
    second.

    Returns the snapshot, and True if an earlier call had taken it. Raises `Usage` (invalid name), `NotFound` (the app
    does not exist, or has no version yet), `Refused` (the name is taken, the app could not complete the snapshot, or
    in-flight records are gone), `Corruption` (in-flight records are damaged) and `Unavailable` (a stage, storage or
    Kafka did not answer in time).
    """
    now_ms = instants.now_ms()
    kind: SnapshotKind = "instant" if instant else "markers"
    snapshot = earlier = find_earlier_snapshot(store, app, name, kind, by=by, now_ms=now_ms)
    if snapshot is None and instant:
        snapshot = pin_cut(store, resolve(store, app, now_ms=now_ms), name, by=by, reader=reader)
    elif snapshot is None:
        own = own_request(store, app, name, by)
        if own is not None:
            # The earlier attempt may have died before it notified the runners.
            notify_runners(store, app)
        try:
            snapshot = _wait(store, app, own or request_snapshot(store, app, name, by), reader, timeout_s, on_progress)
        except BaseException:
            # Find the request by name, because Ctrl-C may have come after the put and before it returned.
            since_ms = own.created_ms if own else now_ms
            for open_request in open_requests(store, app):
                if (open_request.name, open_request.by) == (name, by) and open_request.created_ms >= since_ms:
                    withdraw_request(store, app, open_request)
            raise
    record_operation_once(store, app, "snapshot take", name, by, since_ms=snapshot.created_ms)
    return snapshot, earlier is not None


def has_only_attached_stages(store: ObjectStore, app: str) -> bool:
    """Return True if all stages are attached Spark queries, which answer no snapshot request.

    Any version of such a stage is consistent by itself.
    """
    heads = heads_of(store, app, history.list_stages(store, app)).values()
    return bool(heads) and all(head.attached is not None for head in heads)


def request_without_waiting(store: ObjectStore, app: str, name: str, *, by: str) -> tuple[SnapshotRequest, bool]:
    """Request a snapshot without waiting for it; returns the request, and True if an earlier call had made it.

    Raises the errors of `request_snapshot`.
    """
    own = own_request(store, app, name, by)
    pending = own or request_snapshot(store, app, name, by)
    record_operation_once(store, app, "snapshot take", name, by, since_ms=pending.created_ms)
    return pending, own is not None


def silent_stages(answers: Mapping[str, StageAnswer]) -> list[str]:
    if all(answer.version is None for answer in answers.values()):
        return []
    return [stage for stage, answer in answers.items() if answer.version is None and answer.asked]


def retire_question(app: str, stages: Sequence[str]) -> str:
    commands = " and ".join(f"`slackwater retire {app}/{stage}`" for stage in stages)
    subject = f"{', '.join(stages)} still in the program? if {'it is' if len(stages) == 1 else 'one is'} gone for good"
    return f"{'is' if len(stages) == 1 else 'are'} {subject}: {commands}"


def _wait(
    store: ObjectStore,
    app: str,
    pending: SnapshotRequest,
    reader: KafkaTopics | None,
    timeout_s: float,
    on_progress: Callable[[SnapshotProgress], None],
) -> Snapshot:
    started = runtime.monotonic()
    answered: float | None = None
    stage_answers: dict[str, StageAnswer] = {}
    polls = 0
    while True:
        snapshot = find_snapshot(store, app, pending.name)
        if answered is not None and snapshot is None:
            own_turn = runtime.monotonic() - answered > _GRACE_S
            snapshot = try_complete(store, app, pending, reader if own_turn else None)
        waited_s = runtime.monotonic() - started
        if snapshot is not None and snapshot.id == pending.id:
            # The stages may have dropped their answers already.
            times = {stage: answer.head_ms for stage, answer in stage_answers.items()}
            final = {
                stage: StageAnswer(version, (), times.get(stage, snapshot.completed_ms))
                for stage, version in snapshot.stages.items()
            }
            on_progress(SnapshotProgress(waited_s, final, complete=True))
            return snapshot
        stage_answers = read_answers(store, app, pending)
        on_progress(SnapshotProgress(waited_s, stage_answers, complete=False))
        complete = bool(stage_answers) and all(answer.finished for answer in stage_answers.values())
        answered = (answered or runtime.monotonic()) if complete else None
        if polls % _POLLS_A_SECOND == 0:
            is_open = any(open_request.id == pending.id for open_request in open_requests(store, app))
            if not is_open and find_written(store, app, pending) is None:
                raise _failure(store, app, pending.name)
        if waited_s > timeout_s and not complete:
            raise _timeout_error(app, pending.name, stage_answers, timeout_s)
        runtime.sleep(1 / _POLLS_A_SECOND)
        polls += 1


def _failure(store: ObjectStore, app: str, name: str) -> Refused:
    details = (done.detail for done in list_operations(store, app, 20) if done.verb == "snapshot failed")
    reasons = (detail.removeprefix(f"{name}: ") for detail in details if detail.startswith(f"{name}: "))
    return Refused(f"snapshot {name!r} of {app} was not taken: {next(reasons, 'it was withdrawn')}")


def _timeout_error(app: str, name: str, answers: Mapping[str, StageAnswer], timeout_s: float) -> Unavailable:
    silent = {
        stage: instants.format_with_age(answer.head_ms) for stage, answer in answers.items() if answer.version is None
    }
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
        + (f"; {retire_question(app, unresponsive)}" if unresponsive else ""),
    )
