"""A change to a stage as data, and the one loop that commits such changes by compare-and-swap.

Claims, compactions, rescales, migrations, batches: each says what must hold of the newest version, and what is made of
it. Whoever loses the race for a number reads on, checks and makes it of the version that came first. Kinds of
`Traits.fences` have the next epoch, which fences off the writer that has the stage.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace
from ulid import ULID

from ...errors import CommitConflict, Fenced
from ..objects.protocol import ObjectStore
from ..objects.stats import Stats
from . import commit, history, horizon, keys
from .kinds import KINDS, VersionKind
from .manifest import Manifest
from .side_tables import all_ssts

_identity = attrgetter("app", "stage", "version", "epoch", "writer", "time_ms", "kind", "by")
_ATTEMPTS = 100
"""Lost races, to those that commit at the same moment, before an amendment gives up."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change to a stage, as data: what must hold of its newest version, and the version that it makes of that."""

    kind: VersionKind
    update: Callable[[Manifest], Manifest] = lambda draft: draft
    """Gets the version after the newest with nothing changed yet (`commit.successor`; an empty version 1 where a claim,
    or an init, is the stage's first) and returns it with other content. Pure."""
    requires: Callable[[Manifest], bool] = lambda _head: True
    """Called with each version that it is to follow, before anything is made of it. False where nothing is left to do.
    Raises where the change may not be; brings about what takes time."""
    epoch: int = 0
    """Of the writer that has the stage, which whoever takes it over fences off; 0 where it does not matter who has."""
    taken: Stats = field(default_factory=Stats)
    """What making it took of the store."""


class Amended(NamedTuple):
    """What became of an amendment."""

    before: Manifest | None
    """The version that it followed; None for a stage's first."""
    manifest: Manifest
    """The version that was committed; `before` where nothing was left to do."""

    @property
    def changed(self) -> bool:
        """Whether this call committed anything."""
        return self.manifest is not self.before


def amend(
    store: ObjectStore,
    of: Manifest | tuple[str, str],
    change: Amendment,
    *,
    by: str,
    now_ms: int | Callable[[], int],
    writer: str = "",
    taken: Callable[[], Stats] | None = None,
) -> Amended:
    """Commit a change behind a stage's newest version, by compare-and-swap; after a lost race, behind the next newest.

    `of` is the newest version, as the caller saw it within the last half hour, or the names of app and stage; who has
    the stage tries the version that it knows without looking for others. `by` is host:pid or user@host, for people;
    `writer` a unique id of the author, where its later commits carry it too. `now_ms`, the wall clock, is called for
    each attempt where it is a function. `taken` returns what was taken of the store since it was last called, for the
    version to say; None when nobody counts.

    Raises:
        Fenced: somebody took the stage from the writer that the change is of; or the stage is gone.
        CommitConflict: others kept winning the race for the next number.
        NotFound: there is no such stage, and this is neither a claim nor an init.
        Refused: the stage is retired, and this is no claim that brings it back.
        Corruption: the head cannot be read.
        Unavailable: storage did not answer; the version may have been committed.
        ValueError: `update` changed who or what the version is, or made it one that could not be read again.
    """
    head, (app, stage) = (of, (of.app, of.stage)) if isinstance(of, Manifest) else (None, of)
    keys.check_name("app", app)
    keys.check_name("stage", stage)
    writer, spent, attempt = writer or str(ULID()), change.taken, 1
    while True:
        if attempt > 1 or not change.epoch:
            head = newest(store, app, stage, head)
        if head is None and not KINDS[change.kind].may_begin:
            head = history.read(store, app, stage, 1)  # says what there is
        if head is not None and not change.requires(head):
            return Amended(head, head)
        time_ms = now_ms if isinstance(now_ms, int) else now_ms()
        if head is None:
            draft = Manifest(app, stage, 1, 1, writer, time_ms, change.kind, by=by)
        else:
            epoch = change.epoch or head.epoch + KINDS[change.kind].fences
            draft = commit.successor(head, kind=change.kind, epoch=epoch, writer=writer, by=by, now_ms=time_ms)
        made = change.update(draft)
        if _identity(made) != _identity(draft):
            raise ValueError(
                f"an update may change a version's content, not its identity: expected {_identity(draft)}, "
                f"found {_identity(made)}"
            )
        if taken is not None and head is not None:
            spent += taken()
            made = with_stats(head, made, spent)
        try:
            commit.commit(store, made)
        except CommitConflict as lost:
            if attempt == _ATTEMPTS or (change.epoch and isinstance(lost, Fenced)):
                raise
            attempt += 1
        else:
            return Amended(head, made)


def begin(store: ObjectStore, first: Manifest) -> bool:
    """Commit a stage's first version, unless somebody else has: one of the same kind. Returns whether it was this call.

    Raises as `commit.commit`.
    """
    try:
        commit.commit(store, first)
    except CommitConflict:
        if (found := history.find(store, first.app, first.stage, first.version)) is None or found.kind != first.kind:
            raise
        return False
    return True


def newest(store: ObjectStore, app: str, stage: str, known: Manifest | None = None) -> Manifest | None:
    """A stage's newest version, to build the next on, None when it has none; `known` was it within the last half hour.

    Raises `Fenced` where the stage is gone, or its history up to `known`, and `Corruption` where it is not readable.
    """
    seen = horizon.freshness(store)
    began = seen.now()
    if known is None:
        head = history.head(store, app, stage)
    elif (later := history.find(store, app, stage, known.version + 1)) is not None:
        head = history.head(store, app, stage, known=later.version) or later
    else:
        head = known
        if not seen.is_fresh(app, stage, head.version + 1):
            # A process that was asleep may find the number free because all there was is gone.
            commit.check_there(store, head, head.version)
    seen.saw_free(app, stage, head.version + 1 if head else 1, began)
    return head


def with_stats(before: Manifest, manifest: Manifest, taken: Stats) -> Manifest:
    """The manifest that follows `before`, with what it took in `stats`, and added to `totals`.

    That is `taken`, and the bytes of the SSTs that are new, which are counted here.
    """
    known = {sst.object for sst in all_ssts(before)}
    new = [sst for sst in all_ssts(manifest) if sst.object not in known]
    flushed = sum(sst.bytes for sst in new if sst.level == 0)
    stats = taken + Stats(flushed_bytes=flushed, compacted_bytes=sum(sst.bytes for sst in new) - flushed)
    return replace(manifest, stats=stats, totals=(before.totals or Stats()) + stats)
