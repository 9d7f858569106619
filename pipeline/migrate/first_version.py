"""What a stage's first version is besides its rows, when these come from elsewhere: by the program, and by Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ulid import ULID

from ... import instants
from ...errors import NotFound, Refused
from ...fold.kinds.kind import Kind, kind_of
from ...keep.init.initialise import begun_elsewhere, check_free
from ...store.objects.protocol import ObjectStore
from ...store.sst.ttl import BEFORE_ALL_MS
from ...store.versions import apps
from ...store.versions.manifest import AppInfo, EventTime, Manifest, Output
from ...store.versions.migrations import MIGRATIONS
from ..api.app import App
from ..api.stage import Stage
from ..api.starting_offsets import StartingOffsets, starting_at, starting_offsets_in, stored_starts
from ..batch.schemas import Shape, shapes
from ..claim.claim import Claimer, program_of
from ..kafka.open import wait_for
from ..kafka.protocol import Kafka
from ..run.program import load_app
from ..spark.session import spark_session

_CONF = {
    "spark.ui.enabled": "false",
    # It lives for seconds, and runs no job.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """A stage's first version, to be committed.

    Attributes:
        manifest: of kind "init", without rows and outputs.
        info: the app's identity, with the offsets that were said; as stored, where there is one.
        others: the app's other stages, which begin empty where the program says.
    """

    manifest: Manifest
    info: AppInfo
    others: tuple[str, ...]
    _claimer: Claimer
    _stage: Stage
    _shape: Shape

    def channels(self) -> dict[str, Output]:
        """Make the channels that the stage reads and writes, where there are none; the latter. Raises `Refused`."""
        self._claimer.create_channels((self._stage,))
        return self._claimer.outputs(self._stage, self.manifest, self._shape)


def first_version_of(
    path: str,
    app: str,
    stage: str,
    store: ObjectStore,
    kafka: Kafka,
    *,
    offsets: Sequence[str] = (),
    at: str = "",
    by: str,
) -> FirstVersion:
    """The same from a program's file, and from words: `offsets` are `topic=where`, `at` a time, both empty for none.

    Raises:
        Usage: A word says no offset or no time. Others as `load_app` and `first_version`.
    """
    begin = starting_at(instants.parse("--at", at)) if at else None
    where = starting_offsets_in(offsets)
    return first_version(load_app(path, name=app), stage, store, kafka, offsets=where, at=begin, by=by)


def first_version(
    app: App,
    name: str,
    store: ObjectStore,
    kafka: Kafka,
    *,
    offsets: Mapping[str, StartingOffsets],
    at: StartingOffsets | None = None,
    by: str,
    patience_s: float = 60,
) -> FirstVersion:
    """What a program declares of a stage, with the offsets at which it begins. Starts Spark to know the columns.

    Args:
        app: as declared, under the name that it is to have.
        name: the stage.
        store: where the app lives, or will.
        kafka: Kafka, opened.
        offsets: where topics of the app begin, by their declared names.
        at: where its others do; None for where the program says. Of an app that there is, only the stage's own.
        by: user@host.
        patience_s: how long the broker may be away.

    Raises:
        NotFound: the program has no such stage, or the app reads no such topic, or Kafka has none.
        Refused: the stage keeps no table, or one of what waits, or has versions; offsets are not there, or the app was
            begun at others. Others as `shapes` does.
        Unavailable: Kafka or the store did not answer.
    """
    (declared,) = app.select((name,))
    if declared.state is None:
        raise Refused(
            f"stage {app.name}/{name} keeps no table, so there is nothing to begin with",
            hint=f"those with state: {', '.join(each.name for each in app.stages.values() if each.state) or 'none'}",
        )
    check_free(store, app.name, name)
    wait_for(kafka, patience_s)
    info = apps.find_app(store, app.name)
    asked = _asked(app, declared, info, offsets, at)
    if info is not None:
        stored = stored_starts(info.starts)
        app = app.beginning(stored)
        if info.initialised == name:
            # The same call again, perhaps: where the end of a topic was, that one has found out.
            asked = {topic: stored.get(topic, where) if where.moves else where for topic, where in asked.items()}
    app = app.beginning(asked)
    stage = app.stages[name]
    renamed = info.origin.topics if info is not None and info.origin is not None else {}
    claimer = Claimer(store, kafka, app, renamed, writer=str(ULID()), by=by, accept_loss=False)
    inputs = {each: start.at for each, start in claimer.check_new(stage).items()}
    starts = {topic: claimer.start_of(topic) for topic in sorted(asked)}
    if info is None:
        info = AppInfo(app.name, instants.now_ms(), starts=starts, initialised=name)
    elif any(info.starts.get(topic) != at for topic, at in starts.items() if topic not in inputs):
        raise begun_elsewhere(info)
    with spark_session(f"slackwater init {app.name}", master="local[1]", conf=_CONF) as spark:
        shape = shapes(app, spark)[name]
    if shape.table is not None:
        check_takes_rows(f"{app.name}/{name}", kind_of(shape.table.state))
    manifest = Manifest(
        app.name,
        name,
        1,
        1,
        claimer.writer,
        instants.now_ms(),
        "init",
        inputs=inputs,
        table=shape.table,
        by=by,
        program=program_of(app),
        event_time=_any_due(shape),
        migration=last.number if (last := MIGRATIONS.newest(store, app.name)) is not None else 0,
    )
    others = tuple(each.name for each in app.in_order() if each.name != name)
    return FirstVersion(manifest, info, others, claimer, stage, shape)


def check_takes_rows(stage: str, kind: Kind) -> None:
    """See that a table may begin with rows from elsewhere. Raises `Refused` where it has what waits for others."""
    if kind.waiting:
        raise Refused(
            f"the table of stage {stage} has {kind.waiting}, which the stage makes of the records that it reads",
            hint="have it read those that may still wait: starting_timestamp=... of its topic(...), and no init",
        )


def _any_due(shape: Shape) -> EventTime | None:
    """What a version says whose rows nobody has looked through for those that fall due."""
    return None if shape.due_by is None else EventTime(next_due_ms=BEFORE_ALL_MS, by_clock=shape.due_by == "clock")


def _asked(
    app: App, stage: Stage, info: AppInfo | None, offsets: Mapping[str, StartingOffsets], at: StartingOffsets | None
) -> dict[str, StartingOffsets]:
    """Where topics begin because the caller says so, by their declared names."""
    for topic in offsets:
        if topic not in app.topics:
            raise NotFound(f"topic read by {app.name}", topic, app.topics)
    if at is None:
        return dict(offsets)
    # Where the others of an app begin that there is, is decided.
    meant = app.topics if info is None else app.topics & stage.inputs.keys()
    return {topic: offsets.get(topic, at) for topic in {*meant, *offsets}}
