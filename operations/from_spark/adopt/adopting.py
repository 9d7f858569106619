"""An adoption, with all that it needs of the program and of Kafka."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace
from pyspark.sql import SparkSession

from ....errors import Gone, Refused
from ....pipeline.api.app import App
from ....pipeline.api.stage import Stage
from ....pipeline.api.starting_offsets import starting_offsets_in
from ....pipeline.api.topic import Topic
from ....pipeline.kafka.protocol import Kafka
from ....pipeline.run.program import load_app
from ....pipeline.spark.session import spark_session
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.versions import apps, history
from ....store.versions.manifest import Table
from ...exchange.first_version import FirstVersion, first_version
from ..checkpoint import checkpoint as reader
from ..checkpoint.protocol import ReadableBatch, ReadableCheckpoint
from .adoption import Adopted, AdoptedBatch, Adoption, adopted_before
from .attached import AttachedHistory
from .columns import MadeColumn
from .mapping import mapping_of


@dataclass(frozen=True, slots=True)
class Query:
    """What is adopted."""

    checkpoint: str
    """A folder, or what Spark reads."""
    path: str
    """The program's file."""
    stage: str
    app: str = ""
    """Its name, where it is not the program's own."""
    offsets: Sequence[str] = ()
    """Each `topic=where`, for topics that the query's offsets say nothing of."""
    last_batch: int | None = None
    """The last one that counts; None for the newest."""
    attached: str = ""
    """An app, or `APP/STAGE`, that followed the query, with history that the checkpoint has not any more."""


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What an adoption would do."""

    app: str
    stage: str
    query: str
    where: str
    batches: range
    of: tuple[str, ...]
    """The operators of the tables of which the stage's is made."""
    table: Table
    made: tuple[MadeColumn, ...]
    offsets: Mapping[str, tuple[int, ...]]
    """Where the stage goes on, by topic."""


@dataclass(frozen=True, slots=True)
class Adopting:
    """An adoption that can begin, or one that is done already."""

    plan: AdoptionPlan | None
    adoption: Adoption | None
    done: Adopted | None
    first: FirstVersion | None
    program: App
    checkpoint: ReadableCheckpoint
    spark: SparkSession


@contextmanager
def opened(
    query: Query,
    store: ObjectStore,
    cache: SstCache,
    kafka: Kafka,
    *,
    by: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    on_step: Callable[[AdoptedBatch], None] = lambda _step: None,
) -> Iterator[Adopting]:
    """Open a checkpoint by a Spark of our own, and see that its query can become the stage. Writes nothing.

    Raises `NotFound` where there is no checkpoint, program, stage or topic, `Refused` for what cannot be carried, and
    as `first_version`.
    """
    program = load_app(query.path, name=query.app or None, store=store)
    (declared,) = program.select((query.stage,))
    reader.check_there(query.checkpoint)
    conf = {"spark.ui.enabled": "false", **(conf or {})}
    with (
        spark_session(f"slackwater adopt {query.checkpoint}", master=master, conf=conf) as spark,
        reader.opened(query.checkpoint, spark) as found,
    ):
        checkpoint = _with_history(found, query.attached, store, cache)
        if (done := adopted_before(store, program.name, query.stage, checkpoint.query)) is not None:
            yield Adopting(None, None, done, None, program, checkpoint, spark)
            return
        batches = batches_of(checkpoint, query.last_batch)
        last = checkpoint.batch(batches[-1])
        words = offsets_of(declared, last, query)
        first = first_version(program, query.stage, store, kafka, lambda: nullcontext(spark), offsets=words, by=by)
        table = first.manifest.table
        assert table is not None  # noqa: S101  a stage that keeps none was refused
        named = partial(mapping_of, checkpoint.tables, table, f"stage {program.name}/{query.stage}", first.shape.bound)
        rows = named()
        inputs = {name: replace(each, offsets=()) for name, each in first.manifest.inputs.items()}
        said = starting_offsets_in(query.offsets)
        constant = {name: each.offsets for name, each in first.manifest.inputs.items() if name in said}
        adoption = Adoption(
            store,
            cache,
            checkpoint,
            replace(first.manifest, inputs=inputs),
            named,
            batches=batches,
            rules=first.shape.time_rules,
            info=first.info,
            channels=first.channels,
            constant=constant,
            on_step=on_step,
        )
        stands = {each.topic: each.offsets for each in first.manifest.inputs.values()}
        kinds = tuple(each.kind for each in rows.states)
        plan = AdoptionPlan(
            program.name, query.stage, checkpoint.query, checkpoint.where, batches, kinds, table, rows.made, stands
        )
        yield Adopting(plan, adoption, None, first, program, checkpoint, spark)


def _with_history(found: ReadableCheckpoint, attached: str, store: ObjectStore, cache: SstCache) -> ReadableCheckpoint:
    """The checkpoint behind what an attached app has of its query."""
    if not attached:
        return found
    name, _, stage = attached.partition("/")
    app = apps.folder_of(store, name)
    apps.read_app(store, app)
    if not stage:
        heads = ((each, history.head(store, app, each)) for each in history.list_stages(store, app))
        mine = [each for each, head in heads if head and head.attached and head.attached.query == found.query]
        stage = mine[0] if mine else "state"
    return AttachedHistory(store, cache, app, stage, found)


def batches_of(checkpoint: ReadableCheckpoint, last: int | None) -> range:
    """Those that become versions. Raises `Refused` where the last one cannot be read."""
    committed, found = checkpoint.committed(), checkpoint.available(last)
    if not committed:
        raise Refused(f"the query of {checkpoint.where} has not committed a batch yet")
    wanted = committed[-1] if last is None else last
    if found and found[-1] == wanted:
        return found
    earlier = next((each for each in reversed(committed) if each < wanted and checkpoint.available(each)), None)
    there = f"an earlier one that can be read is batch {earlier}" if earlier is not None else "no earlier one can be"
    why = ""
    try:
        next(iter(checkpoint.rows(checkpoint.tables[0], wanted)), None)
    except Gone as error:
        why = f" ({error.message})"
    raise Refused(
        f"the whole state at batch {wanted} cannot be read from {checkpoint.where}{why}; {there}",
        hint=f"--from-batch {earlier} goes on from there" if earlier is not None else "let the query run a batch",
    )


def offsets_of(stage: Stage, last: ReadableBatch, query: Query) -> list[str]:
    """Where the stage goes on, as the command line would say it. Raises `Refused` where that is not known."""
    if channels := [name for name, one in stage.inputs.items() if not isinstance(one, Topic)]:
        raise Refused(
            f"stage {stage.name!r} reads {channels[0]!r} of another stage, and a query of Spark reads sources alone",
            hint="adopt the query as a stage that reads topics",
        )
    said = dict(each.partition("=")[::2] for each in query.offsets)
    sources = ", ".join(f"{name} {list(at)}" for name, at in last.offsets.items()) or "none whose offsets are known"
    if missing := sorted(stage.inputs.keys() - last.offsets.keys() - said.keys()):
        raise Refused(
            f"stage {stage.name!r} reads the topic {missing[0]!r}, and the query's sources are: {sources}",
            hint=f"""where the stage is to go on is said by --offsets '{missing[0]}={{"0":123}}'""",
        )
    if not said and (more := sorted(last.offsets.keys() - stage.inputs.keys())):
        raise Refused(
            f"the query reads {more[0]!r} as well, which stage {stage.name!r} does not: its sources are {sources}",
            hint=f"have the stage read it: reads=(…, sw.topic({more[0]!r}))",
        )
    offsets = {
        name: json.dumps({str(n): at for n, at in enumerate(last.offsets[name])})
        for name in stage.inputs
        if name in last.offsets
    }
    return [f"{name}={at}" for name, at in (offsets | said).items()]
