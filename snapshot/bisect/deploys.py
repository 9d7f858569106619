"""Where the program of a stage changed before a bad commit, as manifests tell it by the file's checksum."""

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
"""Versions before the bad one that are read one after the other; earlier ones are searched by halves."""


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """That a stage went on with another program."""

    stage: str
    version: int
    """The first version of the new one, a claim."""
    time_ms: int
    """When that was committed."""
    before: Program
    after: Program
    last: int
    """The last version of the program before."""
    batches: int
    """How many batches of the new program come before the commit that is asked about, as far as was counted."""

    def __str__(self) -> str:
        return f"{self.stage}@v{self.version}, from {self.before} to {self.after}"


def change_before(store: ObjectStore, commit: Manifest) -> ProgramChange | None:
    """The last change of a stage's program up to a version; None where none is known.

    Some manifests; of changes long ago, and back again, one may be passed over. Raises `Corruption` and `Unavailable`.
    """
    if (program := commit.program) is None:
        return None
    newer, batches = commit, 0
    for manifest in islice(history.backwards(store, commit), 1, _ONE_BY_ONE + 1):
        if (change := _change(manifest, newer, batches)) is not None:
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
    return _change(last, following, batches) if following is not None else None


def _change(earlier: Manifest, later: Manifest, batches: int) -> ProgramChange | None:
    before, after = earlier.program, later.program
    if before is None or after is None or before.checksum == after.checksum:
        return None
    return ProgramChange(
        later.stage, later.version, later.time_ms, before, after, last=earlier.version, batches=batches
    )


def fresh_changes(store: ObjectStore, commit: Manifest) -> Iterator[ProgramChange]:
    """Changes whose first batch is this commit, or one upstream that it read; nearest first.

    Raises as `change_before`.
    """
    change = change_before(store, commit)
    if change is not None and not change.batches:
        yield change
    before = history.find(store, commit.app, commit.stage, commit.version - 1)
    for name, read in commit.inputs.items():
        after = before.inputs[name].version if before is not None and name in before.inputs else 0
        if read.upstream and read.version > after:
            for sender in history.between(store, commit.app, read.upstream, after, read.version):
                if sender.traits.reads_records:
                    yield from fresh_changes(store, sender)
                    break


def guess(store: ObjectStore, verdict: Verdict) -> Cause | None:
    """A guess without a replay: the commit is the first one of a new program. None where it is not.

    Raises as `change_before`.
    """
    if verdict.candidates or not verdict.bad.stages[verdict.stage].traits.reads_records:
        return None
    change = next(fresh_changes(store, verdict.bad.stages[verdict.stage]), None)
    return deploy(change, how="guess", proved=False, because="", add=change.before) if change is not None else None


def deploy(change: ProgramChange, *, how: str, proved: bool, because: str, add: Program | None = None) -> Cause:
    """The cause that a program changed. `because` goes on with the sentence; `add` is the file whose replay tells more.

    `how` is what shows it: `both programs`, `the program before`, `older batches`, `guess`.
    """
    first = f"{change.stage}@v{change.version}"
    sentence = f"the program changed at {first}, from {change.before} to {change.after}{because}"
    if not proved:
        sentence = f"a guess: {sentence}"
    if add is not None:
        sentence += f"; with --code {add.path} as it was then, beside the newer one, a replay tells"
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
