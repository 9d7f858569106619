"""Migration of a stored app to a changed program: the declared schema, and the first offsets of new inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from pyspark.sql import SparkSession

from ..common import instants, runtime
from ..errors import Usage
from ..pipeline.api.app import App
from ..pipeline.batch.schemas import StageSchemas, ddl_of, derive_schemas
from ..pipeline.kafka.channels import KafkaChannels
from ..pipeline.kafka.open import open_kafka, wait_until_available
from ..pipeline.listener import Listener
from ..pipeline.run.claim import Claimer, check_program
from ..pipeline.run.options import Options
from ..pipeline.run.program import load_app
from ..pipeline.spark.conf import add_to_python_path
from ..pipeline.spark.session import running_session, spark_session
from ..snapshot.change.migrate import Migrated, find_plan, finish_earlier, migrate
from ..snapshot.cut import replicas
from ..snapshot.cut.moments import heads_of, stages_of
from ..snapshot.take.audit_log import whoami
from ..snapshot.under_way.exclusion import RUNS_ELSEWHERE, Intent, check_exclusion
from ..state.fits import Declared, DeclaredStage
from ..store.hot.hot_store import open_store
from ..store.objects.protocol import ObjectStore
from ..store.versions import apps
from ..store.versions.manifest import Input


def declared(app: App, shapes_by_stage: Mapping[str, StageSchemas]) -> Declared:
    """Return the tables and outputs that a program declares, in the format that manifests store."""
    stages = {}
    for stage in app.stages_in_order():
        shape = shapes_by_stage[stage.name]
        outputs = {channel.name: ddl_of(shape.emits[channel.name]) for channel in stage.repartitions}
        stages[stage.name] = DeclaredStage(stage.name, app.input_writers(stage), outputs, shape.table, shape.parts)
    return Declared(app.name, stages)


def migrate_file(
    path: str,
    *,
    app: str | None,
    options: Options,
    renames: Mapping[str, str],
    stages: Mapping[str, str] | None = None,
    dry_run: bool = False,
    listener: Listener | None = None,
) -> Migrated:
    """Migrate all stages of an app, or none, to the program that a file declares. With `dry_run`, only plan.

    The app is `app`, or by default the app that the file names. `renames` maps old names of columns to their names in
    the program, and `stages` does so for stages. Without brokers in `options`, the program cannot read a new input.
    Raises the errors of `StoredApp.migrate`, `load_app` and `shapes`. Also raises `Refused` if the app was promoted
    over a second app, and the program belongs to that second app.
    """
    add_to_python_path(options.py_files)
    store = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    program = load_app(path, name=app, store=store)
    return migrate_app(program, store, options, renames=renames, stages=stages, dry_run=dry_run, listener=listener)


def migrate_app(
    program: App,
    store: ObjectStore,
    options: Options,
    *,
    renames: Mapping[str, str],
    stages: Mapping[str, str] | None = None,
    dry_run: bool = False,
    listener: Listener | None = None,
) -> Migrated:
    """Migrate an app to a loaded program, in an open store. Raises the errors of `migrate_file`."""
    listener = listener or Listener()
    info = apps.read_app(store, program.name)
    if not dry_run:
        check_exclusion(store, program.name, Intent.MIGRATE, *RUNS_ELSEWHERE)
    check_program(store, program, heads_of(store, program.name, stages_of(store, program.name)).values())
    finished = 0 if dry_run else finish_earlier(store, program.name, now_ms=instants.now_ms())
    plan = find_plan(store, declare_with_spark(program, options, listener), renames, stages=stages)
    if dry_run or not plan.changes:
        return Migrated(plan, 0, "", {}, finished)
    starts: dict[str, dict[str, Input]] = {}
    if plan.unread:
        # The program declares the first offsets of inputs that are new to a stage.
        if not options.kafka:
            unread = ", ".join(plan.unread)
            raise Usage(
                f"no Kafka configured, needed for the first offsets of {unread}",
                hint="give --kafka HOST:PORT, or set SLACKWATER_KAFKA",
            )
        wait_until_available(kafka := open_kafka(options.kafka, lambda: store), options.patience_s)
        renamed, writer = replicas.current_topic_names(store, info), str(runtime.ulid())
        claimer = Claimer(store, kafka, program, renamed, writer, by=whoami(), accept_loss=options.accept_loss)
        for stage, names in plan.unread.items():
            starts[stage] = {name: claimer.position_of_new_input(program.stages[stage], name) for name in names}
    listener.on_activity("migrating")
    reader = (
        KafkaChannels(open_kafka(options.kafka, lambda: store), patience_s=options.patience_s)
        if options.kafka
        else None
    )
    done = migrate(store, plan, starts, by=whoami(), now_ms=instants.now_ms(), reader=reader)
    return replace(done, finished=finished)


def declare_with_spark(program: App, options: Options, listener: Listener) -> Declared:
    listener.on_activity("starting Spark, to see which columns the program declares")
    with open_spark("migrate", program, options, master="local[1]") as spark:
        return declared(program, derive_schemas(program, spark))


def open_spark(
    verb: str, program: App, options: Options, master: str | None = None
) -> AbstractContextManager[SparkSession]:
    """Return a Spark session with the master from `options`, by default `master`. Reuses a running session."""
    at = None if running_session() is not None else options.master or master
    name, files = f"slackwater {verb} {program.name}", options.py_files
    return spark_session(name, master=at, conf=options.spark_conf, py_files=files)
