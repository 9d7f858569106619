"""A checkpoint, opened by a Spark of our own, as what follows a query wants it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ....pipeline.spark.session import spark_session
from ..checkpoint import checkpoint
from ..checkpoint.checkpoint import Checkpoint


@contextmanager
def opened(where: str, *, master: str | None, conf: Mapping[str, str]) -> Iterator[Checkpoint]:
    """The checkpoint of a query, while a Spark runs that reads it; raises as `operations.from_spark.checkpoint`."""
    checkpoint.check_there(where)
    with (
        spark_session(f"slackwater attach {where}", master=master, conf={"spark.ui.enabled": "false", **conf}) as spark,
        checkpoint.opened(where, spark) as found,
    ):
        yield found
