"""`slackwater recover`: an app goes on from its replica, where that lies; whoever still runs it elsewhere is stopped.

1. Check everything, and change nothing: the cut is whole, it is known where topics are read on, what was on its way is
   kept or still in Kafka.
2. Note in the replica that it is recovered. From here on nothing is copied there any more, and of two at once one is
   refused.
3. Fence: say at the old root where the app runs from now on, and take its stages from their writer. What was committed
   there since the replica's cut is copied once more, if it can be read.
4. Copy what was on its way into channels and internal topics of this Kafka.
5. Decide, by a migration (`snapshot.change.migration`): each stage gets a version that has the cut's content, with the
   next epoch, and reads on from there. Whoever dies after that, the same call finishes it.
6. Say that the replica is the app from now on. Before that no runner starts there.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace
from ulid import ULID

from ...common import instants
from ...errors import Refused, SlackwaterError
from ...snapshot.change.first_versions import Carried, carry, channel_topic, kept_or_in_kafka
from ...snapshot.change.migrate import carry_out
from ...snapshot.change.migration import finish
from ...snapshot.cut import replicas
from ...snapshot.cut.graph import Cut, channels
from ...snapshot.cut.in_flight import InFlight, channel_state
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.migrations import MIGRATIONS, MigratedStage, Migration
from ...snapshot.cut.replicas import Recovery, SinkRest, find_recovery
from ...snapshot.take.capture import read
from ...store.objects.protocol import ObjectStore
from ...store.versions import codec, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.kinds import RECOVER
from ...store.versions.manifest import Input, Manifest, Output, Sink
from .fence import Primary, fence, look
from .recover_plan import FailoverTerms, RecoveryPlan, find_replica, make_plan
from .replicate import Replicator, Round

_RECOVERED = re.compile(r"-r[0-9]{1,20}\Z")


def steps(target: ObjectStore, found: RecoveryPlan, kafka: Topics, number: int) -> dict[str, MigratedStage]:
    """What becomes of each stage, once what was on its way has been copied.

    Copied again after a crash, what a first copy has left is of attempts that nobody names. Raises `Corruption` where
    what was kept is damaged, `Refused` where it is gone, and `Unavailable`.
    """
    app, cut = found.app, found.cut
    whole = _with_readers(cut)
    carried = carry(whole, app, kafka, kept_or_in_kafka(target, whole, found.keeper))
    made = {}
    for stage, was in cut.stages.items():
        begun, rests = _sinks(target, was, kafka, number, found.replicated.sinks)
        made[stage] = MigratedStage(
            rewound=was.version,
            inputs={name: _input(found, was, name, each, carried) for name, each in was.inputs.items()},
            outputs={
                name: _output(target, cut, stage, name, each, kafka, carried) for name, each in was.outputs.items()
            },
            sinks=begun,
            rests=rests,
        )
    for stage, head in found.heads.items():
        if stage not in made and not head.called:
            # Retired at the cut, or not begun.
            version = found.replicated.stages.get(stage, 0)
            if not (head.retired and head.version == version):
                made[stage] = MigratedStage(rewound=version, retires=True)
    return made


def _with_readers(cut: Cut) -> Cut:
    """The cut without channels that nobody reads: nobody waits for what they hold."""
    read = {(edge.sender, edge.name) for edge in channels(cut) if edge.receiver}
    stages = {
        stage: replace(at, outputs={name: each for name, each in at.outputs.items() if (stage, name) in read})
        for stage, at in cut.stages.items()
    }
    return Cut(cut.app, stages, cut.snapshot)


def _input(found: RecoveryPlan, was: Manifest, name: str, known: Input, carried: Mapping[str, Carried]) -> Input:
    if not known.upstream:
        return found.inputs[was.stage, name][0]
    if name not in carried:
        return replace(known, rows=0)  # its sender has not begun
    at = carried[name]
    return replace(known, topic=at.topic, offsets=at.starts[was.stage], rows=0, topic_id=at.topic_id)


def _output(
    target: ObjectStore,
    cut: Cut,
    stage: str,
    name: str,
    known: Output,
    kafka: Topics,
    carried: Mapping[str, Carried],
) -> Output:
    if (had := carried.get(name)) is not None:
        return Output(had.topic, had.ends, known.sent, had.attempts, had.rows, known.schema, topic_id=had.topic_id)
    (edge,) = (each for each in channels(cut) if (each.sender, each.name) == (stage, name))
    nothing = channel_state(target, cut, edge)
    topic = channel_topic(cut.app, name)
    ends, _, _ = kafka.copy(_without_attempts(nothing), topic, cut.app)
    return Output(topic, ends, known.sent, schema=known.schema, topic_id=kafka.topic_id(topic))


def _without_attempts(state: InFlight) -> InFlight:
    return dataclasses.replace(state, attempts=(), rows=0, counts=())


def _sinks(
    target: ObjectStore, was: Manifest, kafka: Topics, number: int, kept: tuple[SinkRest, ...]
) -> tuple[dict[str, Sink], dict[str, Sink]]:
    """The sinks of a stage, begun anew with no rows; and behind that what they had still to publish.

    Each has another internal topic: the place that Kafka may have of the former one is of versions that this app will
    have otherwise.
    """
    begun, rests = {}, {}
    for name, sink in was.sinks.items():
        topic = f"{_RECOVERED.sub('', sink.topic)}-r{number}"
        end, topic_id = kafka.internal(topic)
        at = Sink(topic, end, 1, sink.kind, topic_id=topic_id)
        begun[name] = at
        for rest in kept:
            if (rest.stage, rest.sink) == (was.stage, name):
                state = _as_state(rest)
                ends, attempt, _ = kafka.copy(state, topic, was.app, read(target, rest.rows, state))
                rests[name] = replace(at, end=ends[0], attempts=(attempt,), rows=state.rows, sent=state.rows)
    return begun, rests


def _as_state(rest: SinkRest) -> InFlight:
    kept = rest.rows
    return InFlight(
        channel=rest.sink,
        topic=kept.topic,
        sender=rest.stage,
        receiver=rest.stage,
        starts=kept.starts,
        ends=kept.ends,
        attempts=("kept",),
        rows=kept.rows,
        counts=kept.counts,
        after=kept.after,
        up_to=kept.up_to,
        schema=kept.schema,
    )


@dataclass(slots=True)
class Clock:
    """What each step took."""

    took: list[tuple[str, int]] = field(default_factory=list)
    """Milliseconds, by step."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measures what is done inside."""
        began = time.monotonic()
        yield
        self.took.append((name, round((time.monotonic() - began) * 1_000)))


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery did, or would do."""

    app: str
    root: str
    plan: RecoveryPlan | None
    """None where an earlier call had done all, or had decided it."""
    versions: Mapping[str, int]
    """The version of each stage that it goes on from; empty where it was only looked at."""
    fenced: str | None
    """Why its former place could not be told; empty where it was, None where that was not tried."""
    caught_up: Round | None
    """What was copied at the last, where it was."""
    not_caught_up: str = ""
    """Why nothing was, where the former place could be reached."""
    steps: tuple[tuple[str, int], ...] = ()
    """What took how long, in milliseconds."""
    resumed: bool = False
    """Whether an earlier call had begun it."""
    done: bool = False
    """Whether an earlier call had done all of it."""


def recover(
    target: ObjectStore,
    app: str,
    kafka: Topics,
    *,
    primary: Callable[[str], ObjectStore] | None,
    terms: FailoverTerms,
    by: str,
    reader: Topics | None = None,
    as_it_is: bool = False,
    dry_run: bool = False,
    doing: Callable[[str], None] = lambda _what: None,
) -> Recovered:
    """Make an app of its replica under `target`, ready to run there. Done again, it finishes what was begun.

    `primary` opens the root where the app ran, None to leave that alone; `reader` reads the Kafka that the app had
    there, for what is copied at the last. With `as_it_is` nothing is: the replica's cut counts. `doing` is told what
    goes on. Raises as `StoredApp.recover`: what is refused has changed nothing, but where it ran may have been fenced.
    """
    clock = Clock()
    found, _ = find_replica(target, app)
    if found.state == "recovered":
        return Recovered(app, target.url, None, {}, None, None, done=True)
    begun = find_recovery(target, app)
    decided = _decided(target, app, begun)
    old = primary(found.root) if primary is not None else None
    if decided is None:
        doing(f"looking at {found.root}")
        with clock.step("look at where it ran"):
            there = look(old, found.root, app, found.created_ms, target.url)
        there.check_not_left(app, target.url)
        with clock.step("check the replica and Kafka"):
            plan = make_plan(target, app, kafka, there, terms)
        if dry_run:
            return Recovered(app, target.url, plan, {}, None, None, steps=tuple(clock.took), resumed=begun is not None)
    elif dry_run:
        return Recovered(app, target.url, None, {}, None, None, resumed=True)
    else:
        there, plan = Primary(found.root, {}), None
    note = begun or _begin(target, app, by)
    fenced, caught_up, why_not = None, None, ""
    if plan is not None:
        if old is not None and there.heads:
            doing(f"fencing {app} under {found.root}")
            with clock.step("fence where it ran"):
                fenced = fence(old, there, app, target.url, found.created_ms, by=note.by, now_ms=instants.now_ms())
            if not as_it_is:
                with clock.step("copy what is new there"):
                    caught_up, why_not = _catch_up(old, target, app, by, reader)
                plan = make_plan(target, app, kafka, there, terms)
        doing("carrying what was on its way")
        decided = _decide(target, plan, kafka, note, clock)
    assert decided is not None  # noqa: S101  it was decided, or is now
    with clock.step("make it ready to run"):
        versions = _finish(target, app, decided, kafka, note, plan)
    return Recovered(
        app,
        target.url,
        plan,
        versions,
        fenced,
        caught_up,
        why_not,
        tuple(clock.took),
        resumed=begun is not None,
    )


def _begin(target: ObjectStore, app: str, by: str) -> Recovery:
    """Note that the app is being recovered, by whom. Raises `Refused` where somebody else is faster."""
    wanted = Recovery(app, str(ULID()), by, instants.now_ms())
    found = codec.add(target, keys.recovery(app), wanted, under=lambda each: keys.recovery(each.app))
    if found != wanted:
        raise Refused(
            f"{app} is being recovered from {target.url} by {found.by} at this moment",
            hint="let that end; where it has died, the same command finishes it",
        )
    return found


def _decided(target: ObjectStore, app: str, begun: Recovery | None) -> Migration | None:
    """The decision of a recovery that was begun; None for none."""
    last = MIGRATIONS.newest(target, app) if begun is not None else None
    return last if last is not None and begun is not None and last.id == begun.id else None


def _catch_up(
    store: ObjectStore, target: ObjectStore, app: str, by: str, reader: Topics | None
) -> tuple[Round | None, str]:
    """Copy what the app has committed since, and why not, where that cannot be."""
    copies = Replicator(store, target, app, by, reader, recovering=True)
    try:
        return copies.round(), ""
    except SlackwaterError as error:
        return None, error.message


def _decide(target: ObjectStore, plan: RecoveryPlan, kafka: Topics, note: Recovery, clock: Clock) -> Migration:
    """Carry what was on its way, and decide what becomes of each stage; the decision, of whoever was first."""
    app, last = plan.app, MIGRATIONS.newest(target, plan.app)
    number = last.number + 1 if last is not None else 1
    with clock.step("carry what was on its way"):
        made = steps(target, plan, kafka, number)
    if plan.topics != note.topics:
        codec.put(target, keys.recovery(app), replace(note, topics=dict(plan.topics)))
    said = f"from the replica's cut {plan.replicated.number}, seen {instants.iso(plan.replicated.seen_ms)}"
    with clock.step("commit"):
        snapshot = plan.replicated.snapshot or f"recovery-{number}"
        now_ms = instants.now_ms()
        carry_out(target, app, number, made, snapshot, said, by=note.by, now_ms=now_ms, recovery=note.id)
    decided = MIGRATIONS.find(target, number, app)
    assert decided is not None  # noqa: S101  it was just put
    return decided


def _finish(
    target: ObjectStore, app: str, decided: Migration, kafka: Topics, note: Recovery, plan: RecoveryPlan | None
) -> dict[str, int]:
    """Commit what is left of a recovery that is decided, and say that the replica is the app; its newest versions."""
    finish(target, decided, now_ms=instants.now_ms())
    versions: dict[str, int] = {}
    for stage, step in decided.stages.items():
        head = history.head(target, app, stage)
        if head is None or step.retires:
            continue
        if step.rests and head.traits is RECOVER and head.rewind is not None:
            head = amend(target, head, _with_rests(step.rests), by=note.by, now_ms=instants.now_ms()).manifest
        versions[stage] = head.version
        kafka.announce(app, stage, {read.topic: read.offsets for read in head.inputs.values()})
    found, known = replicas.find(target, app), find_recovery(target, app)
    assert found is not None  # noqa: S101  it was there
    if found.state == "copy":
        topics = plan.topics if plan is not None else known.topics if known is not None else {}
        now = replace(found, state="recovered", topics=dict(topics), by=note.by, time_ms=instants.now_ms())
        codec.put(target, keys.replica(app), now)
    return versions


def _with_rests(rests: Mapping[str, Sink]) -> Amendment:
    """The version that brings what sinks had still to publish."""

    def requires(newest: Manifest) -> bool:
        return newest.traits is RECOVER and newest.rewind is not None

    def update(draft: Manifest) -> Manifest:
        sinks = {
            name: replace(rests[name], since=sink.since) if name in rests else sink
            for name, sink in draft.sinks.items()
        }
        return replace(draft, sinks=sinks)

    return Amendment("recover", update, requires)
