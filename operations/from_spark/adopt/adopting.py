"""Preparation of an adoption: checks that the query's checkpoint, the program and Kafka fit together."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace
from pyspark.sql import SparkSession

from ....errors import Gone, Refused
from ....pipeline.api.app import App
from ....pipeline.api.stage import Stage
from ....pipeline.api.topic import Topic, parse_offsets_arguments
from ....pipeline.kafka.protocol import Kafka
from ....pipeline.run.program import load_app
from ....pipeline.spark.session import spark_session
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.versions import apps, history, keys
from ....store.versions.manifest import Table
from ...attach.protocol import ReadableBatch, ReadableCheckpoint
from ...exchange.first_version import FirstVersion, plan_first_version
from ..checkpoint import checkpoint as reader
from .adoption import AdoptedBatch, Adoption, AdoptionResult, find_adoption
from .attached import AttachedHistory
from .buffers import MappedColumn
from .mapping import map_tables


@dataclass(frozen=True, slots=True)
class AdoptionRequest:
    """Parameters of an adoption: the query's checkpoint, and the stage that the query becomes."""

    checkpoint: str
    path: str
    stage: str
    app: str = ""
    offsets: Sequence[str] = ()
    last_batch: int | None = None
    attached: str = ""
    """App, or `APP/STAGE`, attached to the query. Its versions supply batches that the checkpoint has lost."""
    master: str | None = None
    """Spark master of the session that reads the checkpoint; by default all cores of this machine."""
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keys.check_name("stage", self.stage)


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """Result of the dry run of an adoption."""

    app: str
    stage: str
    query: str
    location: str
    batches: range
    operator_kinds: tuple[str, ...]
    table: Table
    mapped_columns: tuple[MappedColumn, ...]
    offsets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PreparedAdoption:
    """Adoption that is ready to run, or the result of an earlier call that completed it."""

    plan: AdoptionPlan | None
    adoption: Adoption | None
    earlier_result: AdoptionResult | None
    first_version: FirstVersion | None
    program: App
    checkpoint: ReadableCheckpoint
    spark: SparkSession


@contextmanager
def prepare_adoption(
    query: AdoptionRequest,
    store: ObjectStore,
    cache: SstCache,
    kafka: Kafka,
    *,
    by: str,
    on_step: Callable[[AdoptedBatch], None] = lambda _step: None,
) -> Iterator[PreparedAdoption]:
    """Open a checkpoint with a new Spark session, and check that its query can become the stage. Writes nothing.

    Raises `NotFound` if the checkpoint, program, stage or topic is missing, `Refused` for state that the stage cannot
    store, and the errors of `plan_first_version`.
    """
    program = load_app(query.path, name=query.app or None, store=store)
    (declared,) = program.select_stages((query.stage,))
    reader.check_exists(query.checkpoint)
    conf = {"spark.ui.enabled": "false", **query.conf}
    with (
        spark_session(f"slackwater adopt {query.checkpoint}", master=query.master, conf=conf) as spark,
        reader.open_checkpoint(query.checkpoint, spark) as opened_checkpoint,
    ):
        checkpoint = _with_history(opened_checkpoint, query.attached, store, cache)
        if (done := find_adoption(store, program.name, query.stage, checkpoint.query)) is not None:
            yield PreparedAdoption(None, None, done, None, program, checkpoint, spark)
            return
        batches = batches_to_adopt(checkpoint, query.last_batch)
        last = checkpoint.read_batch(batches[-1])
        offsets = first_offset_options(declared, last, query)
        first = plan_first_version(
            program, query.stage, store, kafka, lambda: nullcontext(spark), offsets=offsets, by=by
        )
        table = first.manifest.table
        assert table is not None  # noqa: S101  a stage without a table was refused
        new_mapping = partial(
            map_tables, checkpoint.tables, table, f"stage {program.name}/{query.stage}", first.shape.bound
        )
        rows = new_mapping()
        inputs = {name: replace(source, offsets=()) for name, source in first.manifest.inputs.items()}
        given_topics = parse_offsets_arguments(query.offsets)
        constant = {name: source.offsets for name, source in first.manifest.inputs.items() if name in given_topics}
        adoption = Adoption(
            store,
            cache,
            checkpoint,
            replace(first.manifest, inputs=inputs),
            new_mapping,
            batches=batches,
            time_rules=first.shape.time_rules,
            info=first.info,
            create_channels=first.channels,
            constant_offsets=constant,
            on_step=on_step,
        )
        next_offsets = {source.topic: source.offsets for source in first.manifest.inputs.values()}
        kinds = tuple(state.kind for state in rows.states)
        plan = AdoptionPlan(
            program.name,
            query.stage,
            checkpoint.query,
            checkpoint.location,
            batches,
            kinds,
            table,
            rows.columns,
            next_offsets,
        )
        yield PreparedAdoption(plan, adoption, None, first, program, checkpoint, spark)


def _with_history(
    checkpoint: ReadableCheckpoint, attached: str, store: ObjectStore, cache: SstCache
) -> ReadableCheckpoint:
    if not attached:
        return checkpoint
    name, _, stage = attached.partition("/")
    app = apps.folder_of(store, name)
    apps.read_app(store, app)
    if not stage:
        heads = ((name, history.head(store, app, name)) for name in history.list_stages(store, app))
        matches = [name for name, head in heads if head and head.attached and head.attached.query == checkpoint.query]
        stage = matches[0] if matches else "state"
    return AttachedHistory(store, cache, app, stage, checkpoint)


def batches_to_adopt(checkpoint: ReadableCheckpoint, last: int | None) -> range:
    """Return the batches that become versions, up to `last`; by default up to the newest committed batch.

    Raises `Refused` if the state at the last batch cannot be read.
    """
    committed, available = checkpoint.committed_batches(), checkpoint.readable_batches(last)
    if not committed:
        raise Refused(f"the query of {checkpoint.location} has not committed a batch yet")
    last_batch = committed[-1] if last is None else last
    if available and available[-1] == last_batch:
        return available
    earlier = next(
        (batch for batch in reversed(committed) if batch < last_batch and checkpoint.readable_batches(batch)), None
    )
    suggestion = f"the newest readable batch is {earlier}" if earlier is not None else "no earlier batch is readable"
    why = ""
    try:
        next(iter(checkpoint.read_rows(checkpoint.tables[0], last_batch)), None)
    except Gone as error:
        why = f" ({error.message})"
    raise Refused(
        f"cannot read the whole state at batch {last_batch} from {checkpoint.location}{why}; {suggestion}",
        hint=f"adopt that batch: --from-batch {earlier}"
        if earlier is not None
        else "let the query run another batch, then adopt it",
    )


def first_offset_options(stage: Stage, last: ReadableBatch, query: AdoptionRequest) -> list[str]:
    """Return the stage's first offsets as `TOPIC=OFFSETS` options. Raises `Refused` if some are unknown."""
    if channels := [name for name, source in stage.inputs.items() if not isinstance(source, Topic)]:
        raise Refused(
            f"stage {stage.name!r} reads {channels[0]!r} of another stage, but an adopted query can only read topics",
            hint="adopt the query as a stage that reads topics only",
        )
    given_offsets = dict(option.partition("=")[::2] for option in query.offsets)
    sources = ", ".join(f"{name} {list(at)}" for name, at in last.offsets.items()) or "none whose offsets are known"
    if missing := sorted(stage.inputs.keys() - last.offsets.keys() - given_offsets.keys()):
        raise Refused(
            f"stage {stage.name!r} reads the topic {missing[0]!r}, but the query's sources are: {sources}",
            hint=f"""set the stage's first offsets: --offsets '{missing[0]}={{"0":123}}'""",
        )
    if not given_offsets and (more := sorted(last.offsets.keys() - stage.inputs.keys())):
        raise Refused(
            f"the query also reads {more[0]!r}, which stage {stage.name!r} does not; the query's sources: {sources}",
            hint=f"add it to the stage: reads=(…, sw.topic({more[0]!r}))",
        )
    offsets = {
        name: json.dumps({str(n): at for n, at in enumerate(last.offsets[name])})
        for name in stage.inputs
        if name in last.offsets
    }
    return [f"{name}={at}" for name, at in (offsets | given_offsets).items()]
