"""Find the commit that made something wrong: a binary search over the app's line with a predicate.

The predicate is asked at moments of the line (`cut.line`), consistent cuts that a ref names: so a wrong answer is wrong
state, never a torn look at a running app, and whoever types the ref gets the same answer. As in git's bisect of a
linear history, a moment that cannot be judged is passed over and another one taken, until none is left between the last
good and the first bad one. Which is taken is our own: one beside a moment that could be judged (see `Between.middle`),
so that a column which came late is found in a few steps.
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
from ...store.versions.side_tables import table_of, tables_of
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from ..cut.lineage import Lineage, direct, records_of, trace
from ..diff.candidates import changed_keys
from .between import PROBES, Between, Evaluator, Skips, length
from .endpoints import Ends, find_ends
from .flips import scan_if_cheap
from .predicate import ByHand, Predicate, Where
from .verdict import MAX_ROWS, Answer, Evaluation, Flip, Flips, Verdict, VersionRange

_MOST_MIDDLES = 64
"""Moments that are asked for to see whether every one was looked at; where there are more, one was not."""

Edge = Literal["", "first", "last"]
"""Which change from good to bad is meant, where there are several: the one that is found, the first or the last."""


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
    """The first commit of the app's line, between two moments, at which a predicate says that something is wrong.

    Tables that had no version yet at a moment are empty there. Versions whose tables hold the same rows are not
    evaluated twice, nor those of tables that the predicate does not name, so there are O(log versions) evaluations
    per table. An end that is no prefix of the line, as a snapshot, is moved to the next one that is: the good end
    back, the bad one forward. Where versions were collected, the moments that are left are searched.

    SQL alone, as `predicate`, is short for `Where`. `good` and `bad` are refs; default the beginning of the app's
    history, and now; relative ones count from `now_ms`, default the wall clock. `edge` is which change is meant, should
    evaluations show that there are several. Moments in `known`, answers by ref, are not evaluated; `on_step` is told of
    each that is. `reader` reads records in flight, which SQL may ask for as `inflight('channel')`.

    Raises:
        Usage: a ref or the SQL is malformed, or it asks for records in flight without a `reader`.
        NotFound: there is no such app, moment, table or column.
        Refused: nothing is wrong at `bad`, or something is at `good`; or `good` is not before `bad`; or known answers
            contradict each other.
        Wanted: the predicate is `ByHand`, and this moment is to be looked at next.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    predicate = Where(predicate) if isinstance(predicate, str) else predicate
    now_ms = instants.now_ms() if now_ms is None else now_ms
    ends = find_ends(store, app, predicate, good, bad, now_ms)
    evaluator = Evaluator(store, cache, predicate, ends.between, on_step, reader)
    if isinstance(predicate, ByHand) and not good:
        evaluator.know(ends.begin, "good")  # there is nothing to look at
    ends = ends.with_known(evaluator, known or {}, now_ms)
    searched = ends.settle(evaluator)
    nearer: Between | None = searched
    while nearer is not None:
        found = _narrow(evaluator, nearer)
        # Of moments with rows.
        evaluations = sum(any(content) and not step.given for content, step in evaluator.evaluated.items())
        if isinstance(predicate, ByHand):
            break
        _probe(evaluator, found)
        nearer = _towards(edge, evaluator, found)
    flips = _counted(evaluator, searched, found)
    if flips is not None and (turn := _edge(edge, flips)) is not None:
        commit = searched.line.read(flips.stage, turn.version)
        low, high = searched.line.before(commit), searched.line.up_to(commit)
        if [evaluator.at(side, 0).answer for side in (low, high)] == ["good", "bad"]:
            found = _narrow(evaluator, replace(searched, low=low, high=high))
    verdict = _verdict(evaluator, ends, found, evaluations)
    return replace(verdict, flips=flips, seen_all=_seen_all(evaluator, searched))


def _counted(evaluator: Evaluator, searched: Between, found: "_Narrowed") -> Flips | None:
    """All changes between the ends, where they are counted cheaply and have the one that was found."""
    if not found.certain or isinstance(evaluator.predicate, ByHand):
        return None
    flips = scan_if_cheap(evaluator.store, evaluator.cache, evaluator.predicate, searched)
    commit = found.between.only()
    if flips is None or commit is None or commit.stage != flips.stage:
        return None
    return flips if any(flip.bad and flip.version == commit.version for flip in flips.flips) else None


def _edge(edge: Edge, flips: Flips) -> Flip | None:
    """The change that is meant, where there are several; None for any."""
    bad = [flip for flip in flips.flips if flip.bad]
    return bad[-1 if edge == "last" else 0] if edge and len(bad) > 1 else None


def _seen_all(evaluator: Evaluator, searched: Between) -> bool:
    """Whether there is no moment between the ends whose rows were not looked at."""
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
    """What is left of a stretch."""

    between: Between
    """From a good moment to a bad one; nothing in between could be judged."""
    good: tuple[Cut, ...]
    """Moments that are good, each nearer to the verdict than the one before it."""
    bad: tuple[Cut, ...]
    """Moments that are bad, each nearer to the verdict than the one before it."""
    certain: bool
    """Whether a single commit is left that can have made it bad."""


def _narrow(evaluator: Evaluator, between: Between) -> _Narrowed:
    """Halve a stretch, whose ends are judged, as far as that goes. Raises as `Predicate.rows`."""
    good, bad = [between.low], [between.high]
    skips: defaultdict[str, set[int]] = defaultdict(set)
    lacking: defaultdict[str, list[int]] = defaultdict(list)
    low = evaluator.at(between.low, 0)
    if low.answer == "skip":
        for stage in between.watched:
            _skip(skips[stage], lacking[stage], between.lowest(stage), lacks=low.lacks)
    while (cut := _next(evaluator, between, skips)) is not None:
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


def _probe(evaluator: Evaluator, found: _Narrowed) -> None:
    """Look into the widest stretches that the search jumped over, where nothing proves the order."""
    cuts: list[Cut] = []
    for chain in (found.good, found.bad[::-1]):
        gaps = [replace(evaluator.between, low=low, high=high) for low, high in pairwise(chain)]
        gaps.sort(key=lambda gap: sum(gap.length(stage) for stage in gap.differing()), reverse=True)
        cuts += [cut for gap in gaps[:PROBES] if (cut := gap.middle()) is not None]
    for number, cut in enumerate(cuts, 1):
        evaluator.at(cut, len(cuts) - number)


def _next(evaluator: Evaluator, between: Between, skips: Skips) -> Cut | None:
    """The moment to look at next, None when no other can be."""
    if (middle := between.middle(skips)) is not None:
        return middle
    if (commit := between.only()) is None:
        return None
    # Commits of other watched tables that were undone may lie beside it: then both its sides must be looked at.
    before, up_to = between.line.before(commit), between.line.up_to(commit)
    if evaluator.at(before, 0).answer == "bad":
        return before
    return up_to if evaluator.at(up_to, 0).answer == "good" else None


def _is_certain(evaluator: Evaluator, between: Between) -> bool:
    commit = between.only()
    if commit is None or len(between.differing()) > 1:
        return False
    sides = between.line.before(commit), between.line.up_to(commit)
    return [evaluator.at(side, 0).answer for side in sides] == ["good", "bad"]


def _skip(skips: set[int], lacking: list[int], version: int, *, lacks: bool) -> None:
    """Pass over a version; when it lacks a column, also those between it and the next ones that lack it, too."""
    skips.add(version)
    if lacks:
        insort(lacking, version)
        at = lacking.index(version)
        neighbours = lacking[max(at - 1, 0) : at + 2]
        skips.update(range(neighbours[0], neighbours[-1]))


def _towards(edge: Edge, evaluator: Evaluator, found: _Narrowed) -> Between | None:
    """A stretch nearer to the edge that is meant, in which it went from good to bad, too; None when none is known."""
    low, high = length(found.between.low), length(found.between.high)
    steps = sorted(evaluator.evaluated.values(), key=lambda step: length(step.cut))
    if edge == "first":
        bad = next((step.cut for step in steps if step.bad and length(step.cut) <= low), None)
        earlier = (cut for cut in found.good if bad is not None and length(cut) < length(bad))
        good = max(earlier, key=length, default=None)
    elif edge == "last":
        good = next((step.cut for step in reversed(steps) if step.answer == "good" and length(step.cut) >= high), None)
        later = (cut for cut in found.bad if good is not None and length(cut) > length(good))
        bad = min(later, key=length, default=None)
    else:
        return None
    # Snapshots among the moments left before the whole line need not hold one another.
    return replace(found.between, low=good, high=bad) if good is not None and bad is not None else None


def _verdict(evaluator: Evaluator, ends: Ends, found: _Narrowed, evaluations: int) -> Verdict:
    between, line = found.between, found.between.line
    # The versions of which one made it bad.
    candidates = (
        ()
        if found.certain
        else tuple(
            VersionRange(stage, between.lowest(stage) + 1, manifest.version)
            for stage, manifest in between.high.stages.items()
            if stage in between.watched and between.length(stage) > 0
        )
    )
    certain = found.certain or [each.last - each.first for each in candidates] == [0]
    heads = [between.high.stages[each.stage] for each in candidates]
    commit = between.only() if found.certain else max(heads, key=line.place, default=None)
    if commit is None or (certain and not commit.traits.changes_rows):
        raise _unsteady()
    good, bad = (line.before(commit), line.up_to(commit)) if found.certain else (between.low, between.high)
    rows = (
        evaluator.rows(bad, MAX_ROWS + 1)
        if evaluator.predicate.sql
        else pa.table({"wrong": [evaluator.at(bad, 0).why]})
    )
    if not rows.num_rows:
        raise _unsteady()
    before, previous = good.stages.get(commit.stage), between.whole.last(good)
    # The stage's own, unless only one beside it is asked about.
    named = (table for table in (commit.stage, *tables_of(commit)) if evaluator.predicate.names(table))
    table = next(named, commit.stage)
    earlier = table_of(before, table) if before is not None else None
    keys = changed_keys(evaluator.store, evaluator.cache, earlier, table_of(commit, table), rows.slice(0, MAX_ROWS))
    try:
        lineage = trace(evaluator.store, before, commit)
    except NotFound:  # of the stages upstream, the versions that were read are collected
        lineage = Lineage(commit.stage, direct(before, commit, ()) if before else (), (), records=records_of(commit))
    return Verdict(
        app=bad.app,
        predicate=evaluator.predicate,
        stage=commit.stage,
        good=good,
        bad=bad,
        good_ref=evaluator.ref(good),
        bad_ref=evaluator.ref(bad),
        good_version=before.version if before else 0,
        bad_version=commit.version,
        good_time_ms=previous.time_ms if previous and between.is_whole else good.time_ms,
        bad_time_ms=commit.time_ms,
        lineage=lineage,
        rows=rows.slice(0, MAX_ROWS),
        more_rows=rows.num_rows > MAX_ROWS,
        keys=keys if certain or (keys is not None and keys.named) else None,
        steps=tuple(evaluator.evaluated.values()),
        evaluations=evaluations,
        candidates=() if certain else candidates,
        thinned=not between.is_whole and not certain,
        # Bad up to the last good moment, or good from the first bad one on.
        non_monotone=tuple(
            step
            for step in evaluator.evaluated.values()
            if (step.bad and length(step.cut) <= length(good))
            or (step.answer == "good" and length(step.cut) >= length(bad))
        ),
        resolved=ends.resolved,
        begins=ends.begins,
    )


def _unsteady() -> Refused:
    return Refused(
        "the predicate found something wrong at one moment and nothing at another whose tables hold the same rows",
        hint="let it depend on the tables alone: no random(), now() or settings",
    )
