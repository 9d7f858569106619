"""Reset of the offsets from which an app reads users' topics, as a new version of each stage. Tables stay.

A reset is decided and committed like a rewind: for all stages or for none, even if the process is killed. Tables keep
the effects of records that were read before the reset: after a move back, re-read records count twice; after a move
forward, skipped records never count. The plan has the numbers of re-read and of skipped records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from ...common.durations import parse_ms
from ...common.instants import format_iso
from ...errors import NotFound, Refused, Usage
from ...snapshot.change.migrate import carry_out, check_migration_complete, finish_earlier
from ...snapshot.change.switch import users_inputs
from ...snapshot.cut.graph import downstream_stages, topological_order
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.migrations import MIGRATIONS, MigratedStage
from ...snapshot.cut.moments import heads_of, newest_cut, stages_of
from ...snapshot.under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ...state.records import NOT_KNOWN, explain_recreated_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions.keys import SOURCE_KIND, is_source
from ...store.versions.kinds import RESET
from ...store.versions.manifest import Input, Manifest
from .rewind import pin_before

SNAPSHOT_PREFIX = "before-reset-"
"""Prefix of the names of snapshots that are taken before a reset. The number of the reset follows."""


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """Partition of a user's topic whose offset a reset changes."""

    topic: str
    partition: int
    before: int
    after: int
    another: bool = False
    """True if the topic was recreated, so that `after` is an offset of the new topic."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.before} to {self.after}"


@dataclass(frozen=True, slots=True)
class ResetStage:
    """Effects of a reset on one stage that reads users' topics."""

    stage: str
    version: int
    moved: tuple[MovedPartition, ...]
    watermark_ms: int | None
    """Watermark of the stage, milliseconds since 1970 UTC, if an offset moves back; else None.

    Re-read rows that are older than the watermark are late, and left out of windows.
    """
    sinks: tuple[str, ...]
    """Sinks of this stage and of downstream stages to which the rows of re-read records are published a second time."""
    made_again: tuple[str, ...] = ()
    """A sentence about each topic that was deleted and recreated since the stage last read it."""

    @property
    def read_again(self) -> int:
        """Number of offsets that will be read a second time."""
        return sum(max(0, partition.before - partition.after) for partition in self.moved if not partition.another)

    @property
    def skipped(self) -> int:
        """Number of unread offsets that will be skipped.

        If the topic was recreated, all offsets before the new position are counted.
        """
        return sum(
            partition.after if partition.another else max(0, partition.after - partition.before)
            for partition in self.moved
        )


@dataclass(frozen=True, slots=True)
class ResetDone:
    """Result of a reset, or of its dry run."""

    app: str
    scenario: Scenario
    stages: tuple[ResetStage, ...]
    """Stages whose offsets change, upstream first; empty if all offsets are already as requested."""
    number: int = 0
    """Number of the reset's migration; 0 for a dry run, or if no offset changes."""
    snapshot: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)


def reset(
    store: ObjectStore,
    app: str,
    scope: Mapping[str, Sequence[int] | None],
    scenario: Scenario,
    kafka: KafkaTopics,
    *,
    by: str,
    now_ms: int,
    fence: bool = False,
    dry_run: bool = False,
    reader: KafkaTopics | None = None,
) -> ResetDone:
    """Change the offsets from which an app reads users' topics at its next start.

    `scope` has the partitions to reset by topic, None for all partitions; the topic's name is the declared name or the
    name in Kafka. An empty scope means all topics. The `reader` copies the in-flight records into the snapshot of the
    moment before the reset. An interrupted reset is finished by a repeated call, or by the next run, rewind or
    migration. If a reset by `shift_by` is repeated before a runner commits, the offsets move only once. Raises the
    errors of `StoredApp.reset`.
    """
    if not dry_run:
        check_exclusion(store, app, Intent.RESET, *RUNS_ELSEWHERE)
        finish_earlier(store, app, now_ms=now_ms)
    heads = heads_of(store, app, stages_of(store, app))
    number = check_migration_complete(store, app, heads, Intent.RESET) + 1
    topics = (f"{topic}:{','.join(map(str, some))}" if some else topic for topic, some in sorted(scope.items()))
    if scenario.kind == "latest" and not dry_run:
        # No runner has listed the files that have come since the app stopped.
        for topic in {read.topic for read in users_inputs(heads.values()) if is_source(read.topic)}:
            kafka.list_new_files(store, topic)
    request = f"{scenario}{' of ' * bool(scope)}{', '.join(topics)}: "
    is_repeated = scenario.kind == "shift" and _is_repeated_shift(store, app, heads, request)
    positions = {} if is_repeated else _new_positions(app, heads, scope, scenario, kafka)
    changes = tuple(
        _stage_changes(heads, stage, positions[stage]) for stage in topological_order(heads) if positions.get(stage)
    )
    if dry_run:
        return ResetDone(app, scenario, changes)
    if not changes:
        _export_lag(kafka, heads, {})
        return ResetDone(app, scenario, ())
    if not fence:
        check_exclusion(store, app, Intent.RESET, AppCondition.RUNNER)
    name = f"{SNAPSHOT_PREFIX}{number}"
    pin_before(store, newest_cut(store, app, stages_of(store, app)), name, by, reader)
    steps = {stage: _step(positions.get(stage, {})) for stage, head in heads.items() if not head.retired}
    reread, skipped = sum(change.read_again for change in changes), sum(change.skipped for change in changes)
    detail = f"{request}{reread:,} offsets read twice, {skipped:,} skipped"
    versions = carry_out(store, app, number, steps, name, detail, by=by, now_ms=now_ms)
    _export_lag(kafka, heads, positions)
    return ResetDone(app, scenario, changes, number, name, versions)


def _step(positions: Mapping[str, ResetPosition]) -> MigratedStage:
    return MigratedStage(
        reset={name: position.offsets for name, position in positions.items()},
        reset_ids={name: position.topic_id for name, position in positions.items() if position.topic_id},
    )


def _export_lag(
    kafka: KafkaTopics, heads: Mapping[str, Manifest], positions: Mapping[str, Mapping[str, ResetPosition]]
) -> None:
    for stage, head in heads.items():
        new = positions.get(stage, {})
        users = {
            at.topic: new[name].offsets if name in new else at.offsets
            for name, at in head.inputs.items()
            if not at.upstream
        }
        if users and not head.retired:
            kafka.commit_positions(head.app, stage, users)


def _is_repeated_shift(store: ObjectStore, app: str, heads: Mapping[str, Manifest], request: str) -> bool:
    last = MIGRATIONS.newest(store, app)
    if last is None or not last.is_reset or not last.detail.startswith(f"{last.number}: {request}"):
        return False
    return all(head.retired or head.traits is RESET for head in heads.values())


def _new_positions(
    app: str,
    heads: Mapping[str, Manifest],
    scope: Mapping[str, Sequence[int] | None],
    scenario: Scenario,
    kafka: KafkaTopics,
) -> dict[str, dict[str, ResetPosition]]:
    live = {stage: head for stage, head in heads.items() if not head.retired}
    users = [(stage, name, at) for stage, head in live.items() for name, at in head.inputs.items() if not at.upstream]
    if not users:
        raise NotFound(
            "topic read by app", app, found="its stages have not read any yet", hint="start it with `slackwater run`"
        )
    names = {topic_name for _, name, at in users for topic_name in (name, at.topic)}
    for topic in scope:
        if topic not in names:
            raise _unknown_topic(app, topic, live, names)
    positions: dict[str, dict[str, ResetPosition]] = {}
    for stage, name, at in users:
        chosen = name if name in scope else at.topic
        if scope and chosen not in scope:
            continue
        read_from = scenario.new_position(kafka, at, scope.get(chosen))
        if read_from.another or _moved(at, read_from):
            positions.setdefault(stage, {})[name] = read_from
    return positions


def _unknown_topic(app: str, topic: str, live: Mapping[str, Manifest], names: set[str]) -> NotFound | Refused:
    for stage, head in live.items():
        for description, channels in (("repartition topic", head.outputs), ("internal topic of a sink", head.sinks)):
            for name, at in channels.items():
                if topic in (name, at.topic):
                    return Refused(
                        f"{topic!r} is a {description} that {stage} of {app} writes: a reset cannot move its offsets",
                        hint="reset only topics that users write; to roll back the whole app, use `slackwater rewind`",
                    )
    return NotFound(f"topic that {app} reads", topic, names)


def _stage_changes(heads: Mapping[str, Manifest], stage: str, positions: Mapping[str, ResetPosition]) -> ResetStage:
    head, ordered = heads[stage], sorted(positions.items())
    moved = tuple(partition for name, read_from in ordered for partition in _moved(head.inputs[name], read_from))
    goes_back = any(partition.after < partition.before for partition in moved)
    republishing = (stage, *downstream_stages(heads, stage)) if goes_back else ()
    sinks = {name for publisher in republishing for name in heads[publisher].sinks}
    watermark_ms = head.watermark_ms if goes_back else None
    made_again = tuple(read_from.another for _, read_from in ordered if read_from.another)
    return ResetStage(stage, head.version, moved, watermark_ms, tuple(sorted(sinks)), made_again)


def _moved(at: Input, read_from: ResetPosition) -> tuple[MovedPartition, ...]:
    offsets, another = read_from.offsets, bool(read_from.another)
    before = at.offsets + (0,) * (len(offsets) - len(at.offsets))
    both = enumerate(zip(before, offsets, strict=False))
    return tuple(
        MovedPartition(at.topic, partition, old, new, another)
        for partition, (old, new) in both
        if another or old != new
    )


_ISO_SPAN = re.compile(r"P(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?", re.ASCII | re.IGNORECASE)
_SOURCE = rf"{SOURCE_KIND}(?=[0-9]*[a-z_-])"
_SCOPE = re.compile(rf"(?P<topic>(?:{_SOURCE})?[^:]+)(?::(?P<partitions>\d+(?:,\d+)*))?")


@dataclass(frozen=True, slots=True)
class ResetPosition:
    """Offsets from which one input continues after a reset."""

    offsets: tuple[int, ...]
    topic_id: str = ""
    """Id of the current topic if it was recreated since it was read (`?` if not known); else empty."""
    another: str = ""
    """Sentence about the recreated topic; empty if the topic was not recreated."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rule that determines the new offsets of a reset, such as `earliest` or a shift."""

    kind: Literal["earliest", "latest", "time", "shift", "offset"]
    value: int = 0
    """Milliseconds since 1970 UTC, number of records, or offset, depending on `kind`."""

    @classmethod
    def from_options(
        cls,
        *,
        to_earliest: bool = False,
        to_latest: bool = False,
        to_datetime_ms: int | None = None,
        by_duration: str = "",
        shift_by: int | None = None,
        to_offset: int | None = None,
        now_ms: int,
    ) -> Self:
        """Return the scenario of the single given option. A duration counts back from `now_ms`. Raises `Usage`."""
        scenarios = [
            *([cls("earliest")] if to_earliest else []),
            *([cls("latest")] if to_latest else []),
            # Kafka gives negative timestamps a special meaning.
            *([cls("time", max(0, to_datetime_ms))] if to_datetime_ms is not None else []),
            *([cls("time", max(0, now_ms - parse_span_ms(by_duration)))] if by_duration else []),
            *([cls("shift", shift_by)] if shift_by is not None else []),
            *([cls("offset", to_offset)] if to_offset is not None else []),
        ]
        if len(scenarios) != 1:
            raise Usage(
                f"a reset takes one scenario; found {len(scenarios)}",
                hint="give one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by and --to-offset",
            )
        if scenarios[0].kind == "offset" and scenarios[0].value < 0:
            raise Usage(f"--to-offset is {scenarios[0].value}; expected 0 or more")
        return scenarios[0]

    def __str__(self) -> str:
        match self.kind:
            case "earliest" | "latest":
                return f"to the {self.kind} offset"
            case "time":
                return f"to {format_iso(self.value)}"
            case "shift":
                return f"by {self.value:+,}"
            case "offset":
                return f"to offset {self.value}"

    def new_position(self, kafka: KafkaTopics, at: Input, partitions: Sequence[int] | None) -> ResetPosition:
        """Return the new offsets of an input. Partitions that are not in `partitions` keep their offsets.

        If the topic was recreated since it was read, `partitions` must have all partitions, and a shift counts from the
        offsets that were reached in the old topic.

        Raises `NotFound` if Kafka lacks the topic or a partition, and `Refused` if a new offset is outside of the
        topic.
        """
        topic = at.topic
        now = kafka.state(topic)
        if now is None:
            raise NotFound("Kafka topic", topic, found="it was deleted", hint="recreate the topic first")
        starts, ends = now.earliest, now.ends
        another = explain_recreated_topic(topic, at.topic_id, at.offsets, now)
        # New partitions of the topic are read from their beginning.
        previous = (at.offsets + (0,) * (len(ends) - len(at.offsets)))[: len(ends)]
        chosen = range(len(ends)) if partitions is None else partitions
        if unknown := [partition for partition in chosen if partition >= len(ends)]:
            raise NotFound(f"partition of topic {topic!r}", str(unknown[0]), map(str, range(len(ends))))
        if another and len({*chosen}) < len(ends):
            raise Refused(another, hint=f"reset all of its partitions: --topic {topic}")
        offsets = list(previous)
        targets = self._target_offsets(kafka, topic, previous, starts, ends)
        for partition in chosen:
            offsets[partition] = targets[partition]
        if outside := [p for p in chosen if not starts[p] <= offsets[p] <= ends[p]]:
            facts = "; ".join(
                f"{topic}[{p}] would be read from {offsets[p]}, and Kafka has {starts[p]}..{ends[p]}" for p in outside
            )
            why = f"{facts}. {another[:1].upper()}{another[1:]}" if another else facts
            raise Refused(why, hint="choose offsets in that range, or --to-earliest or --to-latest")
        return ResetPosition(tuple(offsets), (now.id or NOT_KNOWN) if another else "", another)

    def _target_offsets(
        self, kafka: KafkaTopics, topic: str, previous: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> Sequence[int]:
        match self.kind:
            case "earliest":
                return starts
            case "latest":
                return ends
            case "time":
                return kafka.since(topic, self.value)
            case "shift":
                return [offset + self.value for offset in previous]
            case "offset":
                return [self.value] * len(ends)


def parse_span_ms(text: str) -> int:
    """Parse a time span in the format of Kafka's tool (`P1DT2H30M`) or of slackwater (`1h`) to milliseconds.

    Raises `Usage`.
    """
    if _ISO_SPAN.fullmatch(text) and text[-1].upper() not in "PT":
        return parse_ms("--by-duration", text.upper().replace("P", "").replace("T", "").lower())
    return parse_ms("--by-duration", text)


def parse_scopes(arguments: Sequence[str], *, all_topics: bool) -> dict[str, tuple[int, ...] | None]:
    """Parse arguments such as `flights` or `flights:0,1` into the partitions of each topic.

    The value is None for all partitions of a topic; the result is empty for all topics. Raises `Usage` for another
    format, and if both or neither of arguments and `all_topics` are given.
    """
    if bool(arguments) == all_topics:
        raise Usage(
            "a reset needs either topics or --all-topics",
            hint="use --topic NAME, or --topic NAME:0,1 for some partitions",
        )
    scope: dict[str, tuple[int, ...] | None] = {}
    for word in arguments:
        match = _SCOPE.fullmatch(word)
        if match is None or match["topic"] in scope:
            raise Usage(
                f"--topic {word!r} is not NAME or NAME:PARTITION,…, each topic once", hint="for example flights:0,1"
            )
        partitions = match["partitions"]
        scope[match["topic"]] = tuple(sorted({int(number) for number in partitions.split(",")})) if partitions else None
    return scope
