"""Checkpoint of a followed query, opened with a Spark session of our own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ....pipeline.spark.session import spark_session
from ..checkpoint import checkpoint
from ..checkpoint.checkpoint import Checkpoint


@contextmanager
def opened(where: str, *, master: str | None, conf: Mapping[str, str]) -> Iterator[Checkpoint]:
    """Open a query's checkpoint with a new Spark session. Raises the errors of `checkpoint.opened`."""
    checkpoint.check_there(where)
    with (
        spark_session(f"slackwater attach {where}", master=master, conf={"spark.ui.enabled": "false", **conf}) as spark,
        checkpoint.opened(where, spark) as opened_checkpoint,
    ):
        yield opened_checkpoint
