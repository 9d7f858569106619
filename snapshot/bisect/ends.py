"""The two ends of a search: from refs to places of the app's history, and whether they can be the ends of one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.aside import owner
from ..cut.graph import Cut
from ..cut.line import Line
from ..cut.moments import line_of, with_retired
from ..cut.refs import parse
from ..cut.resolve import resolve
from .judge import Judge, ref_of
from .lattice import Between
from .narrow import evaluations_left, length
from .predicate import Predicate
from .verdict import Answer


@dataclass(frozen=True, slots=True)
class Left:
    """A moment that is left of a stretch of history that was thinned out."""

    ref: str
    time_ms: int
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a search begins and ends."""

    between: Between
    """The commits between the ends. Where some of these were thinned out, those from which on all are there; or none,
    when the bad end lies before: then it begins and ends with that."""
    good: str | None
    """The ref that was given, None for the beginning."""
    bad: str | None
    """The ref that was given, None for now."""
    asked: Mapping[str, Cut]
    """What these resolve to."""
    begins: str
    """The ref from which on every version is there, where older history was thinned out and is searched, too."""
    left: tuple[Left, ...] = ()
    """What is left before that, from the good end on, the oldest first."""
    refs: Mapping[frozenset[tuple[str, int]], str] = field(default_factory=dict)
    """Refs to all moments that are left, by their versions."""

    def with_known(self, judge: Judge, store: ObjectStore, known: Mapping[str, Answer], now_ms: int) -> "Ends":
        """These ends, moved together by answers that are known, which `judge` is told.

        Raises:
            Refused: a moment that is known to be good is not before one that is known to be bad.
        """
        between, line = self.between, self.between.whole
        good, bad = [between.low], list[Cut]()
        for ref, answer in known.items():
            cut = with_retired(line, resolve(store, ref, now_ms=now_ms)) if ref else Cut(between.high.app, {})
            is_left = frozenset(cut.versions.items()) in self.refs
            if not is_left:
                cut = line.within(cut) if answer == "good" else line.around(cut)
            judge.know(cut, answer)
            if not is_left and answer != "skip":
                (good if answer == "good" else bad).append(cut)
        low, high = max(good, key=length), min(bad, key=length, default=between.high)
        if bad and length(low) >= length(high):
            raise Refused(
                f"{judge.ref(low) or 'the beginning'} is good, and {judge.ref(high) or 'the beginning'}, "
                "which is not after it, is bad",
                hint=f"`slackwater bisect log {high.app}` shows what was said; `bisect replay` takes it corrected",
            )
        return replace(self, between=replace(between, low=low, high=min(high, between.high, key=length)))

    def settle(self, judge: Judge) -> tuple[Between, bool]:
        """The stretch to search, from a good end to a bad one, and whether all its versions are there.

        Raises:
            Refused: something is wrong at the good end already, or nothing is at the bad one.
        """
        low, high, app = self.between.low, self.between.high, self.between.high.app
        to_come = evaluations_left(self.between)
        last = judge.judge(high, 1 + to_come)
        if last.answer != "bad":
            where = self._said(judge, self.bad, high) or f"{app}@now"
            if last.answer == "skip":
                why = f": {last.why}" if last.why else ""
                raise Refused(f"nobody can judge {where}, where the search ends{why}", hint="give another --bad")
            raise Refused(
                f"the predicate returns no rows at {where}: nothing is wrong there"
                if judge.predicate.sql
                else f"nothing is wrong at {where}",
                hint="give --bad a moment at which something is; `slackwater query` shows the tables",
            )
        oldest = self._cut(judge, self.left[0]) if self.left else low
        if self.left and self.good and judge.judge(oldest, to_come).bad:
            raise self._bad_already(judge, oldest)
        has_whole = length(low) < length(high)
        if has_whole and not judge.judge(low, to_come).bad:
            return self.between, True
        if not self.left or judge.judge(oldest, to_come).bad:
            raise self._bad_already(judge, oldest)
        return self._among_left(judge, low if has_whole else high), False

    def _among_left(self, judge: Judge, bad: Cut) -> Between:
        """The stretch from one of the moments that are left to the next: those that are judged good and bad."""
        low, high, skipped = 0, len(self.left), set[int]()
        cuts: dict[int, Cut] = {high: bad}
        while between := [number for number in range(low + 1, high) if number not in skipped]:
            middle = between[len(between) // 2]
            cuts[middle] = self._cut(judge, self.left[middle])
            answer = judge.judge(cuts[middle], len(between).bit_length() - 1).answer
            if answer == "bad":
                high = middle
            elif answer == "good":
                low = middle
            else:
                skipped.add(middle)
        return replace(self.between, low=cuts.get(low) or self._cut(judge, self.left[low]), high=cuts[high])

    def _cut(self, judge: Judge, left: Left) -> Cut:
        app = self.between.high.app
        return Cut(app, {stage: history.read(judge.store, app, stage, v) for stage, v in left.versions.items()})

    def _bad_already(self, judge: Judge, oldest: Cut) -> Refused:
        low, app = self.between.low, self.between.high.app
        where, hint = f"{self._said(judge, self.good, low)}: it is not good there", "leave --good away to search all"
        before = replace(self.between, low=self.between.whole.beginning(), high=low)
        if self.left and not self.good:
            where = f"{judge.ref(oldest)}, the oldest moment that is left of the history of {app}"
            hint = "what came before was thinned out by gc, and nobody can tell any more"
        elif self.good is None:
            where = f"the beginning of the history of {app}"
            hint = "give --good a later moment, or a predicate that was not true from the start"
        elif not self.left and before.ordered() and (earlier := ref_of(before.middle())):
            hint = f"try --good {earlier}"
        said = "the predicate returns rows" if judge.predicate.sql else "something is wrong"
        return Refused(f"{said} already at {where}", hint=hint)

    def _said(self, judge: Judge, text: str | None, prefix: Cut) -> str:
        """How messages call an end: by what was typed, unless the search uses another moment; empty for the default."""
        if text is None or self.left or self.asked[text].versions == prefix.versions:
            return text or ""
        return f"{judge.ref(prefix) or 'the beginning'}, the moment of the app's line next to {text}"


def find_ends(
    store: ObjectStore, app: str, predicate: Predicate, good: str | None, bad: str | None, now_ms: int
) -> Ends:
    """The stretch of the app's line between two refs. An end that is no prefix of it is moved to the next one that is.

    Raises:
        Usage: a ref is malformed.
        NotFound: there is no such app or moment.
        Refused: an end is another app's; or `good` is not before `bad`; or the predicate names a table that is retired
            at `bad`.
    """
    for text in (good, bad):
        if text:
            _check_app(app, text, now_ms)
    asked = {text: resolve(store, text, now_ms=now_ms) for text in (good, bad) if text}
    # After the ends, so that they lie on it. What the app commits from now on does not move it.
    line = line_of(store, app)
    asked = {text: with_retired(line, cut) for text, cut in asked.items()}
    limit = horizon.newest(store, app)
    lost = _lost(limit)
    early = asked[good] if good and not _is_whole(line, lost, asked[good]) else None
    late = asked[bad] if bad and not _is_whole(line, lost, asked[bad]) else None
    moments = _moments(app, limit) if limit and lost else ()
    left = _within(moments, good or "", early, late)
    begin = line.beginning()
    high = late or (line.around(asked[bad]) if bad else line.heads)
    low = late or (line.within(asked[good]) if good and not early else begin)
    asks = predicate.channels
    named = frozenset(line.heads.stages) if asks else predicate.tables(line.heads)
    watched = frozenset(owner(table, line.heads.stages) for table in named)
    watched |= {former.stage for name in watched for former in line.heads.stages[name].formerly}
    _check_not_retired(predicate, high, bad or app)
    if lost and not late and not Between(line, begin, low, watched, asks).ordered():
        low = begin  # the prefix within a snapshot may lie where history is not whole
    between = Between(line, low, high, watched, asks)
    is_good_whole = good is not None and not early
    if late and not left and not good:
        raise Refused(
            f"of the history of {app} nothing is left before {bad}: gc thinned it out",
            hint=f"`slackwater log {app}` shows what is left; give a later moment as the bad one",
        )
    if not between.ordered() or (late and (not left or is_good_whole)):
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )
    begins = ref_of(line.last(begin)) if lost and not late and not is_good_whole else ""
    refs = {frozenset(each.versions.items()): each.ref for each in (*left, *moments)}
    return Ends(between, good, bad, asked, begins, () if is_good_whole else left, refs)


def pinned(store: ObjectStore, app: str, ref: str, answer: Answer, now_ms: int) -> str:
    """A ref that always names the moment that a search takes for this one; where that was thinned out, the same ref.

    Raises as `find_ends`.
    """
    _check_app(app, ref, now_ms)
    line = line_of(store, app)
    cut = with_retired(line, resolve(store, ref, now_ms=now_ms))
    if not _is_whole(line, _lost(horizon.newest(store, app)), cut):
        return ref
    return ref_of(line.last(line.within(cut) if answer == "good" else line.around(cut)))


def _check_app(app: str, ref: str, now_ms: int) -> None:
    if (other := parse(ref, now_ms=now_ms).app) != app:
        raise Refused(
            f"{ref} is a moment of app {other!r}; expected one of {app!r}",
            hint=f"did you mean {app}@{ref}" if ref == other else "",
        )


def _lost(limit: horizon.Boundary | None) -> set[str]:
    """The stages of which garbage collection took versions."""
    return {stage for stage, first in (limit.first if limit else {}).items() if first > 1}


def _is_whole(line: Line, lost: set[str], cut: Cut) -> bool:
    """Whether every version of a cut lies where no version was collected."""
    return all(
        cut.stages[stage].version >= line.first(stage) if stage in cut.stages else stage not in lost
        for stage in line.heads.stages
    )


def _moments(app: str, limit: horizon.Boundary) -> tuple[Left, ...]:
    """The moments that are left before the whole history, the oldest first."""
    found: list[Left] = []
    earlier: Mapping[str, int] = {}
    for moment in limit.moments:
        # No earlier moment has this version, so the version names this one.
        new = (stage for stage, version in moment.stages.items() if earlier.get(stage) != version)
        stage, earlier = next(new, next(iter(moment.stages))), moment.stages
        found.append(Left(f"{app}/{stage}@v{moment.stages[stage]}", moment.time_ms, moment.stages))
    return tuple(found)


def _within(moments: Iterable[Left], ref: str, good: Cut | None, bad: Cut | None) -> tuple[Left, ...]:
    """Those from `good` on, which `ref` names, and before `bad`."""
    found = [
        each
        for each in moments
        if (good is None or each.time_ms >= good.time_ms) and (bad is None or each.time_ms < bad.time_ms)
    ]
    if good is not None and (not found or found[0].versions != good.versions):
        found.insert(0, Left(ref, good.time_ms, good.versions))
    return tuple(found)


def _check_not_retired(predicate: Predicate, high: Cut, bad: str) -> None:
    """Raise `Refused` when the predicate names the table of a stage that is retired at the bad end."""
    for stage, last in high.tables.items():
        if last.retired and predicate.names(stage):
            raise Refused(
                f"the predicate names the table {stage}, whose stage is not part of {bad}: it was retired",
                hint=f"search up to a moment that has it: --bad {high.app}/{stage}@v{last.version - 1}",
            )
