"""What a rewind would do: the versions that stages go back to, what is read once more, what cannot be unsent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from ...errors import Refused
from ...fold.records import windows
from ...moments.cut.graph import Cut, channels, order, violations
from ...moments.cut.in_flight import channel_state
from ...moments.cut.moments import line_of, with_retired
from ...moments.cut.refs import Ref
from ...moments.cut.resolve import cut_at
from ...moments.status.lag import beats
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ...store.versions.migrations import MigratedStage, Unread
from .sinks import SinkRows, SinkTopics, others, sink_rows


class Rewindable(SinkTopics, Protocol):
    """What a rewind needs of Kafka; `pipeline` implements it."""

    def check_topic(self, topic: str, offsets: tuple[int, ...], /) -> None:
        """Check that a topic can be read on from these offsets. Raises `NotFound` and `Refused`."""


@dataclass(frozen=True, slots=True)
class Undone:
    """What becomes of one stage."""

    stage: str
    version: int
    """Its newest version."""
    to: int
    """The version whose content it gets; 0 where it had none then."""
    time_ms: int
    """When that was committed; 0 for none."""
    retires: bool
    """Whether it has no part in the app from then on: it had not begun, or was retired then."""
    offsets: tuple[str, ...]
    """What is read once more of users' topics."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do."""

    app: str
    ref: str
    """The moment that it goes to, as a person names it."""
    to: Cut
    stages: tuple[Undone, ...]
    """Those that change, upstream first."""
    sinks: tuple[SinkRows, ...]
    steps: Mapping[str, MigratedStage]
    """What it commits, of every stage that the app has."""
    table_only: bool
    others: tuple[str, ...] = ()
    """Apps that had this one's name since, by promotions, and published under it: what they did is not undone."""


def plan(store: ObjectStore, target: Ref, heads: Mapping[str, Manifest], kafka: Rewindable | None) -> RewindPlan:
    """What taking an app, whose newest versions these are, back to a moment of its own means; changes nothing.

    Without `kafka`, the tables alone: what was read and sent stays so.

    Raises `NotFound` where there is no such moment, or a topic is gone, and `Refused` where a stage has another name
    since, Kafka has not what is to be read once more, or a sink lacks rows from before.
    """
    cut, table_only = cut_at(store, target), kafka is None
    if wrong := violations(cut.stages):
        raise Refused(f"{target.text} is not a consistent cut: {'; '.join(wrong)}", hint="choose another moment")
    then = with_retired(line_of(store, cut.app), cut).stages
    _check_names(cut, heads)
    steps = {}
    for stage, head in heads.items():
        was = then.get(stage)
        if table_only and (was is None or was.retired or was.table is None or head.retired):
            continue
        if not head.called and not (head.retired and was == head):
            to, retires = (was.version, was.retired) if was is not None else (0, True)
            steps[stage] = MigratedStage(rewound=to, retires=retires, table_only=table_only)
    if all(_is_as_then(heads[stage], step) for stage, step in steps.items()):
        return RewindPlan(cut.app, target.text, cut, (), (), {}, table_only)
    if kafka is not None:
        _check_inputs(cut, kafka)
        for stage, unread in _unread(store, cut, kafka).items():
            steps[stage] = replace(steps[stage], unread=unread)
    undone = tuple(_undone(heads[stage], then.get(stage), steps[stage]) for stage in order(heads) if stage in steps)
    if kafka is None:
        return RewindPlan(cut.app, target.text, cut, undone, (), steps, table_only)
    sinks = tuple(sink_rows(store, {stage: heads[stage] for stage in steps}, then, kafka))
    also = others(store, heads, cut.time_ms) if any(head.sinks or head.silent for head in heads.values()) else ()
    return RewindPlan(cut.app, target.text, cut, undone, sinks, steps, table_only, also)


def _is_as_then(head: Manifest, step: MigratedStage) -> bool:
    """Whether a stage is already what a step makes of it, and nothing came since."""
    last = head.rewind
    was_made_so = last is not None and (last.to, last.table_only) == (step.rewound, step.table_only)
    return was_made_so or head.version == step.rewound


def check_not_held(store: ObjectStore, app: str, now_ms: int) -> None:
    """Raise `Refused` where a runner of the app gives signs of life."""
    for beat in beats(store, app, now_ms):
        raise Refused(
            f"{', '.join(sorted(beat.stages))} of {app} run, by {beat.by}",
            hint="stop that runner first, or say --fence: then it stops within seconds",
        )


def _check_names(cut: Cut, heads: Mapping[str, Manifest]) -> None:
    for stage, head in heads.items():
        old = next((former.stage for former in head.formerly if former.stage in cut.stages), "")
        if old and stage not in cut.stages:
            raise Refused(
                f"{cut.ref} is from before {old} was renamed to {stage}, and a rewind does not give a name back",
                hint=f"clone that moment, and run the program of then as the clone: slackwater clone {cut.ref} NAME",
            )


def _check_inputs(cut: Cut, kafka: Rewindable) -> None:
    """See that users' topics still have what is to be read once more. Raises `NotFound` and `Refused`."""
    for manifest in cut.stages.values():
        for read in manifest.inputs.values():
            if not read.upstream:
                # Partitions that a topic got since are read from their beginning.
                count = len(kafka.ends(read.topic) or read.offsets)
                kafka.check_topic(read.topic, read.offsets + (0,) * (count - len(read.offsets)))


def _unread(store: ObjectStore, cut: Cut, kafka: Rewindable) -> dict[str, dict[str, Unread]]:
    """By sender and channel, what the reader furthest behind has still to read. Raises `Refused` where it is gone."""
    found: dict[str, dict[str, Unread]] = {}
    for channel in channels(cut):
        if channel.input is None:
            continue  # who reads it one day begins where the channel does
        state = channel_state(store, cut, channel)
        if state.attempts:
            kafka.check_topic(state.topic, state.starts)
        known = found.setdefault(channel.sender, {}).get(channel.name, Unread())
        if len(state.attempts) > len(known.attempts):
            found[channel.sender][channel.name] = Unread(state.attempts, state.rows)
    return found


def _undone(head: Manifest, was: Manifest | None, step: MigratedStage) -> Undone:
    offsets = (
        windows(read.topic, was.inputs[name].offsets, read.offsets)
        for name, read in sorted(head.inputs.items())
        if was is not None and not step.table_only and not read.upstream and name in was.inputs
    )
    return Undone(
        head.stage,
        head.version,
        step.rewound or 0,
        was.time_ms if was is not None else 0,
        step.retires,
        tuple(each for several in offsets for each in several),
    )
