"""A checkpoint, opened by a Spark of our own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...keep.attach.checkpoint import Checkpoint
from ..checkpoint.checkpoint import Checkpoint as SparkCheckpoint
from ..spark.session import spark_session


@contextmanager
def opened(where: str, *, master: str | None, conf: Mapping[str, str]) -> Iterator[Checkpoint]:
    """The checkpoint of a query, while a Spark runs that reads it; raises as `SparkCheckpoint.open`."""
    settings = {"spark.ui.enabled": "false", **conf}
    with spark_session(f"slackwater attach {where}", master=master, conf=settings) as spark:
        yield SparkCheckpoint.open(where, spark)
