"""What a stage's first version is besides its rows, when these come from elsewhere: by the program, and by Kafka."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from ulid import ULID

from ...common import instants
from ...errors import NotFound, Refused
from ...pipeline.api.app import App
from ...pipeline.api.starting_offsets import starting_at, starting_offsets_in, stored_starts
from ...pipeline.batch.schemas import Shape, shapes
from ...pipeline.kafka.open import wait_for
from ...pipeline.kafka.protocol import Kafka
from ...pipeline.run.claim import Claimer, program_of
from ...pipeline.run.program import load_app
from ...pipeline.spark.session import spark_session
from ...snapshot.cut import replicas
from ...snapshot.cut.migrations import MIGRATIONS
from ...state.kinds.kind import Kind, kind_of
from ...store.objects.protocol import ObjectStore
from ...store.sst.ttl import BEFORE_ALL_MS
from ...store.versions import apps
from ...store.versions.manifest import AppInfo, EventTime, Manifest, Output
from .initialise import begun_elsewhere, check_free

_PATIENCE_S = 60.0
"""How long the broker may be away."""
_CONF = {
    "spark.ui.enabled": "false",
    # It lives for seconds, and runs no job.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """A stage's first version, to be committed."""

    manifest: Manifest
    """Of kind "init", without rows and outputs."""
    info: AppInfo
    """The app's identity, with the offsets that were said; as stored, where there is one."""
    others: tuple[str, ...]
    """The app's other stages, which begin empty where the program says."""
    channels: Callable[[], dict[str, Output]]
    """Makes the channels that the stage reads and writes, where there are none; gives the latter. Raises `Refused`."""
    shape: Shape
    """The stage's schemas."""


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
    """What a program's file declares of a stage, with the offsets at which it begins. Starts Spark for its columns.

    The app has the name `app`. Of `offsets`, each is `topic=where`, by the declared name; its other topics begin at the
    time `at`, or where the program says when that is empty: of an app that there is, only the stage's own.

    Raises:
        Usage: a word says no offset or no time.
        NotFound: the program has no such stage, or the app reads no such topic, or Kafka has none.
        Refused: the stage keeps no table, or one of what waits, or has versions; offsets are not there, or the app was
            begun at others. Others as `load_app` and `shapes` do.
        Unavailable: Kafka or the store did not answer.
    """
    program = load_app(path, name=app, store=store)
    check_free(store, program.name, program.select((stage,))[0].name)
    spark = partial(spark_session, f"slackwater init {program.name}", master="local[1]", conf=_CONF)
    made = first_version(program, stage, store, kafka, spark, offsets=offsets, at=at, by=by)
    if (table := made.manifest.table) is not None:
        check_takes_rows(f"{program.name}/{stage}", kind_of(table.state))
    return made


def first_version(
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
    """The same of a program that is loaded, whatever its stage keeps, and whether or not it has versions."""
    begin = starting_at(instants.parse("--at", at)) if at else None
    where = starting_offsets_in(offsets)
    (declared,) = program.select((stage,))
    if declared.state is None:
        keeping = ", ".join(each.name for each in program.stages.values() if each.state)
        raise Refused(
            f"stage {program.name}/{stage} keeps no table, so there is nothing to begin with",
            hint=f"those with state: {keeping or 'none'}",
        )
    wait_for(kafka, _PATIENCE_S)
    info = apps.find_app(store, program.name)
    for topic in where:
        if topic not in program.topics:
            raise NotFound(f"topic read by {program.name}", topic, program.topics)
    # Where topics begin because the caller says so. Where the others of an app begin that there is, is decided.
    meant = program.topics if info is None else program.topics & declared.inputs.keys()
    begins = dict(where) if begin is None else {topic: where.get(topic, begin) for topic in {*meant, *where}}
    if info is not None:
        stored = stored_starts(info.starts)
        program = program.beginning(stored)
        if info.initialised == stage:
            # The same call again, perhaps: where the end of a topic was, that one has found out.
            begins = {topic: stored.get(topic, at) if at.moves else at for topic, at in begins.items()}
    program = program.beginning(begins)
    declared = program.stages[stage]
    renamed = replicas.topics_of(store, info)
    claimer = Claimer(store, kafka, program, renamed, writer=str(ULID()), by=by, accept_loss=False)
    claimer.create_channels((declared,), only_ask=True)
    inputs = {each: start.at for each, start in claimer.starts(declared, None).items()}
    starts = {topic: claimer.start_of(topic) for topic in sorted(begins)}
    if info is None:
        info = AppInfo(program.name, instants.now_ms(), starts=starts, initialised=stage)
    elif any(info.starts.get(topic) != first for topic, first in starts.items() if topic not in inputs):
        raise begun_elsewhere(info)
    with spark() as session:
        shape = shapes(program, session)[stage]
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
        by=by,
        program=program_of(program),
        # Nobody has looked through the rows for those that fall due.
        event_time=None
        if shape.due_by is None
        else EventTime(next_due_ms=BEFORE_ALL_MS, by_clock=shape.due_by == "clock"),
        migration=last.number if last is not None else 0,
    )

    def channels() -> dict[str, Output]:
        claimer.create_channels((declared,))
        return claimer.outputs(declared, manifest, shape)

    others = tuple(each.name for each in program.in_order() if each.name != stage)
    return FirstVersion(manifest, info, others, channels, shape)


def check_takes_rows(stage: str, kind: Kind) -> None:
    """See that a table may begin with rows from elsewhere. Raises `Refused` where it has what waits for others."""
    if kind.waiting:
        raise Refused(
            f"the table of stage {stage} has {kind.waiting}, which the stage makes of the records that it reads",
            hint="have it read those that may still wait: starting_timestamp=... of its topic(...), and no init",
        )
