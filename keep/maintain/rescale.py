"""Giving a stage's table another number of state partitions, by one commit that copies nothing.

The new version is the head with another number in it. The SSTs stay as they are: readers go by their hashes, and
compaction cuts them at the new bounds as it merges them (`store.sst.sorted_runs`, `store.compaction.plan`). It has the
next epoch, like a claim: no batch that was planned for the old number can be committed after it.
"""

from dataclasses import dataclass
from itertools import islice, pairwise

from msgspec.structs import replace

from ...errors import Refused
from ...moments.cut.moments import stages_of
from ...moments.take.audit_log import find_operation, record
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.amend import Amendment, amend
from ...store.versions.commit import is_retired
from ...store.versions.limits import MAX_PARTITIONS
from ...store.versions.manifest import Manifest
from ...validation import whole

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
    before, version = head.table.partitions, head.version
    if before != partitions:
        version += 1
        if not dry_run:

            def update(draft: Manifest) -> Manifest:
                assert draft.table is not None  # noqa: S101  a stage that has a table keeps it
                return replace(draft, table=replace(draft.table, partitions=partitions))

            version = amend(store, head, Amendment("rescale", update), by=by, now_ms=now_ms).manifest.version
            _record(store, app, stage, before, partitions, by)
    elif not dry_run:
        _record_earlier(store, head, partitions)
    return Rescaled(app, stage, version, before, partitions, len(head.ssts))


def _record(store: ObjectStore, app: str, stage: str, before: int, partitions: int, by: str) -> None:
    record(store, app, "rescale", f"{stage} to {partitions} state partitions, from {before}", by)


def _record_earlier(store: ObjectStore, head: Manifest, partitions: int) -> None:
    """Note the rescale that gave the table its number, if whoever committed it died before that."""
    app, stage = head.app, head.stage
    known = find_operation(store, app, "rescale", lambda detail: detail.startswith(f"{stage} to "))
    if known is not None and known.detail.startswith(f"{stage} to {partitions} "):
        return
    # Further back nobody repeats what was interrupted.
    for later, earlier in pairwise(islice(history.backwards(store, head), _SEARCHED_VERSIONS)):
        if earlier.table is None:
            return
        if later.kind == "rescale":
            _record(store, app, stage, earlier.table.partitions, partitions, later.by)
            return
