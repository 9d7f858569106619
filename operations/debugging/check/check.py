"""Is the program a function of its input? Each version is run again in several ways, and what differs is named.

All runs but one are at one time, so that a clock makes no difference between them, and each is compared with the first.
The first way that differs says what the program most likely depends on: it differs though nothing was another; only by
the Python process; only by the clock; only by order; only by where batches end; or only by partitions.

Where the plan shows that each row is made of one record by Spark's own deterministic expressions, the function runs
once, and each arrangement's rows are picked out of what it made. Else it is one Spark job for each batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from ....errors import Corruption, Gone, NotFound, Refused, SlackwaterError
from ....pipeline.batch.rerun import Rerun, records_of
from ....pipeline.batch.transform import over
from ....pipeline.run.claim import program_of
from ....pipeline.spark.clock import Impurities, at_time, impurities, stopped, workers_at
from ....pipeline.spark.plans import hidden, plan_of
from ....pipeline.spark.session import with_settings
from ....pipeline.spark.user_errors import translate
from ....state.failing import RECORD
from ....store.versions.manifest import Manifest
from ..replay.compare import sent_rows
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay
from .arrangements import Arrangement, Batch, Came, Rows, as_read, in_another_order, in_batches, last_first
from .differences import Differences, differences
from .outcomes import RunOutcome, committed, outcome

_SHUFFLE, _ARROW = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch"
_FEW, _MOST_PARTS = 7, 100
"""Where Spark has records apart, how many are together at least, and in how many parts they are at most."""


def came(replay: StageReplay) -> dict[str, Came]:
    """Where the records of a version come from, by input. Raises as reading them does."""
    return {name: Came(records.partitions, records.versions) for name, records in replay.records.items()}


@dataclass(frozen=True)
class FunctionRows:
    """The function of one version's stage. Raises `Refused` where it fails."""

    replay: StageReplay
    times_ms: tuple[int, int]
    """The two times at which it is asked, milliseconds since 1970 UTC."""

    def of(self, arrangement: Arrangement, at_ms: int) -> tuple[pa.Table, ...]:
        """What it makes of each batch."""
        if self._plain is None:
            return tuple(self._made(batch, at_ms, arrangement) for batch in arrangement.batches)
        numbers = self._plain[RECORD].to_numpy()
        found = []
        for batch in arrangement.batches:
            rank = np.full(sum(map(len, self._numbers.values())), -1)
            chosen = np.concatenate([self._numbers[name][rows] for name, rows in batch.items()])
            rank[chosen] = np.arange(len(chosen))
            place = rank[numbers]
            order = np.argsort(place, kind="stable")
            found.append(self._plain.take(pa.array(order[np.searchsorted(place[order], 0) :])))
        return tuple(found)

    @cached_property
    def impurities(self) -> Impurities:
        """What its plan has that may give another value for the same record."""
        return self._looked_at[0]

    @cached_property
    def _numbers(self) -> dict[str, Rows]:
        """By input, the number of each of its records: in the order in which they were read."""
        counts = [records.rows.num_rows for records in self.replay.records.values()]
        ends = np.cumsum([0, *counts])
        return {
            name: np.arange(first, first + count)
            for name, first, count in zip(self.replay.records, ends.tolist(), counts, strict=False)
        }

    @property
    def _plain(self) -> pa.Table | None:
        """Its rows of all records, each with its record's number, where nothing else goes into them."""
        return self._looked_at[1]

    @cached_property
    def _looked_at(self) -> tuple[Impurities, pa.Table | None]:
        every, (at_ms, other_ms) = as_read(came(self.replay)), self.times_ms
        with self._rerun(every, at_ms) as rerun:
            frame, feeds = rerun.needed(rerun.rows), [plan_of(each) for each in rerun.inputs]
            found = impurities(frame, feeds)
            if found or rerun.numbered is None:
                return found, None
            # What the function itself takes from a clock, or draws, stands in the plan as it came.
            shown = [hidden(each) for each in rerun.inputs]
            plans = []
            for time_ms in (at_ms, other_ms):
                with stopped(time_ms):
                    plans.append([plan_of(each) for each in over(self.replay.stage, shown)])
            if not all(one.sameResult(other) for one, other in zip(*plans, strict=True)):
                return found, None
            with self._calling():
                return found, rerun.needed(rerun.numbered).toArrow()

    def _made(self, batch: Batch, at_ms: int, how: Arrangement) -> pa.Table:
        spark, found = self.replay.program.spark, self.impurities
        few = max(_FEW, -(-max(map(len, batch.values())) // _MOST_PARTS))
        with self._rerun(batch, at_ms, few if how.apart else None) as rerun, ExitStack() as until_done:
            frame = rerun.needed(rerun.rows)
            until_done.enter_context(self._calling())
            settings = {_SHUFFLE: "5", _ARROW: str(few)} if how.apart else {_SHUFFLE: "2"}
            until_done.enter_context(with_settings(spark, settings))
            if found.python:
                feeds = [plan_of(each) for each in rerun.inputs]
                until_done.enter_context(workers_at(frame, feeds, at_ms, separate=how.elsewhere))
            return (at_time(frame, at_ms) if found.clocks else frame).toArrow()

    @contextmanager
    def _rerun(self, batch: Batch, at_ms: int, few: int | None = None) -> Iterator[Rerun]:
        """The function over a batch's records; with `few`, no more than so many are together."""
        replay, size = self.replay, {"batch_rows": few} if few is not None else {}
        with tempfile.TemporaryDirectory(prefix="slackwater-check-") as folder:
            inputs = [
                records_of(
                    replay.program.spark,
                    records.rows.take(pa.array(batch[name])),
                    self._numbers[name][batch[name]],
                    Path(folder) / name,
                    **size,
                )
                for name, records in replay.records.items()
            ]
            with stopped(at_ms):
                made = Rerun(replay.stage, replay.shape, inputs, replay.output)
            yield made

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except SlackwaterError:
            raise
        except Exception as error:
            raise translate(self.replay.after.stage, str(error)) from error


Reason = Literal["random", "process", "clock", "order", "batches", "partitions", "outside"]
"""What a program most likely depends on beside its input; the last is anything that has changed since it ran."""
_LATER_MS = (397 * 24 * 60 + 13 * 60 + 17) * 60_000 + 23_456
"""How much later the other time is: another year, month, day of the week, hour, minute and second."""
FIRST, COMMITTED = "as it was", "as committed"


@dataclass(frozen=True, slots=True)
class Dependence:
    """Two runs of a version that differ."""

    stage: str
    version: int
    reason: Reason
    runs: tuple[str, str]
    different: Differences
    plan: Impurities
    """What the plan of the stage's function has that may be behind it."""


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """One version that was run again."""

    app: str
    stage: str
    version: int
    records: int
    runs: tuple[str, ...]
    """In which ways, beside the first."""
    found: tuple[Dependence, ...]

    @property
    def ref(self) -> str:
        """A ref to the version."""
        return f"{self.app}/{self.stage}@v{self.version}"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """One version that could not be run again, and why not."""

    ref: str
    why: str


def check(
    program: LoadedProgram, versions: Sequence[Manifest], on_version: Callable[[Manifest], None] = lambda _version: None
) -> Iterator[CheckedVersion | PassedOver]:
    """What was found out about each of these versions, which are those of batches; `on_version` is told before it."""
    at_ms = max((each.time_ms for each in versions), default=0)
    now = program_of(program.app)
    for after in versions:
        on_version(after)
        is_other = now is not None and after.program is not None and now.checksum != after.program.checksum
        try:
            replay = StageReplay.of(program, after)
            yield _Version(replay, at_ms, compare_committed=not is_other).checked()
        except (Corruption, Gone, NotFound, Refused) as error:
            yield PassedOver(f"{after.app}/{after.stage}@v{after.version}", error.message)


@dataclass
class _Version:
    replay: StageReplay
    at_ms: int
    compare_committed: bool

    def checked(self) -> CheckedVersion:
        """What was found. Raises an error that keeps the version from being run at all."""
        after, first = self.replay.after, self._first
        found: list[Dependence] = []
        ran: list[str] = []
        for reason, title, arrangement, at_ms in self._runs():
            # What depends on chance or order shows in the later ways, too.
            if found and found[-1].reason != "clock":
                break
            ran.append(title)
            different = self._different(first, arrangement, at_ms)
            if different:
                found.append(self._found(reason, (FIRST, title), different))
        if self.compare_committed and not found:
            ran.append(COMMITTED)
            then = committed(self.replay, sent_rows(self.replay))
            if different := differences(self.replay, then, first):
                found.append(self._found("outside", (COMMITTED, "now"), different))
        return CheckedVersion(after.app, after.stage, after.version, self.replay.count, tuple(ran), tuple(found))

    def _runs(self) -> Iterator[tuple[Reason, str, Arrangement, int]]:
        """The ways in which it is run again; those that would be the same as another one are left out."""
        replay, first = self.replay, self._as_read
        yield "random", "again", first, self.at_ms
        if any(function.impurities.python for function in self._functions.values()):
            # The other time is in other processes, too: what differs by them alone is not the clock's.
            yield "process", "in other Python processes", replace(first, elsewhere=True), self.at_ms
        yield "clock", "at another time", first, self.at_ms + _LATER_MS
        every, inputs = first.batches[0], came(replay)
        other = in_another_order(inputs)
        if any(not np.array_equal(rows, every[name]) for name, rows in other.items()):
            yield "order", "in another order", Arrangement((other,), first.partitions), self.at_ms
        anywhere, whole = in_batches(inputs, np.random.default_rng(replay.after.version)), last_first(inputs)
        for batches, how in ((anywhere, ""), (whole, ", the last partitions first")):
            if len(batches) > 1 and not self._late_meet:
                yield "batches", f"in {len(batches)} batches{how}", Arrangement(batches, first.partitions), self.at_ms
        partitions = 1 if first.partitions > 1 else 4
        yield "partitions", "on other partitions", Arrangement(first.batches, partitions, apart=True), self.at_ms

    @property
    def _late_meet(self) -> bool:
        """Whether a late row may still find its match, depending on where batches end: the program allows late rows."""
        state = self.replay.stage.state
        return state is not None and state.in_any_order and self.replay.step.lateness is None

    @cached_property
    def _as_read(self) -> Arrangement:
        table = self.replay.before.table
        return Arrangement((as_read(came(self.replay)),), table.partitions if table is not None else 1)

    @cached_property
    def _first(self) -> RunOutcome:
        return self._outcome(self._as_read, self.at_ms)

    @cached_property
    def _functions(self) -> dict[str, FunctionRows]:
        """By output, where each has rows of its own; else that of all, under ""."""
        replay, times_ms = self.replay, (self.at_ms, self.at_ms + _LATER_MS)
        names = [one.name for one in replay.stage.writes] if replay.shape.rows and replay.shape.bound is None else [""]
        return {name: FunctionRows(replay.of_output(name), times_ms) for name in names}

    def _outcome(self, arrangement: Arrangement, at_ms: int) -> RunOutcome:
        made = {name: each.of(arrangement, at_ms) for name, each in self._functions.items()}
        return outcome(self.replay, made, arrangement.partitions, at_ms)

    def _different(self, first: RunOutcome, arrangement: Arrangement, at_ms: int) -> Differences:
        try:
            return differences(self.replay, first, self._outcome(arrangement, at_ms))
        except Refused as error:
            return Differences(failed=error.message)

    def _found(self, reason: Reason, runs: tuple[str, str], different: Differences) -> Dependence:
        each = [one.impurities for one in self._functions.values()]
        plan = Impurities(
            *(
                tuple(dict.fromkeys(name for one in each for name in getattr(one, kind)))
                for kind in ("random", "clocks", "python")
            )
        )
        return Dependence(self.replay.after.stage, self.replay.after.version, reason, runs, different, plan)
