"""`slackwater reset`: users' topics are read on from other offsets, as a version of each stage. Its tables stay.

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
"""What the snapshots of the moment before a reset begin with; its number follows."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition that is read on from elsewhere."""

    topic: str
    partition: int
    before: int
    """Where it stood."""
    after: int
    """Where it goes on."""
    another: bool = False
    """Whether that is in another topic, which has the name since."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.before} to {self.after}"


@dataclass(frozen=True, slots=True)
class ResetStage:
    """What becomes of one stage that reads users' topics."""

    stage: str
    version: int
    """Its newest version."""
    moved: tuple[Moved, ...]
    watermark_ms: int | None
    """Where it goes back and has one: rows of before that time are late, and left out of windows."""
    sinks: tuple[str, ...]
    """Of all that get something of what it reads: what is read again is published once more."""
    made_again: tuple[str, ...] = ()
    """Of topics that were made again since they were read, what was there and what is there: the offsets of before are
    of another topic."""

    @property
    def read_again(self) -> int:
        """Offsets that were read and will be once more."""
        return sum(max(0, each.before - each.after) for each in self.moved if not each.another)

    @property
    def skipped(self) -> int:
        """Offsets that were not read and will not be. Of a topic that was made again, none was."""
        return sum(each.after if each.another else max(0, each.after - each.before) for each in self.moved)


@dataclass(frozen=True, slots=True)
class ResetDone:
    """What a reset did, or would do."""

    app: str
    scenario: Scenario
    stages: tuple[ResetStage, ...]
    """Those that read on from elsewhere, upstream first; none where all stand there already."""
    number: int = 0
    """Of the migration that it is; 0 when nothing was to be done, or was only looked at."""
    snapshot: str = ""
    """Pins the moment before; empty likewise."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The new version of each stage; empty likewise."""


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
    """Have an app read users' topics on from other offsets, at its next start.

    `scope` has the topics, by their names as declared or in Kafka, and the partitions of each, None for all; empty for
    all topics. The `reader` keeps the records in flight with the snapshot of the moment before. A call that was
    interrupted is finished by the same call, by a run, a rewind or a migration. So a shift that is said twice is done
    once, while nobody has read on since. Raises as `StoredApp.reset`.
    """
    if not dry_run:
        check_exclusion(store, app, Intent.RESET, *HERE)
        finish_earlier(store, app, now_ms=now_ms)
    heads = heads_of(store, app, stages_of(store, app))
    number = check_done(store, app, heads, Intent.RESET) + 1
    words = (f"{topic}:{','.join(map(str, some))}" if some else topic for topic, some in sorted(scope.items()))
    asked = f"{scenario}{' of ' * bool(scope)}{', '.join(words)}: "
    if scenario.kind == "shift" and _was_done(store, app, heads, asked):
        if not dry_run:
            _announce(kafka, heads, {})
        return ResetDone(app, scenario, ())
    wanted = _wanted(app, heads, scope, scenario, kafka)
    found = tuple(_stage(heads, stage, wanted[stage]) for stage in order(heads) if wanted.get(stage))
    if dry_run:
        return ResetDone(app, scenario, found)
    if not found:
        _announce(kafka, heads, {})
        return ResetDone(app, scenario, ())
    if not fence:
        check_exclusion(store, app, Intent.RESET, UnderWay.RUNNER)
    name = f"{BEFORE}{number}"
    pin_before(store, newest_cut(store, app, stages_of(store, app)), name, by, reader)
    steps = {
        stage: MigratedStage(
            reset={name: each.offsets for name, each in wanted.get(stage, {}).items()},
            reset_ids={name: each.topic_id for name, each in wanted.get(stage, {}).items() if each.topic_id},
        )
        for stage, head in heads.items()
        if not head.retired
    }
    again, skipped = (sum(each) for each in zip(*((one.read_again, one.skipped) for one in found), strict=True))
    said = f"{asked}{again:,} offsets read twice, {skipped:,} skipped"
    versions = carry_out(store, app, number, steps, name, said, by=by, now_ms=now_ms)
    _announce(kafka, heads, wanted)
    return ResetDone(app, scenario, found, number, name, versions)


def _announce(kafka: Topics, heads: Mapping[str, Manifest], wanted: Mapping[str, Mapping[str, ReadFrom]]) -> None:
    """Show the lag from where users' topics are read on; also where a call that was killed has not come to it."""
    for stage, head in heads.items():
        new = wanted.get(stage, {})
        users = {
            at.topic: new[name].offsets if name in new else at.offsets
            for name, at in head.inputs.items()
            if not at.upstream
        }
        if users and not head.retired:
            kafka.announce(head.app, stage, users)


def _was_done(store: ObjectStore, app: str, heads: Mapping[str, Manifest], asked: str) -> bool:
    """Whether this very shift was the last thing that happened to the app: whoever says it twice has seen no answer."""
    last = MIGRATIONS.newest(store, app)
    if last is None or not last.resets or not last.detail.startswith(f"{last.number}: {asked}"):
        return False
    return all(head.retired or head.traits is RESET for head in heads.values())


def _wanted(
    app: str,
    heads: Mapping[str, Manifest],
    scope: Mapping[str, Sequence[int] | None],
    scenario: Scenario,
    kafka: Topics,
) -> dict[str, dict[str, ReadFrom]]:
    """By stage and declared name, where inputs are read on from that are to be from elsewhere. Raises as `reset`."""
    live = {stage: head for stage, head in heads.items() if not head.retired}
    users = [(stage, name, at) for stage, head in live.items() for name, at in head.inputs.items() if not at.upstream]
    if not users:
        raise NotFound(
            "topic read by app", app, found="no stage of it has read any yet", hint="`slackwater run` starts it"
        )
    known = {each for _, name, at in users for each in (name, at.topic)}
    for topic in scope:
        if topic not in known:
            raise _no_such(app, topic, live, known)
    found: dict[str, dict[str, ReadFrom]] = {}
    for stage, name, at in users:
        chosen = name if name in scope else at.topic
        if scope and chosen not in scope:
            continue
        read_from = scenario.offsets(kafka, at, scope.get(chosen))
        if read_from.another or _moved(at, read_from):
            found.setdefault(stage, {})[name] = read_from
    return found


def _no_such(app: str, topic: str, live: Mapping[str, Manifest], known: set[str]) -> NotFound | Refused:
    for stage, head in live.items():
        for what, each in (("repartition topic", head.outputs), ("internal topic of a sink", head.sinks)):
            for name, at in each.items():
                if topic in (name, at.topic):
                    return Refused(
                        f"{topic!r} is a {what} that {stage} of {app} writes: its offsets follow from versions",
                        hint="a reset is of topics that users write; `slackwater rewind` takes the whole app back",
                    )
    return NotFound(f"topic that {app} reads", topic, known)


def _stage(heads: Mapping[str, Manifest], stage: str, wanted: Mapping[str, ReadFrom]) -> ResetStage:
    head, new = heads[stage], sorted(wanted.items())
    moved = tuple(each for name, read_from in new for each in _moved(head.inputs[name], read_from))
    goes_back = any(each.after < each.before for each in moved)
    sinks = {name for each in (stage, *descendants(heads, stage)) for name in heads[each].sinks} if goes_back else set()
    watermark_ms = head.watermark_ms if goes_back else None
    made_again = tuple(read_from.another for _, read_from in new if read_from.another)
    return ResetStage(stage, head.version, moved, watermark_ms, tuple(sorted(sinks)), made_again)


def _moved(at: Input, read_from: ReadFrom) -> tuple[Moved, ...]:
    offsets, another = read_from.offsets, bool(read_from.another)
    stood = at.offsets + (0,) * (len(offsets) - len(at.offsets))
    both = enumerate(zip(stood, offsets, strict=False))
    return tuple(
        Moved(at.topic, partition, had, has, another) for partition, (had, has) in both if another or had != has
    )
