"""`slackwater reset`: continue users' topics from other offsets, as a new version of each stage. Tables stay.

It is decided and committed as a rewind is: all stages or none, whoever is killed. What was read stays counted: going
back, records count twice, and going forward, some never do. The plan says how many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import NotFound, Refused
from ...snapshot.change.migrate import carry_out, check_done, finish_earlier
from ...snapshot.cut.graph import descendants, order
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.migrations import MIGRATIONS, MigratedStage
from ...snapshot.cut.moments import heads_of, newest_cut, stages_of
from ...snapshot.under_way.exclusion import HERE, Intent, UnderWay, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.versions.kinds import RESET
from ...store.versions.manifest import Input, Manifest
from .rewind import pin_before
from .rewind_offsets import ReadFrom, Scenario

BEFORE = "before-reset-"
"""Name prefix of the snapshots taken before a reset; the number of the reset follows."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition whose offset changes."""

    topic: str
    partition: int
    before: int
    """Offset before the reset."""
    after: int
    """Offset from which the stage continues."""
    another: bool = False
    """True if `after` belongs to a new topic of the same name."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.before} to {self.after}"


@dataclass(frozen=True, slots=True)
class ResetStage:
    """Effects of a reset on one stage that reads users' topics."""

    stage: str
    version: int
    """Newest version of the stage."""
    moved: tuple[Moved, ...]
    watermark_ms: int | None
    """Watermark if an offset moves back: re-read rows older than this are late, and left out of windows. Else None."""
    sinks: tuple[str, ...]
    """Sinks of this stage and of the stages downstream that publish re-read records a second time."""
    made_again: tuple[str, ...] = ()
    """One sentence for each topic that was deleted and recreated since it was read, with the old and the new topic."""

    @property
    def read_again(self) -> int:
        """Number of offsets that will be read a second time."""
        return sum(max(0, partition.before - partition.after) for partition in self.moved if not partition.another)

    @property
    def skipped(self) -> int:
        """Number of unread offsets that will be skipped; all before the new offset if the topic was recreated."""
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
    """Number of the migration; 0 for a dry run, or if no offset changes."""
    snapshot: str = ""
    """Snapshot of the moment before the reset; empty for a dry run, or if no offset changes."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """New version of each stage; empty for a dry run, or if no offset changes."""


def reset(
    store: ObjectStore,
    app: str,
    scope: Mapping[str, Sequence[int] | None],
    scenario: Scenario,
    kafka: Topics,
    *,
    by: str,
    now_ms: int,
    fence: bool = False,
    dry_run: bool = False,
    reader: Topics | None = None,
) -> ResetDone:
    """Change the offsets from which an app reads users' topics at its next start.

    `scope` maps topics, by declared name or name in Kafka, to their partitions, None for all; an empty scope means all
    topics. The `reader` copies the in-flight records into the snapshot of the moment before. An interrupted reset is
    finished by the same call, or by the next run, rewind or migration. A repeated shift is applied only once until a
    runner has committed again. Raises as `StoredApp.reset`.
    """
    if not dry_run:
        check_exclusion(store, app, Intent.RESET, *HERE)
        finish_earlier(store, app, now_ms=now_ms)
    heads = heads_of(store, app, stages_of(store, app))
    number = check_done(store, app, heads, Intent.RESET) + 1
    topics = (f"{topic}:{','.join(map(str, some))}" if some else topic for topic, some in sorted(scope.items()))
    request = f"{scenario}{' of ' * bool(scope)}{', '.join(topics)}: "
    if scenario.kind == "shift" and _was_done(store, app, heads, request):
        if not dry_run:
            _announce(kafka, heads, {})
        return ResetDone(app, scenario, ())
    positions = _new_positions(app, heads, scope, scenario, kafka)
    changes = tuple(_stage_changes(heads, stage, positions[stage]) for stage in order(heads) if positions.get(stage))
    if dry_run:
        return ResetDone(app, scenario, changes)
    if not changes:
        _announce(kafka, heads, {})
        return ResetDone(app, scenario, ())
    if not fence:
        check_exclusion(store, app, Intent.RESET, UnderWay.RUNNER)
    name = f"{BEFORE}{number}"
    pin_before(store, newest_cut(store, app, stages_of(store, app)), name, by, reader)
    steps = {
        stage: MigratedStage(
            reset={name: position.offsets for name, position in positions.get(stage, {}).items()},
            reset_ids={
                name: position.topic_id for name, position in positions.get(stage, {}).items() if position.topic_id
            },
        )
        for stage, head in heads.items()
        if not head.retired
    }
    reread, skipped = (
        sum(counts) for counts in zip(*((change.read_again, change.skipped) for change in changes), strict=True)
    )
    detail = f"{request}{reread:,} offsets read twice, {skipped:,} skipped"
    versions = carry_out(store, app, number, steps, name, detail, by=by, now_ms=now_ms)
    _announce(kafka, heads, positions)
    return ResetDone(app, scenario, changes, number, name, versions)


def _announce(kafka: Topics, heads: Mapping[str, Manifest], positions: Mapping[str, Mapping[str, ReadFrom]]) -> None:
    """Export the lag from the new offsets; also repeated for an earlier call that was killed before this step."""
    for stage, head in heads.items():
        new = positions.get(stage, {})
        users = {
            at.topic: new[name].offsets if name in new else at.offsets
            for name, at in head.inputs.items()
            if not at.upstream
        }
        if users and not head.retired:
            kafka.announce(head.app, stage, users)


def _was_done(store: ObjectStore, app: str, heads: Mapping[str, Manifest], request: str) -> bool:
    """Return True if this same shift was the app's last change, so that a repeated command does not shift twice."""
    last = MIGRATIONS.newest(store, app)
    if last is None or not last.resets or not last.detail.startswith(f"{last.number}: {request}"):
        return False
    return all(head.retired or head.traits is RESET for head in heads.values())


def _new_positions(
    app: str,
    heads: Mapping[str, Manifest],
    scope: Mapping[str, Sequence[int] | None],
    scenario: Scenario,
    kafka: Topics,
) -> dict[str, dict[str, ReadFrom]]:
    """Return the new position of each input that moves, by stage and declared name. Raises as `reset`."""
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
    positions: dict[str, dict[str, ReadFrom]] = {}
    for stage, name, at in users:
        chosen = name if name in scope else at.topic
        if scope and chosen not in scope:
            continue
        read_from = scenario.offsets(kafka, at, scope.get(chosen))
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


def _stage_changes(heads: Mapping[str, Manifest], stage: str, positions: Mapping[str, ReadFrom]) -> ResetStage:
    head, ordered = heads[stage], sorted(positions.items())
    moved = tuple(partition for name, read_from in ordered for partition in _moved(head.inputs[name], read_from))
    goes_back = any(partition.after < partition.before for partition in moved)
    sinks = (
        {name for descendant in (stage, *descendants(heads, stage)) for name in heads[descendant].sinks}
        if goes_back
        else set()
    )
    watermark_ms = head.watermark_ms if goes_back else None
    made_again = tuple(read_from.another for _, read_from in ordered if read_from.another)
    return ResetStage(stage, head.version, moved, watermark_ms, tuple(sorted(sinks)), made_again)


def _moved(at: Input, read_from: ReadFrom) -> tuple[Moved, ...]:
    offsets, another = read_from.offsets, bool(read_from.another)
    before = at.offsets + (0,) * (len(offsets) - len(at.offsets))
    both = enumerate(zip(before, offsets, strict=False))
    return tuple(
        Moved(at.topic, partition, old, new, another) for partition, (old, new) in both if another or old != new
    )
