"""Evidence for a bisect report: surrounding commits, snapshots, wrong-row counts and affected stages.

Reads a few dozen manifests, and the rows of one version of each downstream stage. Evaluates the predicate at a few
moments that the search has just evaluated.
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
from ..cut.kafka_topics import KafkaTopics
from ..cut.line import Line, commits_newest_first
from ..cut.moments import later_stages, read_line
from ..cut.stored import Snapshot, list_snapshots
from ..diff.candidates import changed_keys
from ..diff.key_changes import KeyChanges
from ..verify.verify import Report, verify
from .predicate import Context, Skip
from .verdict import Verdict

MAX_COUNTED = 100_000
_MAX_COUNTS = 8
_COMMITS_BEFORE = 8
_COMMITS_AFTER = 6


@dataclass(frozen=True, slots=True)
class AffectedStage:
    """Downstream stage that consumed the bad version, directly or through other stages."""

    first: Manifest
    newest: int
    rows: int
    """Number of rows, good or bad, that the version `first` read from the bad stage and from other affected stages."""
    keys: KeyChanges | None


@dataclass(frozen=True, slots=True)
class VerdictEvidence:
    """Evidence for a verdict."""

    commits: tuple[Manifest, ...]
    wrong_row_counts: Mapping[str, int]
    """Number of wrong rows by ref of a bad moment, at most `MAX_COUNTED` moments; empty if the predicate is not SQL."""
    snapshots: tuple[Snapshot, ...]
    affected_stages: tuple[AffectedStage, ...]
    audit: Report
    """Result of `verify` at the bad moment, checked by manifests and object sizes only."""


def collect_evidence(
    store: ObjectStore, cache: SstCache, verdict: Verdict, reader: KafkaTopics | None = None
) -> VerdictEvidence:
    """Return the evidence for a verdict. `reader` reads in-flight records if the predicate needs them.

    Raises:
        NotFound: a manifest was collected meanwhile.
        Corruption: a manifest is not readable.
        Unavailable: storage did not answer.
    """
    line, bad = read_line(store, verdict.app).above(verdict.good), verdict.bad
    earlier = list(islice(commits_newest_first(store, verdict.app, bad.stages), _COMMITS_BEFORE + 1))[::-1]
    following = (history.iter_after(store, verdict.app, name, bad.versions.get(name, 0)) for name in line.heads.stages)
    after = sorted((commit for commits in following for commit in islice(commits, _COMMITS_AFTER)), key=line.sort_key)[
        :_COMMITS_AFTER
    ]
    return VerdictEvidence(
        commits=(*earlier, *after),
        wrong_row_counts=_count_wrong_rows(store, cache, verdict, reader),
        snapshots=list_snapshots(store, verdict.app),
        affected_stages=tuple(_find_affected_stages(line, cache, bad.stages[verdict.stage])),
        audit=verify(store, bad),
    )


def commits_from_bad(verdict: Verdict, versions: Mapping[str, int]) -> int:
    """Return the number of commits from the first bad commit to the end of a prefix; negative for an earlier end."""
    return sum(versions.values()) - sum(verdict.bad.versions.values())


def _count_wrong_rows(
    store: ObjectStore, cache: SstCache, verdict: Verdict, reader: KafkaTopics | None
) -> dict[str, int]:
    if not verdict.predicate.sql:
        return {}
    counts = {verdict.bad_ref: min(verdict.rows.num_rows, MAX_COUNTED)}
    bad = sorted(
        (step for step in verdict.steps if step.bad and step.ref != verdict.bad_ref),
        key=lambda step: abs(commits_from_bad(verdict, step.cut.versions)),
    )
    for step in bad[:_MAX_COUNTS]:
        at = Context(store, cache, step.cut, later_stages(store, step.cut), reader=reader)
        with suppress(SlackwaterError, Skip):
            counts[step.ref] = verdict.predicate.rows(at, MAX_COUNTED).num_rows
    return counts


def _find_affected_stages(line: Line, cache: SstCache, version: Manifest) -> Iterator[AffectedStage]:
    firsts, store = line.dependents(version), line.store
    for stage, first in firsts.items():
        previous = history.find(store, first.app, stage, first.version - 1) if first.version > 1 else None
        rows = sum(read.rows for read in first.inputs.values() if read.upstream in (version.stage, *firsts))
        try:
            keys = changed_keys(store, cache, previous, first, pa.table({}))
        except (NotFound, Corruption):
            keys = None
        yield AffectedStage(first, line.heads.stages[stage].version, rows, keys)
