"""What a stage's first version is besides its rows, when these come from elsewhere: by the program, and by Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ulid import ULID

from ... import instants
from ...errors import NotFound, Refused
from ...snapshot.init.initialise import check_free
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps
from ...store.versions.manifest import Manifest, Output
from ..api.app import App, Stage, Topic
from ..api.starting_offsets import StartingOffsets
from ..batch.claim import Claimer, program_of
from ..batch.schemas import Shape, shapes
from ..kafka import topics
from ..kafka.clients import Kafka
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
        others: the app's other stages, which begin empty where the program says.
    """

    manifest: Manifest
    others: tuple[str, ...]
    _claimer: Claimer
    _stage: Stage
    _shape: Shape

    def channels(self) -> dict[str, Output]:
        """Make the channels that the stage reads and writes, where there are none; the latter. Raises `Refused`."""
        self._claimer.create_channels((self._stage,))
        return self._claimer.outputs(self._stage, self.manifest, self._shape)


def first_version(
    app: App,
    name: str,
    store: ObjectStore,
    kafka: Kafka,
    *,
    offsets: Mapping[str, StartingOffsets],
    at: StartingOffsets | None = None,
    by: str,
    py_files: Sequence[str] = (),
    patience_s: float = 60,
) -> FirstVersion:
    """What a program declares of a stage, with the offsets at which it begins. Starts Spark to know the columns.

    Args:
        app: as declared, under the name that it is to have.
        name: the stage.
        store: where the app lives, or will.
        kafka: librdkafka client properties.
        offsets: where topics begin that the stage reads, by their declared names.
        at: where the others do; None for where the program says.
        by: user@host.
        py_files: paths of Python files and zips that the program imports.
        patience_s: how long the broker may be away.

    Raises:
        NotFound: the program has no such stage, or the stage reads no such topic, or Kafka has none.
        Refused: the stage keeps no table, has versions, or offsets are not there. Others as `shapes` does.
        Unavailable: Kafka or the store did not answer.
    """
    (declared,) = app.select((name,))
    if declared.state is None:
        raise Refused(
            f"stage {app.name}/{name} keeps no table, so there is nothing to begin with",
            hint=f"those with state: {', '.join(each.name for each in app.stages.values() if each.state) or 'none'}",
        )
    check_free(store, app.name, name)
    stage = _beginning(app, declared, offsets, at)
    topics.wait_for(kafka, patience_s)
    info = apps.find_app(store, app.name)
    renamed = info.origin.topics if info is not None and info.origin is not None else {}
    claimer = Claimer(store, kafka, app, renamed, writer=str(ULID()), by=by, accept_loss=False)
    starts = claimer.check_new(stage)
    with spark_session(f"slackwater init {app.name}", master="local[1]", conf=_CONF, py_files=py_files) as spark:
        shape = shapes(app, spark)[name]
    manifest = Manifest(
        app.name,
        name,
        1,
        1,
        claimer.writer,
        instants.now_ms(),
        "init",
        inputs={input_name: start.at for input_name, start in starts.items()},
        table=shape.table,
        by=by,
        program=program_of(app),
    )
    others = tuple(each.name for each in app.in_order() if each.name != name)
    return FirstVersion(manifest, others, claimer, stage, shape)


def _beginning(app: App, stage: Stage, offsets: Mapping[str, StartingOffsets], at: StartingOffsets | None) -> Stage:
    """The stage with these offsets in the place of those that the program declares."""
    own = {one.name for one in stage.reads if isinstance(one, Topic)}
    for topic in offsets:
        if topic not in own:
            hint = "the other stages begin where the program says: slackwater.topic(…, starting_offsets=…)"
            raise NotFound(f"topic read by stage {app.name}/{stage.name}", topic, own, hint=hint)
    if at is not None and not own:
        raise Refused(
            f"stage {app.name}/{stage.name} reads no topic but {', '.join(stage.channels)}, of this app's own stages",
            hint="leave --at out; where those begin, the program says: slackwater.topic(…, starting_timestamp=…)",
        )
    return replace(
        stage,
        reads=tuple(
            replace(one, start=offsets.get(one.name, at or one.start)) if isinstance(one, Topic) else one
            for one in stage.reads
        ),
    )
