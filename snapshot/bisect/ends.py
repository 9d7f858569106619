"""The two ends of a search: from refs to prefixes of the app's line, and whether they can be the ends of one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import Refused
from ...store.objects.protocol import ObjectStore
from ...store.versions import horizon
from ..cut.graph import Cut
from ..cut.line import Line
from ..cut.moments import line_of, with_retired
from ..cut.refs import parse
from ..cut.resolve import resolve
from .judge import Judge, ref_of
from .lattice import Between
from .predicate import Predicate


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a search begins and ends."""

    between: Between
    """The commits between the ends."""
    good: str | None
    """The ref that was given, None for the beginning."""
    bad: str | None
    """The ref that was given, None for now."""
    asked: Mapping[str, Cut]
    """What these resolve to."""
    begins: str
    """The ref from which on is searched, where older history was thinned out."""

    def check(self, judge: Judge, to_come: int) -> None:
        """Raise `Refused` unless the ends are good and bad. `to_come` as of `Judge.judge`."""
        low, high, app = self.between.low, self.between.high, self.between.high.app
        if not judge.is_bad(high, 1 + to_come):
            raise Refused(
                f"the predicate returns no rows at {self._said(self.bad, high) or f'{app}@now'}: "
                "nothing is wrong there",
                hint="give --bad a moment at which it returns rows; `slackwater query` shows what it returns",
            )
        if not judge.is_bad(low, to_come):
            return
        where, hint = f"{self._said(self.good, low)}: it is not good there", "leave --good away to search all of it"
        before = replace(self.between, low=self.between.whole.beginning(), high=low)
        if self.begins:
            where = f"{self.begins}: before that, the history of {app} was thinned out"
            hint = (
                "`slackwater query` tells at which of the moments that are left it returned none; "
                "the search goes from a later --good only"
            )
        elif self.good is None:
            where = f"the beginning of the history of {app}"
            hint = "give --good a later moment, or a predicate that was not true from the start"
        elif before.ordered() and (earlier := ref_of(before.middle())):
            hint = f"try --good {earlier}"
        raise Refused(f"the predicate returns rows already at {where}", hint=hint)

    def _said(self, text: str | None, prefix: Cut) -> str:
        """How messages call an end: by what was typed, unless the search uses another moment; empty for the default."""
        if text is None or self.asked[text].versions == prefix.versions:
            return text or ""
        ref = ref_of(self.between.whole.last(prefix)) or "the beginning"
        return f"{ref}, the moment of the app's line next to {text}"


def find_ends(
    store: ObjectStore, app: str, predicate: Predicate, good: str | None, bad: str | None, now_ms: int
) -> Ends:
    """The stretch of the app's line between two refs. An end that is no prefix of it is moved to the next one that is.

    Raises:
        Usage: a ref is malformed.
        NotFound: there is no such app or moment.
        Refused: an end is another app's, or lies where history was thinned out; or `good` is not before `bad`; or the
            predicate names a table that is retired at `bad`.
    """
    for text in (good, bad):
        if text and (other := parse(text, now_ms=now_ms).app) != app:
            raise Refused(
                f"{text} is a moment of app {other!r}; expected one of {app!r}",
                hint=f"did you mean {app}@{text}" if text == other else "",
            )
    asked = {text: resolve(store, text, now_ms=now_ms) for text in (good, bad) if text}
    # After the ends, so that they lie on it. What the app commits from now on does not move it.
    line = line_of(store, app)
    asked = {text: with_retired(line, cut) for text, cut in asked.items()}
    thinned = _thinned(store, line, asked)
    begin = line.beginning()
    low = line.within(asked[good]) if good else begin
    high = line.around(asked[bad]) if bad else line.heads
    asks = predicate.channels
    watched = frozenset(line.heads.stages) if asks else predicate.tables(line.heads)
    _check_not_retired(predicate, high, bad or app)
    if thinned and not Between(line, begin, low, watched, asks).ordered():
        low = begin  # the prefix within a snapshot may lie where history is not whole
    between = Between(line, low, high, watched, asks)
    if not between.ordered():
        raise Refused(
            f"the good moment {good or f'(the beginning of {app})'} is not before the bad one, {bad or app}",
            hint="good must be the earlier of the two",
        )
    return Ends(between, good, bad, asked, ref_of(line.last(low)) if thinned and not good else "")


def _thinned(store: ObjectStore, line: Line, asked: Mapping[str, Cut]) -> bool:
    """Whether garbage collection took some of the app's history; raises `Refused` for an end that lies there."""
    limit = horizon.newest(store, line.heads.app)
    lost = [stage for stage, first in (limit.first if limit else {}).items() if first > 1]
    for ref, cut in asked.items():
        for stage in line.heads.stages:
            first, at = line.first(stage), cut.stages.get(stage)
            if (at is None and stage in lost) or (at is not None and at.version < first):
                left = f"{stage}@v{at.version} is left, but from there" if at else f"of {stage} nothing is left, and"
                raise Refused(
                    f"{ref} lies where the history of {cut.app} was thinned out: {left} "
                    f"to v{first} versions were collected, and the search needs them all",
                    hint=f"choose moments from {cut.app}/{stage}@v{first} on; leave --good away to search all of those",
                )
    return bool(lost)


def _check_not_retired(predicate: Predicate, high: Cut, bad: str) -> None:
    """Raise `Refused` when the predicate names the table of a stage that is retired at the bad end."""
    for stage, last in high.tables.items():
        if last.retired and predicate.names(stage):
            raise Refused(
                f"the predicate names the table {stage}, whose stage is not part of {bad}: it was retired",
                hint=f"search up to a moment that has it: --bad {high.app}/{stage}@v{last.version - 1}",
            )
