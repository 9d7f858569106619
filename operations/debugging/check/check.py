"""Determinism check of a program: runs each version several times in different ways, and reports differences.

All runs except one use a fixed time, so that the clock causes no differences between them. Each run is compared with
the first run. The first difference determines the most likely dependence: randomness, the Python process, the clock,
the order of records, batch boundaries, or state partitions.

If Spark's plan shows that each row is computed from one record by deterministic expressions, the function runs once,
and the rows of each arrangement are picked from its output. Otherwise each batch needs one Spark job.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from ....errors import Corruption, Gone, NotFound, Refused, SlackwaterError
from ....pipeline.batch.rerun import Rerun, numbered_records_frame
from ....pipeline.batch.transform import apply_to_records
from ....pipeline.run.claim import program_of
from ....pipeline.spark.clock import Impurities, find_impurities, stopped_clocks, with_time_literals, workers_stopped_at
from ....pipeline.spark.plans import analysed_plan, hide_record_numbers
from ....pipeline.spark.session import with_settings
from ....pipeline.spark.user_errors import parse_query_error
from ....state.failing import RECORD
from ....store.versions.manifest import Manifest
from ..replay.compare import read_sent_rows
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay
from .arrangements import (
    Arrangement,
    BatchRows,
    RecordOrigins,
    RowIndexes,
    last_partitions_first,
    original_order,
    random_batches,
    reversed_order,
)
from .outcomes import Differences, RunOutcome, committed, compare_outcomes, compute_outcome

_SHUFFLE, _ARROW = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch"
_MIN_PART_RECORDS, _MAX_PARTS = 7, 100


def record_origins(replay: StageReplay) -> dict[str, RecordOrigins]:
    return {name: RecordOrigins(records.partitions, records.versions) for name, records in replay.records.items()}


@dataclass(frozen=True)
class FunctionRunner:
    """Runs the function of one version's stage. Raises `Refused` if the function fails."""

    replay: StageReplay
    times_ms: tuple[int, int]
    """The two times at which the function runs, milliseconds since 1970 UTC."""

    def compute_rows(self, arrangement: Arrangement, at_ms: int) -> tuple[pa.Table, ...]:
        if self._rows_by_record is None:
            return tuple(self._run_batch(batch, at_ms, arrangement) for batch in arrangement.batches)
        numbers = self._rows_by_record[RECORD].to_numpy()
        result = []
        for batch in arrangement.batches:
            rank = np.full(sum(map(len, self._numbers.values())), -1)
            chosen = np.concatenate([self._numbers[name][rows] for name, rows in batch.items()])
            rank[chosen] = np.arange(len(chosen))
            position = rank[numbers]
            order = np.argsort(position, kind="stable")
            result.append(self._rows_by_record.take(pa.array(order[np.searchsorted(position[order], 0) :])))
        return tuple(result)

    @property
    def impurities(self) -> Impurities:
        return self._analysis[0]

    @cached_property
    def _numbers(self) -> dict[str, RowIndexes]:
        ends = np.cumsum([records.rows.num_rows for records in self.replay.records.values()])
        return dict(zip(self.replay.records, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))

    @property
    def _rows_by_record(self) -> pa.Table | None:
        return self._analysis[1]

    @cached_property
    def _analysis(self) -> tuple[Impurities, pa.Table | None]:
        every, (at_ms, later_ms) = original_order(record_origins(self.replay)), self.times_ms
        with self._rerun(every, at_ms) as rerun:
            feeds = [analysed_plan(frame_in) for frame_in in rerun.inputs]
            nondeterministic = find_impurities(rerun.select_needed_columns(rerun.rows), feeds)
            if nondeterministic or rerun.numbered_rows is None:
                return nondeterministic, None
            # Clock and random values that the Python function itself uses are constants in the plan.
            inputs = [hide_record_numbers(frame_in) for frame_in in rerun.inputs]
            plans = []
            for time_ms in (at_ms, later_ms):
                with stopped_clocks(time_ms):
                    plans.append([analysed_plan(output) for output in apply_to_records(self.replay.stage, inputs)])
            if not all(first.sameResult(second) for first, second in zip(*plans, strict=True)):
                return nondeterministic, None
            with self._translate_errors():
                return nondeterministic, rerun.select_needed_columns(rerun.numbered_rows).toArrow()

    def _run_batch(self, batch: BatchRows, at_ms: int, arrangement: Arrangement) -> pa.Table:
        spark, nondeterministic = self.replay.program.spark, self.impurities
        few = max(_MIN_PART_RECORDS, -(-max(map(len, batch.values())) // _MAX_PARTS))
        with self._rerun(batch, at_ms, few if arrangement.in_small_tasks else None) as rerun, ExitStack() as until_done:
            frame = rerun.select_needed_columns(rerun.rows)
            until_done.enter_context(self._translate_errors())
            settings = {_SHUFFLE: "5", _ARROW: str(few)} if arrangement.in_small_tasks else {_SHUFFLE: "2"}
            until_done.enter_context(with_settings(spark, settings))
            if nondeterministic.python:
                feeds = [analysed_plan(frame_in) for frame_in in rerun.inputs]
                until_done.enter_context(workers_stopped_at(frame, feeds, at_ms, separate=arrangement.in_new_processes))
            return (with_time_literals(frame, at_ms) if nondeterministic.clocks else frame).toArrow()

    @contextmanager
    def _rerun(self, batch: BatchRows, at_ms: int, max_records: int | None = None) -> Iterator[Rerun]:
        replay, size = self.replay, {"batch_rows": max_records} if max_records is not None else {}
        with tempfile.TemporaryDirectory(prefix="slackwater-check-") as folder:
            inputs = [
                numbered_records_frame(
                    replay.program.spark,
                    records.rows.take(pa.array(batch[name])),
                    self._numbers[name][batch[name]],
                    Path(folder) / name,
                    **size,
                )
                for name, records in replay.records.items()
            ]
            with stopped_clocks(at_ms):
                rerun = Rerun(replay.stage, replay.shape, inputs, replay.output)
            yield rerun

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except SlackwaterError:
            raise
        except Exception as error:
            raise parse_query_error(self.replay.after.stage, str(error)) from error


Reason = Literal["random", "process", "clock", "order", "batches", "partitions", "outside"]
"""Dependence of a program on something besides its input; `outside` is any change since the commit."""
_TIME_SHIFT_MS = (397 * 24 * 60 + 13 * 60 + 17) * 60_000 + 23_456
FIRST, COMMITTED = "as it was", "as committed"


@dataclass(frozen=True, slots=True)
class Dependence:
    """Evidence that the program depends on more than its input: two runs of a version with different results."""

    stage: str
    version: int
    reason: Reason
    runs: tuple[str, str]
    different: Differences
    plan: Impurities


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """Result of the determinism check of one version."""

    app: str
    stage: str
    version: int
    records: int
    runs: tuple[str, ...]
    found: tuple[Dependence, ...]

    @property
    def ref(self) -> str:
        return f"{self.app}/{self.stage}@v{self.version}"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A version that could not be replayed, with the reason."""

    ref: str
    why: str


def check(
    program: LoadedProgram, versions: Sequence[Manifest], on_version: Callable[[Manifest], None] = lambda _version: None
) -> Iterator[CheckedVersion | PassedOver]:
    """Check each version for determinism, and yield its result. All versions must be batches.

    `on_version` is called before each check.
    """
    at_ms = max((manifest.time_ms for manifest in versions), default=0)
    now = program_of(program.app)
    for after in versions:
        on_version(after)
        try:
            replay = StageReplay.for_version(program, after)
            yield _VersionCheck(replay, at_ms, compare_committed=not after.is_by_other_program(now)).run()
        except (Corruption, Gone, NotFound, Refused) as error:
            yield PassedOver(f"{after.app}/{after.stage}@v{after.version}", error.message)


@dataclass
class _VersionCheck:
    replay: StageReplay
    at_ms: int
    compare_committed: bool

    def run(self) -> CheckedVersion:
        """Run all arrangements and compare the outcomes. Raises an error if no run of the version is possible."""
        after, first = self.replay.after, self._run_arrangement(self._original_arrangement, self.at_ms)
        dependences: list[Dependence] = []
        titles: list[str] = []
        for reason, title, arrangement, at_ms in self._runs():
            # A dependence on chance or order would show in all later runs as well.
            if dependences and dependences[-1].reason != "clock":
                break
            titles.append(title)
            different = self._differences_from(first, arrangement, at_ms)
            if different:
                dependences.append(self._dependence(reason, (FIRST, title), different))
        if self.compare_committed and not dependences:
            titles.append(COMMITTED)
            original = committed(self.replay, read_sent_rows(self.replay))
            if different := compare_outcomes(self.replay, original, first):
                dependences.append(self._dependence("outside", (COMMITTED, "now"), different))
        return CheckedVersion(
            after.app, after.stage, after.version, self.replay.count, tuple(titles), tuple(dependences)
        )

    def _runs(self) -> Iterator[tuple[Reason, str, Arrangement, int]]:
        replay, first = self.replay, self._original_arrangement
        yield "random", "again", first, self.at_ms
        if any(function.impurities.python for function in self._runners.values()):
            # The run at another time also uses other processes, so the effect of processes is excluded first.
            yield "process", "in other Python processes", replace(first, in_new_processes=True), self.at_ms
        yield "clock", "at another time", first, self.at_ms + _TIME_SHIFT_MS
        every, inputs = first.batches[0], record_origins(replay)
        other = reversed_order(inputs)
        if any(not np.array_equal(rows, every[name]) for name, rows in other.items()):
            yield "order", "in another order", Arrangement((other,), first.partitions), self.at_ms
        anywhere = random_batches(inputs, np.random.default_rng(replay.after.version))
        whole = last_partitions_first(inputs)
        for batches, how in ((anywhere, ""), (whole, ", the last partitions first")):
            if len(batches) > 1 and not self._depends_on_lateness:
                yield "batches", f"in {len(batches)} batches{how}", Arrangement(batches, first.partitions), self.at_ms
        other_partitions = Arrangement(first.batches, 1 if first.partitions > 1 else 4, in_small_tasks=True)
        yield "partitions", "on other partitions", other_partitions, self.at_ms

    @property
    def _depends_on_lateness(self) -> bool:
        state = self.replay.stage.state
        return state is not None and state.in_any_order and self.replay.step.lateness is None

    @cached_property
    def _original_arrangement(self) -> Arrangement:
        table = self.replay.before.table
        return Arrangement((original_order(record_origins(self.replay)),), table.partitions if table is not None else 1)

    @cached_property
    def _runners(self) -> dict[str, FunctionRunner]:
        replay, times_ms = self.replay, (self.at_ms, self.at_ms + _TIME_SHIFT_MS)
        has_own_rows = replay.shape.output_schemas and replay.shape.bound is None
        names = [output.name for output in replay.stage.writes] if has_own_rows else [""]
        return {name: FunctionRunner(replay.for_output(name), times_ms) for name in names}

    def _run_arrangement(self, arrangement: Arrangement, at_ms: int) -> RunOutcome:
        rows = {name: function.compute_rows(arrangement, at_ms) for name, function in self._runners.items()}
        return compute_outcome(self.replay, rows, arrangement.partitions, at_ms)

    def _differences_from(self, first: RunOutcome, arrangement: Arrangement, at_ms: int) -> Differences:
        try:
            return compare_outcomes(self.replay, first, self._run_arrangement(arrangement, at_ms))
        except Refused as error:
            return Differences(failed=error.message)

    def _dependence(self, reason: Reason, runs: tuple[str, str], different: Differences) -> Dependence:
        impurities = [function.impurities for function in self._runners.values()]
        kinds = zip(*((impurity.random, impurity.clocks, impurity.python) for impurity in impurities), strict=True)
        plan = Impurities(*(tuple(dict.fromkeys(chain(*names))) for names in kinds))
        return Dependence(self.replay.after.stage, self.replay.after.version, reason, runs, different, plan)
