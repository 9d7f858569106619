"""Ends of a bisect search: resolves the refs of the good and the bad end, checks their order, and evaluates both."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.versions.side_tables import find_owner
from ..cut.graph import Cut
from ..cut.line import Line
from ..cut.moments import read_line, with_retired
from ..cut.refs import parse_ref
from ..cut.resolve import resolve
from .between import Evaluator, SearchRange, line_position
from .predicate import Predicate
from .verdict import Answer, Evaluation

BEGINNING = "beginning"


@dataclass(frozen=True, slots=True)
class SearchEnds:
    """Good and bad end of a search, with the range of moments between them."""

    search_range: SearchRange
    gapless_start: Cut
    """Earliest moment after which no version is missing; the good end if there is none."""
    good: str | None
    bad: str | None
    resolved: Mapping[str, Cut]
    gapless_start_ref: str
    """Ref of `gapless_start` if the search also covers older history with removed versions; else empty."""

    def narrowed_by_answers(self, evaluator: Evaluator, answers: Mapping[str, Answer], now_ms: int) -> "SearchEnds":
        """Add known answers to the evaluator, and return the ends narrowed by these answers.

        Raises:
            Refused: a moment answered good is not before a moment answered bad, or two answers contradict each other.
        """
        between, line = self.search_range, self.search_range.full_line
        good, bad = [self.gapless_start], list[Cut]()
        for ref, answer in answers.items():
            cut = with_retired(line, resolve(line.store, ref, now_ms=now_ms)) if ref else Cut(line.heads.app, {})
            is_kept = line.is_kept(cut)
            if not is_kept:
                cut = line.longest_prefix_within(cut) if answer == "good" else line.shortest_prefix_around(cut)
            evaluator.add_answer(cut, answer)
            if not is_kept and answer != "skip":
                (good if answer == "good" else bad).append(cut)
        begin, high = max(good, key=line_position), min(bad, key=line_position, default=between.high)
        if bad and line_position(begin) >= line_position(high):
            raise Refused(
                f"{evaluator.ref(begin) or 'the beginning'} is good and {evaluator.ref(high) or 'the beginning'} is "
                "bad, but the bad moment is not after the good one",
                hint=f"correct the answers in the output of `slackwater bisect log {high.app}`, and replay them with "
                "`bisect replay`",
            )
        low = between.low if begin is self.gapless_start else begin
        high = min(high, between.high, key=line_position)
        return replace(self, search_range=replace(between, low=low, high=high), gapless_start=begin)

    def evaluate_ends(self, evaluator: Evaluator) -> SearchRange:
        """Evaluate the predicate at both ends, and return the range to search.

        The range starts at `gapless_start` if the predicate finds that moment good.

        Raises:
            Refused: the good end is already bad; or the bad end is good, or cannot be judged.
        """
        low, high, begin = self.search_range.low, self.search_range.high, self.gapless_start
        to_come = replace(self.search_range, low=begin).evaluations_left() + evaluator.max_probes
        if not (at_high := evaluator.evaluate(high, 1 + to_come)).bad:
            raise self._bad_end_error(evaluator, at_high)
        if self.good and evaluator.evaluate(low, to_come).bad:
            raise self._good_end_error(evaluator)
        if line_position(begin) < line_position(high):
            if not evaluator.evaluate(begin, to_come).bad:
                return replace(self.search_range, low=begin)
            high = begin
        if evaluator.evaluate(low, to_come).bad:
            raise self._good_end_error(evaluator)
        return replace(self.search_range, high=high)

    def _bad_end_error(self, evaluator: Evaluator, at_high: Evaluation) -> Refused:
        high = self.search_range.high
        where = self._end_name(evaluator, self.bad, high) or f"{high.app}@now"
        if at_high.answer == "skip":
            why = f": {at_high.why}" if at_high.why else ""
            return Refused(f"the bad end {where} cannot be judged{why}", hint="choose another --bad")
        return Refused(
            f"the predicate returns no rows at {where}: nothing is wrong there"
            if evaluator.predicate.sql
            else f"nothing is wrong at {where}",
            hint="choose a --bad moment at which something is wrong; `slackwater query` shows the tables",
        )

    def _good_end_error(self, evaluator: Evaluator) -> Refused:
        low, line = self.search_range.low, self.search_range.full_line
        where = f"{self._end_name(evaluator, self.good, low)}, which therefore is not good"
        hint = "omit --good to search the whole history"
        until_low = replace(self.search_range, low=line.beginning(), high=low)
        if not self.good and not self.search_range.is_gapless:
            where = f"{evaluator.ref(low)}, the oldest remaining moment of {low.app}"
            hint = "garbage collection removed the earlier versions, so the first bad commit cannot be found"
        elif not self.good:
            where = f"the beginning of the history of {low.app}"
            hint = "give a later --good, or a predicate that is not true from the start"
        elif self.search_range.is_gapless and until_low.is_ordered() and (earlier := until_low.middle()) is not None:
            hint = f"try --good {evaluator.ref(earlier)}"
        finding = "the predicate returns rows" if evaluator.predicate.sql else "something is wrong"
        return Refused(f"{finding} already at {where}", hint=hint)

    def _end_name(self, evaluator: Evaluator, text: str | None, prefix: Cut) -> str:
        if text is None or not self.search_range.is_gapless or self.resolved[text].versions == prefix.versions:
            return text or ""
        return f"{evaluator.ref(prefix) or 'the beginning'}, the commit nearest to {text}"


def find_ends(
    store: ObjectStore, app: str, predicate: Predicate, good: str | None, bad: str | None, now_ms: int
) -> SearchEnds:
    """Return the ends of a search between two refs.

    If a ref names a cut that is not a prefix of the line, such as a snapshot, the end is moved outwards to the nearest
    prefix. `good` may be `beginning`, which is also its default: the beginning of the app's history.

    Raises:
        Usage: a ref is malformed, or the bad end is the beginning.
        NotFound: the app or a moment does not exist.
        Refused: an end belongs to another app; or `good` is not before `bad`; or the predicate names a table that is
            retired at `bad`.
    """
    if bad == BEGINNING:
        raise Usage(
            "--bad is the beginning, before the first commit, where all tables are empty",
            hint="choose a moment at which something is wrong, or omit --bad for the newest",
        )
    good = None if good == BEGINNING else good
    refs = tuple(filter(None, (good, bad)))
    for ref in refs:
        _check_app(app, ref, now_ms)
    resolved = {ref: resolve(store, ref, now_ms=now_ms) for ref in refs}
    # Read after the ends, so that the line contains both ends. Later commits of the app do not change the ends.
    line = read_line(store, app)
    resolved = {ref: with_retired(line, cut) for ref, cut in resolved.items()}
    until = resolved[bad] if bad else line.heads
    is_late, begin = not line.is_whole(until), line.beginning()
    high = line.shortest_prefix_around(until) if bad and not is_late else until
    for stage, last in high.tables.items():
        if last.retired and predicate.names_table(stage):
            raise Refused(
                f"the predicate names the table {stage}, whose stage is retired at {bad or app}",
                hint=f"search up to its last version: --bad {app}/{stage}@v{last.version - 1}",
            )
    inputs = predicate.inputs
    between = SearchRange(line, begin, high, _watched_stages(predicate, line), predicate.reads_channels, inputs)
    low = _good_end(between, resolved[good] if good else None)
    if is_late or line.is_whole(low):
        begin = low
    _check_order(replace(between, low=low), begin, good, bad)
    begins = "" if is_late or not line.limit.first or (good and begin is low) else line.ref(begin)
    return SearchEnds(replace(between, low=low), begin, good, bad, resolved, begins)


def _good_end(between: SearchRange, good: Cut | None) -> Cut:
    line, begin = between.full_line, between.low
    if good is None:
        commits = line.kept_between(Cut(between.high.app, {}), between.high)
        return line.cut_of_moment(commits[0]) if commits else begin
    if not line.is_whole(good):
        return good
    low = line.longest_prefix_within(good)
    # The longest prefix within a snapshot may end where versions were collected.
    return low if not line.limit.first or replace(between, high=low).is_ordered() else begin


def _check_order(between: SearchRange, begin: Cut, good: str | None, bad: str | None) -> None:
    line, low, high, app = between.full_line, between.low, between.high, between.high.app
    is_before = replace(between, low=begin).is_ordered()
    if not line.is_whole(high):
        is_before = not line.is_whole(low) and low.time_ms < high.time_ms
        if not is_before and not good:
            raise Refused(
                f"no history of {app} is left before {bad}: garbage collection removed it",
                hint=f"`slackwater log {app}` shows the remaining versions; choose a later --bad",
            )
    if not is_before:
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )


def stable_ref(store: ObjectStore, app: str, ref: str, answer: Answer, now_ms: int) -> str:
    """Return a ref by version, such as `app/stage@v42`, for the moment that a search uses for `ref`.

    Returns `ref` itself if garbage collection removed versions around the moment. Raises the errors of `find_ends`.
    """
    _check_app(app, ref, now_ms)
    line = read_line(store, app)
    cut = with_retired(line, resolve(store, ref, now_ms=now_ms))
    if not line.is_whole(cut):
        return ref
    return line.ref(line.longest_prefix_within(cut) if answer == "good" else line.shortest_prefix_around(cut))


def _watched_stages(predicate: Predicate, line: Line) -> frozenset[str]:
    heads = line.heads.stages
    named = frozenset(heads) if predicate.reads_channels else predicate.tables(line.heads)
    stages = {find_owner(table, heads) for table in named}
    stages |= {
        name
        for name, head in heads.items()
        for source, read in head.inputs.items()
        if not predicate.inputs.isdisjoint((source, read.topic))
    }
    return frozenset(stages | {former.stage for name in stages for former in heads[name].formerly})


def _check_app(app: str, ref: str, now_ms: int) -> None:
    if (other := parse_ref(ref, now_ms=now_ms).app) != app:
        raise Refused(
            f"{ref} is a moment of app {other!r}; expected one of {app!r}",
            hint=f"did you mean {app}@{ref}" if ref == other else "",
        )
