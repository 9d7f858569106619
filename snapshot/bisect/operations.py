"""The operation that a commit is: what was done to the app by a verb, by whom, and when."""

from ...common.instants import iso
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ..take.audit_log import Operation, list_operations
from .causes import Cause
from .verdict import Verdict

_SLACK_MS = 3_600_000
"""How far the clocks of a commit's writer and of the log's may differ."""


def operation_of(store: ObjectStore, verdict: Verdict) -> Cause | None:
    """The operation that the bad commit is; None for a batch. A listing, and a read for each later operation.

    Raises `Corruption` and `Unavailable`.
    """
    if verdict.candidates:
        return None
    return operation(store, verdict.bad.stages[verdict.stage])


def operation(store: ObjectStore, commit: Manifest, *, then: str = "") -> Cause | None:
    """The operation that made a version; None where none did. `then` goes on with the sentence.

    Raises as `operation_of`.
    """
    if not commit.traits.verbs:
        return None
    done, stage, version = _logged(store, commit), commit.stage, commit.version
    edited = commit.edited
    by = edited.by if edited is not None else done.by if done is not None else commit.by
    verb = "adopt" if commit.adopted is not None else done.verb if done is not None else commit.traits.verbs[0]
    what = edited.what if edited is not None else _what(commit, done)
    why = edited.message if edited is not None else done.message if done is not None else ""
    # A statement has values: it stands in the evidence, which can be hidden.
    sentence = f"{stage}@v{version} is {commit.traits.noun}, by {by}, at {iso(commit.time_ms)}{then}"
    evidence = {
        "kind": commit.kind,
        "stage": stage,
        "version": version,
        "by": by,
        "at": iso(commit.time_ms),
        "what": f"{what} ({why})" if why else what,
        "command": f"slackwater {verb}",
    }
    return Cause("operation", proved=True, sentence=sentence, evidence=evidence)


def _logged(store: ObjectStore, commit: Manifest) -> Operation | None:
    """What the log of operations says of a version; None where it does not know it any more."""

    def is_meant(done: Operation) -> bool:
        stage, version = commit.stage, commit.version
        made = done.before.get(stage, version) < version <= done.after.get(stage, 0)
        return made and done.verb in commit.traits.verbs

    found = list_operations(store, commit.app, 1, is_meant=is_meant, since_ms=commit.time_ms - _SLACK_MS)
    return found[0] if found else None


def _what(commit: Manifest, done: Operation | None) -> str:
    """What an operation did, in words."""
    if (rewind := commit.rewind) is not None:
        return f"back to v{rewind.to}{', its table only' if rewind.table_only else ''}"
    return done.detail if done is not None and done.detail else f"{commit.stage} v{commit.version - 1} was changed"
