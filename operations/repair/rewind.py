"""`slackwater rewind`: a snapshot of the moment before, the decision, and a version for each stage.

The history stays. What is undone is a snapshot's, under a name of its own, and one more rewind brings it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from ...errors import NotFound
from ...snapshot.change.migrate import carry_out, check_done, finish_earlier
from ...snapshot.change.migration import target_name
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import heads_of, line_of, newest_cut, stages_of
from ...snapshot.cut.refs import Ref, parse
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.diff.moments import StoredCut, TableDiff, diff
from ...snapshot.take.snapshots import pin, remove
from ...snapshot.under_way.exclusion import HERE, Intent, UnderWay, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .rewind_plan import RewindPlan, plan


def before_deploy(store: ObjectStore, heads: Mapping[str, Manifest]) -> Ref:
    """The moment right before the newest program began, by the files that claims were made from.

    Now, where the app was just taken back to before one. Some 20 requests for each claim since, and each stage. Raises
    `NotFound` where no earlier program is known.
    """
    live = [head for head in heads.values() if not head.retired]
    app = next(iter(heads.values())).app
    line = line_of(store, app)
    if live and all(_undid_a_deploy(store, head) for head in live):
        return parse(line.ref(line.heads), now_ms=0)
    deploys = [deploy for head in live if (deploy := _deployed(store, head)) is not None]
    if not deploys:
        raise NotFound(
            "earlier program of the app",
            app,
            found="every version that is left is of the program that it has now",
            hint=f"`slackwater log {app}` shows what there is: name a moment",
        )
    return parse(line.ref(line.before(min(deploys, key=line.place))), now_ms=0)


def _undid_a_deploy(store: ObjectStore, head: Manifest) -> bool:
    undone = history.before(store, head) if head.rewind is not None else None
    return undone is not None and _are_of_two(undone, head)


def _are_of_two(one: Manifest, other: Manifest) -> bool:
    """Whether two versions are known to be of different programs."""
    return one.program is not None and other.program is not None and one.program.checksum != other.program.checksum


def _deployed(store: ObjectStore, head: Manifest) -> Manifest | None:
    """The claim, or migration, with which a stage's program became what it is; None where none is known before it."""
    read, first = partial(history.read, store, head.app), partial(history.first_version, store, head.app)
    at = head
    while True:
        # A program changes with a claim, and a claim has an epoch of its own.
        earlier = history.newest_where(read, first, at, partial(_is_before, at.epoch))
        last = at.rewinds[-1] if at.rewinds else None
        if last is not None and not last.table_only and (earlier is None or last.version > earlier.version):
            # What that undid is no past of this.
            earlier = history.find(store, head.app, head.stage, last.to)
        elif earlier is not None and _are_of_two(earlier, head):
            began = earlier.version + 1
            while earlier is not None and earlier.traits.for_next_program:
                began, earlier = earlier.version, history.before(store, earlier)
            return history.read(store, head.app, head.stage, began)
        if earlier is None or earlier.program is None:
            return None
        at = earlier


def _is_before(epoch: int, each: Manifest) -> bool:
    return each.epoch < epoch


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
    kafka: Topics | None,
    *,
    by: str,
    now_ms: int,
    cache: SstCache,
    fence: bool = False,
    dry_run: bool = False,
    reader: Topics | None = None,
) -> Rewound:
    """Take all stages of an app back to a moment of its own, None for the one before its newest program: all or none.

    Without `kafka` the tables alone. The `reader` keeps the records in flight with the snapshot of the moment before. A
    call that was interrupted is finished by the same call, by a run, or a migration. Raises as `StoredApp.rewind`.
    """
    if not dry_run:
        check_exclusion(store, app, Intent.REWIND, *HERE)
        finish_earlier(store, app, now_ms=now_ms)
    heads = heads_of(store, app, stages_of(store, app))
    number = check_done(store, app, heads, Intent.REWIND) + 1
    found = plan(store, target if target is not None else before_deploy(store, heads), heads, kafka)
    if not found.steps:
        return Rewound(found)
    cut = newest_cut(store, app, stages_of(store, app))
    if dry_run:
        return Rewound(found, changes=diff(cache, StoredCut(store, cut), StoredCut(store, found.to)))
    if not fence:
        check_exclusion(store, app, Intent.REWIND, UnderWay.RUNNER)
    name = f"{PREFIX}{number}"
    pin_before(store, cut, name, by, reader)
    # Until the stages are what they were then, retention may take that moment.
    pin(store, found.to, target_name(number, found.to.versions), by=by)
    said = f"{'the tables alone ' if found.table_only else ''}to {found.ref}"
    versions = carry_out(store, app, number, found.steps, name, said, by=by, now_ms=now_ms)
    return Rewound(found, number, name, versions)


def pin_before(store: ObjectStore, cut: Cut, name: str, by: str, reader: Topics | None) -> None:
    """Pin a cut, in the place of what a call that was interrupted had pinned under that name."""
    had = find_snapshot(store, cut.app, name)
    if had is not None and had.stages != cut.versions:
        remove(store, cut.app, name)
    pin(store, cut, name, by=by, reader=reader)
