"""The two ends of a search: from refs to moments of the app's line, and whether they can be the ends of one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.versions.side_tables import owner
from ..cut.graph import Cut
from ..cut.line import Line
from ..cut.moments import line_of, with_retired
from ..cut.refs import parse
from ..cut.resolve import resolve
from .between import Between, Evaluator, length
from .predicate import Predicate
from .verdict import Answer, Evaluation

BEGINNING = "beginning"
"""How the moment before the first commit is called, which no ref names."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a search begins and ends."""

    between: Between
    begin: Cut
    """From where on all versions in between are there; the good end where none is missing, or all are."""
    good: str | None
    """The ref that was given, None for the beginning."""
    bad: str | None
    """The ref that was given, None for now."""
    resolved: Mapping[str, Cut]
    """What these resolve to."""
    begins: str
    """The ref from which on every version is there, where older history was collected and is searched, too."""

    def with_known(self, evaluator: Evaluator, known: Mapping[str, Answer], now_ms: int) -> "Ends":
        """These ends, moved together by answers that are known, which the evaluator is told.

        Raises:
            Refused: a moment that is known to be good is not before one that is known to be bad.
        """
        between, line = self.between, self.between.whole
        good, bad = [self.begin], list[Cut]()
        for ref, answer in known.items():
            cut = with_retired(line, resolve(line.store, ref, now_ms=now_ms)) if ref else Cut(line.heads.app, {})
            is_left = line.is_left(cut)
            if not is_left:
                cut = line.within(cut) if answer == "good" else line.around(cut)
            evaluator.know(cut, answer)
            if not is_left and answer != "skip":
                (good if answer == "good" else bad).append(cut)
        begin, high = max(good, key=length), min(bad, key=length, default=between.high)
        if bad and length(begin) >= length(high):
            raise Refused(
                f"{evaluator.ref(begin) or 'the beginning'} is good, and {evaluator.ref(high) or 'the beginning'}, "
                "which is not after it, is bad",
                hint=f"`slackwater bisect log {high.app}` shows what was said; `bisect replay` takes it corrected",
            )
        low = between.low if begin is self.begin else begin
        high = min(high, between.high, key=length)
        return replace(self, between=replace(between, low=low, high=high), begin=begin)

    def settle(self, evaluator: Evaluator) -> Between:
        """What to search, from a good end to a bad one: without the moments before the whole line, if they need not be.

        Raises:
            Refused: something is wrong at the good end already, or nothing is at the bad one.
        """
        low, high, begin = self.between.low, self.between.high, self.begin
        to_come = replace(self.between, low=begin).evaluations_left() + evaluator.most_probes
        if not (at_high := evaluator.at(high, 1 + to_come)).bad:
            raise self._not_bad(evaluator, at_high)
        if self.good and evaluator.at(low, to_come).bad:
            raise self._bad_already(evaluator)
        if length(begin) < length(high):
            if not evaluator.at(begin, to_come).bad:
                return replace(self.between, low=begin)
            high = begin
        if evaluator.at(low, to_come).bad:
            raise self._bad_already(evaluator)
        return replace(self.between, high=high)

    def _not_bad(self, evaluator: Evaluator, at_high: Evaluation) -> Refused:
        high = self.between.high
        where = self._name_of(evaluator, self.bad, high) or f"{high.app}@now"
        if at_high.answer == "skip":
            why = f": {at_high.why}" if at_high.why else ""
            return Refused(f"nobody can judge {where}, where the search ends{why}", hint="give another --bad")
        return Refused(
            f"the predicate returns no rows at {where}: nothing is wrong there"
            if evaluator.predicate.sql
            else f"nothing is wrong at {where}",
            hint="give --bad a moment at which something is; `slackwater query` shows the tables",
        )

    def _bad_already(self, evaluator: Evaluator) -> Refused:
        low, line = self.between.low, self.between.whole
        where = f"{self._name_of(evaluator, self.good, low)}: it is not good there"
        hint = "leave --good away to search all"
        before = replace(self.between, low=line.beginning(), high=low)
        if not self.good and not self.between.is_whole:
            where = f"{evaluator.ref(low)}, the oldest moment that is left of the history of {low.app}"
            hint = "what came before was thinned out by gc, and nobody can tell any more"
        elif not self.good:
            where = f"the beginning of the history of {low.app}"
            hint = "give --good a later moment, or a predicate that was not true from the start"
        elif self.between.is_whole and before.ordered() and (earlier := before.middle()) is not None:
            hint = f"try --good {evaluator.ref(earlier)}"
        said = "the predicate returns rows" if evaluator.predicate.sql else "something is wrong"
        return Refused(f"{said} already at {where}", hint=hint)

    def _name_of(self, evaluator: Evaluator, text: str | None, prefix: Cut) -> str:
        """How messages call an end: by what was typed, unless the search uses another moment; empty for the default."""
        if text is None or not self.between.is_whole or self.resolved[text].versions == prefix.versions:
            return text or ""
        return f"{evaluator.ref(prefix) or 'the beginning'}, the moment of the app's line next to {text}"


def find_ends(
    store: ObjectStore, app: str, predicate: Predicate, good: str | None, bad: str | None, now_ms: int
) -> Ends:
    """What lies on the app's line between two refs. An end that is no moment of it is moved to the next one that is.

    The good one may be `beginning`, which is what None means.

    Raises:
        Usage: a ref is malformed, or the bad end is the beginning.
        NotFound: there is no such app or moment.
        Refused: an end is another app's; or `good` is not before `bad`; or the predicate names a table that is retired
            at `bad`.
    """
    if bad == BEGINNING:
        raise Usage(
            "the bad end is the beginning, before the first commit, where no table has a row",
            hint="give the moment at which something is wrong, or none for now",
        )
    good = None if good == BEGINNING else good
    refs = tuple(filter(None, (good, bad)))
    for ref in refs:
        _check_app(app, ref, now_ms)
    resolved = {ref: resolve(store, ref, now_ms=now_ms) for ref in refs}
    # After the ends, so that they lie on it. What the app commits from now on does not move it.
    line = line_of(store, app)
    resolved = {ref: with_retired(line, cut) for ref, cut in resolved.items()}
    until = resolved[bad] if bad else line.heads
    is_late, begin = not line.is_whole(until), line.beginning()
    high = line.around(until) if bad and not is_late else until
    for stage, last in high.tables.items():
        if last.retired and predicate.names(stage):
            raise Refused(
                f"the predicate names the table {stage}, whose stage is not part of {bad or app}: it was retired",
                hint=f"search up to a moment that has it: --bad {app}/{stage}@v{last.version - 1}",
            )
    between = Between(line, begin, high, _watched(predicate, line), predicate.channels)
    low = _good_end(between, resolved[good] if good else None)
    if is_late or line.is_whole(low):
        begin = low
    _check_order(replace(between, low=low), begin, good, bad)
    begins = "" if is_late or not line.limit.first or (good and begin is low) else line.ref(begin)
    return Ends(replace(between, low=low), begin, good, bad, resolved, begins)


def _good_end(between: Between, good: Cut | None) -> Cut:
    """The moment to begin at, `good` or else the oldest; `between` begins where the whole line does."""
    line, begin = between.whole, between.low
    if good is None:
        left = line.left_between(Cut(between.high.app, {}), between.high)
        return line.at(left[0]) if left else begin
    if not line.is_whole(good):
        return good
    low = line.within(good)
    # The prefix within a snapshot may lie where history is not whole.
    return low if not line.limit.first or replace(between, high=low).ordered() else begin


def _check_order(between: Between, begin: Cut, good: str | None, bad: str | None) -> None:
    """Raise `Refused` when the good end is not before the bad one; `begin` is from where on all versions are there."""
    line, low, high, app = between.whole, between.low, between.high, between.high.app
    is_before = replace(between, low=begin).ordered()
    if not line.is_whole(high):
        is_before = not line.is_whole(low) and low.time_ms < high.time_ms
        if not is_before and not good:
            raise Refused(
                f"of the history of {app} nothing is left before {bad}: gc thinned it out",
                hint=f"`slackwater log {app}` shows what is left; give a later moment as the bad one",
            )
    if not is_before:
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )


def pinned(store: ObjectStore, app: str, ref: str, answer: Answer, now_ms: int) -> str:
    """A ref that always names the moment that a search takes for this one; where that was collected, the same ref.

    Raises as `find_ends`.
    """
    _check_app(app, ref, now_ms)
    line = line_of(store, app)
    cut = with_retired(line, resolve(store, ref, now_ms=now_ms))
    if not line.is_whole(cut):
        return ref
    return line.ref(line.within(cut) if answer == "good" else line.around(cut))


def _watched(predicate: Predicate, line: Line) -> frozenset[str]:
    """The stages whose tables decide what the predicate says, under all names that they had."""
    heads = line.heads.stages
    named = frozenset(heads) if predicate.channels else predicate.tables(line.heads)
    stages = {owner(table, heads) for table in named}
    return frozenset(stages | {former.stage for name in stages for former in heads[name].formerly})


def _check_app(app: str, ref: str, now_ms: int) -> None:
    if (other := parse(ref, now_ms=now_ms).app) != app:
        raise Refused(
            f"{ref} is a moment of app {other!r}; expected one of {app!r}",
            hint=f"did you mean {app}@{ref}" if ref == other else "",
        )
