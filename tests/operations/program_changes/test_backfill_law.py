"""After a backfill a table is what its declaration makes of all records, whatever was committed meanwhile."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.state.kinds.kind import Kind
from slackwater.store.versions import history

from tests.models.profiles import scaled
from tests.operations.program_changes.past import AGGREGATES, NAMES, UPSERTS, App, records

STEPS = st.lists(st.sampled_from(["batch", "begin", "land", "compact", "swap"]), max_size=12)


@scaled(25)
@given(
    kind=st.sampled_from([AGGREGATES, UPSERTS]),
    seed=st.integers(0, 1 << 16),
    before=st.lists(st.integers(0, 9), max_size=4),
    again=st.lists(st.integers(1, 9), max_size=3),
    steps=STEPS,
    sizes=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    max_unflushed=st.sampled_from([0, 0, 3]),
)
def test_a_backfilled_table_is_that_of_all_records(
    tmp_path_factory: pytest.TempPathFactory,
    kind: tuple[Kind, Kind],
    seed: int,
    before: list[int],
    again: list[int],
    steps: list[str],
    sizes: list[int],
    max_unflushed: int,
) -> None:
    app = App(tmp_path_factory.mktemp("sst"), records(150, seed), *kind, max_unflushed=max_unflushed)
    for count in before:
        app.batch(count)
    assert app.committer.drain(10) or not max_unflushed
    target = app.migrate()
    assert target.ends == {"t": app.head.inputs["t"].offsets}
    backfill = app.compute(target, again)
    swapped = 0
    for step, size in zip(steps, sizes, strict=False):
        if step == "swap":
            app.swap(backfill)
            swapped = swapped or app.head.version
        elif step == "compact":
            app.compact()
        elif step == "begin" and not app.under_way:
            app.under_way.append(app.begin(size))
        elif step in ("land", "batch"):
            app.committer.submit(app.under_way.pop() if app.under_way else app.begin(size))
    for change in app.under_way:
        app.committer.submit(change)
    app.swap(backfill)
    app.batch(5)
    assert app.committer.drain(10) or not max_unflushed
    app.committer.close()
    (read,) = app.head.inputs["t"].offsets
    assert app.rows() == app.expected(read)
    found = list(history.after(app.store, *NAMES, 0))
    assert [each.kind for each in found].count("backfill") == 1
    for earlier, later in pairwise(found):
        assert len(earlier.backfills) <= len(later.backfills)
        if later.backfills:
            assert app.rows(later) == app.expected(later.inputs["t"].offsets[0])
