"""The change at which a key's row began to differ from the external row, and counts of keys: as by dictionaries."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slackwater.operations.debugging.reconcile import parting
from slackwater.operations.debugging.reconcile.compare import Matching, TableComparison, compare
from slackwater.operations.debugging.reconcile.parting import find_partings
from slackwater.snapshot.cut.graph import Cut
from slackwater.store.read.cache import SstCache

from tests.models.profiles import scaled
from tests.snapshot.diff.test_small_histories import KEYS, STEPS, Model, written

THEIRS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 2))
TIMES = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 16))


def compared(model: Model, cache: SstCache, theirs: dict[int, int], times: dict[int, int] | None) -> TableComparison:
    at = pa.array([(times or {}).get(key) for key in theirs], pa.timestamp("ms"))
    columns = {"k": pa.array([*theirs], pa.int64()), "v": pa.array(theirs.values(), pa.int64()), "at": at}
    cut = Cut("app", {"stage": model.stage.versions[-1]})
    matching = Matching(time="at" if times is not None else "")
    return compare(model.stage.store, cache, cut, "stage", pa.table(columns), matching)


def expected_parting(shown: list[int | None], theirs: int | None, at: int | None) -> tuple[int | None, bool]:
    """Return the version at which the row began to differ, and True if the row before it was the external row."""
    rows = [None, *shown]
    then = len(shown) if at is None else min(at, len(shown))
    if rows[then] == theirs:
        return next(version for version in range(then + 1, len(rows)) if rows[version] != theirs), True
    since = next((version for version in range(then, -1, -1) if rows[version] == theirs), None)
    if since is not None:
        return since + 1, True
    return next((version for version, row in enumerate(rows) if row is not None), None), False


@settings(scaled(20, in_ci=200), deadline=None)
@given(STEPS, st.booleans(), THEIRS, st.none() | TIMES, st.sampled_from([1, 2, 16]))
def test_each_key_parts_at_the_version_of_the_dictionaries(
    steps: list[tuple[object, object]],
    expires: bool,
    theirs: dict[int, int],
    times: dict[int, int] | None,
    changes_at_once: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parting, "_CHANGES_AT_ONCE", changes_at_once)
        cache = SstCache(Path(folder), 1 << 30)
        model = written(steps, cache, expires=expires)
        if not model.shown:
            return
        ours = model.shown[-1]
        found = compared(model, cache, theirs, times)
        differing = {key for key in KEYS if ours.get(key) != theirs.get(key)}
        assert found.agree == len({key for key in ours.keys() & theirs.keys() if ours[key] == theirs[key]})
        assert found.here_only == len(ours.keys() - theirs.keys())
        assert found.there_only == len(theirs.keys() - ours.keys())
        assert {change.key["k"]: change.kind for change in found.changes} == {
            key: "added" if key not in theirs else "removed" if key not in ours else "changed" for key in differing
        }
        cut = Cut("app", {"stage": model.stage.versions[-1]})
        partings = find_partings(model.stage.store, cache, cut, found, now_ms=model.stage.clock_ms)
        for change, part in zip(found.changes, partings, strict=True):
            key = change.key["k"]
            assert isinstance(key, int)
            at = (times or {}).get(key) if key in theirs else None
            history = [shown.get(key) for shown in model.shown]
            version = part.change.version if part.change is not None else None
            assert (version, part.had_theirs) == expected_parting(history, theirs.get(key), at), (history, theirs, at)
