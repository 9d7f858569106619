"""Changing a stage of an app by one commit that copies nothing: other state partitions for its table, or retiring it.

The new version carries everything on: table, SSTs, offsets. It has the next epoch, like a claim, so a runner that holds
the stage stops at its next commit, and no batch that was planned for other state partitions can follow. The SSTs stay:
readers go by their hashes, and compaction cuts them at the new bounds as it merges them.

What a retired stage had answered of snapshots under way is left out: they are completed without it, and no cut lacks
anything by that, because nobody who is left reads what the stage wrote. A program that has the stage again claims it,
and it goes on where it stopped.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice, pairwise

from msgspec.structs import replace

from ...common.validation import whole
from ...errors import NotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import is_retired, without_snapshots
from ...store.versions.kinds import RESCALE
from ...store.versions.limits import MAX_PARTITIONS
from ...store.versions.manifest import Manifest
from ..cut.graph import consumed, order
from ..cut.moments import heads_of, stages_of
from ..cut.stored import cancel, open_requests
from ..take.audit_log import find_operation, record, record_once
from ..under_way.exclusion import Intent, check_exclusion

_SEARCHED_VERSIONS = 50


@dataclass(frozen=True, slots=True)
class Rescaled:
    """What a rescale did, or would do."""

    app: str
    stage: str
    version: int
    """The version that has the new number; the head when that has it already."""
    before: int
    partitions: int
    """State partitions from now on; the same as `before` when there was nothing to do."""
    ssts: int


def rescale(
    store: ObjectStore, app: str, stage: str, partitions: int, *, by: str, now_ms: int, dry_run: bool = False
) -> Rescaled:
    """Let a stage's table have so many state partitions, 1 to `limits.MAX_PARTITIONS`, from its next version on.

    Snapshots under way are carried on. A runner of the stage is fenced off, and goes on with the new number when it is
    started again. One manifest and one entry in the app's log, each with `by`, user@host; none with `dry_run`, which
    checks all the same. When the table has that number already, nothing but the entry, where whoever gave it the number
    died before.

    Raises `Usage` where no table can have so many, or so few, `NotFound` where there is no such app or stage, `Refused`
    where the stage keeps no table, or is retired, `CommitConflict` where others kept winning the race for the next
    version, and `Unavailable`: the rescale may have been committed then.
    """
    partitions = whole(f"the number of state partitions of {app}/{stage}", partitions, 1, MAX_PARTITIONS)
    stages_of(store, app, stage)
    head = history.head(store, app, stage)
    if head is None or head.table is None:
        raise Refused(
            f"stage {app}/{stage} keeps no table, so it has no state partitions",
            hint=f"`slackwater status {app}` tells the keys of those that keep one",
        )
    if head.retired:
        raise is_retired(head)
    check_exclusion(store, app, Intent.RESCALE, dry_run=dry_run)
    before, version = head.table.partitions, head.version
    if before != partitions:
        version += 1
        if not dry_run:

            def update(draft: Manifest) -> Manifest:
                assert draft.table is not None  # noqa: S101  a stage that has a table keeps it
                return replace(draft, table=replace(draft.table, partitions=partitions))

            version = amend(store, head, Amendment("rescale", update), by=by, now_ms=now_ms).manifest.version
            _record_rescale(store, app, stage, before, partitions, by, version)
    elif not dry_run:
        _record_earlier_rescale(store, head, partitions)
    return Rescaled(app, stage, version, before, partitions, len(head.ssts))


def _record_rescale(
    store: ObjectStore, app: str, stage: str, before: int, partitions: int, by: str, version: int
) -> None:
    detail = f"{stage} to {partitions} state partitions, from {before}"
    record(store, app, "rescale", detail, by, {stage: (version - 1, version)})


def _record_earlier_rescale(store: ObjectStore, head: Manifest, partitions: int) -> None:
    """Note the rescale that gave the table its number, if whoever committed it died before that."""
    app, stage = head.app, head.stage
    known = find_operation(store, app, "rescale", lambda detail: detail.startswith(f"{stage} to "))
    if known is not None and known.detail.startswith(f"{stage} to {partitions} "):
        return
    # Further back nobody repeats what was interrupted.
    for later, earlier in pairwise(islice(history.backwards(store, head), _SEARCHED_VERSIONS)):
        if earlier.table is None:
            return
        if later.traits is RESCALE:
            _record_rescale(store, app, stage, earlier.table.partitions, partitions, later.by, later.version)
            return


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
    check_exclusion(store, app, Intent.RETIRE, dry_run=dry_run)
    head = heads[stage]
    requests = tuple(request.name for request in open_requests(store, app))
    if head.retired:
        if not dry_run:
            _record_retirement(store, app, head, by)
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
        _record_retirement(store, app, retired, by)
    return Retired(app, stage, version, False, head.time_ms, head.by, len(head.ssts), unread, requests)


def commit_retired(store: ObjectStore, head: Manifest, *, by: str, now_ms: int) -> Manifest:
    """The version that retires a stage, whoever reads it: committed. Arguments and errors as of `amend`."""
    return amend(store, head, Amendment("retire", without_snapshots), by=by, now_ms=now_ms).manifest


def bring_back(store: ObjectStore, app: str, stage: str, *, by: str) -> Manifest | None:
    """Make ready for the claim of a stage that may be retired; returns the version that it is so at.

    Snapshots that are under way are withdrawn then. The stage may have read past their markers before it was retired,
    and would never answer.
    """
    head = history.head(store, app, stage)
    if head is None or not head.retired:
        return None
    for request in open_requests(store, app):
        why = f"{stage}, which was retired, came back while it was under way: take it again"
        record(store, app, "snapshot failed", f"{request.name}: {why}", by)
        cancel(store, app, request)
    return head


def absent(store: ObjectStore, app: str, program: Collection[str]) -> tuple[str, ...]:
    """The stages that an app has, that are not retired, and that a program has not; receivers before senders."""
    heads = heads_of(store, app, (stage for stage in history.list_stages(store, app) if stage not in program))
    return tuple(stage for stage in reversed(order(heads)) if not heads[stage].retired)


def _record_retirement(store: ObjectStore, app: str, head: Manifest, by: str) -> None:
    """Add to the app's log that a stage was retired, unless it is there: the process may have died in between."""
    detail, made = f"{head.stage} with v{head.version}", {head.stage: (head.version - 1, head.version)}
    record_once(store, app, "retire", detail, by, made, since_ms=head.time_ms - _CLOCK_SLACK_MS)
