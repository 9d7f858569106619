"""Claims of stages: checks the stored head against the program, and finds the start positions of the inputs.

A program that does not fit the stored state is refused, with the command that migrates the state (`state/fits.py`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import xxhash
from msgspec.structs import replace

from ...errors import AnotherTopic, NotFound, Refused
from ...snapshot.change.first_versions import channel_topic
from ...snapshot.change.migrate import describe_column_change
from ...snapshot.change.stages import prepare_reactivation
from ...snapshot.change.switch import newest_promotion, settle_promotion
from ...snapshot.cut.in_flight import former_reader_position
from ...snapshot.cut.moments import heads_of
from ...state.fits import ANOTHER_STAGE, NO_PARTS, fit_inputs, fit_table, reconcile_parts, visible_names
from ...state.kinds.kind import key_of_table, kind_of
from ...state.records import TopicState, explain_recreated_topic, id_to_store
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.column_types import Lineage
from ...store.versions.commit import retired_error
from ...store.versions.manifest import Column, Input, Manifest, Output, Policy, Program, SideTable, Table
from ...store.versions.side_tables import REJECTED, REJECTED_RECORDS, part_tables, with_part_tables
from ..api.app import App
from ..api.stage import Stage
from ..api.table import TableOptions
from ..api.topic import EARLIEST, Repartition, Topic
from ..batch.column_sources import merge_lineages
from ..batch.schemas import StageSchemas, ddl_of
from ..kafka.protocol import Kafka
from ..publish import sinks
from .start_positions import (
    StartFinder,
    StartPosition,
    log_unseen_records,
    recreated_channel_hint,
    with_start_positions,
)

TASKS_PER_CORE = 2
_MANY_TASKS = 16
"""Number of hash ranges above which puts by merges cost more than additional runs, and the run limit in that case."""
"""Tasks of a batch per core of the session, so that a slow task does not leave the other cores idle."""


def migrate_command(app: App) -> str:
    return f"slackwater migrate {app.file.name if app.file is not None else 'FILE'} --app {app.name}"


def _migration_hint(app: App, changed: Iterable[str] = ()) -> str:
    done = "; ".join(changed)
    return (
        f"migrate the stored state: {migrate_command(app)} (preview: --dry-run){f' would do: {done}' if done else ''}"
    )


def reconcile_table(
    app: App, stage: Stage, table: Table | None, head: Manifest | None, parts: Mapping[str, Table] = NO_PARTS
) -> Table | None:
    """Return the declared table with the stored number of state partitions.

    The program sets that number only for a new table. The program may change the compaction and the time to live.
    Raises `Refused` for other differences from the stored table, and for tables of `parts` that differ from the stored
    tables of parts.
    """
    if head is None:
        return table
    stored, stored_parts = head.table, {name: side.table for name, side in part_tables(head).items()}
    if stored == table and stored_parts == parts:
        return table
    check_declared(app, stage, stored)
    fit = fit_table(stage.name, stored, table, {}, stored_parts=stored_parts, declared_parts=parts)
    if fit.refused is not None:
        raise fit.refused
    if stored is None or table is None or fit.table is None:
        return None
    if not fit.same:
        old, now = (
            ", ".join(f"{column.name} {column.type}" for side in sides for column in side.values)
            for sides in ((stored, *stored_parts.values()), (table, *parts.values()))
        )
        raise Refused(
            f"stage {stage.name!r}: its value columns are ({now}), but the stored state has ({old})",
            hint=_migration_hint(app, map(describe_column_change, fit.columns)),
        )
    return replace(stored, compaction=table.compaction, ttl=fit.table.ttl)


def with_tasks(table: Table | None, declared: int | None, cores: int) -> Table | None:
    """Return the table with the number of tasks of a batch: `declared`, else a default for the session's `cores`.

    The default is a power of two, so that a change of the number joins or splits whole hash ranges. A merge then cuts
    an SST only if the number of tasks has grown since the SST was written.
    """
    if table is None:
        return None
    tasks = declared or (1 << (TASKS_PER_CORE * cores - 1).bit_length() if cores else 0)
    return replace(table, tasks=tasks if tasks < table.partitions else 0)


def with_default_compaction(table: Table | None, options: TableOptions) -> Table | None:
    """Return the table with fewer merges if its batches have many tasks, unless `options` has a compaction."""
    if table is None or options.compaction is not None or table.ranges < _MANY_TASKS:
        return table
    return replace(table, compaction=Policy(l0_trigger=_MANY_TASKS))


def check_declared(app: App, stage: Stage, stored: Table | None, *, with_spark: bool = True) -> None:
    """Raise `Refused` if the declared key or state cannot fit the stored table, regardless of the rows' columns.

    Without Spark, the columns that a state declares are assumed to equal the stored columns.
    """
    if stored is None or stage.state is None:
        fit = fit_table(stage.name, stored, None if stage.state is None else Table((), (), 1), {})
        if fit.refused is not None:
            raise fit.refused
        return
    check_computed_by_program(app.name, stage.name, stored)
    declared, stored_key = app.key_of(stage), {column.name: column for column in stored.key}
    names, key = tuple(stored_key), key_of_table(declared, [column.name for column in stored.values])
    stored_state = kind_of(stored.state)
    state = (stage.state if key == declared else stage.state.by_session("")) or stage.state
    columns = tuple(stored_key.get(name, Column(name, "")) for name in key)
    declaration = state if with_spark else state.declaration_over(stored_state)
    table = replace(stored, key=columns, state=declaration.stored, ttl=stage.table.ttl)
    fit = fit_table(stage.name, stored, table, {})
    if fit.same:
        return
    if names != key:
        # If the stage's key has a session window, the window is stored as a value.
        sessions = visible_names(stored.values) if stored_state.key_column else ()
        raise Refused(
            f"stage {stage.name!r}: its key columns are ({', '.join(key)}), but the stored state has "
            f"({', '.join((*names, *sessions))})",
            hint=f"a new key needs a new table: {ANOTHER_STAGE}; if only names changed, {_migration_hint(app)}",
        )
    if stored.state != table.state:
        now = kind_of(table.state)
        raise Refused(
            f"stage {stage.name!r}: state is {now}, but was stored as {stored_state}",
            hint=_migration_hint(app, stored_state.differences(now)) if stored_state.may_become(now) else ANOTHER_STAGE,
        )
    if fit.refused is not None:
        raise fit.refused


def check_computed_by_program(app: str, stage: str, stored: Table | None) -> None:
    if stored is not None and (elsewhere := kind_of(stored.state).external_owner):
        raise Refused(
            f"stage {app}/{stage} is {elsewhere}: no program can continue it",
            hint=f"to make it a stage of a program: slackwater adopt CHECKPOINT PROGRAM --stage {stage}",
        )


def check_inputs(app: App, stage: Stage, head: Manifest) -> None:
    inputs = fit_inputs(head, app.input_writers(stage))
    if inputs.new or inputs.removed:
        declared, stored = (", ".join(map(repr, sorted(names))) for names in (stage.inputs, head.inputs))
        raise Refused(
            f"stage {stage.name!r} reads {declared}, but its stored state comes from {stored}",
            hint=_migration_hint(app),
        )
    for name, (old_writer, writer) in inputs.writers.items():
        rename = f"{migrate_command(app)} --rename-stage {old_writer}={writer}"
        if old_writer and writer:
            raise Refused(
                f"stage {stage.name!r}: its input {name!r} is now written by {writer!r}; it was written by "
                f"{old_writer!r} before",
                hint=f"if that is the same stage under a new name: {rename}",
            )
        ours = f"written by its stage {old_writer or writer!r}"
        now, previous = ("a topic from outside the app", ours) if old_writer else (ours, "a topic from outside the app")
        raise Refused(
            f"stage {stage.name!r}: its input {name!r} is now {now}; it was {previous} before",
            hint="give the topic, or the repartition topic, a new name: then it is a new input, read from its "
            "beginning",
        )


def union_lineage(stored: Mapping[str, Lineage], current: Mapping[str, Lineage]) -> dict[str, Lineage]:
    """Return the union of stored and current lineage, because stored records may come from any former program."""
    names = dict.fromkeys((*stored, *current))
    return {name: merge_lineages([stored.get(name, {}), current.get(name, {})]) for name in names}


_log = logging.getLogger("slackwater")


@dataclass(frozen=True, slots=True)
class Claimer:
    """Claims stages of one app for a writer."""

    store: ObjectStore
    kafka: Kafka
    app: App
    topics: Mapping[str, str]
    writer: str
    by: str
    accept_loss: bool
    migration: int = 0
    """Number of the app's newest migration; 0 for none. The migration is complete in all stages."""
    publishes: Mapping[str, str] | None = None
    """Topic of each sink of a clone, by the sink's declared name; None if topics are as declared."""
    promotion: int = 0
    """Number of the newest promotion of the app, on which `publishes` is based; 0 for none."""

    def create_channels(self, stages: tuple[Stage, ...], *, validate_only: bool = False) -> None:
        self.kafka.create_topics(self._partition_counts(stages), validate_only=validate_only)
        sinks.create_internal_topics(self.kafka, self.app.name, stages, self.publishes, validate_only=validate_only)

    def check_stage(self, stage: Stage) -> tuple[Manifest | None, dict[str, StartPosition]]:
        """Refuse a stage that does not fit the stored state. Needs no Spark, and writes only lists of sources' files.

        Returns the stage's head (None for a new stage) and its start positions by the input's declared name. Raises
        `Refused` if the names of the key columns, the kind of state or an input changed, `Gone` if input offsets are
        lost, and `NotFound` if an input topic does not exist.
        """
        head = history.head(self.store, self.app.name, stage.name)
        if head is not None and head.called:
            raise retired_error(head)
        if head is not None and head.is_before_beginning:
            head = None
        if head is not None:
            check_declared(self.app, stage, head.table, with_spark=False)
            for channel in stage.repartitions:
                if (output := head.outputs.get(channel.name)) is not None:
                    self._continue_channel(stage, output)
            sinks.check_internal_topics(self.kafka, stage, head, self.publishes, self.accept_loss)
        return head, self.start_positions(stage, head)

    def start_offsets(self, name: str) -> tuple[int, ...]:
        stage = next(stage for stage in self.app.stages.values() if name in stage.inputs)
        return self._find_start(stage, stage.inputs[name], None).input.offsets

    def check_shape(
        self, stage: Stage, shape: StageSchemas, head: Manifest | None, starts: dict[str, StartPosition]
    ) -> None:
        """Raise `Refused` if columns differ from the stored columns.

        Logs the records that the stage will never see.
        """
        reconcile_table(self.app, stage, shape.table, head, shape.parts)
        if shape.lateness_columns and head is not None and head.ssts and head.event_time is None:
            _log.warning(
                "stage %s/%s uses event time from now on: its table no longer gets late rows (their window ended "
                "before the watermark). event_time(late='keep') adds them as before; other values of late= send them "
                "to an output",
                self.app.name,
                stage.name,
            )
        sinks.register_schemas(stage, shape.emits, self.publishes)
        log_unseen_records(stage.name, starts)

    def claim(self, stage: Stage, shape: StageSchemas, now_ms: int, *, cores: int = 0) -> Manifest:
        """Commit a claim of the stage and return it. Raises the errors of `check_stage` and `check_shape`.

        Start positions are computed again, because records may have expired while Spark started.
        """
        if (retired := prepare_reactivation(self.store, self.app.name, stage.name, by=self.by)) is not None:
            how = (
                "starts empty, because the app was rewound"
                if retired.is_before_beginning
                else "continues where it stopped"
            )
            _log.warning("stage %s/%s is no longer retired: it %s", self.app.name, stage.name, how)
        silent = {
            sink.name: sink.kind for sink in stage.sinks if sink not in sinks.published_sinks(stage, self.publishes)
        }

        def requires(head: Manifest) -> bool:
            # Since the check, this app may have been promoted, or another app over this app.
            newest = settle_promotion(self.store, (head,), by=self.by, now_ms=now_ms)
            if newest is not None and newest.number > self.promotion:
                gives = "its name back" if newest.to == newest.name else f"the name {newest.name}"
                raise Refused(
                    f"a promotion gave app {newest.to!r} {gives} while this run started",
                    hint="run it again: it continues from there",
                )
            return True

        def build(draft: Manifest) -> Manifest:
            head = draft if draft.inputs else None
            table = reconcile_table(self.app, stage, shape.table, head, shape.parts)
            table = with_default_compaction(with_tasks(table, stage.table.tasks, cores), stage.table)
            parts = reconcile_parts(shape.parts, table, draft.side_tables) if table is not None else {}
            positions = self.start_positions(stage, head, claiming=True)
            draft = with_part_tables(with_start_positions(self.store, draft, positions, self.by), parts)
            return replace(
                draft,
                table=table,
                clock_ms=ttl.claim_clock_ms(draft.table, table, draft.clock_ms),
                outputs=self.build_outputs(stage, draft, shape),
                sinks=sinks.claim_sinks(self.store, self.kafka, stage, draft, self.publishes, self.accept_loss),
                # Create the table of rejected records before the first such record.
                side_tables=({REJECTED: SideTable(REJECTED_RECORDS)} if stage.can_reject else {}) | draft.side_tables,
                silent=silent,
                lineage=union_lineage(draft.lineage, shape.lineage),
                program=program_of(self.app),
                migration=max(draft.migration, self.migration),
                # From this version on, state no longer comes from an adopted Spark query.
                adopted=None,
            )

        names, change = (self.app.name, stage.name), Amendment("claim", build, requires)
        return amend(self.store, names, change, writer=self.writer, by=self.by, now_ms=now_ms).manifest

    def build_outputs(self, stage: Stage, head: Manifest, shape: StageSchemas) -> dict[str, Output]:
        """Return the outputs of a stage's next version, by channel. `head` is the newest version, or a draft."""
        outputs = {}
        for channel in stage.repartitions:
            output = head.outputs.get(channel.name)
            if output is None:
                now = self.kafka.topic_state(topic := self._topic_of(channel))
                output = Output(topic, now.ends, (0,) * len(now.ends), topic_id=now.id)
            else:
                output = self._continue_channel(stage, output)
            outputs[channel.name] = replace(output, schema=ddl_of(shape.emits[channel.name]))
        return outputs

    def _continue_channel(self, stage: Stage, output: Output) -> Output:
        """Return the stage's channel for its claim, with the topic id that Kafka reports now.

        Raises `AnotherTopic` if the topic was created again. If loss is accepted, the channel continues at the end of
        the new topic instead. Also raises the errors of `check_stage`.
        """
        count = len(output.ends)
        now = self._topic_state(stage, output.topic)
        now = now._replace(earliest=now.earliest[:count], ends=now.ends[:count])
        if why := explain_recreated_topic(output.topic, output.topic_id, output.ends, now):
            if not self.accept_loss or len(now.ends) < count:
                raise AnotherTopic(
                    f"stage {stage.name!r} cannot continue: {why}", hint=recreated_channel_hint(self.app.name)
                )
            return replace(output, ends=now.ends, topic_id=now.id)
        return replace(output, topic_id=id_to_store(output.topic_id, now.id))

    def position_of_new_input(self, stage: Stage, name: str) -> Input:
        """Return the start position of an input that the program adds to a stage with versions.

        An input that the stage read earlier resumes where the stage stopped. A channel that its writer has not written
        yet is read from its beginning. Any other input starts as the program declares. Raises the errors of
        `check_stage`.
        """
        source = stage.inputs[name]
        head = history.head(self.store, self.app.name, stage.name)
        if head is not None and name in head.stopped:
            return self._check_position(head.stopped[name])
        if not isinstance(source, Topic):
            upstream, channel = self.app.writer_of(name).name, self.app.channel(name)
            sender = history.head(self.store, self.app.name, upstream)
            if sender is not None and name not in sender.outputs:
                now = self._topic_state(stage, topic := self._topic_of(channel))
                none = (0,) * len(now.ends)
                return Input(topic, none, upstream, sender.version, consumed=none, topic_id=now.id)
        return self._find_start(stage, source, None).input

    def _partition_counts(self, stages: tuple[Stage, ...]) -> dict[str, int]:
        used = [
            channel for stage in stages for channel in (*stage.repartitions, *map(self.app.channel, stage.channels))
        ]
        return {self._topic_of(channel): channel.partitions for channel in used}

    def _topic_of(self, channel: Repartition) -> str:
        return channel_topic(self.app.name, channel.name)

    def start_positions(
        self, stage: Stage, head: Manifest | None, *, claiming: bool = False
    ) -> dict[str, StartPosition]:
        """Return a stage's start positions by the input's declared name. `head` is None for a new stage.

        With `claiming`, the head is the draft of the stage's claim, and upstream stages of this run are already
        claimed. Raises the errors of `check_stage`.
        """
        left_off: dict[str, Input | None] = {}
        if head is not None:
            check_inputs(self.app, stage, head)
        elif self.migration:
            # A new stage between two existing stages starts where the readers of its channels stopped, so that no row
            # is read twice or lost.
            heads = heads_of(self.store, self.app.name, history.list_stages(self.store, self.app.name)).values()
            left_off = {
                name: former_reader_position(heads, name, self.app.writer_of(name).name) for name in stage.channels
            }
        return {
            name: StartPosition(self._check_position(at))
            if (at := left_off.get(name))
            else self._find_start(stage, source, head, claiming)
            for name, source in stage.inputs.items()
        }

    def _check_position(self, position: Input) -> Input:
        """Return an input's stored position. Raises `Refused` if versions after it were garbage collected."""
        first = history.first_version(self.store, self.app.name, position.upstream) if position.upstream else 0
        if position.version + 1 < first:
            raise Refused(
                f"{position.topic} was last read at v{position.version} of {position.upstream}, whose history now "
                f"begins at v{first} (slackwater gc): rows of the versions between are gone",
                hint="give the repartition topic a new name: then the stage reads the new topic from its beginning",
            )
        return position

    def _find_start(
        self, stage: Stage, source: Topic | str, head: Manifest | None, claiming: bool = False
    ) -> StartPosition:
        state = partial(self._topic_state, stage)
        finder = StartFinder(
            self.store, self.app.name, stage.name, head, state, self.accept_loss, claiming, self._offsets_since
        )
        if isinstance(source, Topic):
            if source.source is not None:
                self.kafka.declare(source.source)
            topic = self.topics.get(source.name, source.name)
            first_since = partial(self.kafka.offsets_for_times, topic)
            begin = None if source.start == EARLIEST else partial(source.start.resolve, topic, first_since=first_since)
            return finder.start_on_topic(source.name, topic, begin)
        return finder.start_on_channel(
            source, self._topic_of(self.app.channel(source)), self.app.writer_of(source).name
        )

    def _offsets_since(self, topic: str, time_ms: int) -> Sequence[int]:
        count = len(self.kafka.offset_bounds(topic)[1])
        return self.kafka.offsets_for_times(topic, [time_ms] * count)

    def _topic_state(self, stage: Stage, topic: str) -> TopicState:
        try:
            return self.kafka.topic_state(topic)
        except Refused:
            if topic in self._partition_counts((stage,)):
                # Without permission to describe a topic, Kafka does not tell if the topic exists. The permission to
                # create it is checked instead.
                self.create_channels((stage,), validate_only=True)
            raise
        except NotFound as error:
            for channel in (*stage.repartitions, *map(self.app.channel, stage.channels)):
                if topic == self._topic_of(channel):
                    none = (0,) * channel.partitions
                    return TopicState(none, none)
            raise NotFound("Kafka topic", topic, error.known, hint=f"stage {stage.name!r} reads it") from None


def program_of(app: App) -> Program | None:
    if app.file is None:
        return None
    return Program(str(app.file), xxhash.xxh3_128_hexdigest(app.file.read_bytes()))


def check_program(store: ObjectStore, app: App, heads: Iterable[Manifest]) -> None:
    """Raise `Refused` for a program that a promotion has replaced. `heads` are the app's newest versions.

    Without this check, a replaced program that a service manager restarts would take over the promoted app, or migrate
    the app's state back. Makes no request for an app without promotions.
    """
    manifests, program = tuple(heads), program_of(app)
    promotion = newest_promotion(manifests)
    if program is None or promotion is None:
        return
    name = promotion.name
    now, *earlier = apps.owner_folders(store, name)
    if now != app.name or not earlier:
        return
    for head in manifests:
        former = history.head(store, earlier[0], head.stage)
        replaced = former.program.checksum if former is not None and former.program is not None else ""
        if replaced == program.checksum and head.program is not None and head.program.checksum != replaced:
            raise Refused(
                f"{program.path} is the program that {name} had before {app.name} was promoted over it; its program is "
                f"now {head.program.path}",
                hint="run that program; or run the former app, without publishing: "
                f"slackwater run {program.path} --app {name}~1",
            )
