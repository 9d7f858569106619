"""Bisect: binary search over an app's line for the commit at which a predicate turned bad.

The predicate is evaluated at moments of the line (`cut.line`), which are consistent cuts with a ref. So a wrong answer
means wrong state, never an inconsistent view of a running app, and anyone can query the same moment by its ref. As in
git's bisect, a moment that cannot be judged is replaced by a different one, until no moment remains between the last
good and the first bad one. Unlike git, the search then tries a moment beside a judged one (see `SearchRange.middle`),
so that a column that was added later is found in a few steps.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import pyarrow as pa

from ...common import instants
from ...errors import NotFound, Refused
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import table_of, tables_of
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from ..cut.lineage import Lineage, direct, records_of, trace
from ..diff.candidates import changed_keys
from ..diff.key_changes import KeyChanges
from .between import PROBES, Between, Evaluator, Skips, length
from .endpoints import Ends, find_ends
from .flips import scan_if_cheap
from .predicate import ByHand, Predicate, Where
from .verdict import MAX_ROWS, Answer, Evaluation, Flip, Flips, Verdict, VersionRange

_MOST_MIDDLES = 64

Edge = Literal["", "first", "last"]


def bisect(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    predicate: Predicate | str,
    *,
    good: str | None = None,
    bad: str | None = None,
    edge: Edge = "",
    known: Mapping[str, Answer] | None = None,
    on_step: Callable[[Evaluation], None] | None = None,
    now_ms: int | None = None,
    reader: Topics | None = None,
) -> Verdict:
    """Find the first commit of the app's line, between two moments, at which a predicate turned bad.

    Tables without a version at a moment are empty there. Versions with equal rows are evaluated once, and versions of
    tables that the predicate does not name are not evaluated: O(log versions) evaluations per table. An end that is not
    a prefix of the line, such as a snapshot, is moved to the next prefix: the good end back, the bad end forward. If
    versions were collected, the remaining moments are searched.

    A `predicate` given as SQL is short for `SqlPredicate`. `good` and `bad` are refs, by default the beginning of the
    app's history, and now; relative refs count from `now_ms`, by default the wall clock. `edge` selects the change to
    report if evaluations show several. Moments in `known` (answers by ref) are not evaluated; `on_step` is called after
    each evaluation. `reader` reads in-flight records, which SQL can query with `inflight('channel')`.

    Raises:
        Usage: a ref or the SQL is malformed, or the SQL needs in-flight records and there is no `reader`.
        NotFound: the app, a moment, table or column does not exist.
        Refused: nothing is wrong at `bad`, or something is wrong at `good`; or `good` is not before `bad`; or known
            answers contradict each other.
        AnswerNeeded: the predicate is a `ManualPredicate`, and a person has to judge this moment next.
        Corruption: an SST does not match its manifest.
        Unavailable: storage did not answer.
    """
    predicate = Where(predicate) if isinstance(predicate, str) else predicate
    now_ms = instants.now_ms() if now_ms is None else now_ms
    ends = find_ends(store, app, predicate, good, bad, now_ms)
    evaluator = Evaluator(store, cache, predicate, ends.between, on_step, reader)
    if isinstance(predicate, ByHand) and not good:
        evaluator.know(ends.begin, "good")  # all tables are empty there
    ends = ends.with_known(evaluator, known or {}, now_ms)
    searched = ends.settle(evaluator)
    stretch: Between | None = searched
    while stretch is not None:
        narrowed = _narrow(evaluator, stretch)
        # Moments with empty tables do not count.
        evaluations = sum(any(content) and not step.given for content, step in evaluator.evaluated.items())
        if isinstance(predicate, ByHand):
            break
        _probe(evaluator, narrowed)
        stretch = _range_towards(edge, evaluator, narrowed)
    flips = _count_flips(evaluator, searched, narrowed)
    if flips is not None and (turn := _flip_at_edge(edge, flips)) is not None:
        commit = searched.line.read(flips.stage, turn.version)
        low, high = searched.line.before(commit), searched.line.up_to(commit)
        if [evaluator.at(side, 0).answer for side in (low, high)] == ["good", "bad"]:
            narrowed = _narrow(evaluator, replace(searched, low=low, high=high))
    verdict = _verdict(evaluator, ends, narrowed, evaluations)
    return replace(verdict, flips=flips, seen_all=_is_exhaustive(evaluator, searched))


def _count_flips(evaluator: Evaluator, searched: Between, narrowed: "_Narrowed") -> Flips | None:
    if not narrowed.certain or isinstance(evaluator.predicate, ByHand):
        return None
    flips = scan_if_cheap(evaluator.store, evaluator.cache, evaluator.predicate, searched)
    commit = narrowed.between.only()
    if flips is None or commit is None or commit.stage != flips.stage:
        return None
    return flips if any(flip.bad and flip.version == commit.version for flip in flips.flips) else None


def _flip_at_edge(edge: Edge, flips: Flips) -> Flip | None:
    bad = [flip for flip in flips.flips if flip.bad]
    return bad[-1 if edge == "last" else 0] if edge and len(bad) > 1 else None


def _is_exhaustive(evaluator: Evaluator, searched: Between) -> bool:
    if not searched.is_whole or any(step.answer == "skip" for step in evaluator.evaluated.values()):
        return False
    cuts = [step.cut for step in evaluator.evaluated.values() if length(step.cut) <= length(searched.high)]
    cuts = sorted([searched.low, searched.high, *cuts], key=length)
    waiting = [*pairwise(cut for cut in cuts if length(cut) >= length(searched.low))]
    for _ in range(_MOST_MIDDLES):
        if not waiting:
            return True
        low, high = waiting.pop()
        if (middle := replace(searched, low=low, high=high).middle()) is None:
            continue
        if evaluator.between.content(middle) not in evaluator.evaluated:
            return False
        waiting += [(low, middle), (middle, high)]
    return False


@dataclass(frozen=True, slots=True)
class _Narrowed:
    """Result of narrowing a range of moments."""

    between: Between
    """Range from a good moment to a bad one, with no moment in between that can be judged."""
    good: tuple[Cut, ...]
    bad: tuple[Cut, ...]
    certain: bool
    """True if only one commit remains that can be the first bad one."""


def _narrow(evaluator: Evaluator, between: Between) -> _Narrowed:
    """Halve a range with judged ends until no moment in it can be judged. Raises the errors of `Predicate.rows`."""
    good, bad = [between.low], [between.high]
    skips: defaultdict[str, set[int]] = defaultdict(set)
    lacking: defaultdict[str, list[int]] = defaultdict(list)
    low = evaluator.at(between.low, 0)
    if low.answer == "skip":
        for stage in between.watched:
            _skip(skips[stage], lacking[stage], between.lowest(stage), lacks=low.lacks)
    while (cut := _next_moment(evaluator, between, skips)) is not None:
        step = evaluator.at(cut, between.evaluations_left() - 1 + evaluator.most_probes)
        if step.answer == "bad":
            between = replace(between, high=cut)
            bad.append(cut)
        elif step.answer == "good":
            between = replace(between, low=cut)
            good.append(cut)
        elif (commit := between.line.last(cut)) is not None:
            _skip(skips[commit.stage], lacking[commit.stage], commit.version, lacks=step.lacks)
    return _Narrowed(between, tuple(good), tuple(bad), _is_certain(evaluator, between))


def _probe(evaluator: Evaluator, narrowed: _Narrowed) -> None:
    """Evaluate moments in the widest ranges that the search jumped over, since the history may not be monotone."""
    cuts: list[Cut] = []
    for chain in (narrowed.good, narrowed.bad[::-1]):
        gaps = [replace(evaluator.between, low=low, high=high) for low, high in pairwise(chain)]
        gaps.sort(key=lambda gap: sum(gap.length(stage) for stage in gap.differing()), reverse=True)
        cuts += [cut for gap in gaps[:PROBES] if (cut := gap.middle()) is not None]
    for number, cut in enumerate(cuts, 1):
        evaluator.at(cut, len(cuts) - number)


def _next_moment(evaluator: Evaluator, between: Between, skips: Skips) -> Cut | None:
    if (middle := between.middle(skips)) is not None:
        return middle
    if (commit := between.only()) is None:
        return None
    # Commits of other watched tables that were later undone may be next to it, so both sides must be evaluated.
    previous, up_to = between.line.before(commit), between.line.up_to(commit)
    if evaluator.at(previous, 0).answer == "bad":
        return previous
    return up_to if evaluator.at(up_to, 0).answer == "good" else None


def _is_certain(evaluator: Evaluator, between: Between) -> bool:
    commit = between.only()
    if commit is None or len(between.differing()) > 1:
        return False
    sides = between.line.before(commit), between.line.up_to(commit)
    return [evaluator.at(side, 0).answer for side in sides] == ["good", "bad"]


def _skip(skips: set[int], lacking: list[int], version: int, *, lacks: bool) -> None:
    """Add a version to `skips`. If it lacks a column, also add the versions up to its neighbours in `lacking`.

    `lacking` are the versions that were found to lack the column, ascending.
    """
    skips.add(version)
    if lacks:
        insort(lacking, version)
        at = lacking.index(version)
        neighbours = lacking[max(at - 1, 0) : at + 2]
        skips.update(range(neighbours[0], neighbours[-1]))


def _range_towards(edge: Edge, evaluator: Evaluator, narrowed: _Narrowed) -> Between | None:
    """Return a range nearer to the edge that also goes from good to bad; None if none is known."""
    low, high = length(narrowed.between.low), length(narrowed.between.high)
    steps = sorted(evaluator.evaluated.values(), key=lambda step: length(step.cut))
    if edge == "first":
        bad = next((step.cut for step in steps if step.bad and length(step.cut) <= low), None)
        earlier = (cut for cut in narrowed.good if bad is not None and length(cut) < length(bad))
        good = max(earlier, key=length, default=None)
    elif edge == "last":
        good = next((step.cut for step in reversed(steps) if step.answer == "good" and length(step.cut) >= high), None)
        later = (cut for cut in narrowed.bad if good is not None and length(cut) > length(good))
        bad = min(later, key=length, default=None)
    else:
        return None
    # Snapshots kept from collected history need not be prefixes of each other.
    return replace(narrowed.between, low=good, high=bad) if good is not None and bad is not None else None


def _verdict(evaluator: Evaluator, ends: Ends, narrowed: _Narrowed, evaluations: int) -> Verdict:
    between, line = narrowed.between, narrowed.between.line
    candidates = () if narrowed.certain else _candidates(between)
    certain = narrowed.certain or [candidate.last - candidate.first for candidate in candidates] == [0]
    heads = [between.high.stages[candidate.stage] for candidate in candidates]
    commit = between.only() if narrowed.certain else max(heads, key=line.place, default=None)
    if commit is None or (certain and not commit.traits.changes_rows):
        raise _nondeterministic()
    good, bad = (line.before(commit), line.up_to(commit)) if narrowed.certain else (between.low, between.high)
    rows = _wrong_rows(evaluator, bad)
    previous, last_good = good.stages.get(commit.stage), between.whole.last(good)
    keys = _changed_keys(evaluator, previous, commit, rows)
    return Verdict(
        app=bad.app,
        predicate=evaluator.predicate,
        stage=commit.stage,
        good=good,
        bad=bad,
        good_ref=evaluator.ref(good),
        bad_ref=evaluator.ref(bad),
        good_version=previous.version if previous else 0,
        bad_version=commit.version,
        good_time_ms=last_good.time_ms if last_good and between.is_whole else good.time_ms,
        bad_time_ms=commit.time_ms,
        lineage=_lineage(evaluator, previous, commit),
        rows=rows.slice(0, MAX_ROWS),
        more_rows=rows.num_rows > MAX_ROWS,
        keys=keys if certain or (keys is not None and keys.named) else None,
        steps=tuple(evaluator.evaluated.values()),
        evaluations=evaluations,
        candidates=() if certain else candidates,
        thinned=not between.is_whole and not certain,
        non_monotone=_contradicting(evaluator, good, bad),
        resolved=ends.resolved,
        begins=ends.begins,
    )


def _candidates(between: Between) -> tuple[VersionRange, ...]:
    return tuple(
        VersionRange(stage, between.lowest(stage) + 1, manifest.version)
        for stage, manifest in between.high.stages.items()
        if stage in between.watched and between.length(stage) > 0
    )


def _wrong_rows(evaluator: Evaluator, bad: Cut) -> pa.Table:
    if not evaluator.predicate.sql:
        return pa.table({"wrong": [evaluator.at(bad, 0).why]})
    rows = evaluator.rows(bad, MAX_ROWS + 1)
    if not rows.num_rows:
        raise _nondeterministic()
    return rows


def _changed_keys(
    evaluator: Evaluator, previous: Manifest | None, commit: Manifest, rows: pa.Table
) -> KeyChanges | None:
    """Return the keys that turned bad at the commit, in the first of its tables that the predicate names."""
    named = (table for table in (commit.stage, *tables_of(commit)) if evaluator.predicate.names(table))
    table = next(named, commit.stage)
    earlier = table_of(previous, table) if previous is not None else None
    return changed_keys(evaluator.store, evaluator.cache, earlier, table_of(commit, table), rows.slice(0, MAX_ROWS))


def _lineage(evaluator: Evaluator, previous: Manifest | None, commit: Manifest) -> Lineage:
    try:
        return trace(evaluator.store, previous, commit)
    except NotFound:  # the upstream versions that it read were collected
        windows = direct(previous, commit, ()) if previous else ()
        return Lineage(commit.stage, windows, (), records=records_of(commit))


def _contradicting(evaluator: Evaluator, good: Cut, bad: Cut) -> tuple[Evaluation, ...]:
    return tuple(
        step
        for step in evaluator.evaluated.values()
        if (step.bad and length(step.cut) <= length(good))
        or (step.answer == "good" and length(step.cut) >= length(bad))
    )


def _nondeterministic() -> Refused:
    return Refused(
        "the predicate is nondeterministic: it gave different answers at two moments with the same rows",
        hint="use only the tables in it: no random(), now() or settings",
    )
