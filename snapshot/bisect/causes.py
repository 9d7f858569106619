"""Causes of a bad commit in a bisect report: classes of causes, and detection of causes that need no replay.

A cause is proved by a replay or by stored objects, or it is marked as a guess. Some classes name the input record at
fault. Other classes name a change and its author, or the time since which records are missing. A program change is
detected by the program's checksum in manifests. Records count as missing if the commit wrote none of the keys that
turned bad, so that rows of other keys caused the change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ...common.instants import format_iso
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import TableLookUps
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import hash_keys
from ...store.sst.schema import arrow_schema
from ...store.versions import history
from ...store.versions.manifest import Manifest, Program
from ...store.versions.side_tables import as_main_table, tables_of
from ..cut.lineage import offsets_read_by_all
from ..take.audit_log import Operation, list_operations
from .verdict import RecordLocation, RecordPath, Verdict

CauseKind = Literal[
    "operation", "time", "absence", "deploy", "watermark", "duplicate", "records", "record", "unknown"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CauseClass:
    """Class of causes: its noun in messages, and the evidence that a cause of this class may have."""

    noun: str
    names_record: bool
    evidence: tuple[str, ...]


CLASSES: Mapping[CauseKind, CauseClass] = {
    "operation": CauseClass("an operation", False, ("kind", "stage", "version", "by", "at", "what", "command")),
    "time": CauseClass(
        "time", False, ("stage", "version", "by", "from", "to", "keys", "num_keys", "moved_version", "moved_by")
    ),
    "absence": CauseClass("a record that did not come", False, ("keys", "num_keys", "since", "read_to")),
    "deploy": CauseClass("a new program", False, ("stage", "version", "from", "to", "how", "add")),
    "watermark": CauseClass("a watermark", True, ("late", "watermark", "moved_version", "moved_by")),
    "duplicate": CauseClass("a record that came twice", True, ("original", "copy")),
    "records": CauseClass("several records", True, ("alone",)),
    "record": CauseClass("a record", True, ("alone", "needs")),
    "unknown": CauseClass("unknown", False, ("reason",)),
}
"""Cause classes by kind, in the order of testing. Classes that need no record come first."""


NOTE = "note"
"""Key of a remark such as "the program changed, but is not the cause". Evidence of any class may have a remark."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause of a bad commit. Raises `ValueError` if the cause's class does not allow the record or the evidence."""

    kind: CauseKind
    proved: bool
    sentence: str
    record: RecordLocation | None = None
    """Record at fault, or the first of several records at fault; None if the class names no record."""
    one_of: int | None = None
    """Number of records with equal times, each of which may be the first bad record; None for a single record."""
    records: tuple[RecordLocation, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cause_class = CLASSES[self.kind]
        if (self.record is not None or self.records) and not cause_class.names_record:
            raise ValueError(f"a cause of class {self.kind} names no record; found {self.record or self.records[0]}")
        if unexpected := sorted(set(self.evidence) - {*cause_class.evidence, NOTE}):
            raise ValueError(
                f"a cause of class {self.kind} has evidence {unexpected[0]!r}; expected one of {cause_class.evidence}"
            )


NOT_REPLAYED = "nothing was replayed"
"""Reason for an unknown cause, or the end of such a reason. Quotes no data."""


def unknown_cause(reason: str) -> Cause:
    return Cause("unknown", proved=False, sentence=f"the cause is unknown: {reason}", evidence={"reason": reason})


@dataclass(frozen=True, slots=True)
class TracedCause:
    """Cause of a bad commit, with the path from the commit upstream to the record at fault."""

    cause: Cause
    record_path: RecordPath | None = None

    @property
    def named_record_path(self) -> RecordPath | None:
        """Path to the record that the cause names; None if causes of this class name no record."""
        if self.cause.kind != "unknown" and not CLASSES[self.cause.kind].names_record:
            return None
        return self.record_path


_CLOCK_SLACK_MS = 3_600_000


def find_operation_cause(store: ObjectStore, verdict: Verdict) -> Cause | None:
    """Return the operation that made the bad commit, as its cause; None for a batch, or for several candidates.

    Makes one list request, and one read for each later operation. Raises `Corruption` and `Unavailable`.
    """
    if verdict.candidates:
        return None
    return operation_cause(store, verdict.bad.stages[verdict.stage])


def operation_cause(store: ObjectStore, commit: Manifest, *, suffix: str = "") -> Cause | None:
    """Return the operation that made the version `commit`, as its cause; None if the version is a batch.

    `suffix` is appended to the sentence of the cause. Raises the errors of `find_operation_cause`.
    """
    if not commit.traits.verbs:
        return None
    done, stage, version = _find_entry(store, commit), commit.stage, commit.version
    edited = commit.edited
    by = edited.by if edited is not None else done.by if done is not None else commit.by
    verb = "adopt" if commit.adopted is not None else done.verb if done is not None else commit.traits.verbs[0]
    detail = edited.what if edited is not None else _describe(commit, done)
    why = edited.message if edited is not None else done.message if done is not None else ""
    # A statement contains values, so it is only in the evidence. The evidence can be masked.
    sentence = f"{stage}@v{version} is {commit.traits.noun}, by {by}, at {format_iso(commit.time_ms)}{suffix}"
    evidence = {
        "kind": commit.kind,
        "stage": stage,
        "version": version,
        "by": by,
        "at": format_iso(commit.time_ms),
        "what": f"{detail} ({why})" if why else detail,
        "command": f"slackwater {verb}",
    }
    return Cause("operation", proved=True, sentence=sentence, evidence=evidence)


def _find_entry(store: ObjectStore, commit: Manifest) -> Operation | None:
    def is_meant(done: Operation) -> bool:
        stage, version = commit.stage, commit.version
        is_in_range = done.before.get(stage, version) < version <= done.after.get(stage, 0)
        return is_in_range and done.verb in commit.traits.verbs

    entries = list_operations(store, commit.app, 1, is_match=is_meant, since_ms=commit.time_ms - _CLOCK_SLACK_MS)
    return entries[0] if entries else None


def _describe(commit: Manifest, done: Operation | None) -> str:
    if (rewind := commit.rewind) is not None:
        return f"back to v{rewind.to}{' (table only)' if rewind.table_only else ''}"
    return done.detail if done is not None and done.detail else f"{commit.stage} v{commit.version - 1} was changed"


_MAX_SEQUENTIAL_READS = 32


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """Change of a stage's program."""

    stage: str
    version: int
    """First version that the new program committed: the claim at the start of the program's first run."""
    time_ms: int
    before: Program
    after: Program
    last_old_version: int
    batches: int

    def __str__(self) -> str:
        return f"{self.stage}@v{self.version}, from {self.before} to {self.after}"


def last_program_change(store: ObjectStore, commit: Manifest) -> ProgramChange | None:
    """Return the last program change of a stage at or before the version `commit`; None if none is known.

    Reads a few manifests. May miss an old change that was reverted later. Raises `Corruption` and `Unavailable`.
    """
    if (program := commit.program) is None:
        return None
    newer, batches = commit, 0
    for manifest in islice(history.iter_backwards(store, commit), 1, _MAX_SEQUENTIAL_READS + 1):
        if (change := _change_between(manifest, newer, batches)) is not None:
            return change
        if manifest.traits.reads_records:
            batches += 1
        newer = manifest

    def is_other(manifest: Manifest) -> bool:
        return manifest.program is None or manifest.program.checksum != program.checksum

    read, first = partial(history.find, store, commit.app), partial(history.first_version, store, commit.app)
    if newer.version <= 1 or (last := history.newest_where(read, first, newer, is_other)) is None:
        return None
    following = history.find(store, commit.app, commit.stage, last.version + 1)
    return _change_between(last, following, batches) if following is not None else None


def _change_between(earlier: Manifest, later: Manifest, batches: int) -> ProgramChange | None:
    old, new = earlier.program, later.program
    if old is None or new is None or old.checksum == new.checksum:
        return None
    return ProgramChange(
        later.stage, later.version, later.time_ms, old, new, last_old_version=earlier.version, batches=batches
    )


def newly_applied_program_changes(store: ObjectStore, commit: Manifest) -> Iterator[ProgramChange]:
    """Yield program changes whose first batch is this commit, or an upstream commit whose rows this commit read.

    The nearest change comes first. Raises the errors of `last_program_change`.
    """
    change = last_program_change(store, commit)
    if change is not None and not change.batches:
        yield change
    previous = history.find(store, commit.app, commit.stage, commit.version - 1)
    for name, read in commit.inputs.items():
        after = previous.inputs[name].version if previous is not None and name in previous.inputs else 0
        if read.upstream and read.version > after:
            for sender in history.iter_between(store, commit.app, read.upstream, after, read.version):
                if sender.traits.reads_records:
                    yield from newly_applied_program_changes(store, sender)
                    break


def guess_deploy_cause(store: ObjectStore, verdict: Verdict) -> Cause | None:
    """Return the guess "the program changed" if the bad commit, or a commit upstream, was a new program's first batch.

    Needs no replay. Raises the errors of `last_program_change`.
    """
    if verdict.candidates or not verdict.bad.stages[verdict.stage].traits.reads_records:
        return None
    change = next(newly_applied_program_changes(store, verdict.bad.stages[verdict.stage]), None)
    return (
        deploy_cause(change, how="guess", proved=False, suffix="", old_program=change.before)
        if change is not None
        else None
    )


def deploy_cause(
    change: ProgramChange, *, how: str, proved: bool, suffix: str, old_program: Program | None = None
) -> Cause:
    """Return the cause "the program changed". `suffix` is appended to the sentence of the cause.

    `how` names the evidence: `both programs`, `the program before`, `older batches` or `guess`. If `old_program` is
    given, the sentence suggests a replay with that program (`--code`), to prove the cause.
    """
    first = f"{change.stage}@v{change.version}"
    sentence = f"the program changed at {first}, from {change.before} to {change.after}{suffix}"
    if not proved:
        sentence = f"a guess: {sentence}"
    if old_program is not None:
        sentence += (
            f"; to prove it by a replay, add the old program: --code {old_program.path} as it was before the change"
        )
    evidence: dict[str, object] = {
        "stage": change.stage,
        "version": change.version,
        "from": {"path": change.before.path, "checksum": change.before.checksum},
        "to": {"path": change.after.path, "checksum": change.after.checksum},
        "how": how,
    }
    if old_program is not None:
        evidence["add"] = old_program.path
    return Cause("deploy", proved=proved, sentence=sentence, evidence=evidence)


MAX_LISTED_KEYS = 20
_MAX_VERSION_LAG = 64
"""Largest expected difference between a batch's version and the `_seq` of the batch's rows, due to compactions."""


@dataclass(frozen=True, slots=True)
class UntouchedKeys:
    """Keys that turned bad at a commit, although the commit wrote none of them."""

    keys: pa.Table
    last_change: Manifest | None


def find_untouched_keys(store: ObjectStore, cache: SstCache, verdict: Verdict) -> UntouchedKeys | None:
    """Return the keys that turned bad at the commit, if the commit wrote none of them; else None.

    Rows of other keys then turned these keys bad. Also returns None if the keys are unknown. Makes one look-up of these
    keys. Raises `Corruption` and `Unavailable`.
    """
    keys, commit = verdict.keys, verdict.bad.stages[verdict.stage]
    if keys is None or not keys.from_predicate or not len(keys) or len(keys.changed()):
        return None
    table_names = (name for name in (commit.stage, *tables_of(commit)) if verdict.predicate.names_table(name))
    side = as_main_table(commit, next(table_names, commit.stage))
    if side.table is None or [column.name for column in side.table.key] != keys.keys.column_names:
        return None
    keys_as_stored = keys.keys.cast(arrow_schema(side.table.key))
    look_ups = TableLookUps(store, cache, side.table, side.ssts, side.clock_ms)
    seqs = look_ups.get_rows(hash_keys(keys_as_stored, keys_as_stored.column_names), keys_as_stored)[2]
    if not seqs.any() or (seqs >= commit.row_seq).any():
        # If no key has a row, another table makes the keys wrong, or the commit rewrote some keys with the same values.
        return None
    return UntouchedKeys(keys.keys, _version_with_seq(store, commit, int(np.max(seqs))))


def absence_cause(
    store: ObjectStore, verdict: Verdict, untouched: UntouchedKeys, *, proved: bool, suffix: str
) -> Cause:
    """Return the cause "no record of these keys arrived". `suffix` is appended to the sentence of the cause.

    Reads one manifest for each upstream channel. Raises `Corruption` and `Unavailable`.
    """
    since, count = untouched.last_change, untouched.keys.num_rows
    offsets = offsets_read_by_all(store, verdict.bad, [verdict.stage])
    read_to = {
        f"{topic}[{partition}]": end for topic, ends in sorted(offsets.items()) for partition, end in enumerate(ends)
    }
    subject = "the bad key" if count == 1 else f"any of the {count:,} bad keys"
    when = f" after {since.stage}@v{since.version}, at {format_iso(since.time_ms)}" if since is not None else ""
    return Cause(
        "absence",
        proved=proved,
        sentence=f"no record of {subject} arrived{when}; rows of other keys made "
        f"{'it' if count == 1 else 'them'} bad{suffix}",
        evidence={
            "keys": python_rows(untouched.keys.slice(0, MAX_LISTED_KEYS)),
            "num_keys": count,
            "since": {"stage": since.stage, "version": since.version, "time": format_iso(since.time_ms)}
            if since
            else None,
            "read_to": read_to,
        },
    )


def _version_with_seq(store: ObjectStore, commit: Manifest, seq: int) -> Manifest | None:
    for version in range(seq, min(commit.version, seq + _MAX_VERSION_LAG)):
        manifest = history.find(store, commit.app, commit.stage, version)
        if manifest is not None and manifest.traits.changes_rows and manifest.row_seq == seq:
            return manifest
    return None
