"""Selection of a few historical records that reach each branch of a program, and of the tests that use them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import Refused, SlackwaterError
from ...state.failing import minimize_failing
from .branches import Branch
from .files import LearnedTest, expected_rows, write_tests
from .history import sample_records
from .masking import RecordMask, mask_records
from .runs import Observed, ProgramRuns, TopicRecord

if TYPE_CHECKING:
    from ...client.app import StoredApp

_Outcomes = frozenset[Branch | str]
_MAX_MASKING_RUNS = 40
"""Maximum number of runs for masking additional fields."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Learned:
    """Tests that were learned from a history."""

    app: str
    file: Path
    tests: tuple[LearnedTest, ...]
    reached: frozenset[Branch]
    """Branches that the tests reach."""
    unreached: tuple[Branch, ...]
    """Branches that no record of the sample reached, by line."""
    sampled: int
    """Number of tried records."""
    shown: tuple[str, ...]
    """Unmasked fields, because the program's branches depend on their values."""
    runs: int


def learn_tests(
    app: StoredApp,
    code: str | Path,
    out: str | Path = "tests/learned",
    *,
    records: int = 200,
    show_values: bool = False,
    max_runs: int = 40,
    on_progress: Progress = lambda _doing: None,
) -> Learned:
    """Write a pytest file with a few historical records that reach each branch of a program, and the resulting rows.

    Args:
        app: the app whose history has the records.
        code: the program's file.
        out: folder of the test file `test_APP.py`, which is overwritten.
        records: number of records of each topic to try, from several parts of the history; also the number of rejected
            records.
        show_values: True to keep the original values, instead of pseudonyms.
        max_runs: maximum number of runs to reduce the records, and to find records for separate tests.
        on_progress: called with a line about the current step.

    Raises:
        NotFound: There is no such file.
        Refused: No record can be read, the program fails on the records, or a second run gives other rows; or a record
            is not text, and `show_values` is false.
    """
    file = Path(code).resolve()
    with tempfile.TemporaryDirectory(prefix="slackwater-learn-", ignore_cleanup_errors=True) as folder:
        runs = ProgramRuns(file, app.name, Path(folder))
        sample = sample_records(app, records)
        choice = _Choice(runs, max_runs, on_progress)
        wanted = choice.stable_outcomes(sample)
        few = choice.minimal(sample, wanted)
        mask = RecordMask()
        if not show_values:
            unmasked = f"slackwater learn-tests {app.called} --code {file} --show-values"
            few, mask = choice.masked(few, wanted, f"{unmasked} writes values as they are")
        tests = choice.tests(few)
        path = Path(out) / f"test_{app.name.replace('-', '_')}.py"
        write_tests(path, app.called, file, tests, _hidden(mask, show_values=show_values))
    reached = frozenset[Branch]().union(*(test.branches for test in tests))
    unreached = tuple(sorted(runs.instrumented.branches - reached))
    shown = tuple(sorted({*mask.kept} & mask.fields.keys()))
    return Learned(app.called, path, tests, reached, unreached, len(sample), shown, runs.num_runs)


def _hidden(mask: RecordMask, *, show_values: bool) -> str:
    if show_values:
        return "Values are those of the records."
    # Names of fields come from records.
    kept = ", ".join(map(repr, sorted({*mask.kept} & mask.fields.keys())))
    but = f", except for {kept}, on which branches depend" if kept else ""
    return (
        f"Texts and numbers are pseudonyms{but}. Names of fields, single characters and digits, and times are those of "
        "the records."
    )


@dataclass
class _Choice:
    """Selection of records by the outcomes of their runs. Caches outcomes."""

    runs: ProgramRuns
    max_runs: int
    progress: Progress
    _known: dict[tuple[int, ...], tuple[Sequence[TopicRecord], _Outcomes]] = field(default_factory=dict)
    """Outcomes by the identities of the records.

    The records are kept, so that no other records get these identities.
    """

    def outcomes(self, records: Sequence[TopicRecord]) -> _Outcomes:
        """Return the branches that the records reach together, and their other effects."""
        key = tuple(map(id, records))
        if key not in self._known:
            self._known[key] = records, self._observe(records).outcomes
        return self._known[key][1]

    def _observe(self, records: Sequence[TopicRecord]) -> Observed:
        self.progress(f"run {self.runs.num_runs + 1}, of {len(records):,} records")
        return self.runs.observe(records)

    def stable_outcomes(self, records: Sequence[TopicRecord]) -> _Outcomes:
        """Return the outcomes of two runs: an outcome may depend on which of two stages is faster."""
        return self.outcomes(records) & self._observe(records).outcomes

    def minimal(self, sample: Sequence[TopicRecord], wanted: _Outcomes) -> Sequence[TopicRecord]:
        """Return a small subset of records that has the wanted outcomes."""
        return minimize_failing(sample, lambda some: self._has_outcomes(some, wanted), max_tries=self.max_runs)[0]

    def masked(
        self, records: Sequence[TopicRecord], wanted: _Outcomes, instead: str
    ) -> tuple[Sequence[TopicRecord], RecordMask]:
        """Return records with values masked, except for fields on which wanted outcomes depend; and the mask."""
        return mask_records(
            records, lambda some: self._has_outcomes(some, wanted), max_tries=_MAX_MASKING_RUNS, instead=instead
        )

    def _has_outcomes(self, records: Sequence[TopicRecord], wanted: _Outcomes) -> bool:
        try:
            return wanted <= self.outcomes(records)
        except SlackwaterError:
            return False

    def tests(self, few: Sequence[TopicRecord]) -> tuple[LearnedTest, ...]:
        """Return a test of all records, and a test of each single record with other outcomes, smallest test first."""
        single = [[record] for record in few[: self.max_runs]] if len(few) > 1 else []
        tests, seen = list[LearnedTest](), set[_Outcomes]()
        for group in (*single, few):
            observed = self._observe(group)
            if observed.outcomes in seen and group is not few:
                continue
            seen.add(observed.outcomes)
            rows = expected_rows(self.runs.run(group))
            # Conditions that report their outcomes are the same conditions.
            if rows != expected_rows(observed.ran):
                raise Refused(
                    f"{self.runs.file.name} gives other rows when it runs again on the same records",
                    hint=f"slackwater check {self.runs.file.name} finds the cause",
                )
            tests.append(LearnedTest(tuple(group), observed.branches, observed.effects, rows))
        return tuple(sorted(tests, key=lambda test: len(test.records)))
