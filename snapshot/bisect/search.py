"""Bisect: binary search over an app's line for the commit at which a predicate turned bad.

The predicate is evaluated at moments of the line (`cut.line`). Each moment is a consistent cut, so a wrong answer is
never the effect of reading a running app, and anyone can query the moment again by its ref. As in git's bisect, a
moment that cannot be judged is skipped, and a different moment is evaluated. The search ends when no moment remains
between the last good and the first bad moment. Unlike git, the search then prefers version ranges next to a judged
moment (see `SearchRange.middle`): this finds the version that added a column in a few steps.
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
from ...store.versions.side_tables import as_main_table, tables_of
from ..cut.graph import Cut
from ..cut.kafka_topics import KafkaTopics
from ..cut.lineage import Lineage, direct_windows, records_of, trace
from ..diff.candidates import changed_keys
from ..diff.key_changes import KeyChanges
from .between import PROBES, Evaluator, SearchRange, Skips, line_position
from .endpoints import SearchEnds, find_ends
from .flips import scan_if_cheap
from .predicate import ManualPredicate, Predicate, SqlPredicate
from .verdict import MAX_ROWS, Answer, Evaluation, Flip, Flips, Verdict, VersionRange

_MAX_COVERAGE_CHECKS = 64

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
    known_answers: Mapping[str, Answer] | None = None,
    on_step: Callable[[Evaluation], None] | None = None,
    now_ms: int | None = None,
    reader: KafkaTopics | None = None,
) -> Verdict:
    """Find the first commit of the app's line, between two moments, at which a predicate turned bad.

    Tables without a version at a moment are empty there. Versions with equal rows are evaluated once, and versions of
    tables that the predicate does not name are not evaluated: O(log versions) evaluations per table. An end that is not
    a prefix of the line, such as a snapshot, is moved outwards to the nearest prefix. If versions were collected, the
    remaining moments are searched.

    A `predicate` given as SQL is short for `SqlPredicate`. `good` and `bad` are refs, by default the beginning of the
    app's history, and now; relative refs count from `now_ms`, by default the wall clock. `edge` selects the change to
    report if evaluations show several. Moments in `known_answers` (by ref) are not evaluated; `on_step` is called after
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
    predicate = SqlPredicate(predicate) if isinstance(predicate, str) else predicate
    now_ms = instants.now_ms() if now_ms is None else now_ms
    ends = find_ends(store, app, predicate, good, bad, now_ms)
    evaluator = Evaluator(store, cache, predicate, ends.search_range, on_step, reader)
    if isinstance(predicate, ManualPredicate) and not good:
        evaluator.add_answer(ends.gapless_start, "good")  # all tables are empty there
    ends = ends.narrowed_by_answers(evaluator, known_answers or {}, now_ms)
    searched = ends.evaluate_ends(evaluator)
    stretch: SearchRange | None = searched
    while stretch is not None:
        narrowed = _narrow(evaluator, stretch)
        # Moments with empty tables do not count.
        evaluations = sum(any(content) and not step.is_given for content, step in evaluator.evaluated.items())
        if isinstance(predicate, ManualPredicate):
            break
        _probe(evaluator, narrowed)
        stretch = _range_towards(edge, evaluator, narrowed)
    flips = _count_flips(evaluator, searched, narrowed)
    if flips is not None and (turn := _flip_at_edge(edge, flips)) is not None:
        commit = searched.line.read(flips.stage, turn.version)
        low, high = searched.line.prefix_before(commit), searched.line.prefix_up_to(commit)
        if [evaluator.evaluate(side, 0).answer for side in (low, high)] == ["good", "bad"]:
            narrowed = _narrow(evaluator, replace(searched, low=low, high=high))
    verdict = _make_verdict(evaluator, ends, narrowed, evaluations)
    return replace(verdict, flips=flips, is_exhaustive=_is_exhaustive(evaluator, searched))


def _count_flips(evaluator: Evaluator, searched: SearchRange, narrowed: "_NarrowedRange") -> Flips | None:
    if not narrowed.certain or isinstance(evaluator.predicate, ManualPredicate):
        return None
    flips = scan_if_cheap(evaluator.store, evaluator.cache, evaluator.predicate, searched)
    commit = narrowed.search_range.only_commit()
    if flips is None or commit is None or commit.stage != flips.stage:
        return None
    return flips if any(flip.bad and flip.version == commit.version for flip in flips.flips) else None


def _flip_at_edge(edge: Edge, flips: Flips) -> Flip | None:
    bad = [flip for flip in flips.flips if flip.bad]
    return bad[-1 if edge == "last" else 0] if edge and len(bad) > 1 else None


def _is_exhaustive(evaluator: Evaluator, searched: SearchRange) -> bool:
    if not searched.is_gapless or any(step.answer == "skip" for step in evaluator.evaluated.values()):
        return False
    cuts = [
        step.cut for step in evaluator.evaluated.values() if line_position(step.cut) <= line_position(searched.high)
    ]
    cuts = sorted([searched.low, searched.high, *cuts], key=line_position)
    waiting = [*pairwise(cut for cut in cuts if line_position(cut) >= line_position(searched.low))]
    for _ in range(_MAX_COVERAGE_CHECKS):
        if not waiting:
            return True
        low, high = waiting.pop()
        if (middle := replace(searched, low=low, high=high).middle()) is None:
            continue
        if evaluator.search_range.content_fingerprint(middle) not in evaluator.evaluated:
            return False
        waiting += [(low, middle), (middle, high)]
    return False


@dataclass(frozen=True, slots=True)
class _NarrowedRange:
    """Range to which a search has narrowed, with all good and bad moments that were evaluated before."""

    search_range: SearchRange
    """Range from a good moment to a bad moment. No moment in between can be judged."""
    good: tuple[Cut, ...]
    bad: tuple[Cut, ...]
    certain: bool
    """True if only one commit can be the first bad commit."""


def _narrow(evaluator: Evaluator, between: SearchRange) -> _NarrowedRange:
    """Halve a range until no moment between its ends remains to be judged. Both ends must have been judged before.

    Raises the errors of `Predicate.rows`.
    """
    good, bad = [between.low], [between.high]
    skips: defaultdict[str, set[int]] = defaultdict(set)
    lacking: defaultdict[str, list[int]] = defaultdict(list)
    low = evaluator.evaluate(between.low, 0)
    if low.answer == "skip":
        for stage in between.watched:
            _add_skip(skips[stage], lacking[stage], between.low_version(stage), lacks=low.is_column_missing)
    while (cut := _next_moment(evaluator, between, skips)) is not None:
        step = evaluator.evaluate(cut, between.evaluations_left() - 1 + evaluator.max_probes)
        if step.answer == "bad":
            between = replace(between, high=cut)
            bad.append(cut)
        elif step.answer == "good":
            between = replace(between, low=cut)
            good.append(cut)
        elif (commit := between.line.last_commit(cut)) is not None:
            _add_skip(skips[commit.stage], lacking[commit.stage], commit.version, lacks=step.is_column_missing)
    return _NarrowedRange(between, tuple(good), tuple(bad), _is_certain(evaluator, between))


def _probe(evaluator: Evaluator, narrowed: _NarrowedRange) -> None:
    """Evaluate further moments, to detect a predicate that changed more than once.

    The moments lie in the widest ranges without an evaluated moment.
    """
    cuts: list[Cut] = []
    for chain in (narrowed.good, narrowed.bad[::-1]):
        gaps = [replace(evaluator.search_range, low=low, high=high) for low, high in pairwise(chain)]
        gaps.sort(key=lambda gap: sum(gap.num_versions(stage) for stage in gap.differing_stages()), reverse=True)
        cuts += [cut for gap in gaps[:PROBES] if (cut := gap.middle()) is not None]
    for number, cut in enumerate(cuts, 1):
        evaluator.evaluate(cut, len(cuts) - number)


def _next_moment(evaluator: Evaluator, between: SearchRange, skips: Skips) -> Cut | None:
    if (middle := between.middle(skips)) is not None:
        return middle
    if (commit := between.only_commit()) is None:
        return None
    # Next to this version, commits of other watched tables may have been undone later, so both sides must be evaluated.
    previous, up_to = between.line.prefix_before(commit), between.line.prefix_up_to(commit)
    if evaluator.evaluate(previous, 0).answer == "bad":
        return previous
    return up_to if evaluator.evaluate(up_to, 0).answer == "good" else None


def _is_certain(evaluator: Evaluator, between: SearchRange) -> bool:
    commit = between.only_commit()
    if commit is None or len(between.differing_stages()) > 1:
        return False
    sides = between.line.prefix_before(commit), between.line.prefix_up_to(commit)
    return [evaluator.evaluate(side, 0).answer for side in sides] == ["good", "bad"]


def _add_skip(skips: set[int], lacking: list[int], version: int, *, lacks: bool) -> None:
    """Add a version to `skips`. With `lacks`, the version's tables lack a column that the predicate names.

    If two versions lack a column, all versions in between are assumed to lack the column. `lacking` has the versions
    already known to lack the column, ascending.
    """
    skips.add(version)
    if lacks:
        insort(lacking, version)
        at = lacking.index(version)
        neighbours = lacking[max(at - 1, 0) : at + 2]
        skips.update(range(neighbours[0], neighbours[-1]))


def _range_towards(edge: Edge, evaluator: Evaluator, narrowed: _NarrowedRange) -> SearchRange | None:
    """Return a range from good to bad that is nearer to `edge` (first or last change); None if none is known."""
    low, high = line_position(narrowed.search_range.low), line_position(narrowed.search_range.high)
    steps = sorted(evaluator.evaluated.values(), key=lambda step: line_position(step.cut))
    if edge == "first":
        bad = next((step.cut for step in steps if step.bad and line_position(step.cut) <= low), None)
        earlier = (cut for cut in narrowed.good if bad is not None and line_position(cut) < line_position(bad))
        good = max(earlier, key=line_position, default=None)
    elif edge == "last":
        good = next(
            (step.cut for step in reversed(steps) if step.answer == "good" and line_position(step.cut) >= high), None
        )
        later = (cut for cut in narrowed.bad if good is not None and line_position(cut) > line_position(good))
        bad = min(later, key=line_position, default=None)
    else:
        return None
    # Snapshots kept from collected history need not be prefixes of each other.
    return replace(narrowed.search_range, low=good, high=bad) if good is not None and bad is not None else None


def _make_verdict(evaluator: Evaluator, ends: SearchEnds, narrowed: _NarrowedRange, evaluations: int) -> Verdict:
    between, line = narrowed.search_range, narrowed.search_range.line
    candidates = () if narrowed.certain else _candidate_ranges(between)
    certain = narrowed.certain or [candidate.last - candidate.first for candidate in candidates] == [0]
    heads = [between.high.stages[candidate.stage] for candidate in candidates]
    commit = between.only_commit() if narrowed.certain else max(heads, key=line.sort_key, default=None)
    if commit is None or (certain and not commit.traits.changes_rows):
        raise _nondeterministic_error()
    good, bad = (
        (line.prefix_before(commit), line.prefix_up_to(commit)) if narrowed.certain else (between.low, between.high)
    )
    rows = _wrong_rows(evaluator, bad)
    previous, last_good = good.stages.get(commit.stage), between.full_line.last_commit(good)
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
        good_time_ms=last_good.time_ms if last_good and between.is_gapless else good.time_ms,
        bad_time_ms=commit.time_ms,
        lineage=_trace_lineage(evaluator, previous, commit),
        rows=rows.slice(0, MAX_ROWS),
        more_rows=rows.num_rows > MAX_ROWS,
        keys=keys if certain or (keys is not None and keys.from_predicate) else None,
        steps=tuple(evaluator.evaluated.values()),
        evaluations=evaluations,
        candidates=() if certain else candidates,
        thinned=not between.is_gapless and not certain,
        non_monotone=_contradicting_evaluations(evaluator, good, bad),
        resolved=ends.resolved,
        gapless_start_ref=ends.gapless_start_ref,
    )


def _candidate_ranges(between: SearchRange) -> tuple[VersionRange, ...]:
    return tuple(
        VersionRange(stage, between.low_version(stage) + 1, manifest.version)
        for stage, manifest in between.high.stages.items()
        if stage in between.watched and between.num_versions(stage) > 0
    )


def _wrong_rows(evaluator: Evaluator, bad: Cut) -> pa.Table:
    if not evaluator.predicate.sql:
        return pa.table({"wrong": [evaluator.evaluate(bad, 0).why]})
    rows = evaluator.wrong_rows(bad, MAX_ROWS + 1)
    if not rows.num_rows:
        raise _nondeterministic_error()
    return rows


def _changed_keys(
    evaluator: Evaluator, previous: Manifest | None, commit: Manifest, rows: pa.Table
) -> KeyChanges | None:
    """Return the keys that turned bad at the commit, in the first table of the stage that the predicate names."""
    named = (table for table in (commit.stage, *tables_of(commit)) if evaluator.predicate.names_table(table))
    table = next(named, commit.stage)
    earlier = as_main_table(previous, table) if previous is not None else None
    return changed_keys(
        evaluator.store, evaluator.cache, earlier, as_main_table(commit, table), rows.slice(0, MAX_ROWS)
    )


def _trace_lineage(evaluator: Evaluator, previous: Manifest | None, commit: Manifest) -> Lineage:
    try:
        return trace(evaluator.store, previous, commit)
    except NotFound:  # the upstream versions that it read were collected
        windows = direct_windows(previous, commit, ()) if previous else ()
        return Lineage(commit.stage, windows, (), records=records_of(commit))


def _contradicting_evaluations(evaluator: Evaluator, good: Cut, bad: Cut) -> tuple[Evaluation, ...]:
    return tuple(
        step
        for step in evaluator.evaluated.values()
        if (step.bad and line_position(step.cut) <= line_position(good))
        or (step.answer == "good" and line_position(step.cut) >= line_position(bad))
    )


def _nondeterministic_error() -> Refused:
    return Refused(
        "the predicate is nondeterministic: it gave different answers at two moments with the same rows",
        hint="use only the tables in it: no random(), now() or settings",
    )
