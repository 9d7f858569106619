"""What replays need: the user's program, a Spark on this machine, where the app is, and a scratch store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from ...store.objects.local import LocalStore
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ..api.app import App
from ..batch.schemas import Shape, shapes
from ..kafka.protocol import Kafka
from ..spark.session import spark_session

_CONF = {
    "spark.ui.enabled": "false",
    # It lives for a minute: what the JVM's second compiler costs would not come back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # A replay is a few thousand rows.
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A program, with all that it takes to replay its stages.

    Attributes:
        app: As declared, under the name of the app whose history is replayed.
        spark: A session on this machine.
        shapes: The stages' schemas.
        store: Where the app lives.
        cache: Where its SSTs come to lie.
        kafka: Kafka, opened.
        scratch: A store for what replays write, which goes with this.
        patience_s: How long the broker may be away.
    """

    app: App
    spark: SparkSession
    shapes: Mapping[str, Shape]
    store: ObjectStore
    cache: SstCache
    kafka: Kafka = field(repr=False)
    scratch: LocalStore
    patience_s: float = 60


@contextmanager
def open_program(
    app: App, store: ObjectStore, cache: SstCache, kafka: Kafka, *, py_files: Sequence[str] = ()
) -> Iterator[Program]:
    """Start Spark for a program, unless one runs here already; it ends with the context.

    Args:
        app: As declared, under the name of the app whose history is replayed.
        store: Where the app lives.
        cache: Where its SSTs come to lie.
        kafka: Kafka, opened.
        py_files: Paths of Python files and zips that the program's tasks import.

    Raises:
        Refused: A stage's function fails, or Spark does not start. Others as `shapes` does.
    """
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-replay-", ignore_cleanup_errors=True) as folder,
        spark_session(f"slackwater replay {app.name}", master="local[*]", conf=_CONF, py_files=py_files) as spark,
    ):
        yield Program(app, spark, shapes(app, spark), store, cache, kafka, LocalStore(Path(folder) / "store"))
