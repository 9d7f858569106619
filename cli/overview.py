"""What `slackwater status` shows: how far every stage of an app is, from the heads of its stages alone.

A few requests per stage, and nothing of the state: of the number of keys, manifests know how many at most.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..snapshot.requests import open_requests
from ..snapshot.topology import order
from ..store import apps, history
from ..store.manifest import Manifest, Origin
from ..store.objects import ObjectStore
from ..store.runs import deltas

__all__ = ["AppOverview", "EndOffsets", "InputOverview", "StageOverview", "overview"]

EndOffsets = Callable[[str], tuple[int, ...] | None]
"""End offsets of a user's topic by partition, or None when they are not known."""


@dataclass(frozen=True, slots=True)
class InputOverview:
    """How far a stage has read one of its inputs."""

    name: str
    topic: str
    upstream: str
    """The stage that writes it; empty for a user's topic."""
    offsets: tuple[int, ...]
    ends: tuple[int, ...] | None
    """Where the topic ends, by partition; None when that is not known."""
    lag: int | None
    """Messages not read yet: records of a user's topic, Arrow batches of a repartition topic."""


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage at its newest version."""

    stage: str
    version: int
    epoch: int
    kind: str
    by: str
    time_ms: int
    rows: int
    """Rows that the newest version read."""
    keys: int | None
    """Keys in the table, at most; None without a table."""
    keys_exact: bool
    """False when rows expire, or sorted runs overlap: `keys` then counts a key once for each run that has it."""
    ssts: int
    bytes: int
    inputs: tuple[InputOverview, ...]


@dataclass(frozen=True, slots=True)
class AppOverview:
    """One app."""

    app: str
    created_ms: int
    origin: Origin | None
    stages: tuple[StageOverview, ...]
    """Upstream first."""
    requested: tuple[str, ...]
    """Snapshots that were asked for and are not complete yet."""


def overview(store: ObjectStore, app: str, ends_of: EndOffsets) -> AppOverview:
    """How far `app` is.

    Raises:
        NotFound: there is no such app.
        Unavailable: the store does not answer.
    """
    info = apps.read_app(store, app)
    heads = {
        stage: manifest
        for stage in history.list_stages(store, app)
        if (manifest := history.head(store, app, stage)) is not None
    }
    return AppOverview(
        app=app,
        created_ms=info.created_ms,
        origin=info.origin,
        stages=tuple(_stage(heads[stage], heads, ends_of) for stage in order(heads)),
        requested=tuple(request.name for request in open_requests(store, app)),
    )


def _stage(head: Manifest, heads: dict[str, Manifest], ends_of: EndOffsets) -> StageOverview:
    return StageOverview(
        stage=head.stage,
        version=head.version,
        epoch=head.epoch,
        kind=head.kind,
        by=head.by,
        time_ms=head.time_ms,
        rows=sum(source.rows for source in head.inputs.values()),
        keys=sum(sst.rows - sst.tombstones for sst in head.ssts) if head.table else None,
        keys_exact=not deltas(head.ssts) and not any(sst.expiring for sst in head.ssts),
        ssts=len(head.ssts),
        bytes=sum(sst.bytes for sst in head.ssts),
        inputs=tuple(_input(name, head, heads, ends_of) for name in head.inputs),
    )


def _input(name: str, head: Manifest, heads: dict[str, Manifest], ends_of: EndOffsets) -> InputOverview:
    source = head.inputs[name]
    if source.upstream:
        sender = heads.get(source.upstream)
        ends = sender.outputs[name].ends if sender and name in sender.outputs else None
    else:
        ends = ends_of(source.topic)
    lag = None
    if ends is not None:
        # A partition added since the last commit has not been read at all.
        read = source.offsets + (0,) * (len(ends) - len(source.offsets))
        lag = sum(max(0, end - offset) for end, offset in zip(ends, read, strict=False))
    return InputOverview(name, source.topic, source.upstream, source.offsets, ends, lag)
