"""Changes of a stage's program before a bad commit, detected by the program's checksum in the manifests."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest, Program
from .causes import Cause
from .verdict import Verdict

_ONE_BY_ONE = 32
"""Number of versions before the bad one that are read one by one; a binary search covers earlier versions."""


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """Change of a stage's program."""

    stage: str
    version: int
    """First version of the new program, a claim."""
    time_ms: int
    """Commit time of that first version."""
    before: Program
    after: Program
    last: int
    """Last version of the previous program."""
    batches: int
    """Number of counted batches of the new program before the commit in question."""

    def __str__(self) -> str:
        return f"{self.stage}@v{self.version}, from {self.before} to {self.after}"


def change_before(store: ObjectStore, commit: Manifest) -> ProgramChange | None:
    """Return the last change of a stage's program up to a version; None if none is known.

    Reads a few manifests. May miss an old change that was reverted later. Raises `Corruption` and `Unavailable`.
    """
    if (program := commit.program) is None:
        return None
    newer, batches = commit, 0
    for manifest in islice(history.backwards(store, commit), 1, _ONE_BY_ONE + 1):
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
    return ProgramChange(later.stage, later.version, later.time_ms, old, new, last=earlier.version, batches=batches)


def fresh_changes(store: ObjectStore, commit: Manifest) -> Iterator[ProgramChange]:
    """Yield program changes whose first batch is this commit, or an upstream commit that it read; nearest first.

    Raises the same errors as `change_before`.
    """
    change = change_before(store, commit)
    if change is not None and not change.batches:
        yield change
    previous = history.find(store, commit.app, commit.stage, commit.version - 1)
    for name, read in commit.inputs.items():
        after = previous.inputs[name].version if previous is not None and name in previous.inputs else 0
        if read.upstream and read.version > after:
            for sender in history.between(store, commit.app, read.upstream, after, read.version):
                if sender.traits.reads_records:
                    yield from fresh_changes(store, sender)
                    break


def guess(store: ObjectStore, verdict: Verdict) -> Cause | None:
    """Return a program change as the guessed cause if the commit is the first one of a new program; else None.

    Needs no replay. Raises the same errors as `change_before`.
    """
    if verdict.candidates or not verdict.bad.stages[verdict.stage].traits.reads_records:
        return None
    change = next(fresh_changes(store, verdict.bad.stages[verdict.stage]), None)
    return deploy(change, how="guess", proved=False, because="", add=change.before) if change is not None else None


def deploy(change: ProgramChange, *, how: str, proved: bool, because: str, add: Program | None = None) -> Cause:
    """Return the cause "the program changed". `because` is appended to the sentence.

    `add` is the old program, to be given with --code for a replay. `how` names the evidence: `both programs`,
    `the program before`, `older batches` or `guess`.
    """
    first = f"{change.stage}@v{change.version}"
    sentence = f"the program changed at {first}, from {change.before} to {change.after}{because}"
    if not proved:
        sentence = f"a guess: {sentence}"
    if add is not None:
        sentence += f"; to prove it by a replay, add the old program: --code {add.path} as it was before the change"
    evidence: dict[str, object] = {
        "stage": change.stage,
        "version": change.version,
        "from": {"path": change.before.path, "checksum": change.before.checksum},
        "to": {"path": change.after.path, "checksum": change.after.checksum},
        "how": how,
    }
    if add is not None:
        evidence["add"] = add.path
    return Cause("deploy", proved=proved, sentence=sentence, evidence=evidence)
