"""Rescaling of a stage's table, retirement of a stage, and requests to retry rejected records.

A rescale and a retirement are one commit that copies nothing. The new version keeps table, SSTs and offsets. Like a
claim, it has the next epoch, so the stage's runner is fenced, and no batch that was planned for the old state
partitions can follow. SSTs are not rewritten: readers select rows by hash, and later compactions split SSTs at the new
bounds.

A retired stage's answers to open snapshot requests are dropped: the snapshots complete without this stage. Their cuts
are complete, because no remaining stage reads the channels of the retired stage. If a program declares the stage again,
the program's runner claims the stage, and continues at the stored offsets.

A retry is requested by one object. The stage's runner retries the records between two batches, and then removes the
request. The commit of the retry also marks the records as retried, so repeating a request after a crash is harmless.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice, pairwise

from msgspec import Struct
from msgspec.structs import replace

from ...common import runtime
from ...common.validation import check_whole
from ...errors import NotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, keys, limits, published
from ...store.versions.amend import Amendment, amend
from ...store.versions.codec import JsonFolder
from ...store.versions.commit import retired_error, without_open_snapshots
from ...store.versions.kinds import RESCALE
from ...store.versions.limits import MAX_PARTITIONS
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import part_tables, rejected_counts, with_part_tables
from ..cut.graph import consumed_versions, topological_order
from ..cut.moments import heads_of, stages_of
from ..cut.stored import notify_runners, open_requests, withdraw_request
from ..take.audit_log import find_operation, record_operation, record_operation_once
from ..under_way.exclusion import Intent, check_exclusion

_SEARCHED_VERSIONS = 50


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Result of a rescale or a dry run."""

    app: str
    stage: str
    version: int
    before: int
    partitions: int
    ssts: int


def rescale(
    store: ObjectStore, app: str, stage: str, partitions: int, *, by: str, now_ms: int, dry_run: bool = False
) -> Rescaled:
    """Set the number of state partitions of a stage's table, from 1 to `limits.MAX_PARTITIONS`.

    Open snapshots continue. A runner of the stage is fenced, and uses the new number after a restart. Writes one
    manifest and one audit log entry, each with `by`, user@host; `dry_run` only checks. If the table already has this
    number of partitions, only a missing log entry of an interrupted call is added.

    Raises `Usage` if the number is out of range, `NotFound` if the app or stage does not exist, `Refused` if the stage
    has no table or is retired, `CommitConflict` if other writers kept winning the race for the next version, and
    `Unavailable`, in which case the rescale may have been committed.
    """
    partitions = check_whole(f"the number of state partitions of {app}/{stage}", partitions, 1, MAX_PARTITIONS)
    stages_of(store, app, stage)
    head = history.head(store, app, stage)
    if head is None or head.table is None:
        raise Refused(
            f"stage {app}/{stage} has no table, so it has no state partitions",
            hint=f"`slackwater status {app}` shows which stages have one",
        )
    if head.retired:
        raise retired_error(head)
    check_exclusion(store, app, Intent.RESCALE, dry_run=dry_run)
    old_partitions, version = head.table.partitions, head.version
    if old_partitions != partitions:
        version += 1
        if not dry_run:

            def update(draft: Manifest) -> Manifest:
                assert draft.table is not None  # noqa: S101  checked above
                sides = {
                    name: replace(side, table=replace(side.table, partitions=partitions))
                    for name, side in part_tables(draft).items()
                }
                return with_part_tables(replace(draft, table=replace(draft.table, partitions=partitions)), sides)

            version = amend(store, head, Amendment("rescale", update), by=by, now_ms=now_ms).manifest.version
            _record_rescale(store, app, stage, old_partitions, partitions, by, version)
    elif not dry_run:
        _record_earlier_rescale(store, head, partitions)
    return Rescaled(app, stage, version, old_partitions, partitions, len(head.ssts))


def _record_rescale(
    store: ObjectStore, app: str, stage: str, old_partitions: int, partitions: int, by: str, version: int
) -> None:
    detail = f"{stage} to {partitions} state partitions, from {old_partitions}"
    record_operation(store, app, "rescale", detail, by, {stage: (version - 1, version)})


def _record_earlier_rescale(store: ObjectStore, head: Manifest, partitions: int) -> None:
    app, stage = head.app, head.stage
    entry = find_operation(store, app, "rescale", lambda detail: detail.startswith(f"{stage} to "))
    if entry is not None and entry.detail.startswith(f"{stage} to {partitions} "):
        return
    # An interrupted rescale is never retried after this many versions.
    for later, earlier in pairwise(islice(history.iter_backwards(store, head), _SEARCHED_VERSIONS)):
        if earlier.table is None:
            return
        if later.traits is RESCALE:
            _record_rescale(store, app, stage, earlier.table.partitions, partitions, later.by, later.version)
            return


_CLOCK_SLACK_MS = 3_600_000
"""Largest expected clock difference between two machines."""


@dataclass(frozen=True, slots=True)
class Retired:
    """Result of retiring a stage, or of a dry run."""

    app: str
    stage: str
    version: int
    already: bool
    last_ms: int
    last_by: str
    """Runner (host:pid) of the stage's last commit before the retirement. This runner now stops."""
    ssts: int
    unread: dict[str, int]
    """Number of versions that the stage had not read, by sender. These versions are no longer kept for this stage."""
    snapshots: tuple[str, ...]


def retire(store: ObjectStore, app: str, stage: str, *, by: str, now_ms: int, dry_run: bool = False) -> Retired:
    """Retire a stage from its next version on. Idempotent.

    `by`, user@host, is for the manifest and the audit log; `dry_run` checks everything and commits nothing.

    Raises `NotFound` if the app or stage does not exist, `Refused` if an active stage reads this stage's channels
    or rows for its sinks are unpublished, `CommitConflict` if other writers kept winning the race for the next
    version, and `Unavailable`; calling again finishes the retirement.
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
        last = history.find(store, app, stage, head.version - 1) or head
        return Retired(app, stage, head.version, True, last.time_ms, last.by, len(head.ssts), {}, ())
    readers = [
        name for name in topological_order(heads) if not heads[name].retired and stage in consumed_versions(heads[name])
    ]
    if readers:
        # Receivers must be retired before senders, so the last stage in the order goes first.
        verb, them = ("reads", "that one") if len(readers) == 1 else ("read", "these")
        raise Refused(
            f"stage {app}/{stage} cannot be retired: {', '.join(reversed(readers))} {verb} what it writes",
            hint=f"retire {them} first, receivers before senders: slackwater retire "
            f"{app}/{readers[-1]}; or leave {stage} as it is",
        )
    published.check_all_published(store, head)
    unread = {
        sender: heads[sender].version - version
        for sender, version in consumed_versions(head).items()
        if sender in heads and heads[sender].version > version
    }
    version = head.version + 1
    if not dry_run:
        retired = commit_retired(store, head, by=by, now_ms=now_ms)
        version = retired.version
        _record_retirement(store, app, retired, by)
    return Retired(app, stage, version, False, head.time_ms, head.by, len(head.ssts), unread, requests)


def commit_retired(store: ObjectStore, head: Manifest, *, by: str, now_ms: int) -> Manifest:
    """Commit the version that retires a stage, without a check for stages that read its channels.

    Raises the errors of `amend`.
    """
    return amend(store, head, Amendment("retire", without_open_snapshots), by=by, now_ms=now_ms).manifest


def prepare_reactivation(store: ObjectStore, app: str, stage: str, *, by: str) -> Manifest | None:
    """Prepare the claim of a retired stage; returns the version that retired it, or None for an active stage.

    Withdraws open snapshot requests: the stage may have read past their markers before it was retired, and would never
    answer.
    """
    head = history.head(store, app, stage)
    if head is None or not head.retired:
        return None
    for request in open_requests(store, app):
        why = f"the retired stage {stage} was claimed before the snapshot was complete; take the snapshot again"
        record_operation(store, app, "snapshot failed", f"{request.name}: {why}", by)
        withdraw_request(store, app, request)
    return head


def stages_missing_from_program(store: ObjectStore, app: str, program: Collection[str]) -> tuple[str, ...]:
    """Return the active stages of an app that a program does not declare, receivers before senders."""
    heads = heads_of(store, app, (stage for stage in history.list_stages(store, app) if stage not in program))
    return tuple(stage for stage in reversed(topological_order(heads)) if not heads[stage].retired)


def _record_retirement(store: ObjectStore, app: str, head: Manifest, by: str) -> None:
    detail, versions = f"{head.stage} with v{head.version}", {head.stage: (head.version - 1, head.version)}
    record_operation_once(store, app, "retire", detail, by, versions, since_ms=head.time_ms - _CLOCK_SLACK_MS)


class RetryRequest(Struct, frozen=True):
    """Request to retry the rejected records of one stage."""

    id: limits.Ulid
    stage: limits.Name
    created_ms: limits.TimeMs
    by: limits.ShortText


RETRIES = JsonFolder(RetryRequest, keys.retries, lambda request: request.id)
"""Open requests for retries, oldest first."""


def count_retriable_records(store: ObjectStore, app: str, stage: str = "") -> dict[str, int]:
    """Count the rejected records that can be retried, by stage; only those of `stage` if given.

    Raises `NotFound` if the app or stage does not exist.
    """
    stages = stages_of(store, app, stage)
    heads = heads_of(store, app, (stage,) if stage else stages)
    return {name: count for name, head in heads.items() if (count := rejected_counts(head).waiting)}


def request_retry(store: ObjectStore, app: str, stage: str, *, by: str, now_ms: int) -> RetryRequest:
    """Request a retry of a stage's rejected records. Returns the open request if there is already one.

    Raises `NotFound` if the app or stage does not exist, and `Refused` if there is nothing to retry.
    """
    check_exclusion(store, app, Intent.RETRY)
    if not count_retriable_records(store, app, stage):
        raise Refused(f"{app}/{stage} has no rejected records to retry")
    request = next((open_request for open_request in RETRIES.all(store, app) if open_request.stage == stage), None)
    if request is None:
        request = RETRIES.add(store, RetryRequest(str(runtime.ulid()), stage, now_ms, by), app)
    record_operation_once(store, app, "rejected --retry", stage, by, since_ms=request.created_ms)
    notify_runners(store, app)
    return request
