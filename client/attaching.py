"""Queries of Spark: the state of one as an app (`slackwater attach`), and one that becomes a stage (`adopt`)."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import Refused, Usage
from ..operations.from_spark.attach.tables import name_from
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
    """What follows the query of a checkpoint, while a Spark of our own runs that reads it.

    Raises `Usage` for names that no app or stage can have, `NotFound` where there is no checkpoint, and `Refused` where
    it has what cannot be carried.
    """
    from ..operations.from_spark.attach.opened import opened

    stage = stage or name_from(PurePosixPath(checkpoint.rstrip("/")).name, "state")
    keys.check_name("stage", stage)
    folder = folder_of(client.store, app)
    with opened(checkpoint, master=master, conf=spark_conf or {}) as found:
        yield Tail(
            client.store,
            client.cache,
            found,
            folder,
            stage,
            by=f"{socket.gethostname()}:{os.getpid()}",
            partitions=partitions,
        )


def follower(client: Backends, tail: Tail, tell: "Callable[[Result], None]") -> "Follower":
    """What keeps it going: rounds, signs of life, merges. `tell` hears of each version."""
    from ..operations.from_spark.attach.follower import Follower

    retention = client.settings.retention_of(tail.app)
    return Follower(tail, client.store, lambda landed: tell(shown.landed(tail.app, landed)), retention)


def attached(client: Backends, tail: Tail, tell: "Callable[[Result], None]", *, dry_run: bool) -> Result:
    """Bring in what there is now, of which `tell` hears; with `dry_run`, only say what there is."""
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
    """What is adopted, as what. Raises `Usage` for a name that no stage can have."""
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
    """Make the stage, of which `tell` hears a line for each version; with `dry_run`, only say what it is made of."""
    from ..operations.from_spark.adopt.adopting import opened

    kafka = client.known_channels("from which the stage goes on").kafka
    batches = range(0)

    def told(step: "AdoptedBatch") -> None:
        tell(shown.adopted_batch(step, batches))

    with opened(
        query, client.store, client.cache, kafka, by=client.by, master=master, conf=spark_conf, on_step=told
    ) as found:
        if found.plan is None or found.adoption is None:
            assert found.done is not None  # noqa: S101  one of both is there
            return shown.adopted(found.done, query.path)
        batches = found.plan.batches
        if dry_run:
            return shown.to_adopt(found.plan)
        return shown.adopted(found.adoption.run(), query.path)


@contextmanager
def shadow_of(
    client: Backends, query: "Query", *, master: str | None = None, spark_conf: Mapping[str, str] | None = None
) -> "Iterator[Shadow]":
    """The stage beside the query, from the last batch of `query` on. Nothing is written into the store."""
    from ..operations.from_spark.adopt.adopting import opened
    from ..operations.from_spark.adopt.shadow import shadowing

    kafka = client.known_channels("from which the stage reads").kafka
    with opened(query, client.store, client.cache, kafka, by=client.by, master=master, conf=spark_conf) as found:
        if found.adoption is not None:
            found.adoption.batches = found.adoption.batches[-1:]
        with shadowing(found, client.cache, kafka) as shadow:
            yield shadow


def emit_program(query: "Query", *, master: str | None = None, spark_conf: Mapping[str, str] | None = None) -> Result:
    """Write a program that declares the stage, into a file that is new.

    Raises `Refused` where there is one, or no declaration takes the state over.
    """
    from ..operations.from_spark.adopt.program_text import program_text
    from ..operations.from_spark.attach.opened import opened

    file = Path(query.path)
    if file.exists():
        raise Refused(f"{file} exists already", hint="--emit-program writes a new file")
    if not file.parent.is_dir():
        raise Usage(f"{file.parent} is no folder, in which {file.name} would be written")
    with opened(query.checkpoint, master=master, conf=spark_conf or {}) as found:
        committed = found.committed()
        last = found.batch(committed[-1]) if committed else None
        topics = [name for name in last.offsets if name not in last.non_kafka] if last is not None else []
        text = program_text(
            found.tables, topics or ["TOPIC"], query.app or "app", query.stage, found.where, found.query
        )
    file.write_text(text)
    return shown.emitted(query.path, query.stage, query.checkpoint)
