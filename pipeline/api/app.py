"""What a user's program declares: an app, its stages, and the topics between them. Values only, no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ...durations import parse_ms
from ...errors import NotFound, Refused, Usage
from ...store.versions.aside import REJECTED, table_name
from ...store.versions.keys import check_name, check_topic
from ...store.versions.limits import MAX_KAFKA_PARTITIONS
from ...validation import whole
from ..state.due import Final
from ..state.join import Join
from ..state.protocol import State
from .event_time import DEFAULT_EVENT_TIME, EventTimeOptions
from .sink import FunctionSink, Sink, TopicSink, internal_topic
from .starting_offsets import StartingOffsets, starting_offsets_of
from .table import DEFAULT_TABLE, TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..batch.batch_report import BatchReport

Transform = Callable[..., "DataFrame"]
OnError = Literal["stop", "reject"]


@dataclass(frozen=True, slots=True)
class Topic:
    """A user's Kafka topic. Its rows have the columns of Structured Streaming's Kafka source."""

    name: str
    start: StartingOffsets


@dataclass(frozen=True, slots=True)
class Repartition:
    """An internal topic between two stages: its rows go to the Kafka partition that their key says."""

    name: str
    key: tuple[str, ...]
    partitions: int


def topic(
    name: str,
    *,
    starting_offsets: str = "earliest",
    starting_timestamp: int | str | None = None,
    starting_offsets_by_timestamp: str | None = None,
    starting_offsets_by_timestamp_strategy: str = "error",
) -> Topic:
    """Read a Kafka topic.

    Where a stage that has no version yet begins is said as in Structured Streaming's Kafka source; one that has always
    goes on where that stopped.

    Args:
        name: The topic.
        starting_offsets: `"earliest"`, `"latest"`, or JSON with an offset for each partition, of which -2 is the
            earliest and -1 the latest: `{"flights":{"0":23,"1":-2}}`.
        starting_timestamp: Begin each partition at its first record of this time or later, in ms since 1970. It wins
            over the other two.
        starting_offsets_by_timestamp: The same with a time for each partition, as JSON:
            `{"flights":{"0":1700000000000,"1":0}}`. It wins over `starting_offsets`.
        starting_offsets_by_timestamp_strategy: What happens where no record is as late: `"error"` refuses the stage,
            `"latest"` begins that partition at its end.

    Raises:
        Usage: An argument is not such as Spark takes, or Kafka has no topics of such a name.
    """
    start = starting_offsets_of(
        check_topic(name),
        starting_offsets,
        starting_timestamp,
        starting_offsets_by_timestamp,
        starting_offsets_by_timestamp_strategy,
    )
    return Topic(name, start)


def repartition(name: str, key: Sequence[str] | str, *, partitions: int = 4) -> Repartition:
    """Write a stage's rows to an internal topic, keyed, for later stages to read.

    Args:
        name: Its name within the app; the Kafka topic is `<app>-<name>-repartition`.
        key: The column or columns that decide the partition; also the default key of a stage that reads it.
        partitions: Partitions of the Kafka topic when it is first made.

    Raises:
        Usage: The name, the key or the number of partitions is not usable.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    check_name("repartition topic", name)
    if not columns or len(set(columns)) != len(columns):
        raise Usage(f"repartition {name!r}: key is {columns!r}; expected one or more different column names")
    return Repartition(name, columns, whole(f"repartition {name!r}: partitions", partitions, 1, MAX_KAFKA_PARTITIONS))


@dataclass(frozen=True, slots=True)
class Stage:
    """One Structured Streaming query: inputs, the user's transformation, at most one keyed table, outputs."""

    name: str
    transform: Transform
    reads: tuple[Topic | str, ...]
    writes: tuple[Repartition | Sink, ...]
    """In the order in which the function, or the state, gives each its rows."""
    state: State | None
    key: tuple[str, ...]
    """As declared; empty when it is that of the channels that are read. `App.key_of` tells."""
    table: TableOptions
    max_records: int | None = None
    trigger: str | None = None
    max_unflushed: int | None = None
    on_error: OnError = "stop"
    max_rejected: int = 1_000
    rejects: str = ""
    """The topic that rejected records are sent to as well; empty for none."""
    event_time: EventTimeOptions = DEFAULT_EVENT_TIME

    @property
    def inputs(self) -> dict[str, Topic | str]:
        """What is read, by its declared name, in the order of the function's arguments."""
        return {one.name if isinstance(one, Topic) else one: one for one in self.reads}

    @property
    def repartitions(self) -> tuple[Repartition, ...]:
        """The repartition topics among what it writes."""
        return tuple(one for one in self.writes if isinstance(one, Repartition))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks among what it writes."""
        return tuple(one for one in self.writes if not isinstance(one, Repartition))

    @property
    def late(self) -> Repartition | Sink | None:
        """Where rows go that come too late; None for nowhere."""
        late = self.event_time.late
        return None if isinstance(late, str) else late

    @property
    def emits_to(self) -> tuple[Repartition | Sink, ...]:
        """Where its rows go, or those that its state emits: all that it writes but the late ones."""
        return tuple(one for one in self.writes if one != self.late)

    @property
    def channels(self) -> tuple[str, ...]:
        """The repartition topics among the inputs."""
        return tuple(one for one in self.reads if isinstance(one, str))


@dataclass(slots=True)
class App:
    """A streaming application: stages joined by repartition topics.

    Example:
        >>> app = App("flights")
        >>> @app.stage(reads=topic("flights"), writes=repartition("by-route", key=["origin", "dest"]))
        ... def legs(flights): return flights.selectExpr("cast(value as string) as json")
    """

    name: str
    stages: dict[str, Stage] = field(default_factory=dict)
    file: Path | None = None
    """The file that declares it, where it was loaded from one."""

    def __post_init__(self) -> None:
        check_name("app", self.name)

    def stage(
        self,
        *,
        reads: Topic | Repartition | str | Sequence[Topic | Repartition | str],
        writes: Repartition | Sink | Sequence[Repartition | Sink] = (),
        state: State | None = None,
        key: Sequence[str] | str | None = None,
        table: TableOptions | None = None,
        max_records: int | None = None,
        trigger: str | None = None,
        max_unflushed: int | None = None,
        on_error: OnError = "stop",
        max_rejected: int | None = None,
        rejects: str | None = None,
        event_time: EventTimeOptions | None = None,
        name: str | None = None,
    ) -> Callable[[Transform], Transform]:
        """Declare the decorated function, DataFrame in, DataFrame out, as a stage of this app.

        Args:
            reads: A `topic(...)`, or a `repartition(...)`, or its name, that a stage of this app writes; or several
                of these, and the function gets one DataFrame for each, in this order.
            writes: Where the stage's rows go: the function's rows, for a stage without state; for a stage with
                state, the rows its state emits. A `repartition(...)`, a `sink(...)`, a `foreach_version(...)`, or
                several of these.
            state: `aggregate(...)`, `upsert(...)`, `update(...)` or `join(...)`; the table is named after the stage.
            key: The state's key columns; default the key of the repartition topics that are read, which is then the
                same for all of them.
            table: `table(...)`: state partitions, time to live and compaction of the table.
            max_records: At most so many rows of each input a batch; default no bound. `run --max-records` wins.
            trigger: Shortest time between two batches, as in Structured Streaming: `"10 seconds"`; `run --trigger`
                wins.
            max_unflushed: How many versions the stage may run ahead of its last commit, their SSTs durable on this
                machine only (RocksDB's `max_write_buffer_number`); default 0, for none. `run --max-unflushed` wins.
            on_error: What happens when a record makes the function, Spark's expressions or the state fail: `"stop"`
                stops the stage with nothing lost; `"reject"` leaves the record out, puts it into the table
                `<stage>_rejected`, and commits the rest.
            max_rejected: How many rejected records may wait to be retried; one more stops the stage. Default 1,000.
            rejects: A Kafka topic that is there, to which rejected records are sent as well, at least once.
            event_time: `event_time(...)`: what `withWatermark` in the function does not say.
            name: Default the function's name.

        Raises:
            Usage: The declaration contradicts itself or what was declared before.
            Refused: The stage does nothing, or closes a circle of stages.
        """
        inputs = (reads,) if isinstance(reads, Topic | Repartition | str) else tuple(reads)
        outputs = (writes,) if isinstance(writes, Repartition | TopicSink | FunctionSink) else tuple(writes)
        times = event_time or DEFAULT_EVENT_TIME
        columns = (key,) if isinstance(key, str) else tuple(key or ())

        def declare(transform: Transform) -> Transform:
            stage_name = check_name("stage", name or transform.__name__)

            def count(knob: str, value: int | None, least: int) -> int | None:
                return None if value is None else whole(f"stage {stage_name!r}: {knob}", value, least)

            _check_rejects(stage_name, on_error, max_rejected, rejects)
            if table is not None and state is None:
                raise Usage(f"stage {stage_name!r} has table= and keeps no state, so it has no table")
            if times.emits == "final" and (state is None or not outputs):
                lacks = "keeps no state" if state is None else "writes nothing"
                raise Usage(f'stage {stage_name!r} has event_time(emits="final") and {lacks}')
            late = _late_rows(stage_name, columns, state) if times.late == "table" else times.late
            self._add(
                Stage(
                    name=stage_name,
                    transform=transform,
                    reads=tuple(one.name if isinstance(one, Repartition) else one for one in inputs),
                    writes=outputs if isinstance(late, str) else (*outputs, late),
                    state=Final(state) if state is not None and times.emits == "final" else state,
                    key=columns,
                    table=table or DEFAULT_TABLE,
                    max_records=count("max_records", max_records, 1),
                    trigger=trigger,
                    max_unflushed=count("max_unflushed", max_unflushed, 0),
                    on_error=on_error,
                    max_rejected=count("max_rejected", max_rejected, 1) or 1_000,
                    rejects=rejects or "",
                    event_time=replace(times, late=late),
                )
            )
            if times.late == "table" and isinstance(late, Repartition):
                kept = replace(times, late="keep", emits="changes")
                self.stage(reads=late, state=state, table=table, event_time=kept, name=f"{stage_name}_late")(_same)
            return transform

        return declare

    def run(
        self,
        *,
        store: str | None = None,
        kafka: str | Mapping[str, str] | None = None,
        stages: Sequence[str] = (),
        until_caught_up: bool = False,
        max_records: int | None = None,
        trigger: str | None = None,
        max_unflushed: int | None = None,
        accept_loss: bool = False,
        gc: str = "1h",
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        patience_s: float = 120,
        on_commit: Callable[[BatchReport], None] = lambda _report: None,
    ) -> None:
        """Run the app in this process, from where it stopped, as `slackwater run` does from a file.

        It returns once it has caught up, if so asked, or after Ctrl-C or SIGTERM, with what was read committed.

        Args:
            store: The store root: `s3://bucket/prefix`, or a folder. Default, as for the command line: the environment,
                then the nearest `slackwater.toml`, where all other settings come from too.
            kafka: The brokers, as `"host:port"`, or librdkafka's client properties, `bootstrap.servers` among them;
                default likewise.
            stages: Run only these; default all.
            until_caught_up: Return when each stage has read its topics up to where they end now, and all that followed
                from it through repartition topics, as `availableNow` in Structured Streaming.
            max_records: At most so many records of each input a batch, whatever the stages say.
            trigger: Shortest time between two batches, likewise: `"10 seconds"`.
            max_unflushed: How many versions a stage may run ahead of its last commit, likewise; 0 for none.
            accept_loss: Go on without records that are gone from Kafka.
            gc: Collect garbage so often, if `[retention]` has rules; `"off"` for never.
            master: Spark's master URL; default a session that runs here already, else what Spark is configured to.
            spark_conf: Further settings of Spark.
            py_files: Paths of Python files and zips that the program and its tasks import.
            patience_s: How long a broker or a store may be away, in seconds.
            on_commit: Told of each committed batch, from several threads.

        Raises:
            NotFound: A topic or a stage is not there.
            Refused: The program does not fit what is stored, or a stage failed.
            Fenced: A newer runner took a stage over.
            Unavailable: Kafka or the store was away for longer than `patience_s`.
            Usage: An argument, a setting, or what the app declares, is not one that could work.
        """
        # What runs an app knows what declares it, and takes a while to import.
        from ...settings import load
        from ..run.options import gc_every_ms
        from ..run.program import run_app

        settings = load(store=store, kafka=kafka if isinstance(kafka, str) else None)
        options = replace(
            settings.run_options(kafka if isinstance(kafka, Mapping) else None),
            stages=tuple(stages),
            until_caught_up=until_caught_up,
            max_records=max_records,
            trigger_ms=None if trigger is None else parse_ms("trigger", trigger),
            max_unflushed=max_unflushed,
            accept_loss=accept_loss,
            gc_every_ms=gc_every_ms("gc", gc),
            master=master,
            spark_conf=dict(spark_conf or {}),
            py_files=tuple(py_files),
            patience_s=patience_s,
        )
        run_app(self, options, on_commit)

    def check(self) -> None:
        """See that the stages hang together: to be asked when all are declared.

        Raises:
            NotFound: A stage reads a repartition topic that no stage writes.
            Usage: A stage with state has no key, or its inputs have different ones.
        """
        for stage in self.stages.values():
            for channel in stage.channels:
                self._find(channel, f"stage {stage.name!r} reads it")
            if stage.state is not None:
                self.key_of(stage)

    def in_order(self) -> tuple[Stage, ...]:
        """The stages, upstream first."""
        self.check()
        return tuple(self.stages[name] for name in TopologicalSorter(self._upstream()).static_order())

    def beginning(self, starts: Mapping[str, StartingOffsets]) -> App:
        """The app with other starting offsets of the topics of these names."""

        def moved(one: Topic | str) -> Topic | str:
            return replace(one, start=starts.get(one.name, one.start)) if isinstance(one, Topic) else one

        stages = {name: replace(stage, reads=tuple(map(moved, stage.reads))) for name, stage in self.stages.items()}
        return replace(self, stages=stages)

    @property
    def topics(self) -> frozenset[str]:
        """Names of the users' topics that its stages read."""
        return frozenset(one.name for stage in self.stages.values() for one in stage.reads if isinstance(one, Topic))

    def writer_of(self, channel: str) -> Stage:
        """The stage that writes a repartition topic. Raises `NotFound`."""
        return self._find(channel)[0]

    def channel(self, name: str) -> Repartition:
        """A repartition topic by its name. Raises `NotFound`."""
        return self._find(name)[1]

    def select(self, names: Sequence[str]) -> tuple[Stage, ...]:
        """The stages of these names, all when none is named, upstream first. Raises `NotFound`, and as `check`."""
        for name in names:
            if name not in self.stages:
                raise NotFound(f"stage of app {self.name!r}", name, self.stages)
        return tuple(stage for stage in self.in_order() if not names or stage.name in names)

    def key_of(self, stage: Stage) -> tuple[str, ...]:
        """The columns that key a stage's state: its own `key`, else that of the channels it reads.

        Raises:
            Usage: There is none, or the channels have different ones, so that rows that belong together would not
                come together.
        """
        if stage.key:
            return stage.key
        for one in stage.reads:
            if isinstance(one, Topic):
                raise Usage(
                    f"stage {stage.name!r} keeps state but has no key: it reads the topic {one.name!r}, which has none",
                    hint="say key=[...] with the columns that identify a row of its table",
                )
        keys = {name: self.channel(name).key for name in stage.channels}
        if len(set(keys.values())) > 1:
            shown = ", ".join(f"{name!r} by ({', '.join(key)})" for name, key in keys.items())
            raise Usage(
                f"stage {stage.name!r} keeps state over inputs that are keyed differently: {shown}",
                hint="key these repartition topics by the same columns, or say key=[...] with columns that each has",
            )
        return next(iter(keys.values()))

    def _written(self) -> dict[str, tuple[Stage, Repartition]]:
        """The repartition topics that stages write, by name, each with its writer, as far as they are declared."""
        return {output.name: (stage, output) for stage in self.stages.values() for output in stage.repartitions}

    def _find(self, channel: str, hint: str = "declare the stage that writes it") -> tuple[Stage, Repartition]:
        written = self._written()
        if channel not in written:
            hint = f"{hint}; a Kafka topic is read as slackwater.topic({channel!r})"
            raise NotFound("repartition topic", channel, written, hint=hint)
        return written[channel]

    def _upstream(self) -> dict[str, list[str]]:
        """The stages that each stage reads, as far as they are declared."""
        written = self._written()
        return {
            name: [written[channel][0].name for channel in stage.channels if channel in written]
            for name, stage in self.stages.items()
        }

    def _check_names(self, stage: Stage) -> None:
        """Refuse a stage named as the table of another one's rejected records, and a topic for these that is read."""
        for one, other in ((stage, each) for each in self.stages.values()):
            for first, second in ((one, other), (other, one)):
                if first.on_error == "reject" and second.name == table_name(first.name, REJECTED):
                    raise Usage(f"stage {second.name!r} has the name of the table of what {first.name!r} rejects")
        read = self.topics | {one.name for one in stage.reads if isinstance(one, Topic)}
        for rejects in (each.rejects for each in (*self.stages.values(), stage)):
            if rejects in read:
                raise Usage(
                    f"topic {rejects!r} is for rejected records, and app {self.name!r} reads it",
                    hint="what is rejected would come round again: read it in another app",
                )

    def _add(self, stage: Stage) -> None:
        _check_inputs(stage)
        if stage.name in self.stages:
            raise Usage(f"app {self.name!r} has two stages named {stage.name!r}; give one another name=")
        if stage.key and len(set(stage.key)) != len(stage.key):
            raise Usage(f"stage {stage.name!r}: key is {stage.key!r}; expected different column names")
        _check_sinks(self, stage)
        names = [output.name for output in stage.repartitions]
        for name in names:
            if name in self._written() or names.count(name) > 1:
                raise Usage(f"repartition topic {name!r} has two writers; one stage writes a topic")
        if stage.state is None and not stage.writes:
            raise Refused(
                f"stage {stage.name!r} neither keeps state nor writes a topic, so it would do nothing",
                hint="give it state= or writes=",
            )
        self._check_names(stage)
        self.stages[stage.name] = stage
        try:
            TopologicalSorter(self._upstream()).prepare()
        except CycleError as error:
            del self.stages[stage.name]
            raise Refused(
                f"stage {stage.name!r} closes a circle: {' -> '.join(error.args[1])}",
                hint="records would go round for ever, and no snapshot would end; stages read only what is before them",
            ) from None


def _check_sinks(app: App, stage: Stage) -> None:
    for each in stage.writes:
        if not isinstance(each, Repartition | TopicSink | FunctionSink):
            raise Usage(
                f"stage {stage.name!r} writes {each!r}; expected a slackwater.repartition(...), a slackwater.sink(...) "
                "or a slackwater.foreach_version(...), or several of them"
            )
    names = [one.name for one in stage.writes]
    for one in stage.sinks:
        internal_topic(app.name, stage.name, one.name)
        if names.count(one.name) > 1:
            raise Usage(f"stage {stage.name!r} writes {one.name!r} twice; expected different names")
    published = {one.name for it in (*app.stages.values(), stage) for one in it.sinks if one.kind == "topic"}
    read = app.topics | {one.name for one in stage.reads if isinstance(one, Topic)}
    for name in sorted(published & read):
        raise Refused(
            f"app {app.name!r} reads the topic {name!r}, and its sink publishes there: records would go round for ever",
            hint="what goes from stage to stage is a slackwater.repartition(...)",
        )


def _check_rejects(stage: str, on_error: str, max_rejected: int | None, rejects: str | None) -> None:
    if on_error not in get_args(OnError):
        raise Usage(f'stage {stage!r}: on_error is {on_error!r}; expected "stop" or "reject"')
    if on_error == "stop" and (max_rejected is not None or rejects is not None):
        knob = "max_rejected" if max_rejected is not None else "rejects"
        raise Usage(f"stage {stage!r} has {knob}= and rejects nothing", hint='say on_error="reject", or leave it out')
    if rejects is not None:
        check_topic(rejects)


def _same(rows: DataFrame) -> DataFrame:
    """The function of a stage of late rows: another stage's has made them."""
    return rows


def _late_rows(stage: str, key: tuple[str, ...], state: State | None) -> Repartition:
    """The channel to the table of a stage's late rows. Raises `Usage` where there can be no such table."""
    if isinstance(state, Join):
        raise Usage(
            f"stage {stage!r} has a table of late rows, which would be a join of one stream",
            hint='say late=slackwater.repartition(...), and keep what comes there in a stage of yours; or late="drop"',
        )
    if not key or state is None:
        raise Usage(
            f"stage {stage!r} has a table of late rows, and says no {'state' if state is None else 'key'} for it",
            hint="the table has the stage's own state= and key=[...], a window among the columns",
        )
    return repartition(f"{stage}-late", key)


def _check_inputs(stage: Stage) -> None:
    for one in stage.reads:
        if not isinstance(one, Topic | str):
            raise Usage(
                f"stage {stage.name!r} reads {one!r}; expected a slackwater.topic(...), a "
                "slackwater.repartition(...) or the name of one, or several of them"
            )
    if not stage.reads or len(stage.inputs) != len(stage.reads):
        names = ", ".join(repr(one.name if isinstance(one, Topic) else one) for one in stage.reads) or "nothing"
        raise Usage(f"stage {stage.name!r} reads {names}; expected one or more inputs of different names")
