"""Conversion of Spark queries to apps: `slackwater attach` follows a running query, `adopt` makes it a stage."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import Refused, Usage
from ..operations.from_spark.attach.rows import name_from
from ..operations.from_spark.attach.tail import Tail
from ..store.versions import keys
from ..store.versions.apps import folder_of
from .backends import Backends
from .show import programs as shown
from .show.shown import Result

if TYPE_CHECKING:
    from ..operations.from_spark.adopt.adopting import Query
    from ..operations.from_spark.adopt.adoption import AdoptedBatch
    from ..operations.from_spark.adopt.shadow import Shadow
    from ..operations.from_spark.attach.follower import Follower


@contextmanager
def tail_of(
    client: Backends,
    checkpoint: str,
    app: str,
    *,
    stage: str = "",
    partitions: int = 4,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
) -> Iterator[Tail]:
    """Yield a `Tail`, which reads the query's batches from its checkpoint with a local Spark.

    Raises `Usage` for an invalid name of the app or stage, `NotFound` without a checkpoint, and `Refused` for state
    that cannot be carried over.
    """
    from ..operations.from_spark.checkpoint.checkpoint import opened_alone

    stage = stage or name_from(PurePosixPath(checkpoint.rstrip("/")).name, "state")
    keys.check_name("stage", stage)
    folder = folder_of(client.store, app)
    with opened_alone(checkpoint, master=master, conf=spark_conf or {}) as checkpoint_reader:
        yield Tail(
            client.store,
            client.cache,
            checkpoint_reader,
            folder,
            stage,
            by=f"{socket.gethostname()}:{os.getpid()}",
            partitions=partitions,
        )


def follower(client: Backends, tail: Tail, tell: "Callable[[Result], None]") -> "Follower":
    """Return a loop that follows the checkpoint, sends heartbeats and merges SSTs; `on_version` gets new versions."""
    from ..operations.from_spark.attach.follower import Follower

    retention = client.settings.retention_of(tail.app)
    return Follower(tail, client.store, lambda landed: tell(shown.landed(tail.app, landed)), retention)


def attached(client: Backends, tail: Tail, tell: "Callable[[Result], None]", *, dry_run: bool) -> Result:
    """Commit the batches that the checkpoint has, one version per batch; with `dry_run`, only describe them.

    `on_version` is called with the result for each new version.
    """
    if dry_run:
        return shown.to_attach(tail.plan(), tail.checkpoint.where, tail.checkpoint.query)
    versions = follower(client, tail, tell).catch_up()
    next_batch = tail.head.attached.next_batch if tail.head is not None and tail.head.attached is not None else 0
    return shown.caught_up(tail.app, tail.stage, versions, next_batch)


def query_of(
    checkpoint: str,
    code: str,
    stage: str,
    app: str = "",
    offsets: Sequence[str] = (),
    last_batch: int | None = None,
    attached: str = "",
) -> "Query":
    """Return the description of the query to adopt. Raises `Usage` for an invalid stage name."""
    from ..operations.from_spark.adopt.adopting import Query

    keys.check_name("stage", stage)
    return Query(checkpoint, code, stage, app, tuple(offsets), last_batch, attached)


def adopt(
    client: Backends,
    query: "Query",
    tell: Callable[[str], None],
    *,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    dry_run: bool,
) -> Result:
    """Turn the query into a stage; with `dry_run`, only describe that. `on_line` gets a progress line per version."""
    from ..operations.from_spark.adopt.adopting import opened

    kafka = client.known_channels("to look up offsets").kafka
    batches = range(0)

    def on_step(step: "AdoptedBatch") -> None:
        tell(shown.adopted_batch(step, batches))

    with opened(
        query, client.store, client.cache, kafka, by=client.by, master=master, conf=spark_conf, on_step=on_step
    ) as opening:
        if opening.plan is None or opening.adoption is None:
            assert opening.done is not None  # noqa: S101  one of both is there
            return shown.adopted(opening.done, query.path)
        batches = opening.plan.batches
        if dry_run:
            return shown.to_adopt(opening.plan)
        return shown.adopted(opening.adoption.run(), query.path)


@contextmanager
def shadow_of(
    client: Backends, query: "Query", *, master: str | None = None, spark_conf: Mapping[str, str] | None = None
) -> "Iterator[Shadow]":
    """Yield a comparison of the program's stage with the running query, from the query's last batch on.

    The comparison writes nothing.
    """
    from ..operations.from_spark.adopt.adopting import opened
    from ..operations.from_spark.adopt.shadow import shadowing

    kafka = client.known_channels("to read the stage's input").kafka
    with opened(query, client.store, client.cache, kafka, by=client.by, master=master, conf=spark_conf) as opening:
        if opening.adoption is not None:
            opening.adoption.batches = opening.adoption.batches[-1:]
        with shadowing(opening, client.cache, kafka) as shadow:
            yield shadow


def emit_program(query: "Query", *, master: str | None = None, spark_conf: Mapping[str, str] | None = None) -> Result:
    """Write a new program file, a draft that declares the stage.

    Raises `Refused` if the file exists, or no declaration can take the state over.
    """
    from ..operations.from_spark.adopt.program_text import program_text
    from ..operations.from_spark.checkpoint.checkpoint import opened_alone

    file = Path(query.path)
    if file.exists():
        raise Refused(f"{file} exists already", hint="--emit-program writes a new file")
    if not file.parent.is_dir():
        raise Usage(f"cannot write {file}: {file.parent} is not a folder")
    with opened_alone(query.checkpoint, master=master, conf=spark_conf or {}) as checkpoint:
        committed = checkpoint.committed()
        last = checkpoint.batch(committed[-1]) if committed else None
        topics = [name for name in last.offsets if name not in last.non_kafka] if last is not None else []
        text = program_text(
            checkpoint.tables, topics or ["TOPIC"], query.app or "app", query.stage, checkpoint.where, checkpoint.query
        )
    file.write_text(text)
    return shown.emitted(query.path, query.stage, query.checkpoint)
