"""Windows, late rows and restarts, without Spark: random schedules equal a computation over the raw input."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.pipeline.batch.task import StateTask
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.event_time import EventTimeScan, Lateness, Watermark
from slackwater.state.kinds.due import window_of
from slackwater.state.step import Step
from slackwater.store.objects.local import LocalStore
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import scaled
from tests.state.event_time.committing import Committing

HOUR, DELAY, AHEAD, CLOCK = 60, 10, 60 * 24, 60 * 100
"""Times in minutes."""
MINUTE_MS = 60_000
TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
ROWS = pa.schema([("hour", WINDOW), ("station", pa.string()), ("at", TIME), ("mm", pa.int64())])
KEY = ("hour", "station")
BOUND = sw.aggregate(n=sw.count(), mm=sw.sum("mm")).bind([ROWS], KEY)
TABLE = Table(
    tuple(Column(name, from_arrow(ROWS.field(name).type)) for name in KEY),
    tuple(Column(column.name, from_arrow(column.type)) for column in BOUND.values),
    3,
)

WATERMARK = Watermark(("at",), DELAY * MINUTE_MS, ("t",))

Event = tuple[str, int, int]
"""Station, minute, and millimetres of rain."""
events = st.tuples(st.sampled_from("ab"), st.integers(0, 400) | st.integers(5_000, 9_000), st.integers(1, 5))
schedules = st.lists(st.lists(events, max_size=6) | st.just("restart"), min_size=1, max_size=12)


def windows_of(minute: int, slide: int) -> list[int]:
    """Return the starts of the hour-long windows that contain a minute. A window begins every `slide` minutes."""
    last = minute // slide * slide
    return [start for start in range(last, last - HOUR, -slide) if start <= minute < start + HOUR]


@dataclass
class Stage(Committing):
    """A stage in a folder. Its batches are computed as in Spark's tasks, but without Spark."""

    folder: Path
    slide: int

    def __post_init__(self) -> None:
        self.begin(LocalStore(self.folder), TABLE)

    def batch(self, batch: list[Event]) -> None:
        rows = pa.Table.from_pylist(
            [
                {
                    "hour": {"start": start * 60_000_000, "end": (start + HOUR) * 60_000_000},
                    "station": station,
                    "at": minute * 60_000_000,
                    "mm": mm,
                }
                for station, minute, mm in batch
                for start in windows_of(minute, self.slide)
            ],
            schema=ROWS,
        )
        rows = rows.append_column("_hash", pa.array(hash_keys(rows, KEY)))
        bound_ms = (CLOCK + AHEAD) * MINUTE_MS
        resources = WorkerResources("a", "s", str(self.folder), {}, (self.folder / "cache", 1 << 30), 1.0)
        task = StateTask(
            resources,
            "w",
            self.head.version + 1,
            (),
            Step(TABLE, BOUND, self.head.version + 1, 0, Lateness(("hour",), self.head.watermark_ms, bound_ms)),
            self.head.ssts,
            times=EventTimeScan((WATERMARK,), bound_ms),
        )
        by_key = np.asarray(rows["_hash"]) % 2
        results = [
            replace(task._run(part, f"w.{n}"), seen=task.times.scan(part))
            for n in range(2)
            if (part := rows.filter(pa.array(by_key == n))).num_rows
        ]
        self.batch_done(len(batch), results, WATERMARK, bound_ms=bound_ms)

    def table(self, keys: list[tuple[int, str]]) -> Iterator[tuple[int, int] | None]:
        """Yield `n` and `mm` for each given window and station."""
        asked = pa.table(
            [
                pa.array([{"start": s * 60_000_000, "end": (s + HOUR) * 60_000_000} for s, _ in keys], WINDOW),
                pa.array([station for _, station in keys], pa.string()),
            ],
            names=list(KEY),
        )
        values, present = multi_get(self.store, None, self.head.ssts, TABLE, hash_keys(asked, KEY), asked)
        for row, there in zip(values.to_pylist(), present.tolist(), strict=True):
            yield (row["n"], row["mm"]) if there else None


def check(folder: Path, schedule: list[list[Event] | str], slide: int) -> None:
    stage = Stage(folder, slide)
    rows: Counter[tuple[int, str]] = Counter()
    sums: Counter[tuple[int, str]] = Counter()
    watermark, late, ahead = None, 0, 0
    for step in schedule:
        if isinstance(step, str):
            stage.restart()
            continue
        stage.batch(step)
        for station, minute, mm in step:
            for start in windows_of(minute, slide):
                ahead += minute > CLOCK + AHEAD
                if start > CLOCK + AHEAD or (watermark is not None and start + HOUR <= watermark):
                    late += 1
                else:
                    rows[start, station] += 1
                    sums[start, station] += mm
        in_time = [minute - DELAY for _, minute, _ in step if minute <= CLOCK + AHEAD]
        watermark = max([*in_time, *([] if watermark is None else [watermark])], default=None)
        assert stage.head.watermark_ms == (None if watermark is None else watermark * MINUTE_MS)
        event_time = stage.head.event_time
        assert (late, ahead) == ((event_time.late_total, event_time.ahead_total) if event_time else (0, 0))
        keys = [(start, s) for start in {start for start, _ in rows} | {0, 8_940} for s in "ab"]
        expected = [(rows[key], sums[key]) if rows[key] else None for key in keys]
        assert list(stage.table(keys)) == expected


@scaled(25, in_ci=250)
@given(schedules, st.sampled_from([60, 30, 20]))
def test_windows_equal_a_computation_over_the_raw_input(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[list[Event] | str], slide: int
) -> None:
    check(tmp_path_factory.mktemp("law"), schedule, slide)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@scaled(1_000)
@given(schedules, st.sampled_from([60, 30, 20]))
def test_windows_equal_a_computation_over_the_raw_input_a_thousand_times(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[list[Event] | str], slide: int
) -> None:
    check(tmp_path_factory.mktemp("law"), schedule, slide)


def test_a_window_is_a_struct_of_two_times() -> None:
    assert window_of(ROWS) == "hour"
    assert window_of(pa.schema([("a", pa.struct([("start", pa.int64()), ("end", TIME)])), ("b", TIME)])) is None
    assert window_of(pa.schema([("a", pa.struct([("start", TIME), ("end", TIME), ("n", TIME)]))])) is None


def test_a_row_without_a_window_is_never_late() -> None:
    rows = pa.table({"hour": pa.array([None, {"start": 0, "end": 60_000_000}], WINDOW)})
    assert Lateness(("hour",), 60_000, 1 << 40).mask(rows).tolist() == [False, True]
    assert Lateness(("hour",), 59_999, 1 << 40).mask(rows).tolist() == [False, False]
    assert Lateness(("hour",), None, -1).mask(rows).tolist() == [False, True]
