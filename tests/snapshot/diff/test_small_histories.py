"""A few keys are repeatedly written, deleted, expired, merged and rewound; all answers about the past are checked."""

import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.snapshot.diff import asof, candidates, stored_rows
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import diff_table
from slackwater.snapshot.diff.stored_rows import TableSide
from slackwater.store.objects.counting import CountingStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import keys
from slackwater.store.versions.horizon import BOUNDARIES, Boundary
from slackwater.store.versions.manifest import Manifest, Ttl

from tests.models.profiles import scaled
from tests.support.stages import TABLE, Stage
from tests.support.state_rows import Key, Values

KEYS = range(4)
TTL_MS = 3

PUTS = st.tuples(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 2), max_size=3), st.sampled_from([0, 0, 1, 3])
)

"""Values by key (None to delete), and how far the clock advances."""
MERGES = st.tuples(st.integers(0, 2), st.integers(1, 9))
"""Sorted runs to merge, newest first."""
REWINDS = st.tuples(st.just("rewind"), st.integers(0, 3))
"""By how many versions the stage goes back."""
STEPS = st.lists(PUTS | MERGES.map(lambda ends: (ends[0], ends[0] + ends[1])) | REWINDS, min_size=4, max_size=14)


@dataclass
class Model:
    """The table at each version, as dictionaries."""

    stage: Stage
    ttl_ms: int
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Value and expiry by key."""
    shown: list[dict[int, int]] = field(default_factory=list)
    stored: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    """For each version, `rows` as they were then."""

    def put(self, values: dict[int, int | None], later_ms: int) -> None:
        clock_ms = self.stage.clock_ms + later_ms
        changes: dict[Key, Values | None] = {
            (key,): None if value is None else (value, "w") for key, value in values.items()
        }
        self.stage.put(changes, clock_ms)
        for key, value in values.items():
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value, clock_ms + self.ttl_ms
        self.see()

    def rewind(self, back: int) -> None:
        to = max(len(self.shown) - back, 1)
        self.stage.rewind(to)
        self.rows = dict(self.stored[to - 1])
        self.see()

    def see(self) -> None:
        """Record the rows of the newest version."""
        while len(self.shown) < len(self.stage.versions):
            clock_ms = self.stage.clock_ms
            live = {key: value for key, (value, ends_ms) in self.rows.items() if not self.ttl_ms or ends_ms > clock_ms}
            self.shown.append(live)
            self.stored.append(dict(self.rows))


def written(steps: list[tuple[object, object]], cache: SstCache, *, expires: bool) -> Model:
    table = replace(TABLE, ttl=Ttl(TTL_MS)) if expires else TABLE
    model = Model(Stage(table), TTL_MS if expires else 0)
    for first, second in steps:
        if isinstance(first, dict):
            assert isinstance(second, int)
            model.put(first, second)
        elif model.stage.versions and first == "rewind":
            assert isinstance(second, int)
            model.rewind(second)
        elif model.stage.versions:
            assert isinstance(first, int)
            assert isinstance(second, int)
            model.stage.merge(cache, first, second)
            model.see()
    return model


@settings(scaled(20, in_ci=200), deadline=None)
@given(STEPS, st.booleans(), st.data())
def test_each_difference_and_history_equals_that_of_the_dictionaries(
    steps: list[tuple[object, object]], expires: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        cache = SstCache(Path(folder), 0)
        model = written(steps, cache, expires=expires)
        if not model.shown:
            return
        patch.setattr(candidates, "MANIFEST_READ_BYTES", data.draw(st.sampled_from([0, 1 << 40]), "by comparing"))
        patch.setattr(stored_rows, "SMALL_BYTES", data.draw(st.sampled_from([0, 1 << 20]), "whole"))
        # The newest version is never collected.
        old = range(1, len(model.shown))
        thinned = data.draw(st.sets(st.sampled_from(old), max_size=3) if old else st.just(set[int]()), "collected")
        store = CountingStore(model.stage.store)
        places = st.integers(0, len(model.shown) - 1)
        for one, other in [(0, len(model.shown) - 1), *data.draw(st.lists(st.tuples(places, places), max_size=5))]:
            check_diff(model, store, cache, one, other)
        if thinned:
            first = max(thinned) + 1
            kept = tuple(sorted(set(range(1, first)) - thinned))
            BOUNDARIES.put(model.stage.store, Boundary(1, True, {"stage": first}, {"stage": kept}), "app")
        for version in thinned:
            model.stage.store.delete(keys.manifest("app", "stage", version))
        for key in KEYS:
            check_history(model, CountingStore(model.stage.store), cache, key, thinned)
        patch.setattr(asof, "_MAX_RUN_ROWS", data.draw(st.sampled_from([0, 3, 1 << 40]), "rows of a run"))
        times = data.draw(st.lists(st.integers(0, len(model.shown) + 2), min_size=1), "times of labels")
        for by in ("commit", "watermark"):
            check_as_of(model, CountingStore(model.stage.store), cache, times, thinned, by)


def check_diff(model: Model, store: CountingStore, cache: SstCache, one: int, other: int) -> None:
    before, after = model.shown[one], model.shown[other]
    sides = (side_of(store, cache, model.stage.versions[place]) for place in (one, other))
    found = diff_table("stage", *sides)
    assert {each.key["k"]: (value(each.before), value(each.after)) for each in found.changes} == {
        key: (before.get(key), after.get(key)) for key in KEYS if before.get(key) != after.get(key)
    }


def side_of(store: CountingStore, cache: SstCache, manifest: Manifest) -> TableSide:
    assert manifest.table is not None
    return TableSide(store, cache, manifest.table, manifest, manifest.clock_ms)


def check_history(model: Model, store: CountingStore, cache: SstCache, key: int, thinned: set[int]) -> None:
    found = key_history(store, cache, "app", "stage", [key], now_ms=model.stage.clock_ms)
    left = [(number, shown.get(key)) for number, shown in enumerate(model.shown, 1) if number not in thinned]
    expected = [(number, earlier, was, now) for (earlier, was), (number, now) in pairwise(left) if was != now]
    if left[0][1] is not None:
        expected.insert(0, (left[0][0], 0, None, left[0][1]))
    changes = [(each.version, each.after_version, value(each.before), value(each.after)) for each in found.changes]
    assert changes == expected[::-1]


def check_as_of(
    model: Model, store: CountingStore, cache: SstCache, times: list[int], thinned: set[int], by: asof.Clock
) -> None:
    """Compare joins of labels with the model: the newest stored version that is not past a label's time applies.

    Version n is committed at time n, and its watermark is its clock. After a version that a collected one follows, the
    newest version is not known, except at the commit time of the former.
    """
    labels = pa.table(
        {
            "label": pa.array([at for at in times for _ in KEYS], pa.timestamp("ms")),
            "k": pa.array([*KEYS] * len(times), pa.int64()),
        }
    )
    versions = model.stage.versions
    stored = [version.version for version in versions if version.version not in thinned]
    expected: list[tuple[int | None, bool | None, int | None]] = []
    for at in times:
        time_of = {n: n if by == "commit" else versions[n - 1].clock_ms for n in stored}
        version = max((n for n in stored if time_of[n] <= at), default=0)
        is_known = version + 1 not in thinned or (by == "commit" and version == at)
        for key in KEYS:
            if not is_known:
                expected.append((None, None, None))
                continue
            row = model.stored[version - 1].get(key) if version else None
            clock_ms = versions[version - 1].clock_ms
            live = row is not None and (
                not model.ttl_ms or row[1] > (max(at, clock_ms) if by == "commit" else clock_ms)
            )
            expected.append((version, live, row[0] if row is not None and live else None))
    joined = asof.read_as_of(store, cache, "app", "stage", labels, time="label", by=by)
    columns = (joined.rows.column(name).to_pylist() for name in ("asof_version", "asof_present", "v"))
    assert list(zip(*columns, strict=True)) == expected
    counts = [present for _, present, _ in expected]
    assert [joined.present, joined.absent, joined.unknown] == [counts.count(flag) for flag in (True, False, None)]


def test_a_row_from_before_the_first_watermark_is_not_known_earlier_than_that_watermark() -> None:
    stage = Stage()
    stage.has_watermark = False
    stage.put({(0,): (1, "w")})
    stage.has_watermark = True
    stage.put({(1,): (2, "w")}, 7)
    labels = pa.table({"label": pa.array([6, 7], pa.timestamp("ms")), "k": [0, 0]})
    with tempfile.TemporaryDirectory() as folder:
        joined = asof.read_as_of(
            stage.store, SstCache(Path(folder), 0), "app", "stage", labels, time="label", by="watermark"
        )
    assert joined.rows.column("asof_version").to_pylist() == [0, 2]
    assert joined.rows.column("v").to_pylist() == [None, 1]


def value(row: object) -> object:
    return row["v"] if isinstance(row, dict) else None
