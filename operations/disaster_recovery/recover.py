"""`slackwater recover`: makes a replica a runnable app in its own store, and stops the app's old runner.

1. Check without changes: the cut is complete, the offsets to read from are known, and in-flight records are in the
   replica or still in Kafka.
2. Put a journal, which marks the replica as being recovered. From now on no round of replication copies to the
   replica, and a concurrent recovery is refused.
3. Fence: record the new root in the old store, and fence the writers there. Versions that were committed there since
   the replica's cut are copied, if they can be read.
4. Copy in-flight records to channels and internal topics of the new Kafka.
5. Commit a migration (`snapshot.change.migration`): each stage gets a version with the cut's content and the next
   epoch. If a recovery is killed after this step, a repeated call finishes it.
6. Mark the replica as the app. Before this step, runners refuse to start there.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...common import instants, runtime
from ...errors import Refused, SlackwaterError
from ...snapshot.change.first_versions import CopiedChannel, channel_topic, copy_channels, in_flight_reader
from ...snapshot.change.migrate import carry_out
from ...snapshot.change.migration import finish_migration
from ...snapshot.cut import replicas
from ...snapshot.cut.graph import Cut, channels
from ...snapshot.cut.in_flight import InFlight, channel_state
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.migrations import MIGRATIONS, MigratedStage, Migration
from ...snapshot.cut.replicas import Recovery, UnpublishedSinkRows, find_recovery
from ...snapshot.take.capture import read_captured
from ...store.objects.protocol import ObjectStore
from ...store.versions import codec, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.kinds import RECOVER
from ...store.versions.manifest import Input, Manifest, Output, Sink
from .fence import Primary, fence_runner, inspect_primary
from .recover_plan import FailoverTerms, RecoveryPlan, find_replica, make_plan
from .replicate import Replicator, RoundResult

_RECOVERED = re.compile(r"-r[0-9]{1,20}\Z")


def copy_and_plan_migrations(
    target: ObjectStore, recovery: RecoveryPlan, kafka: KafkaTopics, number: int
) -> dict[str, MigratedStage]:
    """Copy the in-flight records of a cut to Kafka. Returns the migration of each stage.

    After a crash, a repeated call copies the records again. Readers ignore the first copies, because no manifest names
    the attempts of the first copies. Raises `Corruption` if copied records are damaged, `Refused` if they no longer
    exist, and `Unavailable`.
    """
    app, cut = recovery.app, recovery.cut
    whole = _without_unread_channels(cut)
    carried = copy_channels(whole, app, kafka, in_flight_reader(target, whole, recovery.keeper))
    migrated = {}
    for stage, manifest in cut.stages.items():
        fresh_sinks, leftovers = _sinks(target, manifest, kafka, number, recovery.replicated.sinks)
        migrated[stage] = MigratedStage(
            rewound=manifest.version,
            inputs={
                name: _input(recovery, manifest, name, input_, carried) for name, input_ in manifest.inputs.items()
            },
            outputs={
                name: _output(target, cut, stage, name, output, kafka, carried)
                for name, output in manifest.outputs.items()
            },
            sinks=fresh_sinks,
            rests=leftovers,
        )
    for stage, head in recovery.heads.items():
        if stage not in migrated and not head.called:
            # The stage was retired at the cut, or had no version yet.
            version = recovery.replicated.stages.get(stage, 0)
            if not (head.retired and head.version == version):
                migrated[stage] = MigratedStage(rewound=version, retires=True)
    return migrated


def _without_unread_channels(cut: Cut) -> Cut:
    read = {(edge.sender, edge.name) for edge in channels(cut) if edge.receiver}
    stages = {
        stage: replace(at, outputs={name: output for name, output in at.outputs.items() if (stage, name) in read})
        for stage, at in cut.stages.items()
    }
    return Cut(cut.app, stages, cut.snapshot)


def _input(
    recovery: RecoveryPlan, manifest: Manifest, name: str, declared: Input, carried: Mapping[str, CopiedChannel]
) -> Input:
    if not declared.upstream:
        return recovery.inputs[manifest.stage, name][0]
    if name not in carried:
        return replace(declared, rows=0)  # its sender has no version yet
    at = carried[name]
    return replace(declared, topic=at.topic, offsets=at.starts[manifest.stage], rows=0, topic_id=at.topic_id)


def _output(
    target: ObjectStore,
    cut: Cut,
    stage: str,
    name: str,
    declared: Output,
    kafka: KafkaTopics,
    carried: Mapping[str, CopiedChannel],
) -> Output:
    if (copy := carried.get(name)) is not None:
        return Output(
            copy.topic, copy.ends, declared.sent, copy.attempts, copy.rows, declared.schema, topic_id=copy.topic_id
        )
    (edge,) = (edge for edge in channels(cut) if (edge.sender, edge.name) == (stage, name))
    nothing = dataclasses.replace(channel_state(target, cut, edge), attempts=(), rows=0, counts=())
    topic = channel_topic(cut.app, name)
    ends, _, _ = kafka.copy(nothing, topic, cut.app)
    return Output(topic, ends, declared.sent, schema=declared.schema, topic_id=kafka.topic_id(topic))


def _sinks(
    target: ObjectStore, manifest: Manifest, kafka: KafkaTopics, number: int, copied: tuple[UnpublishedSinkRows, ...]
) -> tuple[dict[str, Sink], dict[str, Sink]]:
    fresh_sinks, leftovers = {}, {}
    for name, sink in manifest.sinks.items():
        topic = f"{_RECOVERED.sub('', sink.topic)}-r{number}"
        end, topic_id = kafka.create_internal_topic(topic)
        # The lost app may have published versions of the same numbers to the table.
        period = str(runtime.ulid()) if sink.kind == "table" else ""
        at = Sink(topic, end, 1, sink.kind, topic_id=topic_id, id=period, table=sink.table)
        fresh_sinks[name] = at
        for leftover in copied:
            if (leftover.stage, leftover.sink) == (manifest.stage, name):
                state = _as_in_flight(leftover)
                ends, attempt, _ = kafka.copy(state, topic, manifest.app, read_captured(target, leftover.rows, state))
                leftovers[name] = replace(at, end=ends[0], attempts=(attempt,), rows=state.rows, sent=state.rows)
    return fresh_sinks, leftovers


def _as_in_flight(leftover: UnpublishedSinkRows) -> InFlight:
    rows = leftover.rows
    return InFlight(
        channel=leftover.sink,
        topic=rows.topic,
        sender=leftover.stage,
        receiver=leftover.stage,
        starts=rows.starts,
        ends=rows.ends,
        attempts=("kept",),
        rows=rows.rows,
        counts=rows.counts,
        after=rows.after,
        up_to=rows.up_to,
        schema=rows.schema,
    )


@dataclass(slots=True)
class StepTimer:
    """Stopwatch that measures the steps of a recovery."""

    elapsed: list[tuple[str, int]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = runtime.monotonic()
        yield
        self.elapsed.append((name, round((runtime.monotonic() - began) * 1_000)))


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Result of a recovery or of its dry run."""

    app: str
    root: str
    plan: RecoveryPlan | None
    versions: Mapping[str, int]
    fenced: str | None
    """Reason why the old store could not be fenced; empty if it was fenced, None if no attempt was made."""
    caught_up: RoundResult | None
    not_caught_up: str = ""
    """Error of the last round of replication; empty if that round succeeded or was skipped."""
    steps: tuple[tuple[str, int], ...] = ()
    resumed: bool = False
    done: bool = False


def recover(
    target: ObjectStore,
    app: str,
    kafka: KafkaTopics,
    *,
    primary: Callable[[str], ObjectStore] | None,
    terms: FailoverTerms,
    by: str,
    reader: KafkaTopics | None = None,
    as_it_is: bool = False,
    dry_run: bool = False,
    on_step: Callable[[str], None] = lambda _step: None,
) -> RecoveryResult:
    """Turn the replica of an app under `target` into a runnable app. Resumes an interrupted recovery.

    `primary` opens the root where the app ran; if it is None, the old store is not accessed. `reader` reads the app's
    old Kafka in a last round of replication; `as_it_is` skips that round. `on_step` receives a line for each step.
    Raises the errors of `StoredApp.recover`. A refused recovery changes nothing, except that the old store may be
    fenced.
    """
    clock = StepTimer()
    replica, _ = find_replica(target, app)
    if replica.state == "recovered":
        return RecoveryResult(app, target.url, None, {}, None, None, done=True)
    begun = find_recovery(target, app)
    decided = _find_decided_migration(target, app, begun)
    old = primary(replica.root) if primary is not None else None
    if decided is None:
        on_step(f"looking at {replica.root}")
        with clock.step("inspect the old store"):
            observed = inspect_primary(old, replica.root, app, replica.created_ms, target.url)
        plan = make_checked_plan(target, app, kafka, observed, terms, clock)
        if dry_run:
            return RecoveryResult(
                app, target.url, plan, {}, None, None, steps=tuple(clock.elapsed), resumed=begun is not None
            )
    elif dry_run:
        return RecoveryResult(app, target.url, None, {}, None, None, resumed=True)
    else:
        observed, plan = Primary(replica.root, {}), None
    note = begun or _begin(target, app, by)
    fenced, caught_up, why_not = None, None, ""
    if plan is not None:
        if old is not None and observed.heads:
            on_step(f"fencing {app} under {replica.root}")
            with clock.step("fence the old runner"):
                fenced = fence_runner(
                    old, observed, app, target.url, replica.created_ms, by=note.by, now_ms=instants.now_ms()
                )
            if not as_it_is:
                with clock.step("copy new commits"):
                    caught_up, why_not = _catch_up(old, target, app, by, reader)
                plan = make_plan(target, app, kafka, observed, terms)
        on_step("copying in-flight records")
        decided = _decide(target, plan, kafka, note, clock)
    assert decided is not None  # noqa: S101  it was decided, or is now
    with clock.step("prepare the run"):
        versions = _finish(target, app, decided, kafka, note, plan)
    took, resumed = tuple(clock.elapsed), begun is not None
    return RecoveryResult(app, target.url, plan, versions, fenced, caught_up, why_not, took, resumed=resumed)


def make_checked_plan(
    target: ObjectStore, app: str, kafka: KafkaTopics, observed: Primary, terms: FailoverTerms, clock: StepTimer
) -> RecoveryPlan:
    """Check that the app was not recovered from a different replica, and plan the recovery."""
    observed.check_not_recovered_elsewhere(app, target.url)
    with clock.step("check the replica and Kafka"):
        return make_plan(target, app, kafka, observed, terms)


def _begin(target: ObjectStore, app: str, by: str) -> Recovery:
    expected = Recovery(app, str(runtime.ulid()), by, instants.now_ms())
    existing = codec.add(
        target, keys.recovery_journal(app), expected, key_of=lambda recovery: keys.recovery_journal(recovery.app)
    )
    if existing != expected:
        raise Refused(
            f"{existing.by} is recovering {app} from {target.url} at the same time",
            hint="wait for that recovery; if it was killed, run the same command again to finish it",
        )
    return existing


def _find_decided_migration(target: ObjectStore, app: str, begun: Recovery | None) -> Migration | None:
    last = MIGRATIONS.newest(target, app) if begun is not None else None
    return last if last is not None and begun is not None and last.id == begun.id else None


def _catch_up(
    store: ObjectStore, target: ObjectStore, app: str, by: str, reader: KafkaTopics | None
) -> tuple[RoundResult | None, str]:
    copies = Replicator(store, target, app, by, reader, recovering=True)
    try:
        return copies.run_round(), ""
    except SlackwaterError as error:
        return None, error.message


def _decide(target: ObjectStore, plan: RecoveryPlan, kafka: KafkaTopics, note: Recovery, clock: StepTimer) -> Migration:
    app, last = plan.app, MIGRATIONS.newest(target, plan.app)
    number = last.number + 1 if last is not None else 1
    with clock.step("copy in-flight records"):
        migrated = copy_and_plan_migrations(target, plan, kafka, number)
    if plan.topics != note.topics:
        codec.put(target, keys.recovery_journal(app), replace(note, topics=dict(plan.topics)))
    description = (
        f"from the replica's cut {plan.replicated.number}, seen {instants.format_iso(plan.replicated.seen_ms)}"
    )
    with clock.step("commit"):
        snapshot = plan.replicated.snapshot or f"recovery-{number}"
        now_ms = instants.now_ms()
        carry_out(target, app, number, migrated, snapshot, description, by=note.by, now_ms=now_ms, recovery=note.id)
    decided = MIGRATIONS.find(target, number, app)
    assert decided is not None  # noqa: S101  it was just put
    return decided


def _finish(
    target: ObjectStore, app: str, decided: Migration, kafka: KafkaTopics, note: Recovery, plan: RecoveryPlan | None
) -> dict[str, int]:
    finish_migration(target, decided, now_ms=instants.now_ms())
    versions: dict[str, int] = {}
    for stage, step in decided.stages.items():
        head = history.head(target, app, stage)
        if head is None or step.retires:
            continue
        if step.rests and head.traits is RECOVER and head.rewind is not None:
            head = amend(target, head, _with_leftovers(step.rests), by=note.by, now_ms=instants.now_ms()).manifest
        versions[stage] = head.version
        kafka.commit_positions(app, stage, {read.topic: read.offsets for read in head.inputs.values()})
    replica, recovery = replicas.find_replica_state(target, app), find_recovery(target, app)
    assert replica is not None  # noqa: S101  it was there
    if replica.state == "copy":
        topics = plan.topics if plan is not None else recovery.topics if recovery is not None else {}
        now = replace(replica, state="recovered", topics=dict(topics), by=note.by, time_ms=instants.now_ms())
        codec.put(target, keys.replica(app), now)
    return versions


def _with_leftovers(leftovers: Mapping[str, Sink]) -> Amendment:
    def requires(newest: Manifest) -> bool:
        return newest.traits is RECOVER and newest.rewind is not None

    def update(draft: Manifest) -> Manifest:
        sinks = {
            name: replace(leftovers[name], since=sink.since) if name in leftovers else sink
            for name, sink in draft.sinks.items()
        }
        return replace(draft, sinks=sinks)

    return Amendment("recover", update, requires)
