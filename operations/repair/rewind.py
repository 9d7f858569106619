"""Rewind of an app: snapshot the current moment, record the decision, and commit a version of each stage.

The history stays. A named snapshot keeps the undone state, so that a second rewind can restore it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from ...errors import NotFound
from ...snapshot.change.migrate import carry_out, check_migration_complete, finish_earlier
from ...snapshot.change.migration import target_name
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import heads_of, newest_cut, read_line, stages_of
from ...snapshot.cut.refs import Ref, parse_ref
from ...snapshot.cut.stored import find_snapshot
from ...snapshot.diff.moments import StoredCut, TableDiff, diff
from ...snapshot.take.snapshots import delete_snapshot, pin_cut
from ...snapshot.under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .rewind_plan import RewindPlan, plan


def find_moment_before_deploy(store: ObjectStore, heads: Mapping[str, Manifest]) -> Ref:
    """Return the moment right before the newest program was deployed.

    Runners record their program when they claim stages. If the last rewind already undid a deploy, the newest moment is
    returned. Makes about 20 requests per stage for each claim since the deploy. Raises `NotFound` if no earlier program
    is known.
    """
    live = [head for head in heads.values() if not head.retired]
    app = next(iter(heads.values())).app
    line = read_line(store, app)
    if live and all(_has_undone_deploy(store, head) for head in live):
        return parse_ref(line.ref(line.heads), now_ms=0)
    deploys = [deploy for head in live if (deploy := _find_deploy(store, head)) is not None]
    if not deploys:
        raise NotFound(
            "earlier program of the app",
            app,
            found="all remaining versions are of the current program",
            hint=f"choose a moment from `slackwater log {app}`",
        )
    return parse_ref(line.ref(line.prefix_before(min(deploys, key=line.sort_key))), now_ms=0)


def _has_undone_deploy(store: ObjectStore, head: Manifest) -> bool:
    undone = history.previous_version(store, head) if head.rewind is not None else None
    return undone is not None and undone.is_by_other_program(head.program)


def _find_deploy(store: ObjectStore, head: Manifest) -> Manifest | None:
    read, first = partial(history.read, store, head.app), partial(history.first_version, store, head.app)
    at = head
    while True:
        # Programs change only with a claim, and each claim has a new epoch.
        earlier = history.newest_where(read, first, at, partial(_is_older_epoch, at.epoch))
        last = at.rewinds[-1] if at.rewinds else None
        if last is not None and not last.table_only and (earlier is None or last.version > earlier.version):
            # Versions that the rewind undid are not part of this history.
            earlier = history.find(store, head.app, head.stage, last.to)
        elif earlier is not None and earlier.is_by_other_program(head.program):
            began = earlier.version + 1
            while earlier is not None and earlier.traits.for_next_program:
                began, earlier = earlier.version, history.previous_version(store, earlier)
            return history.read(store, head.app, head.stage, began)
        if earlier is None or earlier.program is None:
            return None
        at = earlier


def _is_older_epoch(epoch: int, manifest: Manifest) -> bool:
    return manifest.epoch < epoch


SNAPSHOT_PREFIX = "before-rewind-"
"""Prefix of the names of snapshots that are taken before a rewind. The number of the rewind follows."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """Result of a rewind, or of its dry run."""

    plan: RewindPlan
    number: int = 0
    """Number of the rewind's migration; 0 for a dry run, or if nothing changes."""
    snapshot: str = ""
    """Name of the snapshot of the undone state; empty for a dry run, or if nothing changes."""
    versions: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[TableDiff, ...] = ()
    """Row changes of each table; only for a dry run."""


def rewind(
    store: ObjectStore,
    app: str,
    target: Ref | None,
    kafka: KafkaTopics | None,
    *,
    by: str,
    now_ms: int,
    cache: SstCache,
    fence: bool = False,
    dry_run: bool = False,
    reader: KafkaTopics | None = None,
) -> Rewound:
    """Roll all stages of an app back to an earlier moment, atomically.

    `target` None stands for the moment before the newest deploy. Without `kafka`, only tables are rolled back. The
    `reader` copies the in-flight records into the snapshot of the moment before the rewind. An interrupted rewind is
    finished by a repeated call, or by the next run or migration. Raises the errors of `StoredApp.rewind`.
    """
    if not dry_run:
        check_exclusion(store, app, Intent.REWIND, *RUNS_ELSEWHERE)
        finish_earlier(store, app, now_ms=now_ms)
    heads = heads_of(store, app, stages_of(store, app))
    number = check_migration_complete(store, app, heads, Intent.REWIND) + 1
    rewind_plan = plan(store, target if target is not None else find_moment_before_deploy(store, heads), heads, kafka)
    if not rewind_plan.steps:
        return Rewound(rewind_plan)
    cut = newest_cut(store, app, stages_of(store, app))
    if dry_run:
        return Rewound(rewind_plan, changes=diff(cache, StoredCut(store, cut), StoredCut(store, rewind_plan.to)))
    if not fence:
        check_exclusion(store, app, Intent.REWIND, AppCondition.RUNNER)
    name = f"{SNAPSHOT_PREFIX}{number}"
    pin_before(store, cut, name, by, reader)
    # Without a pin, retention could remove the target before all stages are rewound.
    pin_cut(store, rewind_plan.to, target_name(number, rewind_plan.to.versions), by=by)
    detail = f"{'the tables alone ' if rewind_plan.table_only else ''}to {rewind_plan.ref}"
    versions = carry_out(store, app, number, rewind_plan.steps, name, detail, by=by, now_ms=now_ms)
    return Rewound(rewind_plan, number, name, versions)


def pin_before(store: ObjectStore, cut: Cut, name: str, by: str, reader: KafkaTopics | None) -> None:
    """Pin a cut by a snapshot with this name. If an interrupted call pinned a different cut, replaces its snapshot."""
    existing = find_snapshot(store, cut.app, name)
    if existing is not None and existing.stages != cut.versions:
        delete_snapshot(store, cut.app, name)
    pin_cut(store, cut, name, by=by, reader=reader)
