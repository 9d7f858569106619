"""The first rows of a table and the pages after them: for any SSTs, each row is on exactly one page."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.change.stages import rescale
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.columns import FIRST_HASH, first_rows
from slackwater.store.objects.memory import MemoryStore

from tests.models.profiles import scaled
from tests.support.histories import FlightsApp, Kafka, flights


def all_pages(app: FlightsApp, table: str, limit: int) -> tuple[list[dict[str, object]], list[int]]:
    cut = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    rows: list[dict[str, object]] = []
    sizes, start = [], FIRST_HASH
    while True:
        page = first_rows(app.store, None, cut, table, limit, start)
        assert (np.diff(page.hashes) >= 0).all()
        rows += page.rows.to_pylist()
        sizes.append(page.rows.num_rows)
        if page.next_hash is None:
            return rows, sizes
        assert page.next_hash > start
        start = page.next_hash


@scaled(50)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 60), st.sampled_from(["batch", "compact", "rescale"])), min_size=1, max_size=5
    ),
    limit=st.sampled_from([1, 2, 7, 1_000]),
)
def test_the_pages_together_are_the_table(steps: list[tuple[int, str]], limit: int) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    for count, what in steps:
        app.run(flights(count, aircraft=count))
        if what == "compact":
            app.compact("aircraft")
        elif what == "rescale":
            rescale(app.store, app.name, "aircraft", count % 5 + 1, by="test", now_ms=app.clock.tick("aircraft"))
            app.claim("aircraft")
    rows, sizes = all_pages(app, "aircraft", limit)
    expected = {name: (number, delay) for name, (number, delay, _) in app.state["aircraft"].items()}
    assert {row["tail"]: (row["flights"], row["delay"]) for row in rows} == expected
    assert len(rows) == len(expected)
    assert all(size == limit for size in sizes[:-1])


def test_a_page_can_be_cut_at_a_hash() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40, aircraft=40))
    cut = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    page = first_rows(app.store, None, cut, "aircraft", 20)
    for end in (page.hashes[0], page.hashes[7], page.hashes[7] + 1):
        less = page.below_hash(int(end))
        assert less.next_hash == end
        assert less.rows.num_rows == sum(1 for _ in itertools.takewhile(lambda at, end=end: at < end, page.hashes))
    assert page.below_hash(None) is page
