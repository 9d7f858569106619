"""Brings what was on its way to where the app goes on: records between stages, and rows for sinks, from the replica."""

import dataclasses
import re
from collections.abc import Mapping

from msgspec.structs import replace

from ...moments.cut.graph import Cut, channels
from ...moments.cut.in_flight import InFlight, channel_state
from ...moments.cut.replicas import SinkRest
from ...moments.take.capture import read
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Input, Manifest, Output, Sink
from ...store.versions.migrations import MigratedStage
from ..clone.first_versions import Carried, carry, channel_topic, kept_or_in_kafka
from .plan import Recoverable, RecoveryPlan

_RECOVERED = re.compile(r"-r[0-9]{1,20}\Z")


def steps(target: ObjectStore, found: RecoveryPlan, kafka: Recoverable, number: int) -> dict[str, MigratedStage]:
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
    return replace(known, topic=carried[name].topic, offsets=carried[name].starts[was.stage], rows=0)


def _output(
    target: ObjectStore,
    cut: Cut,
    stage: str,
    name: str,
    known: Output,
    kafka: Recoverable,
    carried: Mapping[str, Carried],
) -> Output:
    if (had := carried.get(name)) is not None:
        return Output(had.topic, had.ends, known.sent, had.attempts, had.rows, known.schema)
    (edge,) = (each for each in channels(cut) if (each.sender, each.name) == (stage, name))
    nothing = channel_state(target, cut, edge)
    topic = channel_topic(cut.app, name)
    ends, _, _ = kafka.copy(_without_attempts(nothing), topic, cut.app)
    return Output(topic, ends, known.sent, schema=known.schema)


def _without_attempts(state: InFlight) -> InFlight:
    return dataclasses.replace(state, attempts=(), rows=0, counts=())


def _sinks(
    target: ObjectStore, was: Manifest, kafka: Recoverable, number: int, kept: tuple[SinkRest, ...]
) -> tuple[dict[str, Sink], dict[str, Sink]]:
    """The sinks of a stage, begun anew with no rows; and behind that what they had still to publish.

    Each has another internal topic: the place that Kafka may have of the former one is of versions that this app will
    have otherwise.
    """
    begun, rests = {}, {}
    for name, sink in was.sinks.items():
        topic = f"{_RECOVERED.sub('', sink.topic)}-r{number}"
        at = Sink(topic, kafka.internal(topic), 1, sink.kind)
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
