"""Checks of a run before Spark starts and before anything is written."""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ...common import instants, runtime
from ...common.durations import parse_ms
from ...errors import NotFound, Refused
from ...snapshot.change.first_versions import channel_topic, is_awaiting_initial_rows
from ...snapshot.change.migration import finish_newest_migration
from ...snapshot.change.stages import stages_missing_from_program
from ...snapshot.change.switch import settle_promotion
from ...snapshot.cut import replicas
from ...snapshot.cut.moments import heads_of
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...state.kinds.kind import key_of_table
from ...store.archive.reading import Archives
from ...store.hot.hot_store import open_store
from ...store.hot.places import HotPlace, find_hot_place
from ...store.objects.counting import CountingStore
from ...store.objects.open import s3_access_for_others
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access
from ...store.versions import apps, history
from ...store.versions.manifest import AppInfo, Manifest
from ..api.app import App
from ..api.stage import Stage
from ..api.topic import stored_starting_offsets
from ..batch.job import BatchLimits
from ..kafka.archived import ArchivedKafka
from ..kafka.open import is_in_memory, open_kafka, wait_until_available
from ..kafka.protocol import Kafka
from ..listener import Listener
from ..publish.sinks import check_targets
from ..spark.session import check_can_start, running_session
from ..upkeep.upkeep import StallTriggers
from .claim import Claimer, check_computed_by_program, check_program, migrate_command
from .options import Options
from .start_positions import StartPosition

_log = logging.getLogger("slackwater")
_HEARTBEAT_PATIENCE_S = 3.0
CheckedStage = tuple[Manifest | None, dict[str, StartPosition]]


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """Result of the checks that precede the start of Spark."""

    stages: tuple[Stage, ...]
    limits: Mapping[str, BatchLimits]
    stores: Mapping[str, CountingStore]
    """Store of each stage, so that requests are counted by stage."""
    checked: Mapping[str, CheckedStage]
    store: CountingStore
    heartbeats: CountingStore
    """Store with a short timeout, for heartbeats."""
    claimer: Claimer
    """Claimer of the app's stages. New stages start at offsets stored when the app was created, if there are any."""
    hot: HotPlace | None
    """Hot place of the run, which a new app has not recorded yet; None for the store itself."""
    access: Callable[[], S3Access | None]
    is_new: bool
    is_clone: bool
    """True for a clone or a replaced app, which sends no records to the topics of the original."""

    def claimer_of(self, stage: Stage) -> Claimer:
        return replace(self.claimer, store=self.stores[stage.name])


def preflight(app: App, options: Options, listener: Listener) -> PreflightResult:
    """Wait for Kafka, and run all checks that need no Spark. Raises `NotFound`, `Refused` or `Usage` if one fails."""
    limits = {stage.name: limits_of(stage, options) for stage in app.select_stages(options.stages)}
    check_can_start(options.master, options.spark_conf)
    # Refuse an invalid store address before waiting for anything.
    opened = open_store(options.store, patience_s=options.patience_s, settings=options.s3)
    kafka = open_kafka(options.kafka, lambda: opened)
    listener.on_activity(f"waiting for {kafka.name}")
    wait_until_available(kafka, options.patience_s)
    store = CountingStore(opened)
    listener.on_activity("checking the app")
    folders = apps.folders_of(store, app.name)
    app = replace(app, name=folders[0])
    _check_master(options, limits)
    info, migration = apps.find_app(store, app.name), 0
    if info is None:
        apps.check_root(store)
        history.list_stages(store, app.name)  # raises for an unfinished clone or removal
        apps.check_name_free(store, app.name)
    else:
        migration = _check_stored_app(store, app, info, replaced=len(folders) > 1)
        app = app.with_starting_offsets(stored_starting_offsets(info.starts))
    stages = app.select_stages(options.stages)
    claimer = Claimer(
        store=store,
        kafka=ArchivedKafka(kafka, Archives(lambda: store, app.name), archive_first=False),
        app=app,
        topics=replicas.current_topic_names(store, info),
        writer=str(runtime.ulid()),
        by=f"{socket.gethostname()}:{os.getpid()}",
        accept_loss=options.accept_loss,
        migration=migration,
    )
    stores = {stage.name: CountingStore(opened) for stage in stages}
    checked = {stage.name: replace(claimer, store=stores[stage.name]).check_stage(stage) for stage in stages}
    claimer = _with_promotion(claimer, info, checked, publishes=options.publishes)
    if options.publishes:
        check_targets(kafka, app, stages, claimer.topics, claimer.publishes)
    claimer.create_channels(stages, validate_only=True)
    clone = claimer.publishes is not None
    if not clone:
        _check_rejects(kafka, app, stages)
    beats = CountingStore(open_store(options.store, patience_s=_HEARTBEAT_PATIENCE_S, settings=options.s3))
    access = partial(s3_access_for_others, opened)
    hot = None
    if options.hot:
        hot = find_hot_place(store, app.name, options.hot)
        opened.hot = hot.root
    return PreflightResult(
        stages, limits, stores, checked, store, beats, claimer, hot, access, is_new=info is None, is_clone=clone
    )


def _check_master(options: Options, limits: Mapping[str, BatchLimits]) -> None:
    running = running_session()
    master = running.sparkContext.master if running else options.spark_conf.get("spark.master", options.master)
    if master:
        check_unflushed(limits, master)
        check_kafka_reachable(options.kafka, master)


def _check_stored_app(store: ObjectStore, app: App, info: AppInfo, *, replaced: bool) -> int:
    check_exclusion(store, app.name, Intent.RUN)
    if is_awaiting_initial_rows(store, info):
        raise Refused(
            f"`slackwater init` of app {app.name!r} was interrupted: {info.initialised} has no rows yet",
            hint="run the same `slackwater init` again; or, to start without rows: slackwater app rm " + app.name,
        )
    migration = finish_newest_migration(store, app.name, now_ms=instants.now_ms())
    if replaced:
        # Refuse a replaced program before any check suggests a migration to it.
        check_program(store, app, _read_heads(store, app))
    _check_absent_stages(store, app)
    return migration


def _with_promotion(
    claimer: Claimer, info: AppInfo | None, checked: Mapping[str, CheckedStage], *, publishes: bool
) -> Claimer:
    store, app = claimer.store, claimer.app
    heads = [head for head, _ in checked.values() if head is not None]
    if info is not None and not heads:
        heads = _read_heads(store, app)
    promotion = (
        settle_promotion(store, heads, by=claimer.by, now_ms=instants.now_ms(), claims=checked) if heads else None
    )
    if promotion is not None:
        check_program(store, app, heads)
    number = promotion.number if promotion is not None else 0
    topics = apps.published_sinks(store, info, promotion) if publishes else None
    return replace(claimer, publishes=topics, promotion=number)


def _read_heads(store: ObjectStore, app: App) -> list[Manifest]:
    return [*heads_of(store, app.name, history.list_stages(store, app.name)).values()]


def _check_rejects(kafka: Kafka, app: App, stages: tuple[Stage, ...]) -> None:
    for stage in [stage for stage in stages if stage.rejects]:
        if stage.rejects in {
            channel_topic(app.name, output.name) for writer in app.stages.values() for output in writer.writes
        }:
            raise Refused(
                f"stage {stage.name!r}: {stage.rejects!r} is a repartition topic of the app, which its stages read",
                hint="use another topic for rejected records",
            )
        try:
            kafka.offset_bounds(stage.rejects)
        except NotFound as error:
            hint = f"stage {stage.name!r} sends rejected records there (rejects=): create the topic first"
            raise NotFound("Kafka topic", stage.rejects, error.known, hint=hint) from None


def limits_of(stage: Stage, options: Options) -> BatchLimits:
    """Return the limits of a stage's batches. The run's options take precedence over the program's.

    Raises `Usage` for an invalid interval.
    """
    declared_ms = 0 if stage.trigger is None else parse_ms("trigger", stage.trigger)
    return BatchLimits(
        stage.max_records if options.max_records is None else options.max_records,
        declared_ms if options.trigger_ms is None else options.trigger_ms,
        StallTriggers(stage.table.l0_slowdown, stage.table.l0_stop),
        (stage.max_unflushed or 0) if options.max_unflushed is None else options.max_unflushed,
        options.until,
    )


def _check_absent_stages(store: ObjectStore, app: App) -> None:
    """Log the stages of the stored app that the program lacks, because snapshots and garbage collection wait for them.

    Raises `Refused` if the program seems to have renamed a stage, because the renamed stage would start empty. Also
    raises `Refused` if a missing stage has the state of a Spark query to which slackwater is attached.
    """
    names = stages_missing_from_program(store, app.name, app.stages.keys())
    if not names:
        return
    stored = history.list_stages(store, app.name)
    new = [stage for name, stage in app.stages.items() if name not in stored]
    pairs = []
    for head in heads_of(store, app.name, names).values():
        check_computed_by_program(app.name, head.stage, head.table)
        likely = [stage.name for stage in new if _may_be_renamed(app, stage, head)]
        pairs += [(head.stage, likely[0])] if len(likely) == 1 else []
    if pairs:
        old, now = pairs[0]
        renames = " ".join(f"--rename-stage {previous}={current}" for previous, current in pairs)
        raise Refused(
            f"{app.name} has the stage {old!r}, which this program lacks; the program's new stage {now!r} has the same "
            "inputs and key",
            hint=f"if {old!r} was renamed: {migrate_command(app)} {renames}; if {now!r} is another stage, which starts "
            f"empty: slackwater retire {app.name}/{old}",
        )
    gone, them = " and ".join(names), "it" if len(names) == 1 else "them"
    verbs = ", ".join(f"slackwater retire {app.name}/{name}" for name in names)
    message = "%s has %s, which this program lacks: snapshots wait for %s. If removed for good: %s"
    _log.warning(message, app.name, gone, them, verbs)


def _may_be_renamed(app: App, stage: Stage, head: Manifest) -> bool:
    """Return True if the program's stage may be the stored stage under a new name, as far as known without Spark."""
    if head.table is None or stage.state is None or head.inputs.keys() != stage.inputs.keys():
        return False
    key = key_of_table(app.key_of(stage), [column.name for column in head.table.values])
    return tuple(column.name for column in head.table.key) == key


def check_unflushed(limits: Mapping[str, BatchLimits], master: str) -> None:
    ahead = [stage for stage, limit in limits.items() if limit.max_unflushed]
    if ahead and not master.startswith("local"):
        raise Refused(
            f"stage {ahead[0]!r} has max_unflushed={limits[ahead[0]].max_unflushed}, so its SSTs wait on the disk of "
            f"the runner's machine, which executors of {master} cannot read",
            hint="run it with --master 'local[*]', or with max_unflushed=0",
        )


def check_kafka_reachable(kafka: Mapping[str, str], master: str) -> None:
    if is_in_memory(kafka) and not master.startswith("local"):
        raise Refused(
            f"{kafka['bootstrap.servers']} is in the memory of this process, which executors of {master} cannot reach",
            hint="run it with --master 'local[*]', or use a Kafka that they can reach",
        )
