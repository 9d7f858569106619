"""Amendments (values that describe a change to a stage), and the loop that commits them by compare-and-swap.

Claims, compactions, rescales, migrations and batches are amendments: a condition on the newest version, and a function
from that version to the next. If a writer loses the race for a version number, it checks its condition again and
applies its change to the winner's version. Kinds with `Traits.fences` take the next epoch, which fences the stage's
current writer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from ...common import runtime
from ...errors import CommitConflict, Fenced
from ..objects.counting import Stats
from ..objects.protocol import ObjectStore
from . import commit, history, horizon, keys
from .kinds import KINDS, VersionKind
from .leaves.fold import fold_before_commit
from .manifest import Manifest
from .side_tables import added_ssts

_identity_of = attrgetter("app", "stage", "version", "epoch", "writer", "time_ms", "kind", "by")
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change to a stage: a condition on the newest version, and a function from that version to the next."""

    kind: VersionKind
    update: Callable[[Manifest], Manifest] = lambda draft: draft
    """Pure function that changes the content of a draft, which is the successor of the newest version.

    If a claim or an init is the stage's first version, the draft is an empty version 1.
    """
    requires: Callable[[Manifest], bool] = lambda _head: True
    """Condition on the newest version, called before `update`. It may be slow.

    It returns False if the change is already in effect, and raises an error if the change is not allowed.
    """
    epoch: int = 0
    """Epoch of the stage's current writer if that writer makes the change; else 0.

    If it is not 0, the change fails if another writer has taken the stage over.
    """
    cost: Stats = field(default_factory=Stats)


class Amended(NamedTuple):
    """Result of an amendment: the newest version before it, and the new version."""

    previous: Manifest | None
    manifest: Manifest

    @property
    def changed(self) -> bool:
        return self.manifest is not self.previous


def amend(
    store: ObjectStore,
    target: Manifest | tuple[str, str],
    change: Amendment,
    *,
    by: str,
    now_ms: int | Callable[[], int],
    writer: str = "",
    take_stats: Callable[[], Stats] | None = None,
) -> Amended:
    """Commit a change as a stage's next version by compare-and-swap; retry on the new head after a lost race.

    `target` is the newest version that the caller saw within the last half hour, or the names of app and stage. The
    stage's current writer first tries the version that it knows, without a search for newer versions. `by` is host:pid
    or user@host, for people. `writer` is the author's unique id, needed only if later commits carry the same id.
    `now_ms` is the wall clock, or a function that is called for each attempt. `take_stats` returns the requests and
    bytes since its last call, for the version's stats; None to count nothing.

    Raises:
        Fenced: another writer took the stage over from the writer with `change.epoch`; or the stage was deleted.
        CommitConflict: other writers kept winning the race for the next number.
        NotFound: there is no such stage, and the change is neither a claim nor an init.
        Refused: the stage is retired, and the change is not a claim.
        Corruption: the head cannot be read.
        Unavailable: storage did not answer; the version may have been committed.
        ValueError: `update` changed the version's identity, or returned a version that cannot be decoded.
    """
    head, (app, stage) = (target, (target.app, target.stage)) if isinstance(target, Manifest) else (None, target)
    keys.check_name("app", app)
    keys.check_name("stage", stage)
    writer, spent, attempt = writer or str(runtime.ulid()), change.cost, 1
    while True:
        if attempt > 1 or not change.epoch:
            head = read_base(store, app, stage, head)
        if head is None and not KINDS[change.kind].may_begin:
            head = history.read(store, app, stage, 1)  # raises with the existing names
        if head is not None and not change.requires(head):
            return Amended(head, head)
        time_ms = now_ms if isinstance(now_ms, int) else now_ms()
        if head is None:
            draft = Manifest(app, stage, 1, 1, writer, time_ms, change.kind, by=by)
        else:
            epoch = change.epoch or head.epoch + KINDS[change.kind].fences
            draft = commit.successor(head, kind=change.kind, epoch=epoch, writer=writer, by=by, now_ms=time_ms)
        new = change.update(draft)
        if _identity_of(new) != _identity_of(draft):
            raise ValueError(
                f"an update may change a version's content, not its identity: expected {_identity_of(draft)}, "
                f"found {_identity_of(new)}"
            )
        if take_stats is not None and head is not None:
            spent += take_stats()
            new = with_stats(head, new, spent)
        new = fold_before_commit(store, new)
        try:
            commit.commit(store, new)
        except CommitConflict as lost:
            if attempt == _ATTEMPTS or (change.epoch and isinstance(lost, Fenced)):
                raise
            attempt += 1
        else:
            return Amended(head, new)


def commit_first(store: ObjectStore, first: Manifest) -> bool:
    """Commit the first version of a stage. Returns False if the stage already has a version of this kind."""
    first = fold_before_commit(store, first)
    try:
        commit.commit(store, first)
    except CommitConflict:
        if (
            existing := history.find(store, first.app, first.stage, first.version)
        ) is None or existing.kind != first.kind:
            raise
        return False
    return True


def read_base(store: ObjectStore, app: str, stage: str, previous: Manifest | None = None) -> Manifest | None:
    """Return a stage's newest version as the base of the next version; None if there is none.

    `previous` is a version that was the newest within the last half hour. Raises `Fenced` if the stage, or its history
    up to `previous`, was deleted, and `Corruption`.
    """
    freshness = horizon.freshness(store)
    began = freshness.now()
    if previous is None:
        head = history.head(store, app, stage)
    elif (later := history.find(store, app, stage, previous.version + 1)) is not None:
        head = history.head(store, app, stage, hint=later.version) or later
    else:
        head = previous
        if not freshness.is_fresh(app, stage, head.version + 1):
            # After a suspension, the number may be free because the whole history was deleted.
            commit.check_version_exists(store, head, head.version)
    freshness.record_free(app, stage, head.version + 1 if head else 1, began)
    return head


def with_stats(previous: Manifest, manifest: Manifest, cost: Stats) -> Manifest:
    """Return `manifest`, the successor of `previous`, with its `stats` set and added to the `totals`.

    `stats` is `cost` plus the bytes of new SSTs.
    """
    new = added_ssts(previous, manifest)
    flushed = sum(sst.bytes for sst in new if sst.level == 0)
    stats = cost + Stats(flushed_bytes=flushed, compacted_bytes=sum(sst.bytes for sst in new) - flushed)
    return replace(manifest, stats=stats, totals=(previous.totals or Stats()) + stats)
