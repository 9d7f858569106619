"""Taking a snapshot of a running app: ask, see who has answered, and write it when all have.

Each stage carries the version it recorded, and the channels whose marker it awaits, in its head manifest until the
request is gone. So whoever completes the snapshot needs one look at each head, and anybody may.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ulid import ULID

from ...chandy_lamport.events import ProtocolError
from ...chandy_lamport.global_state import Ports, completed
from ...common import instants
from ...errors import Corruption, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Span
from ..cut.graph import Cut
from ..cut.in_flight import InFlight, in_flight
from ..cut.kafka_topics import Topics
from ..cut.moments import heads_of, retired_since
from ..cut.refs import check_new_name
from ..cut.stored import (
    REQUESTS,
    SNAPSHOTS,
    Request,
    Snapshot,
    SnapshotKind,
    cancel,
    check_not_asked,
    find_snapshot,
    notify,
    open_requests,
)
from ..under_way.exclusion import Intent, check_exclusion
from ..under_way.signs import UnderWay
from .capture import capture, discard
from .snapshots import taken

REPEAT_MS = 600_000
"""Who asks again for the same snapshot within this time of its completion repeats a call that was interrupted, and
means that snapshot. Later it is another one, whose name is taken."""


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """What a stage's head says about a snapshot that is under way."""

    version: int | None
    """The version it recorded; None when no marker has reached it."""
    awaited: tuple[str, ...]
    """The channels whose marker has not arrived; empty when it has finished, or has not begun."""
    head_ms: int
    """When it last committed anything."""
    asked: bool = True
    """Whether the request has reached it: it reads topics alone, or a stage before it has sent it a marker. So when it
    does not answer, that is because it does not run."""

    @property
    def finished(self) -> bool:
        """Whether the stage has done its part."""
        return self.version is not None and not self.awaited


def request(store: ObjectStore, app: str, name: str, by: str) -> Request:
    """Ask a running app for a snapshot; its stages answer one after the other.

    Raises `Usage` (no snapshot can have this name), `NotFound` (there is no such app) and `Refused` (the name is taken,
    or asked for already; or every stage of the app is retired, or keys are being forgotten).
    """
    check_new_name("snapshot", name)
    apps.read_app(store, app)
    if retired_since(store, app, history.list_stages(store, app)):
        raise Refused(
            f"every stage of {app} is retired: none would answer",
            hint=f"a program that has the stages brings them back; {app}/STAGE is the last of one",
        )
    if (written := find_snapshot(store, app, name)) is not None:
        raise taken(written)
    check_not_asked(store, app, name)
    check_exclusion(store, app, Intent.SNAPSHOT)
    through = min((head.migration for head in _active_heads(store, app).values()), default=0)
    ulid = ULID()
    asked = Request(id=str(ulid), name=name, created_ms=ulid.milliseconds, by=by, migration=through)
    # A key of its own: nobody else writes it, and a write repeated after a lost answer does no harm.
    REQUESTS.put(store, asked, app)
    try:
        # Who forgets keys looks for requests once its note is there.
        check_exclusion(store, app, Intent.SNAPSHOT, UnderWay.FORGETTING)
    except Refused:
        cancel(store, app, asked)
        raise
    notify(store, app)
    return asked


def taken_already(
    store: ObjectStore, app: str, name: str, kind: SnapshotKind, *, by: str, now_ms: int
) -> Snapshot | None:
    """The snapshot of that name, if it is what a call that is repeated has taken.

    That is, in the same way, by the same user on the same machine, and within `REPEAT_MS`. What that call may have left
    of its request is removed.
    """
    found = find_snapshot(store, app, name)
    if found is None or (found.kind, found.by) != (kind, by) or now_ms - found.completed_ms > REPEAT_MS:
        return None
    for asked in open_requests(store, app):
        if asked.id == found.id:
            cancel(store, app, asked)
    return found


def answers(store: ObjectStore, app: str, request: Request) -> dict[str, StageAnswer]:
    """What each stage has answered. Reads each head once.

    A stage that never committed a version has no part in any cut and is left out, and so is one that is retired.
    """
    heads = _active_heads(store, app)
    found = {}
    for stage, head in heads.items():
        senders = {source.upstream for source in head.inputs.values() if source.upstream}
        asked = not senders or any(name in heads and request.id in heads[name].recorded for name in senders)
        found[stage] = StageAnswer(head.recorded.get(request.id), head.awaited.get(request.id, ()), head.time_ms, asked)
    return found


def try_complete(store: ObjectStore, app: str, request: Request, reader: Topics | None = None) -> Snapshot | None:
    """Write the snapshot if every stage has finished; None while one has not.

    Anybody may call it, any number of times. Without a `reader`, a snapshot with records in flight is left to somebody
    who has one. Raises `Refused` (another snapshot took the name meanwhile, or a stage reads a channel that no stage
    has ever written, so that no marker can reach it, or records in flight are gone from Kafka. The request is deleted
    where it can never be answered), `Corruption` (what the stages captured is not what the cut says is in flight) and
    `Unavailable` (storage or Kafka did not answer).
    """
    heads = _active_heads(store, app)
    versions = _cut_by_markers(app, heads, request)
    if versions is None:
        # Once complete, the request goes and the stages forget: another completer may have been faster.
        return find_written(store, app, request)
    cut = Cut(app, {stage: history.read(store, app, stage, version) for stage, version in versions.items()})
    states = tuple(state for state in in_flight(store, cut) if state.receiver)
    _check_captures(heads, cut, states, request)
    if states and reader is None:
        return None
    captured = capture(store, app, request.name, states, reader) if reader is not None else ()
    if all(other.id != request.id for other in open_requests(store, app)):
        # Withdrawn, or completed by somebody else, meanwhile.
        discard(store, captured)
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
        discard(store, captured)
    cancel(store, app, request)
    if written.id != request.id:
        raise Refused(
            f"snapshot {request.name!r} of {app} was taken by {written.by} while this one was under way",
            hint="ask again with another name",
        )
    return written


def find_written(store: ObjectStore, app: str, request: Request) -> Snapshot | None:
    """The snapshot that a request asked for; None while it is not complete."""
    written = find_snapshot(store, app, request.name)
    return written if written is not None and written.id == request.id else None


def _check_captures(heads: Mapping[str, Manifest], cut: Cut, states: tuple[InFlight, ...], request: Request) -> None:
    """See that what the stages captured, by the protocol, is what the cut's manifests say is in flight."""
    for state in states:
        found = heads[state.receiver].captured.get(request.id, {}).get(state.channel)
        due = Span(state.after, state.up_to)
        if found != due:
            raise Corruption(
                f"snapshot {request.name!r} of {cut.app}: stage {state.receiver!r} captured {_show(found)} of channel "
                f"{state.channel!r}; the cut has {_show(due)} in flight",
                object_key=REQUESTS.key(request, cut.app),
            )


def _show(span: Span | None) -> str:
    return f"versions {span.after + 1} to {span.up_to}" if span else "nothing"


def _active_heads(store: ObjectStore, app: str) -> dict[str, Manifest]:
    """The newest versions of the stages that answer; one that is just being renamed is among them under one name."""
    found = heads_of(store, app, history.list_stages(store, app))
    return {
        stage: head for stage, head in found.items() if not head.retired or (head.called and head.called not in found)
    }


def _cut_by_markers(app: str, heads: Mapping[str, Manifest], request: Request) -> dict[str, int] | None:
    """The version of each stage once the protocol says that the snapshot is complete, None before."""
    if not heads:
        return None
    network, finished = {}, {}
    for stage, head in heads.items():
        inputs = frozenset(name for name, source in head.inputs.items() if source.upstream)
        network[stage] = Ports(inputs, frozenset(head.outputs))
        if request.id in head.recorded and not head.awaited.get(request.id):
            finished[stage] = head.recorded[request.id]
    try:
        return completed(network, finished)
    except ProtocolError as error:
        raise Refused(
            f"no snapshot of {app} can complete: {error}",
            hint="run every stage once, or take it with --instant",
        ) from error
