"""Range of moments that bisect searches, with cached evaluations of the predicate at these moments.

Moments with equal rows are evaluated once.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import ceil, log2
from types import MappingProxyType

import pyarrow as pa

from ...common import runtime
from ...errors import Gone, NotFound, Refused, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import ttl
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import find_owner, side_manifests
from ..cut.graph import Cut, topological_order
from ..cut.kafka_topics import KafkaTopics
from ..cut.line import Line
from .predicate import AnswerNeeded, Context, ManualPredicate, Predicate, Skip
from .verdict import Answer, Evaluation

PROBES = 2

Skips = Mapping[str, Collection[int]]
"""Skipped versions by stage: the predicate cannot judge the moments that end with these versions."""


@dataclass(frozen=True)
class SearchRange:
    """Search range: the moments of a line after `low`, up to and including `high`.

    Each moment is a prefix of the line and is named by its last commit. If garbage collection deleted versions, the
    range has only the remaining moments.

    Two moments differ if the tables of a stage in `watched` have different content; if, with `watches_channels`, a
    watched stage has consumed or sent up to different offsets; or if a stage has read an input of `watched_inputs` up
    to different offsets. An input is given by its name or by the name of its topic.
    """

    full_line: Line
    low: Cut
    high: Cut
    watched: frozenset[str]
    watches_channels: bool = False
    watched_inputs: frozenset[str] = frozenset()

    @cached_property
    def line(self) -> Line:
        """Part of the line after `low`; the whole line if versions after `low` were collected."""
        return self.full_line.above(self.low) if self.is_gapless else self.full_line

    @cached_property
    def is_gapless(self) -> bool:
        return self.full_line.is_whole(self.low)

    def tables(self, cut: Cut) -> frozenset[str]:
        return self.watched | {table for table in cut.tables if find_owner(table, cut.stages) in self.watched}

    def is_ordered(self) -> bool:
        return all(
            stage in self.high.stages and manifest.version <= self.high.stages[stage].version
            for stage, manifest in self.low.stages.items()
        )

    def num_versions(self, stage: str) -> int:
        return self.high.stages[stage].version - self.low_version(stage)

    def differing_stages(self) -> tuple[str, ...]:
        """Return the watched stages whose tables may differ between `low` and `high`, upstream first."""
        return tuple(
            stage
            for stage in topological_order(self.high.stages)
            if stage in self.watched and self._stage_content(self.low, stage) != self._stage_content(self.high, stage)
        )

    def evaluations_left(self) -> int:
        """Return the maximum number of evaluations that the search still needs if no moment is skipped."""
        if not self.is_gapless:
            return len(self.full_line.kept_between(self.low, self.high)).bit_length()
        differing = self.differing_stages()
        longest = max((self.num_versions(stage) for stage in differing), default=1)
        return ceil(log2(max(longest, 1))) + ceil(log2(max(len(differing), 1)))

    def content_fingerprint(self, cut: Cut) -> tuple[frozenset[object], ...]:
        """Return a fingerprint of the watched tables at a cut. Equal fingerprints imply equal rows."""
        return tuple(self._stage_content(cut, stage) for stage in sorted(self.watched))

    def middle(self, skips: Skips = MappingProxyType({})) -> Cut | None:
        """Return the moment to evaluate next, which halves the range; None if all moments were evaluated or skipped.

        Considers the versions of each watched stage between `low` and `high`, and chooses the longest range without a
        skipped version. Ranges next to an evaluated moment come first. Returns the moment that ends with the middle
        version of the chosen range. If no watched stage has such a range any more, the candidates are the last commits
        of the watched stages, in the order of the line; returns the moment that ends with the middle candidate.
        """
        if not self.is_gapless:
            moments = self.full_line.kept_between(self.low, self.high)
            inside = [moment for moment in moments if moment.version not in skips.get(moment.stage, ())]
            return self.full_line.cut_of_moment(inside[len(inside) // 2]) if inside else None
        differing = self.differing_stages()
        gaps = [gap for stage in differing for gap in self._unskipped_ranges(stage, skips.get(stage, ()))]
        if gaps:
            _, length, low, stage = max(gaps, key=lambda gap: gap[:2])
            return self.line.prefix_up_to(self.line.read(stage, low + length // 2))
        commits = sorted((self.high.stages[stage] for stage in differing), key=self.line.sort_key)
        half = (len(commits) - 1) // 2
        candidates = [commit for commit in commits[:-1] if commit.version not in skips.get(commit.stage, ())]
        nearest = min(candidates, key=lambda commit: abs(commits.index(commit) - half), default=None)
        return self.line.prefix_up_to(nearest) if nearest is not None else None

    def _unskipped_ranges(self, stage: str, skipped: Collection[int]) -> Iterator[tuple[bool, int, int, str]]:
        """Yield the stage's ranges without skipped versions: (True if an end was evaluated, length, start, stage)."""
        low, high = self.low_version(stage), self.high.stages[stage].version
        bounds = (low, *sorted(version for version in skipped if low < version < high), high)
        for start, end in pairwise(bounds):
            if end - start > 1:
                yield start == low not in skipped or end == high, end - start, start, stage

    def only_commit(self) -> Manifest | None:
        stages = self.differing_stages()[:1] if self.is_gapless else ()
        return next((self.high.stages[stage] for stage in stages if self.num_versions(stage) <= 1), None)

    def low_version(self, stage: str) -> int:
        """Return the stage's version in `low`; if the stage is missing, the number before its first version."""
        return self.low.stages[stage].version if stage in self.low.stages else self.full_line.first_version(stage) - 1

    def _stage_content(self, cut: Cut, stage: str) -> frozenset[object]:
        """Return the SSTs and schema of a stage's tables, and the watched offsets of the stage.

        Equal results mean equal rows. The rows may be equal even if the results differ, for example after a compaction.
        """
        if stage not in cut.stages:
            return frozenset()
        manifest = cut.stages[stage]
        content: set[object] = {ttl.visible_rows_key(sst, manifest.clock_ms) for sst in manifest.ssts}
        content |= {sst.object for side_manifest in side_manifests(manifest) for sst in side_manifest.ssts}
        if manifest.table is not None and manifest.table.schema:
            content.add(manifest.table.schema)
        content |= {
            (name, read.offsets)
            for name, read in manifest.inputs.items()
            if self.watches_channels or not self.watched_inputs.isdisjoint((name, read.topic))
        }
        if self.watches_channels:
            content |= {(name, written.ends) for name, written in manifest.outputs.items()}
        return frozenset(content)


def line_position(prefix: Cut) -> int:
    return sum(prefix.versions.values())


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates a predicate at moments of a range, and caches the answers."""

    store: ObjectStore
    cache: SstCache
    predicate: Predicate
    search_range: SearchRange
    on_step: Callable[[Evaluation], None] | None
    reader: KafkaTopics | None
    evaluated: dict[tuple[frozenset[object], ...], Evaluation] = field(default_factory=dict)
    """Evaluations by content fingerprint, in the order of evaluation."""
    missing_column_errors: dict[object, str] = field(default_factory=dict)
    """Errors of evaluations that failed for a missing column, by the tables' columns at that moment."""
    working_columns: set[object] = field(default_factory=set)
    """Columns of the tables in each successful evaluation."""

    def evaluate(self, cut: Cut, remaining: int) -> Evaluation:
        """Return the evaluation of the predicate at a cut, from the cache if possible.

        `remaining` is the estimated number of later evaluations. The first evaluation is at the bad end; an error of
        the predicate is raised. In later evaluations, an error results in the answer `skip`.
        """
        content = self.search_range.content_fingerprint(cut)
        if content in self.evaluated:
            return self.evaluated[content]
        # Columns of the tables that the predicate depends on.
        tables = (
            cut.tables[name].table if name in cut.tables else None for name in sorted(self.search_range.tables(cut))
        )
        columns = tuple((table.key, table.values) if table else None for table in tables)
        if (why := self.missing_column_errors.get(columns)) is not None:
            return Evaluation(0, 0, self.ref(cut), cut, "skip", why=why, is_column_missing=True)
        started, number = runtime.monotonic(), len(self.evaluated) + 1
        try:
            answer, why, lacks = self._ask_predicate(cut)
        except AnswerNeeded:
            raise AnswerNeeded(cut, self.ref(cut), remaining) from None
        # The predicate has worked with these columns before, so the error has another reason than a missing column.
        lacks = lacks and columns not in self.working_columns
        took_ms = round((runtime.monotonic() - started) * 1000)
        # The total never shrinks, even if fewer evaluations remain than expected.
        total = max(number + remaining, *(step.total for step in self.evaluated.values()), 0)
        step = Evaluation(number, total, self.ref(cut), cut, answer, why=why, took_ms=took_ms, is_column_missing=lacks)
        self.evaluated[content] = step
        if lacks:
            self.missing_column_errors[columns] = why
        elif answer != "skip":
            self.working_columns.add(columns)
        if self.on_step is not None:
            self.on_step(step)
        return step

    @property
    def max_probes(self) -> int:
        return 0 if isinstance(self.predicate, ManualPredicate) else 2 * PROBES

    def add_answer(self, cut: Cut, answer: Answer) -> None:
        """Add a known answer. Raises `Refused` if a moment with equal rows has a different answer."""
        step = Evaluation(len(self.evaluated) + 1, 0, self.ref(cut), cut, answer, is_given=True)
        previous = self.evaluated.setdefault(self.search_range.content_fingerprint(cut), step)
        if previous.answer != answer:
            raise Refused(
                f"{step.ref} is {answer}, but {previous.ref}, whose tables hold the same rows, was {previous.answer}",
                hint=f"correct the answers in the output of `slackwater bisect log {cut.app}`, and replay them with "
                "`bisect replay`",
            )

    def wrong_rows(self, cut: Cut, max_rows: int) -> pa.Table:
        later = self.search_range.full_line.heads.stages
        cut = cut.with_renamed_stages(later)
        at = Context(self.store, self.cache, cut, later, self.search_range.tables(cut), self.reader, self.ref(cut))
        return self.predicate.rows(at, max_rows)

    def ref(self, cut: Cut) -> str:
        return self.search_range.full_line.ref(cut)

    def _ask_predicate(self, cut: Cut) -> tuple[Answer, str, bool]:
        is_first = all(step.is_given and not step.bad for step in self.evaluated.values())
        try:
            rows = self.wrong_rows(cut, 1)
            # If the user's code decides, the row has the reason.
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
