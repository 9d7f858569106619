"""Evidence of a report: commits around the verdict, snapshots, number of wrong rows, affected stages.

Reads only the store: a few dozen manifests, a few evaluations of the predicate at moments that the search has just
evaluated, and the rows of one version of each downstream stage.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from ...errors import Corruption, NotFound, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..cut.kafka_topics import Topics
from ..cut.line import Line, newest_first
from ..cut.moments import later_stages, line_of
from ..cut.stored import Snapshot, list_snapshots
from ..diff.candidates import changed_keys
from ..diff.key_changes import KeyChanges
from ..verify.verify import Report, verify
from .predicate import Context, Skip
from .verdict import Verdict

MAX_COUNTED = 100_000
"""Maximum number of wrong rows counted at one moment."""
_MAX_COUNTS = 8
"""Maximum number of moments at which wrong rows are counted, nearest to the verdict first."""
_BEFORE = 8
"""Number of commits listed before the bad commit."""
_AFTER = 6
"""Number of commits listed after the bad commit."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Downstream stage that consumed the bad version, directly or through other stages."""

    first: Manifest
    """First version of the stage that depends on the bad version."""
    newest: int
    """Newest version of the stage; all versions from `first` to `newest` depend on the bad one."""
    rows: int
    """Number of rows that the version `first` read from affected stages. Some of these rows may be correct."""
    keys: KeyChanges | None
    """Keys whose rows the version `first` changed; None for a stage without a table, or if the rows are unreadable."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence around a verdict."""

    commits: tuple[Manifest, ...]
    """Commits of all stages around the bad commit, in the order of the line."""
    wrong: Mapping[str, int]
    """Number of wrong rows (at most `MAX_COUNTED`) by ref of a bad moment, for the verdict and moments near it.

    Empty if the predicate is code instead of SQL.
    """
    snapshots: tuple[Snapshot, ...]
    """All snapshots, oldest first."""
    reached: tuple[Reached, ...]
    """Affected downstream stages, upstream first."""
    audit: Report
    """Result of `verify` at the bad moment, by manifests and object sizes only."""


def collect(store: ObjectStore, cache: SstCache, verdict: Verdict, reader: Topics | None = None) -> Evidence:
    """Return the evidence around a verdict. `reader` reads in-flight records if the predicate needs them.

    Raises:
        NotFound: a manifest was collected meanwhile.
        Corruption: a manifest is not readable.
        Unavailable: storage did not answer.
    """
    line, bad = line_of(store, verdict.app).above(verdict.good), verdict.bad
    earlier = list(islice(newest_first(store, verdict.app, bad.stages), _BEFORE + 1))[::-1]
    following = (history.after(store, verdict.app, name, bad.versions.get(name, 0)) for name in line.heads.stages)
    after = sorted((commit for commits in following for commit in islice(commits, _AFTER)), key=line.place)[:_AFTER]
    return Evidence(
        commits=(*earlier, *after),
        wrong=_count_wrong(store, cache, verdict, reader),
        snapshots=list_snapshots(store, verdict.app),
        reached=tuple(_reached(line, cache, bad.stages[verdict.stage])),
        audit=verify(store, bad),
    )


def distance(verdict: Verdict, versions: Mapping[str, int]) -> int:
    """Return the number of commits from the first bad one to the end of a prefix; negative if the prefix ends earlier.

    Each commit of the line adds one to the sum of all stages' versions.
    """
    return sum(versions.values()) - sum(verdict.bad.versions.values())


def _count_wrong(store: ObjectStore, cache: SstCache, verdict: Verdict, reader: Topics | None) -> dict[str, int]:
    """Return the number of wrong rows by ref, without moments where the predicate fails; empty unless it is SQL."""
    if not verdict.predicate.sql:
        return {}
    counts = {verdict.bad_ref: min(verdict.rows.num_rows, MAX_COUNTED)}
    bad = sorted(
        (step for step in verdict.steps if step.bad and step.ref != verdict.bad_ref),
        key=lambda step: abs(distance(verdict, step.cut.versions)),
    )
    for step in bad[:_MAX_COUNTS]:
        at = Context(store, cache, step.cut, later_stages(store, step.cut), reader=reader)
        with suppress(SlackwaterError, Skip):
            counts[step.ref] = verdict.predicate.rows(at, MAX_COUNTED).num_rows
    return counts


def _reached(line: Line, cache: SstCache, version: Manifest) -> Iterator[Reached]:
    """Yield each stage that depends on a version, upstream first."""
    firsts, store = line.dependents(version), line.store
    for stage, first in firsts.items():
        previous = history.find(store, first.app, stage, first.version - 1) if first.version > 1 else None
        rows = sum(read.rows for read in first.inputs.values() if read.upstream in (version.stage, *firsts))
        try:
            keys = changed_keys(store, cache, previous, first, pa.table({}))
        except (NotFound, Corruption):
            keys = None
        yield Reached(first, line.heads.stages[stage].version, rows, keys)
