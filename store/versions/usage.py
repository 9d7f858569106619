"""What a stage took of the store in some time, from two of its manifests, since each has the sums so far.

The requests to find out do not depend on how many versions lie in between, but for a search over their numbers.
"""

from dataclasses import dataclass

from msgspec.structs import astuple

from ...durations import HOUR_MS
from ..objects.protocol import ObjectStore
from ..objects.stats import Stats
from . import history, keys
from .aside import all_ssts
from .manifest import Manifest


@dataclass(frozen=True, slots=True)
class StageUsage:
    """What one stage took, and what it has in the store."""

    stage: str
    version: int
    """The newest."""
    versions: int
    """How many it is the last of; 0 when none was committed in that time."""
    taken: Stats
    """What these took."""
    first_version: int
    """From this one on, its history is whole."""
    table_bytes: int
    """SSTs of the newest version; here and below without those of the app that this one is a clone of."""
    sst_bytes: int
    """All SSTs that the versions from `first_version` on name: those of the first, and each that came after it."""
    stored_bytes: int
    """The same with manifests, and with whatever else was put since, left-overs too: `sst_bytes` at least."""


def usage_since(store: ObjectStore, app: str, stage: str, since_ms: int) -> StageUsage | None:
    """What a stage took in versions committed after `since_ms`; None when it has no version.

    A version counts the time since the one before it; so the first of them may begin earlier. Requests: those of
    `history.latest_at` and `history.first_version`, and a read.

    Raises:
        Corruption: a manifest on the way is not readable.
        Unavailable: the store did not answer.
    """
    head = history.head(store, app, stage)
    if head is None:
        return None
    number = history.first_version(store, app, stage)
    first = history.find(store, app, stage, number) or head
    base = history.latest_at(store, app, stage, since_ms) or first
    began, now = first.totals or Stats(), head.totals or Stats()
    at_first, since_first = _sst_bytes(first), now - began
    sst_bytes = max(_sst_bytes(head), at_first + since_first.flushed_bytes + since_first.compacted_bytes)
    return StageUsage(
        stage=stage,
        version=head.version,
        versions=head.version - base.version,
        taken=now - (base.totals or Stats()),
        first_version=first.version,
        table_bytes=_sst_bytes(head),
        sst_bytes=sst_bytes,
        stored_bytes=max(sst_bytes, at_first + since_first.bytes_written),
    )


def hourly(taken: Stats) -> Stats | None:
    """The same for an hour in which the runner is on; None when no time was counted."""
    return Stats(*(round(number * HOUR_MS / taken.ms) for number in astuple(taken))) if taken.ms else None


def recent(store: ObjectStore, head: Manifest, versions: int) -> tuple[int, Stats]:
    """What the newest versions took: how many these are, and their sum. One request.

    So many as asked for; where fewer are left of the history, all that the stage ever had, and took.

    Raises:
        Corruption: the version before these is not readable.
        Unavailable: the store did not answer.
    """
    now, before = head.totals or Stats(), head.version - versions
    base = history.find(store, head.app, head.stage, before) if before > 0 else None
    return (versions, now - (base.totals or Stats())) if base is not None else (head.version, now)


def _sst_bytes(manifest: Manifest) -> int:
    own = keys.ssts(manifest.app, manifest.stage)
    return sum(sst.bytes for sst in all_ssts(manifest) if not sst.root and sst.object.startswith(own))
