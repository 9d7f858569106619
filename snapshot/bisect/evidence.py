"""All that a report tells beside a verdict: the commits around it, snapshots, how much was wrong, what it reached.

All of it is read from the store and costs some dozens of manifests, a few evaluations of the predicate at moments that
the search has just looked at, and the rows of one version for each later stage.
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
"""Wrong rows that are counted at one moment; there may be more."""
_MAX_COUNTS = 8
"""Moments at which they are counted, those nearest to the verdict."""
_BEFORE = 8
"""Commits that are told of before the verdict's."""
_AFTER = 6
"""Commits that are told of after it."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A later stage that got something of the bad version's."""

    first: Manifest
    """The stage's first version that had consumed the bad one, directly or through stages between them."""
    newest: int
    """The stage's newest version: all between these two build on it."""
    rows: int
    """How many rows the first read of stages that had consumed the bad version, or are its stage; not all need be its.
    """
    keys: KeyChanges | None
    """The keys whose rows the first changed, by whatever input; None for a stage without a table, and where its rows
    cannot be read."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known around a verdict."""

    commits: tuple[Manifest, ...]
    """Commits of all stages around the verdict's, in the order of the line."""
    wrong: Mapping[str, int]
    """How many rows the predicate returns, by the ref of a bad moment, up to `MAX_COUNTED`: for the verdict's and for
    those nearest to it. Good moments have none. Empty where code decides, not SQL."""
    snapshots: tuple[Snapshot, ...]
    """All snapshots, oldest first."""
    reached: tuple[Reached, ...]
    """Later stages, senders before receivers."""
    audit: Report
    """What verifying the bad moment found, without reading rows."""


def collect(store: ObjectStore, cache: SstCache, verdict: Verdict, reader: Topics | None = None) -> Evidence:
    """Gather what is known around a verdict; `reader` reads records in flight, for a predicate that asks for them.

    Raises:
        NotFound: a manifest was collected meanwhile.
        Corruption: a manifest is not readable.
        Unavailable: storage did not answer.
    """
    line, bad = line_of(store, verdict.app).above(verdict.good), verdict.bad
    before = list(islice(newest_first(store, verdict.app, bad.stages), _BEFORE + 1))[::-1]
    following = (history.after(store, verdict.app, name, bad.versions.get(name, 0)) for name in line.heads.stages)
    after = sorted((commit for each in following for commit in islice(each, _AFTER)), key=line.place)[:_AFTER]
    return Evidence(
        commits=(*before, *after),
        wrong=_wrong(store, cache, verdict, reader),
        snapshots=list_snapshots(store, verdict.app),
        reached=tuple(_reached(line, cache, bad.stages[verdict.stage])),
        audit=verify(store, bad),
    )


def distance(verdict: Verdict, versions: Mapping[str, int]) -> int:
    """How many commits a prefix of the line ends after the first bad one; negative before it.

    Each commit of the line adds one to the sum of all stages' versions.
    """
    return sum(versions.values()) - sum(verdict.bad.versions.values())


def _wrong(store: ObjectStore, cache: SstCache, verdict: Verdict, reader: Topics | None) -> dict[str, int]:
    """Rows of the predicate by moment; without those at which it cannot be asked any more.

    Only those of SQL: a program's answer has no rows to count, and to run it again is the user's own affair.
    """
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
    """Each stage that had consumed a version, senders before receivers."""
    firsts, store = line.dependents(version), line.store
    for stage, first in firsts.items():
        before = history.find(store, first.app, stage, first.version - 1) if first.version > 1 else None
        rows = sum(read.rows for read in first.inputs.values() if read.upstream in (version.stage, *firsts))
        try:
            keys = changed_keys(store, cache, before, first, pa.table({}))
        except (NotFound, Corruption):
            keys = None
        yield Reached(first, line.heads.stages[stage].version, rows, keys)
