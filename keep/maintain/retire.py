"""Retiring a stage that is gone from the program: a version that says so, after which the app goes on without it.

The version carries everything on: table, SSTs, offsets. It has the next epoch, so a runner that still holds the stage
stops at its next commit. What the stage had answered of snapshots under way is left out: they are completed without it,
and no cut lacks anything by that, because nobody who is left reads what the stage wrote.

A program that has the stage again claims it, and it goes on where it stopped.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ...errors import NotFound, Refused
from ...moments.cut.graph import consumed, order
from ...moments.cut.moments import heads_of, stages_of
from ...moments.cut.stored import cancel, open_requests
from ...moments.take.audit_log import record, record_once
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import without_snapshots
from ...store.versions.manifest import Manifest

_CLOCK_SLACK_MS = 3_600_000
"""How far the clocks of two machines may differ."""


@dataclass(frozen=True, slots=True)
class Retired:
    """What retiring a stage did, or would do."""

    app: str
    stage: str
    version: int
    """The version that retires it: the head when it was retired before."""
    already: bool
    """Whether it was retired before, so that there was nothing to do."""
    last_ms: int
    """When the stage committed last before that."""
    last_by: str
    """host:pid of who did: a runner that is alive stops."""
    ssts: int
    unread: dict[str, int]
    """By sender: how many of its versions are kept no longer for this stage, which has not read them."""
    snapshots: tuple[str, ...]
    """Snapshots under way that do not wait for this stage any more."""


def retire(store: ObjectStore, app: str, stage: str, *, by: str, now_ms: int, dry_run: bool = False) -> Retired:
    """Take a stage out of its app from its next version on. Done again, it changes nothing.

    `by`, user@host, is for the manifest and the app's log; `dry_run` checks everything and commits nothing.

    Raises `NotFound` where there is no such app or stage, `Refused` where a stage that is not retired reads what this
    one writes, or rows for its sinks are not published yet, `CommitConflict` where others kept winning the race for the
    next version, and `Unavailable`: the same call again finishes it.
    """
    heads = heads_of(store, app, stages_of(store, app))
    if stage not in heads:
        raise NotFound(f"stage of app {app!r}", stage, heads)
    head = heads[stage]
    asked = tuple(request.name for request in open_requests(store, app))
    if head.retired:
        if not dry_run:
            _record(store, app, head, by)
        before = history.find(store, app, stage, head.version - 1) or head
        return Retired(app, stage, head.version, True, before.time_ms, before.by, len(head.ssts), {}, ())
    readers = [name for name in order(heads) if not heads[name].retired and stage in consumed(heads[name])]
    if readers:
        # Receivers before senders: the last of them in the order is the first that may go.
        one = len(readers) == 1
        raise Refused(
            f"stage {app}/{stage} cannot be retired: {', '.join(reversed(readers))} {'reads' if one else 'read'} what "
            "it writes",
            hint=f"retire {'that one' if one else 'these'} first, receivers before senders: slackwater retire "
            f"{app}/{readers[-1]}; or leave {stage} as it is",
        )
    published.check(store, head)
    unread = {
        sender: heads[sender].version - version
        for sender, version in consumed(head).items()
        if sender in heads and heads[sender].version > version
    }
    version = head.version + 1
    if not dry_run:
        retired = commit_retired(store, head, by=by, now_ms=now_ms)
        version = retired.version
        _record(store, app, retired, by)
    return Retired(app, stage, version, False, head.time_ms, head.by, len(head.ssts), unread, asked)


def commit_retired(store: ObjectStore, head: Manifest, *, by: str, now_ms: int) -> Manifest:
    """The version that retires a stage, whoever reads it: committed. Arguments and errors as of `amend`."""
    return amend(store, head, Amendment("retire", without_snapshots), by=by, now_ms=now_ms).manifest


def bring_back(store: ObjectStore, app: str, stage: str, *, by: str) -> bool:
    """Make ready for the claim of a stage that may be retired; returns whether it is.

    Snapshots that are under way are withdrawn then. The stage may have read past their markers before it was retired,
    and would never answer.
    """
    head = history.head(store, app, stage)
    if head is None or not head.retired:
        return False
    for request in open_requests(store, app):
        why = f"{stage}, which was retired, came back while it was under way: take it again"
        record(store, app, "snapshot failed", f"{request.name}: {why}", by)
        cancel(store, app, request)
    return True


def absent(store: ObjectStore, app: str, program: Collection[str]) -> tuple[str, ...]:
    """The stages that an app has, that are not retired, and that a program has not; receivers before senders."""
    heads = heads_of(store, app, (stage for stage in history.list_stages(store, app) if stage not in program))
    return tuple(stage for stage in reversed(order(heads)) if not heads[stage].retired)


def _record(store: ObjectStore, app: str, head: Manifest, by: str) -> None:
    """Add to the app's log that a stage was retired, unless it is there: the process may have died in between."""
    record_once(store, app, "retire", f"{head.stage} with v{head.version}", by, since_ms=head.time_ms - _CLOCK_SLACK_MS)
