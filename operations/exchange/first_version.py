"""Manifest of the first version of a stage whose rows are imported (`slackwater init`), without the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from ...common import instants, runtime
from ...errors import NotFound, Refused
from ...pipeline.api.app import App
from ...pipeline.api.stage import Stage
from ...pipeline.api.topic import parse_offsets_arguments, starting_offsets_at, stored_starting_offsets
from ...pipeline.batch.schemas import StageSchemas, derive_schemas
from ...pipeline.kafka.open import wait_until_available
from ...pipeline.kafka.protocol import Kafka
from ...pipeline.run.claim import Claimer, program_of
from ...pipeline.run.program import load_app
from ...pipeline.spark.session import spark_session
from ...snapshot.cut import replicas
from ...snapshot.cut.migrations import MIGRATIONS
from ...state.fits import reconcile_parts
from ...state.kinds.kind import Kind, kind_of
from ...store.objects.protocol import ObjectStore
from ...store.sst.ttl import BEFORE_FIRST_EVENT_MS
from ...store.versions import apps
from ...store.versions.manifest import AppInfo, EventTime, Manifest, Output
from ...store.versions.side_tables import part_tables, table_name
from .initialise import check_no_versions, other_start_offsets_error

_PATIENCE_S = 60.0
_CONF = {
    "spark.ui.enabled": "false",
    # This JVM runs for seconds and executes no job, so optimised compilation does not pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """First version of a stage before its rows are loaded and before its commit."""

    manifest: Manifest
    """Manifest of kind `init`, without rows and without outputs."""
    info: AppInfo
    other_stages: tuple[str, ...]
    channels: Callable[[], dict[str, Output]]
    """Function that creates missing channels of the stage and returns its outputs. Raises `Refused`."""
    shape: StageSchemas


def load_first_version(
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
    """Return the first version of a stage that a program file declares. Starts Spark for the schemas.

    The app is named `app`. Each of `offsets` is `topic=where`, with the topic's declared name. Other topics begin at
    the time `at`, or, if `at` is empty, as the program declares. In an existing app, only the stage's own topics are
    affected.

    Raises:
        Usage: an offset or a time cannot be parsed.
        NotFound: the program has no such stage, or the app or Kafka has no such topic.
        Refused: the stage has no table, has a table with waiting rows, or has versions; offsets do not exist, or the
            app began at other offsets; or an error of `load_app` or `shapes`.
        Unavailable: Kafka or the store did not answer.
    """
    program = load_app(path, name=app, store=store)
    check_no_versions(store, program.name, program.select_stages((stage,))[0].name)
    spark = partial(spark_session, f"slackwater init {program.name}", master="local[1]", conf=_CONF)
    first = plan_first_version(program, stage, store, kafka, spark, offsets=offsets, at=at, by=by)
    if (table := first.manifest.table) is not None:
        check_accepts_rows(f"{program.name}/{stage}", kind_of(table.state))
    if parts := part_tables(first.manifest):
        raise Refused(
            f"cannot load rows into {program.name}/{stage}: the parts of its lists and maps are rows of "
            f"{table_name(stage, next(iter(parts)))}, which init cannot load",
            hint="pass the rows to the class by initial_state= of processor(...); or adopt a query's checkpoint",
        )
    return first


def plan_first_version(
    program: App,
    stage: str,
    store: ObjectStore,
    kafka: Kafka,
    spark: Callable[[], AbstractContextManager[SparkSession]],
    *,
    offsets: Sequence[str] = (),
    at: str = "",
    by: str,
) -> FirstVersion:
    """Return the first version of a stage of a loaded program, of any kind of state.

    The parameters and errors are those of `load_first_version`, which also checks that the stage has no versions.
    """
    begin = starting_offsets_at(instants.parse_instant("--at", at)) if at else None
    offsets_by_topic = parse_offsets_arguments(offsets)
    declared = _with_table(program, stage)
    wait_until_available(kafka, _PATIENCE_S)
    info = apps.find_app(store, program.name)
    for topic in offsets_by_topic:
        if topic not in program.topics:
            raise NotFound(f"topic read by {program.name}", topic, program.topics)
    begins = dict(offsets_by_topic)
    if begin is not None:
        # In a new app, `at` applies to all topics. In an existing app, it applies only to the stage's own topics,
        # because the other topics have start offsets.
        begins = dict.fromkeys(program.topics if info is None else program.topics & declared.inputs.keys(), begin)
        begins |= offsets_by_topic
    if info is not None:
        stored = stored_starting_offsets(info.starts)
        program = program.with_starting_offsets(stored)
        if info.initialised == stage:
            # This may be a repeated call: the first call has stored the offsets of moving positions, such as a topic's
            # end.
            begins = {topic: stored.get(topic, at) if at.depends_on_time else at for topic, at in begins.items()}
    program = program.with_starting_offsets(begins)
    declared = program.stages[stage]
    renamed = replicas.current_topic_names(store, info)
    claimer = Claimer(store, kafka, program, renamed, writer=str(runtime.ulid()), by=by, accept_loss=False)
    claimer.create_channels((declared,), validate_only=True)
    inputs = {name: start.input for name, start in claimer.start_positions(declared, None).items()}
    starts = {topic: claimer.start_offsets(topic) for topic in sorted(begins)}
    if info is None:
        info = AppInfo(program.name, instants.now_ms(), starts=starts, initialised=stage)
    elif any(info.starts.get(topic) != first for topic, first in starts.items() if topic not in inputs):
        raise other_start_offsets_error(info)
    with spark() as session:
        shape = derive_schemas(program, session)[stage]
    last = MIGRATIONS.newest(store, program.name)
    manifest = Manifest(
        program.name,
        stage,
        1,
        1,
        claimer.writer,
        instants.now_ms(),
        "init",
        inputs=inputs,
        table=shape.table,
        side_tables=reconcile_parts(shape.parts, shape.table, {}) if shape.table is not None else {},
        by=by,
        program=program_of(program),
        # No task has looked for due rows yet.
        event_time=None
        if shape.due_by is None
        else EventTime(next_due_ms=BEFORE_FIRST_EVENT_MS, by_clock=shape.due_by == "clock"),
        migration=last.number if last is not None else 0,
    )

    def channels() -> dict[str, Output]:
        claimer.create_channels((declared,))
        return claimer.build_outputs(declared, manifest, shape)

    other_stages = tuple(other.name for other in program.stages_in_order() if other.name != stage)
    return FirstVersion(manifest, info, other_stages, channels, shape)


def _with_table(program: App, stage: str) -> Stage:
    (declared,) = program.select_stages((stage,))
    if declared.state is None:
        stages_with_state = ", ".join(other.name for other in program.stages.values() if other.state)
        raise Refused(
            f"stage {program.name}/{stage} has no table, so it cannot begin with rows",
            hint=f"stages with state: {stages_with_state or 'none'}",
        )
    return declared


def check_accepts_rows(stage: str, kind: Kind) -> None:
    """Raise `Refused` if a stage's table keeps waiting rows. Such a table cannot begin with imported rows."""
    if kind.waiting_rows:
        raise Refused(
            f"cannot load rows into {stage}: its table holds {kind.waiting_rows}, which only the stage can compute",
            hint="instead of init, read recent input again: starting_timestamp=... of its topic(...)",
        )
