"""Find the commit that made something wrong: a binary search over the app's line with a SQL predicate.

The predicate is a query that returns rows when something is wrong. It is asked at prefixes of the line (`line`), which
are consistent cuts that a ref names: so a wrong answer is wrong state, never a torn look at a running app, and whoever
types the ref gets the same answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2

from ... import instants
from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ..cut.graph import Cut
from ..cut.lineage import trace
from ..take.capture import ChannelReader
from .changed_keys import changed_keys
from .ends import find_ends
from .judge import Judge, ref_of
from .lattice import Between
from .predicate import Predicate, Where
from .verdict import MAX_ROWS, Step, Verdict

_PROBES = 2
"""Prefixes looked at after the search on each side, for a history that was bad, then good, then bad again."""


def bisect(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    predicate: Predicate | str,
    *,
    good: str | None = None,
    bad: str | None = None,
    on_step: Callable[[Step], None] | None = None,
    now_ms: int | None = None,
    reader: ChannelReader | None = None,
) -> Verdict:
    """The first commit of the app's line, between two moments, at which a predicate says that something is wrong.

    Tables that had no version yet at a moment are empty there. Versions whose tables hold the same rows are not
    evaluated twice, nor those of tables that the predicate does not name, so there are O(log versions) evaluations
    per table. An end that is no prefix of the line, as a snapshot, is moved to the next one that is: the good end
    back, the bad one forward.

    Args:
        store: where the app lives.
        cache: where SSTs of a remote store come to lie.
        app: name of the app.
        predicate: what is wrong; SQL alone is short for `Where`, a query that returns rows then.
        good: ref of a moment where it returns none; default the beginning of the app's history.
        bad: ref of a moment where it returns rows; default now.
        on_step: told of each evaluation.
        now_ms: what relative refs count from; default the wall clock.
        reader: reads records in flight, which SQL may ask for as `inflight('channel')`.

    Raises:
        Usage: a ref or the SQL is malformed, or it asks for records in flight without a `reader`.
        NotFound: there is no such app, moment, table or column.
        Refused: the predicate returns no rows at `bad`, or some at `good`; or `good` is not before `bad`.
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    predicate = Where(predicate) if isinstance(predicate, str) else predicate
    ends = find_ends(store, app, predicate, good, bad, instants.now_ms() if now_ms is None else now_ms)
    between = ends.between
    judge = Judge(store, cache, predicate, between, on_step, reader)
    ends.check(judge, _halvings(between))
    # Prefixes known to be good, and to be bad, each nearer to the verdict than the one before it.
    known_good, known_bad = [between.low], [between.high]
    while (cut := _next(judge, between)) is not None:
        if judge.is_bad(cut, _halvings(between) - 1):
            between = replace(between, high=cut)
            known_bad.append(cut)
        else:
            between = replace(between, low=cut)
            known_good.append(cut)
    commit = between.only()
    if commit is None or commit.kind in ("claim", "compaction", "rescale", "retire"):
        raise _unsteady()  # these change no row
    last_good, first_bad = between.line.before(commit), between.line.up_to(commit)
    contradictions = tuple(_contradictions(judge, known_good, known_bad))
    rows = judge.rows(first_bad, MAX_ROWS + 1)
    if not rows.num_rows:
        raise _unsteady()
    before, previous = last_good.stages.get(commit.stage), between.whole.last(last_good)
    return Verdict(
        app=app,
        predicate=predicate,
        stage=commit.stage,
        good=last_good,
        bad=first_bad,
        good_ref=ref_of(previous),
        bad_ref=ref_of(commit),
        good_version=before.version if before else 0,
        bad_version=commit.version,
        good_time_ms=previous.time_ms if previous else 0,
        bad_time_ms=commit.time_ms,
        lineage=trace(store, before, commit),
        rows=rows.slice(0, MAX_ROWS),
        more_rows=rows.num_rows > MAX_ROWS,
        keys=changed_keys(store, cache, before, commit, rows.slice(0, MAX_ROWS)),
        steps=tuple(judge.judged.values()),
        non_monotone=contradictions,
        asked=ends.asked,
        begins=ends.begins,
    )


def _next(judge: Judge, between: Between) -> Cut | None:
    """The prefix to look at next, None when the first bad commit is found."""
    if (commit := between.middle()) is not None:
        return between.line.up_to(commit)
    if (commit := between.only()) is None:
        return None
    # Commits of other watched tables that were undone may lie beside it: then both its sides must be looked at.
    before, up_to = between.line.before(commit), between.line.up_to(commit)
    if judge.is_bad(before, 0):
        return before
    return None if judge.is_bad(up_to, 0) else up_to


def _contradictions(judge: Judge, good: list[Cut], bad: list[Cut]) -> Iterator[Step]:
    """Look into the widest stretches that the search jumped over, where nothing proves the order."""
    probes: list[tuple[Cut, bool]] = []
    for chain, expected in ((good, False), (bad[::-1], True)):
        gaps = [replace(judge.between, low=low, high=high) for low, high in pairwise(chain)]
        gaps.sort(key=lambda gap: sum(gap.length(stage) for stage in gap.differing()), reverse=True)
        commits = ((gap, gap.middle()) for gap in gaps[:_PROBES])
        probes += [(gap.line.up_to(commit), expected) for gap, commit in commits if commit is not None]
    for number, (cut, expected) in enumerate(probes, 1):
        if (step := judge.judge(cut, len(probes) - number)).bad != expected:
            yield step


def _halvings(between: Between) -> int:
    """How many evaluations it will take from here, as far as one can tell."""
    differing = between.differing()
    longest = max((between.length(stage) for stage in differing), default=1)
    return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1))) + _PROBES


def _unsteady() -> Refused:
    return Refused(
        "the predicate returned rows at one moment and none at another whose tables hold the same rows",
        hint="let it depend on the tables alone: no random(), now() or settings",
    )
