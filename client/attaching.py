"""Conversion to apps: `attach` follows a running Spark query or a topic, `adopt` makes a stopped query a stage."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ..common.extras import require_extras
from ..errors import Refused, Usage
from ..operations.attach.rows import valid_name
from ..operations.attach.tail import Tail
from ..store.versions import keys
from ..store.versions.apps import folder_of
from .backends import Backends
from .show import programs as shown
from .show.shown import Result

if TYPE_CHECKING:
    from ..operations.attach.follower import Follower
    from ..operations.from_spark.adopt.adopting import AdoptionRequest
    from ..operations.from_spark.adopt.adoption import AdoptedBatch
    from ..operations.from_spark.adopt.shadow import ShadowRun

TOPIC_PREFIX = "kafka:"
NO_FORMATS: Mapping[str, str] = {}
"""Formats of a topic by option name: `key`, `value`, `columns`, `registry`."""


@contextmanager
def open_tail(
    client: Backends,
    source: str,
    app: str,
    *,
    stage: str = "",
    partitions: int = 4,
    formats: Mapping[str, str] = NO_FORMATS,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
) -> Iterator[Tail]:
    """Yield a `Tail`: a follower of a Spark query's checkpoint (with a local Spark), or of the topic `kafka:TOPIC`.

    Raises `Usage` for an invalid name of the app or stage, `NotFound` without a checkpoint or topic, and `Refused` for
    state that cannot be converted.
    """
    folder, by = folder_of(client.store, app), f"{socket.gethostname()}:{os.getpid()}"
    if source.startswith(TOPIC_PREFIX):
        from ..operations.from_kafka.opening import default_stage, open_topic

        stage = stage or default_stage(source.removeprefix(TOPIC_PREFIX), app)
        keys.check_name("stage", stage)
        kafka = client.require_channels("to read the topic").kafka
        topic = open_topic(client.store, kafka, source, (folder, stage), formats)
        for line in topic.notes():
            client.note(line)
        yield Tail(client.store, client.cache, topic, folder, stage, by=by, partitions=partitions)
        return
    if formats:
        raise Usage(
            "--key, --value, --columns and --registry belong to a topic", hint="slackwater attach kafka:TOPIC …"
        )
    require_extras("spark", "reading a checkpoint")
    from ..operations.from_spark.checkpoint.checkpoint import open_with_new_session

    stage = stage or valid_name(PurePosixPath(source.rstrip("/")).name, "state")
    keys.check_name("stage", stage)
    with open_with_new_session(source, master=master, conf=spark_conf or {}) as checkpoint:
        yield Tail(client.store, client.cache, checkpoint, folder, stage, by=by, partitions=partitions)


def make_follower(client: Backends, tail: Tail, on_version: "Callable[[Result], None]") -> "Follower":
    """Return a loop that commits the source's new batches, sends heartbeats, and merges SSTs.

    `on_version` is called with the result for each new version.
    """
    from ..operations.attach.follower import Follower

    retention = client.settings.retention_of(tail.app)
    return Follower(
        tail, client.store, lambda landed: on_version(shown.attached_version_result(tail.app, landed)), retention
    )


def attach_batches(client: Backends, tail: Tail, on_version: "Callable[[Result], None]", *, dry_run: bool) -> Result:
    """Commit the checkpoint's new batches, one version per batch; with `dry_run`, only describe them.

    `on_version` is called with the result for each new version.
    """
    if dry_run:
        return shown.attach_plan_result(tail.plan(), tail.checkpoint)
    versions = make_follower(client, tail, on_version).catch_up()
    assert tail.head is not None  # noqa: S101  it was claimed
    return shown.attach_result(tail.head, versions)


def request_adoption(*details: Any) -> "AdoptionRequest":
    """Return an `AdoptionRequest` with these fields. Raises `Usage` for an invalid stage name."""
    require_extras("spark", "reading a checkpoint")
    # Importing PySpark takes a second or two.
    from ..operations.from_spark.adopt.adopting import AdoptionRequest

    return AdoptionRequest(*details)


def adopt(client: Backends, query: "AdoptionRequest", on_line: Callable[[str], None], *, dry_run: bool) -> Result:
    """Turn a stopped Spark query into a stage, with its state and offsets. With `dry_run`, only return the plan.

    `on_line` is called with a line of text for each version that was committed.
    """
    from ..operations.from_spark.adopt.adopting import prepare_adoption

    kafka = client.require_channels("to look up offsets").kafka
    batches = range(0)

    def on_step(step: "AdoptedBatch") -> None:
        on_line(shown.adoption_progress_line(step, batches))

    with prepare_adoption(query, client.store, client.cache, kafka, by=client.by, on_step=on_step) as opening:
        if opening.plan is None or opening.adoption is None:
            assert opening.earlier_result is not None  # noqa: S101  one of both is there
            return shown.adoption_result(opening.earlier_result, query.path)
        batches = opening.plan.batches
        if dry_run:
            return shown.adoption_plan_result(opening.plan)
        return shown.adoption_result(opening.adoption.run(), query.path)


@contextmanager
def open_shadow(client: Backends, query: "AdoptionRequest") -> "Iterator[ShadowRun]":
    """Yield a comparison of a program's stage with a running Spark query, beginning at the query's last batch.

    The comparison writes nothing.
    """
    from ..operations.from_spark.adopt.adopting import prepare_adoption
    from ..operations.from_spark.adopt.shadow import open_shadow

    kafka = client.require_channels("to read the stage's input").kafka
    with prepare_adoption(query, client.store, client.cache, kafka, by=client.by) as opening:
        if opening.adoption is not None:
            opening.adoption.batches = opening.adoption.batches[-1:]
        with open_shadow(opening, client.cache, kafka) as shadow:
            yield shadow


def emit_program(query: "AdoptionRequest") -> Result:
    """Write a draft of the program that declares the query's stage, to a new file.

    Raises `Refused` if the file exists, or if no declaration of a stage fits the query's state.
    """
    from ..operations.from_spark.adopt.program_text import program_text
    from ..operations.from_spark.checkpoint.checkpoint import open_with_new_session

    file = Path(query.path)
    if file.exists():
        raise Refused(f"{file} exists already", hint="--emit-program writes a new file")
    if not file.parent.is_dir():
        raise Usage(f"cannot write {file}: {file.parent} is not a folder")
    with open_with_new_session(query.checkpoint, master=query.master, conf=query.conf) as checkpoint:
        committed = checkpoint.committed_batches()
        last = checkpoint.read_batch(committed[-1]) if committed else None
        topics = [name for name in last.offsets if name not in last.non_kafka] if last is not None else []
        text = program_text(
            checkpoint.tables,
            topics or ["TOPIC"],
            query.app or "app",
            query.stage,
            checkpoint.location,
            checkpoint.query,
        )
    file.write_text(text)
    return shown.emitted_program_result(query.path, query.stage, query.checkpoint)
