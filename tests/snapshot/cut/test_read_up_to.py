"""The offsets of users' topics up to which a version reflects the records."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.lineage import offsets_read_by_all
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.memory import MemoryStore

from tests.support.diamonds import STAGES, Diamond
from tests.support.histories import Flight, FlightsApp, Kafka, flights

LAST = STAGES[-1]


def offsets(app: FlightsApp, stage: str) -> tuple[int, ...]:
    cut = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    return offsets_read_by_all(app.store, cut, (stage,))[app.topic]


def test_a_record_counts_as_read_once_its_effect_reached_the_stage() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    before = offsets(app, "carriers")
    assert before == app.heads["legs"].inputs["flights"].offsets
    app.send(Flight("N001", "C1", 5))
    app.step("legs")
    after = app.heads["legs"].inputs["flights"].offsets
    assert sum(after) == sum(before) + 1
    assert (offsets(app, "legs"), offsets(app, "aircraft"), offsets(app, "carriers")) == (after, before, before)
    app.step("aircraft")
    assert (offsets(app, "aircraft"), offsets(app, "carriers")) == (after, before)
    app.step("carriers")
    assert offsets(app, "carriers") == after


def test_a_stage_that_has_read_nothing_is_at_the_beginning() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.send(*flights(5))
    app.step("legs")
    assert offsets(app, "carriers") == (0, 0)


def test_all_stages_together_are_as_far_as_the_slowest() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    before = offsets(app, "carriers")
    app.send(Flight("N001", "C1", 5))
    app.step("legs")
    app.step("aircraft")
    cut = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    assert offsets_read_by_all(app.store, cut, ("aircraft", "carriers"))[app.topic] == before


@given(st.lists(st.sampled_from(STAGES), min_size=1, max_size=20))
def test_of_two_paths_the_slower_one_counts(steps: list[str]) -> None:
    """Records before the offset have arrived on both paths, and none of them will arrive again."""
    diamond = Diamond()
    for stage in steps:
        diamond.step(stage)
    head = diamond.heads[LAST]
    (offset,) = offsets_read_by_all(diamond.store, Cut("diamond", dict(diamond.heads)), (LAST,)).get("numbers", (0,))
    had = Counter(diamond.seen[LAST, head.version])
    diamond.settle()
    in_the_end = Counter(diamond.seen[LAST, diamond.heads[LAST].version])
    assert all(had[number] == in_the_end[number] for number in range(offset))
    assert offsets_read_by_all(diamond.store, Cut("diamond", dict(diamond.heads)), (LAST,))["numbers"] == (
        len(in_the_end),
    )
