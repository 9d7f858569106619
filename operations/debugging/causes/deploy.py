"""A new program: the bad batch with the program before it, or earlier batches with the new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....errors import SlackwaterError
from ....pipeline.batch.rerun import Numbers
from ....pipeline.run.claim import program_of
from ....snapshot.bisect.causes import Cause, ProgramChange, change_before, deploy
from ....snapshot.bisect.verdict import Guilty
from ....snapshot.diff.equality import unlike
from ....store.read.multi_get import LookUps
from ....store.sst.hashing import hash_keys
from ....store.sst.types import arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.program import LoadedProgram
from .bad_commit import BadCommit
from .other_batches import OtherBatches

Flags = npt.NDArray[np.bool_]

NEAREST = 2
"""Earlier batches that are replayed with the new program whatever keys they reached."""
REACHING = 3
"""And of those that reached the bad keys."""


@dataclass(frozen=True, slots=True)
class Deploys:
    """What is known of changes of the program before a bad commit."""

    cause: Cause | None
    """The cause that the program changed; None where that is not it."""
    note: str = ""
    """What is to be said of a change that is not the cause, or not known to be; empty where there was none."""


def is_given(program: LoadedProgram, others: Sequence[LoadedProgram], change: ProgramChange) -> bool:
    """Whether the program before a change is one of these."""
    ran = [program_of(each.app) for each in (program, *others)]
    return any(each is not None and each.checksum == change.before.checksum for each in ran)


def of_deploy(bad: BadCommit, others: Sequence[LoadedProgram], guilty: Guilty) -> Deploys:
    """Whether the program's change is the cause. `others` are the programs that were given beside its own."""
    changes = _changes(bad, guilty)
    if not changes:
        return Deploys(None)
    by_checksum = {ran.checksum: each for each in others if (ran := program_of(each.app)) is not None}
    now = program_of(bad.program.app)
    for change in changes:
        if (older := by_checksum.get(change.before.checksum)) is not None:
            return _with_both(bad, change, older)
        if now is not None and now.checksum == change.before.checksum:
            # The replays are those of the program before: that is bad as well.
            return Deploys(None, f"the program changed at {change}; the batch is bad with the one before, too")
    return _with_new(bad, changes[0], guilty)


def with_program_before(bad: BadCommit) -> Cause | None:
    """The cause that the program changed, where `bad` has the one before, which makes the batch good; else None."""
    now, change = program_of(bad.program.app), change_before(bad.program.store, bad.commit)
    if now is None or change is None or now.checksum != change.before.checksum:
        return None
    if bad.bad_with(OtherBatches(bad.program).manifest(bad.commit)):
        return None
    because = ": the batch is good with the one before"
    return deploy(change, how="the program before", proved=True, because=because)


def _changes(bad: BadCommit, guilty: Guilty) -> list[ProgramChange]:
    """The last change of each stage on the way to the record, each pair of programs once."""
    store, app = bad.program.store, bad.verdict.app
    steps = [(hop.stage, hop.version) for hop in guilty.hops] or [(bad.commit.stage, bad.commit.version)]
    found: dict[tuple[str, str], ProgramChange] = {}
    for stage, version in steps:
        change = change_before(store, history.read(store, app, stage, version))
        if change is not None:
            found.setdefault((change.before.checksum, change.after.checksum), change)
    return list(found.values())


def _with_both(bad: BadCommit, change: ProgramChange, older: LoadedProgram) -> Deploys:
    """The bad batch with the program before: good, and the new one is the cause."""
    note = f"the program changed at {change}"
    try:
        swapped = OtherBatches(bad.program, {change.after.checksum: older})
        is_bad = bad.bad_with(swapped.manifest(bad.commit))
    except SlackwaterError as error:
        return Deploys(None, f"{note}; the batch cannot be replayed with the one before: {error.message}")
    if is_bad:
        return Deploys(None, f"{note}; the batch is bad with the one before, too")
    because = ": the batch is good with the one before, and bad with the new one"
    return Deploys(deploy(change, how="both programs", proved=True, because=because))


def _with_new(bad: BadCommit, change: ProgramChange, guilty: Guilty) -> Deploys:
    """Earlier batches with the new program, beside what the one before made of them."""
    note = f"the program changed at {change}"
    keys = _keys(bad, guilty)
    replayed = reached = 0
    otherwise = ""
    for after in _earlier(bad, change, keys):
        try:
            cut = bad.line.up_to(after)
            if bad.bad_with(after, cut):
                continue
            manifest = OtherBatches(bad.program).manifest(after)
            if bad.bad_with(manifest, cut):
                ref = f"{after.stage}@v{after.version}"
                because = f": with the new one {ref} is bad as well, which was good"
                return Deploys(deploy(change, how="older batches", proved=True, because=because))
        except SlackwaterError:
            continue
        replayed += 1
        then, now = (_rows(bad, version, keys) for version in (after, manifest))
        reached += _wrote(bad, after, keys)
        if any(flags.any() for flags in unlike(then, now)):
            otherwise = otherwise or f"{after.stage}@v{after.version}"
    if otherwise:
        because = f": with the new one {otherwise} comes out otherwise, though not bad"
        return Deploys(deploy(change, how="older batches", proved=False, because=because, add=change.before))
    if replayed:
        same = f"{replayed} earlier {'batches come' if replayed > 1 else 'batch comes'} out the same with the new one"
        return Deploys(None, f"{note}; {same}. With --code {change.before.path} as it was then, both are compared")
    if not change.batches:
        because = ": this is its first batch, and none before it can be replayed"
        return Deploys(deploy(change, how="guess", proved=False, because=because, add=change.before))
    return Deploys(None, f"{note}, and no batch before it can be replayed; add --code {change.before.path} as it was")


def _keys(bad: BadCommit, guilty: Guilty) -> pa.Table | None:
    """The keys that turned bad, or those that the record changed; None where neither is known."""
    for found in (guilty.keys, bad.verdict.keys):
        if found is not None and len(found):
            return found.keys
    return None


def _earlier(bad: BadCommit, change: ProgramChange, keys: pa.Table | None) -> Iterator[Manifest]:
    """Batches of the bad stage before the change: the nearest ones, and those that wrote the keys; newest first."""
    store, commit = bad.program.store, bad.commit
    own = change_before(store, commit)
    last = own.last if own is not None and own.before == change.before else commit.version - 1
    head = history.find(store, commit.app, commit.stage, last)
    if head is None:
        return
    batches = (each for each in islice(history.backwards(store, head), 64) if each.has_read)
    seen = set[int]()
    for each in islice(batches, NEAREST):
        seen.add(each.version)
        yield each
    at: Manifest | None = head
    for _ in range(REACHING):
        if at is None or keys is None:
            return
        seqs = _seqs(bad, at, keys)
        if not seqs.any():
            return
        version = int(seqs.max())
        writer = history.find(store, commit.app, commit.stage, version)
        if writer is not None and writer.traits.reads_records and version not in seen:
            seen.add(version)
            yield writer
        at = history.find(store, commit.app, commit.stage, version - 1)


def _seqs(bad: BadCommit, manifest: Manifest, keys: pa.Table) -> Numbers:
    return _look_up(bad, manifest, keys)[2]


def _wrote(bad: BadCommit, manifest: Manifest, keys: pa.Table | None) -> bool:
    """Whether a version wrote one of the keys."""
    return keys is not None and bool((_seqs(bad, manifest, keys) == manifest.row_seq).any())


def _rows(bad: BadCommit, manifest: Manifest, keys: pa.Table | None) -> pa.Table:
    """The rows of the keys at a version; none where no key is known."""
    if keys is None:
        return pa.table({"_there": pa.array([], pa.bool_())})
    values, found, _ = _look_up(bad, manifest, keys)
    return values.append_column("_there", pa.array(found))


def _look_up(bad: BadCommit, manifest: Manifest, keys: pa.Table) -> tuple[pa.Table, Flags, Numbers]:
    """The rows of keys at a version, whether there is one, and its `_seq`, as `LookUps.of_keys`."""
    assert manifest.table is not None  # noqa: S101  it has keys
    columns = keys.cast(arrow_schema(manifest.table.key))
    program = bad.program
    rows = LookUps(program.store, program.cache, manifest.table, manifest.ssts, manifest.clock_ms)
    return rows.of_keys(hash_keys(columns, columns.column_names), columns)
