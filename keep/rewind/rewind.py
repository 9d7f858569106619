"""`slackwater rewind`: a snapshot of the moment before, the decision, and a version for each stage.

The history stays. What is undone is a snapshot's, under a name of its own, and one more rewind brings it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...moments.cut.graph import Cut
from ...moments.cut.moments import heads_of, newest_cut, stages_of
from ...moments.cut.refs import Ref
from ...moments.cut.stored import find_snapshot
from ...moments.diff.moments import StoredCut, TableDiff, diff
from ...moments.take.capture import ChannelReader
from ...moments.take.remove import remove
from ...moments.take.snapshots import pin
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ..migrate.migrate import carry_out, check_done, finish_earlier
from ..migrate.migration import target_name
from .deploys import before_deploy
from .plan import Rewindable, RewindPlan, check_not_held, plan

PREFIX = "before-rewind-"
"""What the snapshots of the moment before a rewind begin with; its number follows."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewind did, or would do."""

    plan: RewindPlan
    number: int = 0
    """Of the migration that it is; 0 when nothing was to be done, or was only looked at."""
    snapshot: str = ""
    """Has what was undone; empty likewise."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The new version of each stage; empty likewise."""
    changes: tuple[TableDiff, ...] = ()
    """Where it was only looked at: what becomes of the rows of each table."""


def rewind(
    store: ObjectStore,
    app: str,
    target: Ref | None,
    kafka: Rewindable | None,
    *,
    by: str,
    now_ms: int,
    cache: SstCache,
    fence: bool = False,
    dry_run: bool = False,
    reader: ChannelReader | None = None,
) -> Rewound:
    """Take all stages of an app back to a moment of its own, None for the one before its newest program: all or none.

    Tables, offsets, and what is on the way between stages are what they were then; without `kafka` the tables alone.
    With `fence` also while a runner has the app, which stops. The `reader` keeps the records in flight with the
    snapshot of the moment before. A call that was interrupted is finished by the same call, by a run, or a migration.

    Raises `NotFound` where there is no such app or moment, or a topic is gone; `Refused` where a runner has it, a stage
    has another name since, Kafka has not what is to be read once more, or a sink lacks rows from before (nothing was
    changed then); and `Unavailable`.
    """
    if not dry_run:
        finish_earlier(store, app, now_ms=now_ms)
    heads = heads_of(store, app, stages_of(store, app))
    number = check_done(store, app, heads) + 1
    found = plan(store, target if target is not None else before_deploy(store, heads), heads, kafka)
    if not found.steps:
        return Rewound(found)
    cut = newest_cut(store, app, stages_of(store, app))
    if dry_run:
        return Rewound(found, changes=diff(cache, StoredCut(store, cut), StoredCut(store, found.to)))
    if not fence:
        check_not_held(store, app, now_ms)
    # Until the stages are what they were then, retention may take that moment.
    pin(store, found.to, target_name(number, found.to.versions), by=by)
    name = f"{PREFIX}{number}"
    pin_before(store, cut, name, by, reader)
    said = f"{'the tables alone ' if found.table_only else ''}to {found.ref}"
    versions = carry_out(store, app, number, found.steps, name, said, by=by, now_ms=now_ms)
    return Rewound(found, number, name, versions)


def pin_before(store: ObjectStore, cut: Cut, name: str, by: str, reader: ChannelReader | None) -> None:
    """Pin a cut, in the place of what a call that was interrupted had pinned under that name."""
    had = find_snapshot(store, cut.app, name)
    if had is not None and had.stages != cut.versions:
        remove(store, cut.app, name)
    pin(store, cut, name, by=by, reader=reader)
