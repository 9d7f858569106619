"""What lies on an app's line between two moments: what a binary search over it needs.

The evaluator asks the predicate at such moments: none twice, and none whose tables hold the same rows as another.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import ceil, log2
from types import MappingProxyType

import pyarrow as pa

from ...errors import Gone, NotFound, Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import ttl
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import owner, side_manifests
from ..cut.graph import Cut, order
from ..cut.kafka_topics import Topics
from ..cut.line import Line
from .predicate import ByHand, Context, Predicate, Skip, Wanted
from .verdict import Answer, Evaluation

PROBES = 2
"""Moments looked at after the search on each side, for a history that was bad, then good, then bad again."""

Skips = Mapping[str, Collection[int]]
"""By stage, the versions that name moments which the predicate cannot judge."""


@dataclass(frozen=True)
class Between:
    """The moments of a line after `low`, up to and with `high`.

    These are the prefixes that end with a commit in between; where versions were collected, those that are left.

    Of the tables of the stages in `watched` only, contents count; those of others may differ. With `channels`, so does
    how far they have read and written.
    """

    whole: Line
    low: Cut
    high: Cut
    watched: frozenset[str]
    channels: bool = False

    @cached_property
    def line(self) -> Line:
        """The line, to be asked for what lies in between."""
        return self.whole.above(self.low) if self.is_whole else self.whole

    @cached_property
    def is_whole(self) -> bool:
        """Whether every version in between is there."""
        return self.whole.is_whole(self.low)

    def tables(self, cut: Cut) -> frozenset[str]:
        """The tables of the watched stages: their own, also where a cut does not have them, and those beside them."""
        return self.watched | {table for table in cut.tables if owner(table, cut.stages) in self.watched}

    def ordered(self) -> bool:
        """Whether `low` is nowhere later than `high`."""
        return all(
            stage in self.high.stages and manifest.version <= self.high.stages[stage].version
            for stage, manifest in self.low.stages.items()
        )

    def length(self, stage: str) -> int:
        """Number of the stage's versions in this stretch."""
        return self.high.stages[stage].version - self.lowest(stage)

    def differing(self) -> tuple[str, ...]:
        """The watched stages whose table may hold other rows in `high` than in `low`, upstream first."""
        return tuple(
            stage
            for stage in order(self.high.stages)
            if stage in self.watched and self._content(self.low, stage) != self._content(self.high, stage)
        )

    def evaluations_left(self) -> int:
        """How many evaluations narrow a search down from here, at most, if each moment can be judged."""
        if not self.is_whole:
            return len(self.whole.left_between(self.low, self.high)).bit_length()
        differing = self.differing()
        longest = max((self.length(stage) for stage in differing), default=1)
        return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1)))

    def content(self, cut: Cut) -> tuple[frozenset[object], ...]:
        """What decides the predicate at a cut: the same content, the same answer."""
        return tuple(self._content(cut, stage) for stage in sorted(self.watched))

    def middle(self, skips: Skips = MappingProxyType({})) -> Cut | None:
        """A moment strictly between; None when at most one commit of a watched table is left, or no other moment.

        The longest stretch of a watched table's versions is halved. Where each of them is a single version, it is the
        middle one of these. None of `skips` is given: where they are on all sides, the stretches beside them are
        halved, those that end with a moment that could be judged first.
        """
        if not self.is_whole:
            kept = self.whole.left_between(self.low, self.high)
            inside = [each for each in kept if each.version not in skips.get(each.stage, ())]
            return self.whole.at(inside[len(inside) // 2]) if inside else None
        differing = self.differing()
        gaps = [gap for stage in differing for gap in self._gaps(stage, skips.get(stage, ()))]
        if gaps:
            _, length, low, stage = max(gaps, key=lambda gap: gap[:2])
            return self.line.up_to(self.line.read(stage, low + length // 2))
        left = sorted((self.high.stages[stage] for stage in differing), key=self.line.place)
        half = (len(left) - 1) // 2
        others = [each for each in left[:-1] if each.version not in skips.get(each.stage, ())]
        nearest = min(others, key=lambda each: abs(left.index(each) - half), default=None)
        return self.line.up_to(nearest) if nearest is not None else None

    def _gaps(self, stage: str, skipped: Collection[int]) -> Iterator[tuple[bool, int, int, str]]:
        """Where versions of a stage lie between skips: whether an end was judged, how many, and behind which."""
        low, high = self.lowest(stage), self.high.stages[stage].version
        places = (low, *sorted(version for version in skipped if low < version < high), high)
        for at, to in pairwise(places):
            if to - at > 1:
                yield at == low not in skipped or to == high, to - at, at, stage

    def only(self) -> Manifest | None:
        """When `middle` is None, the one commit of a watched table that is left; None without any, or with several."""
        left = self.differing()[:1] if self.is_whole else ()
        return next((self.high.stages[stage] for stage in left if self.length(stage) <= 1), None)

    def lowest(self, stage: str) -> int:
        """The stage's version in `low`; when it has none there, the number before its first."""
        return self.low.stages[stage].version if stage in self.low.stages else self.whole.first(stage) - 1

    def _content(self, cut: Cut, stage: str) -> frozenset[object]:
        """The SSTs of a stage's tables: the same ones hold the same rows, but for those expired since.

        Compaction replaces them, too. A migration shows the same rows in other columns.
        """
        if stage not in cut.stages:
            return frozenset()
        manifest = cut.stages[stage]
        content: set[object] = {ttl.shown_rows(sst, manifest.clock_ms) for sst in manifest.ssts}
        content |= {sst.object for each in side_manifests(manifest) for sst in each.ssts}
        if manifest.table is not None and manifest.table.schema:
            content.add(manifest.table.schema)
        if self.channels:
            content |= {(name, read.offsets) for name, read in manifest.inputs.items()}
            content |= {(name, written.ends) for name, written in manifest.outputs.items()}
        return frozenset(content)


def length(prefix: Cut) -> int:
    """What grows from each moment of a line to the next: of two prefixes the longer holds the other."""
    return sum(prefix.versions.values())


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Says of moments whether they are good, bad or neither, and remembers it."""

    store: ObjectStore
    cache: SstCache
    predicate: Predicate
    between: Between
    """The stretch that is searched; says what decides the predicate."""
    on_step: Callable[[Evaluation], None] | None
    reader: Topics | None
    """Reads records in flight."""
    evaluated: dict[tuple[frozenset[object], ...], Evaluation] = field(default_factory=dict)
    """The answers, in their order, by what decides them."""
    lacking: dict[object, str] = field(default_factory=dict)
    """What the predicate names and tables of these columns do not have."""
    able: set[object] = field(default_factory=set)
    """With tables of these columns it could be judged."""

    def at(self, cut: Cut, to_come: int) -> Evaluation:
        """The answer at a moment; `to_come` is how many will follow, as far as one can tell.

        Where the predicate fails, that is a skip: but for the first moment of all, the bad end, where it must work.
        """
        content = self.between.content(cut)
        if content in self.evaluated:
            return self.evaluated[content]
        # What the tables that decide the predicate look like.
        tables = (cut.tables[name].table if name in cut.tables else None for name in sorted(self.between.tables(cut)))
        columns = tuple((table.key, table.values) if table else None for table in tables)
        if (why := self.lacking.get(columns)) is not None:
            return Evaluation(0, 0, self.ref(cut), cut, "skip", why=why, lacks=True)
        started, number = time.perf_counter(), len(self.evaluated) + 1
        try:
            answer, why, lacks = self._ask(cut)
        except Wanted:
            raise Wanted(cut, self.ref(cut), to_come) from None
        # Where the same columns were enough once, it lacks something else.
        lacks = lacks and columns not in self.able
        took_ms = round((time.perf_counter() - started) * 1000)
        # One total for all: what comes less than was to be expected does not make it smaller.
        total = max(number + to_come, *(step.total for step in self.evaluated.values()), 0)
        step = Evaluation(number, total, self.ref(cut), cut, answer, why=why, took_ms=took_ms, lacks=lacks)
        self.evaluated[content] = step
        if lacks:
            self.lacking[columns] = why
        elif answer != "skip":
            self.able.add(columns)
        if self.on_step is not None:
            self.on_step(step)
        return step

    @property
    def most_probes(self) -> int:
        """How many moments are looked at after the search, at most: none by somebody who looks at them by hand."""
        return 0 if isinstance(self.predicate, ByHand) else 2 * PROBES

    def know(self, cut: Cut, answer: Answer) -> None:
        """Take an answer for given. Raises `Refused` when another one was given for the same rows."""
        step = Evaluation(len(self.evaluated) + 1, 0, self.ref(cut), cut, answer, given=True)
        same = self.evaluated.setdefault(self.between.content(cut), step)
        if same.answer != answer:
            raise Refused(
                f"{step.ref} is {answer}, and {same.ref}, whose tables hold the same rows, was {same.answer}",
                hint=f"`slackwater bisect log {cut.app}` shows what was said; `bisect replay` takes it corrected",
            )

    def rows(self, cut: Cut, max_rows: int) -> pa.Table:
        """What is wrong at a cut. Tables without a version yet are empty. Raises as `Predicate.rows`.

        A table that had another name then is there under both.
        """
        later = self.between.whole.heads.stages
        cut = cut.under_names_of(later)
        at = Context(self.store, self.cache, cut, later, self.between.tables(cut), self.reader, self.ref(cut))
        return self.predicate.rows(at, max_rows)

    def ref(self, cut: Cut) -> str:
        """A ref to a moment, empty for the one before the first commit."""
        return self.between.whole.ref(cut)

    def _ask(self, cut: Cut) -> tuple[Answer, str, bool]:
        """The answer, why it is that, and whether it is a skip for want of a table or column."""
        is_first = all(step.given and not step.bad for step in self.evaluated.values())
        try:
            rows = self.rows(cut, 1)
            # Of code, the row says what it found wrong.
            why = str(rows.column(0)[0]) if rows.num_rows and not self.predicate.sql else ""
            return ("bad" if rows.num_rows else "good"), why, False
        except Skip as error:
            if is_first and error.lacks:
                raise Usage(f"{self.predicate.text}: {error}") from error
            return "skip", str(error), error.lacks
        except NotFound as error:
            if is_first or error.what not in ("table", "column"):
                raise
            return "skip", error.sentence, True
        except (Usage, Gone) as error:
            if is_first:
                raise
            return "skip", error.sentence, False
