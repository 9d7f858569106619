"""Deciding a migration, by one put, and doing it: a commit for each stage, by whoever comes by.

All that could be refused was refused before it is decided, and what it says of a stage needs no program. Who finds
stages that did not go through it (a runner, the next migration) commits these first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import Refused
from ...moments.cut.graph import order
from ...moments.cut.moments import heads_of
from ...moments.cut.stored import cancel, open_requests
from ...moments.take.audit_log import record
from ...store.objects.protocol import ObjectStore
from ...store.versions import commit, history
from ...store.versions.amend import Amended, Amendment, amend
from ...store.versions.manifest import Manifest
from ...store.versions.migrations import MIGRATIONS, Migration, Step
from . import rename
from .plan import Plan
from .rename import applied


@dataclass(frozen=True, slots=True)
class Done:
    """A migration that was done, by one call or by several."""

    migration: Migration
    versions: Mapping[str, int]
    """The version of each stage that this call committed; none of those that were there."""


def prepare(store: ObjectStore, migration: Migration) -> None:
    """Decide that a migration is done: one put, where there is none of its number.

    Raises:
        Refused: somebody else migrates the app at this moment.
        Unavailable: storage did not answer; it may be decided.
    """
    decided = MIGRATIONS.add(store, migration)
    if decided.id != migration.id:
        raise Refused(
            f"app {migration.app!r} was migrated at the same moment, by {decided.by}: this one was not done",
            hint="look at what that did (`slackwater log`), and migrate what is left to change",
        )


def finish(store: ObjectStore, migration: Migration, *, now_ms: int) -> Done:
    """Commit what is left of a migration: a version for each stage that does not name it. Done again, it does nothing.

    Stages that get another name come first, so that who reads them finds them under it; of the others receivers: a
    stage that is retired is read by none that has not gone through it. At last, snapshots are withdrawn that were asked
    for before it was done and that stages cannot answer any more; no stage answers before that under another name.

    Raises:
        CommitConflict: others kept winning the race for the next version of a stage.
        Unavailable: storage did not answer; the same call again goes on.
    """
    # Also stages that began while it was decided: they name it with nothing else changed.
    heads = heads_of(store, migration.app, history.list_stages(store, migration.app))
    ended, versions = rename.rename(store, migration, heads, now_ms=now_ms)
    # Who reads one of them under its new name is later than its first version under that.
    now_ms = max((now_ms, *(each.time_ms + 1 for each in ended.values())))
    for stage in reversed(order(heads)):
        if stage not in ended and not is_through(heads[stage], migration):
            made = _commit(store, migration, heads[stage], now_ms, ended)
            if made.changed:
                versions[stage] = made.manifest.version
    if any(step.answers_otherwise for step in migration.stages.values()):
        _withdraw(store, migration)
    return Done(migration, versions)


def _withdraw(store: ObjectStore, migration: Migration) -> None:
    """Withdraw the snapshots that slipped in since the migration was checked. Done again, it finds none of them."""
    for asked in open_requests(store, migration.app):
        if asked.migration < migration.number:
            why = "the app was migrated while it was under way: take it again"
            record(store, migration.app, "snapshot failed", f"{asked.name}: {why}", migration.by)
            cancel(store, migration.app, asked)


def is_through(head: Manifest, migration: Migration) -> bool:
    """Whether a stage went through this migration, or has no part in it, as it is retired."""
    return head.retired or head.migration >= migration.number


def finish_newest(store: ObjectStore, app: str, *, now_ms: int) -> int:
    """Finish the app's newest migration, if it is not done; its number, 0 when there is none. Raises as `finish`."""
    migration = MIGRATIONS.newest(store, app)
    if migration is None:
        return 0
    finish(store, migration, now_ms=now_ms)
    return migration.number


def _commit(
    store: ObjectStore, migration: Migration, head: Manifest, now_ms: int, ended: Mapping[str, Manifest]
) -> Amended:
    step = migration.stages.get(head.stage, Step())
    # Somebody else may finish it, too.
    change = Amendment(
        "retire" if step.retires else "migration",
        lambda draft: applied(rename.reading(draft, ended), step, migration.number),
        requires=lambda newest: not is_through(newest, migration),
    )
    return amend(store, head, change, by=migration.by, now_ms=now_ms)


def planned(heads: Mapping[str, Manifest], plan: Plan) -> dict[str, Manifest]:
    """The newest versions as a plan would make them, of stages that keep their name. Pure. Raises as `applied`."""
    found = dict(heads)
    for stage, step in plan.steps.items() if plan.changes else ():
        head = heads.get(stage)
        if head is not None and not head.retired and not step.called:
            draft = commit.successor(
                head, kind="migration", epoch=head.epoch + 1, writer="", by="", now_ms=head.time_ms
            )
            found[stage] = applied(draft, step, plan.after + 1)
    return found
