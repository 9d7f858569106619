"""Taking a stage over: what the stored head must agree with, and what a new stage begins with.

What a run makes of a program that does not fit what is stored: it refuses, and says the way on (`state/fits.py`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import xxhash
from msgspec.structs import replace

from ...errors import AnotherTopic, NotFound, Refused
from ...snapshot.change.first_versions import channel_topic
from ...snapshot.change.migrate import of_column
from ...snapshot.change.stages import bring_back
from ...snapshot.change.switch import newest_of, settled
from ...snapshot.cut.in_flight import left_at
from ...snapshot.cut.moments import heads_of
from ...state.fits import ANOTHER_STAGE, fit_inputs, fit_table, visible
from ...state.kinds.kind import key_of_table, kind_of
from ...state.rejected_schema import REJECTED_RECORDS
from ...state.topics import TopicState, merged, why_another
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.column_types import Lineage
from ...store.versions.commit import is_retired
from ...store.versions.manifest import Column, Input, Manifest, Output, Program, SideTable, Table
from ...store.versions.side_tables import REJECTED
from ..api.app import App
from ..api.stage import Stage
from ..api.starting_offsets import EARLIEST
from ..api.topic import Repartition, Topic
from ..batch.column_sources import joined
from ..batch.schemas import Shape, ddl_of
from ..kafka.protocol import Kafka
from ..publish import prepare as sinks
from .start_positions import StartFinder, StartPosition, another_channel, log_unseen, start_at


def migrate_command(app: App) -> str:
    """What to type to have a changed program keep what is stored."""
    return f"slackwater migrate {app.file.name if app.file is not None else 'FILE'} --app {app.name}"


def _keep(app: App, changed: Iterable[str] = ()) -> str:
    """The way on from a program that does not fit what is stored, and what it would change."""
    done = "; ".join(changed)
    return f"keep what is stored: {migrate_command(app)} (--dry-run only looks){f' would do: {done}' if done else ''}"


def agreed(app: App, stage: Stage, table: Table | None, head: Manifest | None) -> Table | None:
    """The declared table, with the stored number of state partitions: the code only says how many at first.

    The code may change how it is compacted, and its time to live; what stored rows say of theirs stays true.
    """
    if head is None or (stored := head.table) == table:
        return table
    check_declared(app, stage, stored)
    found = fit_table(stage.name, stored, table, {})
    if found.refused is not None:
        raise found.refused
    if stored is None or table is None or found.table is None:
        return None
    if not found.same:
        before, now = (", ".join(f"{column.name} {column.type}" for column in each.values) for each in (stored, table))
        raise Refused(
            f"stage {stage.name!r}: its value columns are ({now}), but the stored state has ({before})",
            hint=_keep(app, map(of_column, found.columns)),
        )
    return replace(stored, compaction=table.compaction, ttl=found.table.ttl)


def check_declared(app: App, stage: Stage, stored: Table | None, *, with_spark: bool = True) -> None:
    """Refuse what does not fit, whatever the columns of the stage's rows are: those that are stored stand for them.

    Without Spark, those stand as well for the columns that a state names itself.
    """
    if stored is None or stage.state is None:
        found = fit_table(stage.name, stored, None if stage.state is None else Table((), (), 1), {})
        if found.refused is not None:
            raise found.refused
        return
    check_made_here(app.name, stage.name, stored)
    declared, known = app.key_of(stage), {column.name: column for column in stored.key}
    names, key = tuple(known), key_of_table(declared, [column.name for column in stored.values])
    kept, state = kind_of(stored.state), (stage.state if key == declared else stage.state.by_session("")) or stage.state
    columns = tuple(known.get(name, Column(name, "")) for name in key)
    declaration = state if with_spark else state.declaration_over(kept)
    table = replace(stored, key=columns, state=declaration.stored, ttl=stage.table.ttl)
    found = fit_table(stage.name, stored, table, {})
    if found.same:
        return
    if names != key:
        # Of sessions, the one that a stage's key has is among the values.
        sessions = visible(stored.values) if kept.key_column else ()
        raise Refused(
            f"stage {stage.name!r}: its key columns are ({', '.join(key)}), but the stored state has "
            f"({', '.join((*names, *sessions))})",
            hint=f"another key is another table: {ANOTHER_STAGE}; where only names changed, {_keep(app)}",
        )
    if stored.state != table.state:
        now = kind_of(table.state)
        raise Refused(
            f"stage {stage.name!r}: state is {now}, but was stored as {kept}",
            hint=_keep(app, kept.differences(now)) if kept.may_become(now) else ANOTHER_STAGE,
        )
    if found.refused is not None:
        raise found.refused


def check_made_here(app: str, stage: str, stored: Table | None) -> None:
    """Refuse a stage whose rows no program of ours makes. Raises `Refused`."""
    if stored is not None and (elsewhere := kind_of(stored.state).elsewhere):
        raise Refused(
            f"stage {app}/{stage} is {elsewhere}: no program goes on with it",
            hint=f"slackwater adopt CHECKPOINT PROGRAM --stage {stage} makes it a stage of a program",
        )


def check_inputs(app: App, stage: Stage, head: Manifest) -> None:
    """Refuse inputs that are not those that are stored."""
    inputs = fit_inputs(head, app.writers(stage))
    if inputs.new or inputs.gone:
        declared, stored = (", ".join(map(repr, sorted(names))) for names in (stage.inputs, head.inputs))
        raise Refused(
            f"stage {stage.name!r} reads {declared}, but its stored state comes from {stored}",
            hint=_keep(app),
        )
    for name, (was, writer) in inputs.writers.items():
        rename = f"{migrate_command(app)} --rename-stage {was}={writer}"
        if was and writer:
            raise Refused(
                f"stage {stage.name!r}: its input {name!r} is written by {writer!r} now, and was by {was!r}",
                hint=f"where that is the same stage under another name: {rename}",
            )
        ours = f"written by its stage {was or writer!r}"
        now, before = ("a topic from outside the app", ours) if was else (ours, "a topic from outside the app")
        raise Refused(
            f"stage {stage.name!r}: its input {name!r} is {now} now, and was {before}",
            hint="give the topic, or the repartition topic, another name: then it is another input, read from its "
            "beginning",
        )


def with_lineage(known: Mapping[str, Lineage], now: Mapping[str, Lineage]) -> dict[str, Lineage]:
    """The lineage of all programs that a stage was run with: records of each may be stored."""
    names = dict.fromkeys((*known, *now))
    return {name: joined([known.get(name, {}), now.get(name, {})]) for name in names}


_log = logging.getLogger("slackwater")


@dataclass(frozen=True, slots=True)
class Claimer:
    """Claims stages of one app for one writer."""

    store: ObjectStore
    kafka: Kafka
    app: App
    topics: Mapping[str, str]
    """Users' topics that this app reads under another name (a clone's), by the declared name."""
    writer: str
    by: str
    accept_loss: bool
    """Whether offsets that are gone may be skipped."""
    migration: int = 0
    """The number of the app's newest migration, which all of its stages went through."""
    publishes: Mapping[str, str] | None = None
    """The topic of each sink, by its declared name, in a clone; None where they are as declared."""
    promotion: int = 0
    """The number of the newest promotion that the app took part in, by which it publishes that; 0 for none."""

    def create_channels(self, stages: tuple[Stage, ...], *, only_ask: bool = False) -> None:
        """Make the repartition topics that these stages read or write, where there are none yet.

        With `only_ask`, only see that this will be allowed. Raises `Refused` where it is not.
        """
        self.kafka.create_topics(self._channels(stages), only_ask=only_ask)
        sinks.create_internal(self.kafka, self.app.name, stages, self.publishes, only_ask=only_ask)

    def check(self, stage: Stage) -> tuple[Manifest | None, dict[str, StartPosition]]:
        """Refuse what does not fit whatever the stage's columns are: nothing is written, and Spark is not needed.

        Returns its head, None for a new stage, and where it begins, by the input's declared name. Raises `Refused`
        where the names of the key, the kind of state or an input changed, or input offsets are gone (`Gone`),
        `NotFound` where an input topic does not exist.
        """
        head = history.head(self.store, self.app.name, stage.name)
        if head is not None and head.called:
            raise is_retired(head)
        if head is not None and head.not_begun:
            head = None
        if head is not None:
            check_declared(self.app, stage, head.table, with_spark=False)
            for channel in stage.repartitions:
                if (output := head.outputs.get(channel.name)) is not None:
                    self._same_channel(stage, output)
            sinks.check_internal(self.kafka, stage, head, self.publishes, self.accept_loss)
        return head, self.starts(stage, head)

    def start_of(self, name: str) -> tuple[int, ...]:
        """Where a topic begins for stages without versions. Raises as `check`."""
        stage = next(stage for stage in self.app.stages.values() if name in stage.inputs)
        return self._start(stage, stage.inputs[name], None).at.offsets

    def check_shape(self, stage: Stage, shape: Shape, head: Manifest | None, starts: dict[str, StartPosition]) -> None:
        """Refuse columns that are not those that are stored, and say what the stage will not see. Raises `Refused`."""
        agreed(self.app, stage, shape.table, head)
        if shape.late_by and head is not None and head.ssts and head.event_time is None:
            _log.warning(
                "stage %s/%s knew no event time, and closes windows now: rows whose window had ended before the "
                "watermark are left out of its table from here on; event_time(late=...) says where they go, and with "
                "late='keep' all of them count, as until now",
                self.app.name,
                stage.name,
            )
        sinks.prepare(stage, shape.emits, self.publishes)
        log_unseen(stage.name, starts)

    def claim(self, stage: Stage, shape: Shape, now_ms: int) -> Manifest:
        """Commit a claim of the stage and return it. Raises as `check` and `check_shape` do.

        Kafka is asked again: retention may have taken records since the check, while Spark started.
        """
        if (was := bring_back(self.store, self.app.name, stage.name, by=self.by)) is not None:
            how = "begins anew, as the app was rewound" if was.not_begun else "goes on where it stopped"
            _log.warning("stage %s/%s was retired and is back: it %s", self.app.name, stage.name, how)
        silent = {one.name: one.kind for one in stage.sinks if one not in sinks.written(stage, self.publishes)}

        def requires(head: Manifest) -> bool:
            # Somebody may promote another app over this one at this moment, or this one over another.
            newest = settled(self.store, (head,), by=self.by, now_ms=now_ms)
            if newest is not None and newest.number > self.promotion:
                gives = "its name back" if newest.to == newest.name else f"the name {newest.name}"
                raise Refused(
                    f"a promotion that gives app {newest.to!r} {gives} went on while this run started",
                    hint="run it again: it goes on from there",
                )
            return True

        def build(draft: Manifest) -> Manifest:
            known = draft if draft.inputs else None
            table = agreed(self.app, stage, shape.table, known)
            return replace(
                start_at(self.store, draft, self.starts(stage, known, claiming=True), self.by),
                table=table,
                clock_ms=ttl.first_clock_ms(draft.table, table, draft.clock_ms),
                outputs=self.outputs(stage, draft, shape),
                sinks=sinks.claimed(self.store, self.kafka, stage, draft, self.publishes, self.accept_loss),
                # The table of rejected records is there before there is one.
                side_tables=({REJECTED: SideTable(REJECTED_RECORDS)} if stage.rejects_some else {}) | draft.side_tables,
                silent=silent,
                lineage=with_lineage(draft.lineage, shape.lineage),
                program=program_of(self.app),
                migration=max(draft.migration, self.migration),
                # What comes from here on is none of a query's of Spark.
                adopted=None,
            )

        names, change = (self.app.name, stage.name), Amendment("claim", build, requires)
        return amend(self.store, names, change, writer=self.writer, by=self.by, now_ms=now_ms).manifest

    def outputs(self, stage: Stage, known: Manifest, shape: Shape) -> dict[str, Output]:
        """The channels that a stage writes, as its next version begins with them; `known` is its newest, or a first."""
        found = {}
        for channel in stage.repartitions:
            output = known.outputs.get(channel.name)
            if output is None:
                now = self.kafka.state(topic := self._topic_of(channel))
                output = Output(topic, now.ends, (0,) * len(now.ends), topic_id=now.id)
            else:
                output = self._same_channel(stage, output)
            found[channel.name] = replace(output, schema=ddl_of(shape.emits[channel.name]))
        return found

    def _same_channel(self, stage: Stage, output: Output) -> Output:
        """A channel that a stage writes, by the topic that Kafka has. Raises `AnotherTopic`, and as `check`.

        Where loss is accepted and the topic was made again, it goes on behind what is there.
        """
        count = len(output.ends)
        now = self._state(stage, output.topic)
        now = now._replace(earliest=now.earliest[:count], ends=now.ends[:count])
        if why := why_another(output.topic, output.topic_id, output.ends, now):
            if not self.accept_loss or len(now.ends) < count:
                raise AnotherTopic(f"stage {stage.name!r} cannot go on: {why}", hint=another_channel(self.app.name))
            return replace(output, ends=now.ends, topic_id=now.id)
        return replace(output, topic_id=merged(output.topic_id, now.id))

    def begin(self, stage: Stage, name: str) -> Input:
        """Where a stage that has versions begins to read an input that is new to it: where the program says.

        One that it read earlier is read on from where it stopped, and a channel that its writer has not written yet
        from its beginning. Raises as `check`.
        """
        one = stage.inputs[name]
        head = history.head(self.store, self.app.name, stage.name)
        if head is not None and name in head.stopped:
            return self._kept(head.stopped[name])
        if not isinstance(one, Topic):
            upstream, channel = self.app.writer_of(name).name, self.app.channel(name)
            sender = history.head(self.store, self.app.name, upstream)
            if sender is not None and name not in sender.outputs:
                now = self._state(stage, topic := self._topic_of(channel))
                none = (0,) * len(now.ends)
                return Input(topic, none, upstream, sender.version, consumed=none, topic_id=now.id)
        return self._start(stage, one, None).at

    def _channels(self, stages: tuple[Stage, ...]) -> dict[str, int]:
        """The repartition topics that these stages read or write, with the partitions each gets when it is made."""
        used = [one for stage in stages for one in (*stage.repartitions, *map(self.app.channel, stage.channels))]
        return {self._topic_of(channel): channel.partitions for channel in used}

    def _topic_of(self, channel: Repartition) -> str:
        return channel_topic(self.app.name, channel.name)

    def starts(self, stage: Stage, head: Manifest | None, *, claiming: bool = False) -> dict[str, StartPosition]:
        """Where a stage begins to read, by the input's declared name; a new one has no `head`. Raises as `check`.

        `claiming`: the head is the draft of its claim, and the stages upstream that this run has were claimed before.
        """
        left: dict[str, Input | None] = {}
        if head is not None:
            check_inputs(self.app, stage, head)
        elif self.migration:
            # A stage that is put between two others begins where these stopped reading the channels that it reads from
            # now on, so no row is read twice and none is lost.
            heads = heads_of(self.store, self.app.name, history.list_stages(self.store, self.app.name)).values()
            left = {name: left_at(heads, name, self.app.writer_of(name).name) for name in stage.channels}
        return {
            name: StartPosition(self._kept(at)) if (at := left.get(name)) else self._start(stage, one, head, claiming)
            for name, one in stage.inputs.items()
        }

    def _kept(self, left: Input) -> Input:
        """Where an input was left, if all that came since is still there. Raises `Refused`."""
        first = history.first_version(self.store, self.app.name, left.upstream) if left.upstream else 0
        if left.version + 1 < first:
            raise Refused(
                f"{left.topic} was left at v{left.version} of {left.upstream}, whose history begins at v{first} by now "
                "(slackwater gc): what was sent in between is gone",
                hint="give the repartition topic a new name: then it is read from its beginning",
            )
        return left

    def _start(self, stage: Stage, one: Topic | str, head: Manifest | None, claiming: bool = False) -> StartPosition:
        state = partial(self._state, stage)
        finder = StartFinder(
            self.store, self.app.name, stage.name, head, state, self.accept_loss, claiming, self._since
        )
        if isinstance(one, Topic):
            topic = self.topics.get(one.name, one.name)
            first_since = partial(self.kafka.offsets_since, topic)
            begin = None if one.start == EARLIEST else partial(one.start.resolve, topic, first_since=first_since)
            return finder.topic(one.name, topic, begin)
        return finder.channel(one, self._topic_of(self.app.channel(one)), self.app.writer_of(one).name)

    def _since(self, topic: str, time_ms: int) -> Sequence[int]:
        count = len(self.kafka.offsets(topic)[1])
        return self.kafka.offsets_since(topic, [time_ms] * count)

    def _state(self, stage: Stage, topic: str) -> TopicState:
        """A topic as Kafka has it; a repartition topic that is not made yet, as it will be."""
        try:
            return self.kafka.state(topic)
        except Refused:
            if topic in self._channels((stage,)):
                # Kafka does not say whether there is one that may not be seen. Who may not make it lacks that first.
                self.create_channels((stage,), only_ask=True)
            raise
        except NotFound as error:
            for channel in (*stage.repartitions, *map(self.app.channel, stage.channels)):
                if topic == self._topic_of(channel):
                    none = (0,) * channel.partitions
                    return TopicState(none, none)
            raise NotFound("Kafka topic", topic, error.known, hint=f"stage {stage.name!r} reads it") from None


def program_of(app: App) -> Program | None:
    """The file that declares an app, as manifests keep it; None where it is none."""
    if app.file is None:
        return None
    return Program(str(app.file), xxhash.xxh3_128_hexdigest(app.file.read_bytes()))


def check_program(store: ObjectStore, app: App, heads: Iterable[Manifest]) -> None:
    """Refuse the program of the app that had the name of this one, whose newest versions these are, before it.

    Started again by what keeps it up, it would take the new one over; migrated to it, that would be what was before. No
    request for an app that took part in no promotion. Raises `Refused`.
    """
    found, mine = tuple(heads), program_of(app)
    promotion = newest_of(found)
    if mine is None or promotion is None:
        return
    name = promotion.name
    now, *earlier = apps.promoted(store, name)
    if now != app.name or not earlier:
        return
    for head in found:
        had = history.head(store, earlier[0], head.stage)
        before = had.program.checksum if had is not None and had.program is not None else ""
        if before == mine.checksum and head.program is not None and head.program.checksum != before:
            raise Refused(
                f"{mine.path} is the program that {name} had before {app.name} was promoted over it; now it has "
                f"{head.program.path}",
                hint=f"run that one; or this one beside it, silent: slackwater run {mine.path} --app {name}~1",
            )
