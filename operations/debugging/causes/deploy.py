"""Tests, by replays, if a program change caused a bad commit.

Either the bad batch is replayed with the old program, or earlier batches of the old program are replayed with the new
program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....errors import SlackwaterError
from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.run.claim import program_of
from ....snapshot.bisect.causes import Cause, ProgramChange, deploy_cause, last_program_change
from ....snapshot.bisect.verdict import RecordPath
from ....snapshot.diff.equality import flag_unmatched_rows
from ....store.read.multi_get import TableLookUps
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.program import LoadedProgram
from .bad_commit import BadCommit, CounterfactualReplay

Flags = npt.NDArray[np.bool_]

MAX_PRECEDING_BATCHES = 2
"""Maximum number of batches right before the bad batch that are replayed with the new program."""
MAX_KEY_WRITERS = 3
"""Maximum number of earlier batches that are replayed because they wrote the bad keys."""


@dataclass(frozen=True, slots=True)
class DeployFindings:
    """Findings about program changes before a bad commit."""

    cause: Cause | None
    note: str = ""


def is_old_program_given(
    program: LoadedProgram, other_programs: Sequence[LoadedProgram], change: ProgramChange
) -> bool:
    ran = [program_of(loaded.app) for loaded in (program, *other_programs)]
    return any(stored is not None and stored.checksum == change.before.checksum for stored in ran)


def find_deploy_cause(bad: BadCommit, other_programs: Sequence[LoadedProgram], guilty: RecordPath) -> DeployFindings:
    """Test by replays if a program change is the cause of the bad commit.

    `other_programs` are programs that may have run before `bad.program`.
    """
    changes = _program_changes(bad, guilty)
    if not changes:
        return DeployFindings(None)
    by_checksum = {ran.checksum: loaded for loaded in other_programs if (ran := program_of(loaded.app)) is not None}
    now = program_of(bad.program.app)
    for change in changes:
        if (older := by_checksum.get(change.before.checksum)) is not None:
            return _replay_with_old_program(bad, change, older)
        if now is not None and now.checksum == change.before.checksum:
            # The replays used the old program, and the batch was bad in the replays too.
            return DeployFindings(None, f"the program changed at {change}; the batch is bad with the old program too")
    return _replay_earlier_with_new_program(bad, changes[0], guilty)


def find_deploy_cause_with_old_program(bad: BadCommit) -> Cause | None:
    """Return the program change as cause if a replay with the old program proves it, else None.

    Use this function only if `bad.program` is the old program. The replay proves the cause if the batch is then good.
    """
    now, change = program_of(bad.program.app), last_program_change(bad.program.store, bad.commit)
    if now is None or change is None or now.checksum != change.before.checksum:
        return None
    if bad.is_bad_with(CounterfactualReplay(bad.program).manifest(bad.commit)):
        return None
    because = ": the batch is good with the old program"
    return deploy_cause(change, how="the program before", proved=True, suffix=because)


def _program_changes(bad: BadCommit, guilty: RecordPath) -> list[ProgramChange]:
    store, app = bad.program.store, bad.verdict.app
    steps = [(hop.stage, hop.version) for hop in guilty.hops] or [(bad.commit.stage, bad.commit.version)]
    changes: dict[tuple[str, str], ProgramChange] = {}
    for stage, version in steps:
        change = last_program_change(store, history.read(store, app, stage, version))
        if change is not None:
            changes.setdefault((change.before.checksum, change.after.checksum), change)
    return list(changes.values())


def _replay_with_old_program(bad: BadCommit, change: ProgramChange, older: LoadedProgram) -> DeployFindings:
    note = f"the program changed at {change}"
    try:
        swapped = CounterfactualReplay(bad.program, {change.after.checksum: older})
        is_bad = bad.is_bad_with(swapped.manifest(bad.commit))
    except SlackwaterError as error:
        return DeployFindings(None, f"{note}; the batch cannot be replayed with the old program: {error.message}")
    if is_bad:
        return DeployFindings(None, f"{note}; the batch is bad with the old program too")
    because = ": the batch is good with the old program, and bad with the new one"
    return DeployFindings(deploy_cause(change, how="both programs", proved=True, suffix=because))


def _replay_earlier_with_new_program(bad: BadCommit, change: ProgramChange, guilty: RecordPath) -> DeployFindings:
    note = f"the program changed at {change}"
    keys = _suspected_keys(bad, guilty)
    replayed = 0
    different_ref = ""
    for after in _earlier_batches(bad, change, keys):
        try:
            cut = bad.line.prefix_up_to(after)
            if bad.is_bad_with(after, cut):
                continue
            manifest = CounterfactualReplay(bad.program).manifest(after)
            if bad.is_bad_with(manifest, cut):
                ref = f"{after.stage}@v{after.version}"
                because = f": with the new program, {ref} turns bad too"
                return DeployFindings(deploy_cause(change, how="older batches", proved=True, suffix=because))
        except SlackwaterError:
            continue
        replayed += 1
        old_rows, new_rows = (_key_rows(bad, version, keys) for version in (after, manifest))
        if any(flags.any() for flags in flag_unmatched_rows(old_rows, new_rows)):
            different_ref = different_ref or f"{after.stage}@v{after.version}"
    guess = partial(deploy_cause, change, proved=False, old_program=change.before)
    if different_ref:
        because = f": with the new program, {different_ref} gives another result, but not a bad one"
        return DeployFindings(guess(how="older batches", suffix=because))
    old = change.before.path
    if replayed:
        batches = f"{replayed} earlier {'batches give' if replayed > 1 else 'batch gives'}"
        result = f"{batches} the same result with the new one. Add the old {old} with --code to compare both"
        return DeployFindings(None, f"{note}; {result}")
    if not change.batches:
        because = ": this is its first batch, and no earlier batch can be replayed"
        return DeployFindings(guess(how="guess", suffix=because))
    return DeployFindings(None, f"{note}, and no earlier batch can be replayed; add the old {old} with --code")


def _suspected_keys(bad: BadCommit, guilty: RecordPath) -> pa.Table | None:
    for changes in (guilty.keys, bad.verdict.keys):
        if changes is not None and len(changes):
            return changes.keys
    return None


def _earlier_batches(bad: BadCommit, change: ProgramChange, keys: pa.Table | None) -> Iterator[Manifest]:
    store, commit = bad.program.store, bad.commit
    own = last_program_change(store, commit)
    last = own.last_old_version if own is not None and own.before == change.before else commit.version - 1
    head = history.find(store, commit.app, commit.stage, last)
    if head is None:
        return
    batches = (manifest for manifest in islice(history.iter_backwards(store, head), 64) if manifest.has_read)
    seen = set[int]()
    for manifest in islice(batches, MAX_PRECEDING_BATCHES):
        seen.add(manifest.version)
        yield manifest
    at: Manifest | None = head
    for _ in range(MAX_KEY_WRITERS):
        if at is None or keys is None:
            return
        _, _, seqs = _look_up(bad, at, keys)
        if not seqs.any():
            return
        version = int(seqs.max())
        writer = history.find(store, commit.app, commit.stage, version)
        if writer is not None and writer.traits.reads_records and version not in seen:
            seen.add(version)
            yield writer
        at = history.find(store, commit.app, commit.stage, version - 1)


def _key_rows(bad: BadCommit, manifest: Manifest, keys: pa.Table | None) -> pa.Table:
    if keys is None:
        return pa.table({"_there": pa.array([], pa.bool_())})
    values, flags, _ = _look_up(bad, manifest, keys)
    return values.append_column("_there", pa.array(flags))


def _look_up(bad: BadCommit, manifest: Manifest, keys: pa.Table) -> tuple[pa.Table, Flags, RecordNumbers]:
    assert manifest.table is not None  # noqa: S101  it has keys
    columns = keys.cast(arrow_schema(manifest.table.key))
    program = bad.program
    rows = TableLookUps(program.store, program.cache, manifest.table, manifest.ssts, manifest.clock_ms)
    return rows.get_rows(hash_keys(columns, columns.column_names), columns)
