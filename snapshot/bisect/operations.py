"""Recognize a bad commit that is an operation: the verb, its author and its time."""

from ...common.instants import iso
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ..take.audit_log import Operation, list_operations
from .causes import Cause
from .verdict import Verdict

_SLACK_MS = 3_600_000
"""Maximum clock difference between the writer of a commit and the writer of the audit log."""


def operation_of(store: ObjectStore, verdict: Verdict) -> Cause | None:
    """Return the operation that made the bad commit; None for a batch.

    Costs one listing, and one read for each later operation. Raises `Corruption` and `Unavailable`.
    """
    if verdict.candidates:
        return None
    return operation(store, verdict.bad.stages[verdict.stage])


def operation(store: ObjectStore, commit: Manifest, *, then: str = "") -> Cause | None:
    """Return the operation that made a version; None for a batch. `then` is appended to the sentence.

    Raises the same errors as `operation_of`.
    """
    if not commit.traits.verbs:
        return None
    done, stage, version = _find_entry(store, commit), commit.stage, commit.version
    edited = commit.edited
    by = edited.by if edited is not None else done.by if done is not None else commit.by
    verb = "adopt" if commit.adopted is not None else done.verb if done is not None else commit.traits.verbs[0]
    detail = edited.what if edited is not None else _describe(commit, done)
    why = edited.message if edited is not None else done.message if done is not None else ""
    # A statement contains values, so it is only in the evidence, which can be masked.
    sentence = f"{stage}@v{version} is {commit.traits.noun}, by {by}, at {iso(commit.time_ms)}{then}"
    evidence = {
        "kind": commit.kind,
        "stage": stage,
        "version": version,
        "by": by,
        "at": iso(commit.time_ms),
        "what": f"{detail} ({why})" if why else detail,
        "command": f"slackwater {verb}",
    }
    return Cause("operation", proved=True, sentence=sentence, evidence=evidence)


def _find_entry(store: ObjectStore, commit: Manifest) -> Operation | None:
    """Return the audit log's entry for a version; None if the log has none."""

    def is_meant(done: Operation) -> bool:
        stage, version = commit.stage, commit.version
        is_in_range = done.before.get(stage, version) < version <= done.after.get(stage, 0)
        return is_in_range and done.verb in commit.traits.verbs

    entries = list_operations(store, commit.app, 1, is_meant=is_meant, since_ms=commit.time_ms - _SLACK_MS)
    return entries[0] if entries else None


def _describe(commit: Manifest, done: Operation | None) -> str:
    if (rewind := commit.rewind) is not None:
        return f"back to v{rewind.to}{' (table only)' if rewind.table_only else ''}"
    return done.detail if done is not None and done.detail else f"{commit.stage} v{commit.version - 1} was changed"
