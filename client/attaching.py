"""An app that is the state of somebody else's query of Spark: `slackwater attach`."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ..keep.attach.tables import name_from
from ..keep.attach.tail import Tail
from ..results import programs as shown
from ..results.shown import Result
from ..store.versions import keys
from ..store.versions.apps import folder_of
from .backends import Backends

if TYPE_CHECKING:
    from ..pipeline.attach.follower import Follower


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
    from ..pipeline.attach.opened import opened

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
    from ..pipeline.attach.follower import Follower

    retention = client.settings.retention_of(tail.app)
    return Follower(tail, client.store, lambda landed: tell(shown.landed(tail.app, landed)), retention)


def attached(client: Backends, tail: Tail, tell: "Callable[[Result], None]", *, dry_run: bool) -> Result:
    """Bring in what there is now, of which `tell` hears; with `dry_run`, only say what there is."""
    if dry_run:
        return shown.to_attach(tail.plan(), tail.checkpoint.where, tail.checkpoint.query)
    versions = follower(client, tail, tell).catch_up()
    next_batch = tail.head.attached.next_batch if tail.head is not None and tail.head.attached is not None else 0
    return shown.caught_up(tail.app, tail.stage, versions, next_batch)
