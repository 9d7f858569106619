"""Extents behave like sets of single offsets."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.archive.extents import Extent, count_offsets, extent_violations, gaps, intersect, subtract, union

offsets = st.integers(0, 12)
some = st.lists(st.builds(Extent, st.integers(0, 1), offsets, offsets), max_size=6)


def single(extents: object) -> set[tuple[int, int]]:
    return {(each.partition, at) for each in extents for at in range(each.first, each.end)}  # type: ignore[attr-defined]


@given(some, some)
def test_set_operations_on_extents_equal_those_on_single_offsets(one: list[Extent], other: list[Extent]) -> None:
    for found, expected in (
        (union(one, other), single(one) | single(other)),
        (subtract(one, other), single(one) - single(other)),
        (intersect(one, other), single(one) & single(other)),
    ):
        assert single(found) == expected
        assert count_offsets(found) == len(expected)
        # There is one way to write each.
        assert union(found) == found
        assert not tuple(extent_violations("covered", found))


@given(some)
def test_gaps_are_the_missing_offsets_between_existing_ones(extents: list[Extent]) -> None:
    there = single(extents)
    between = {
        (partition, at)
        for partition, at in ((partition, at) for partition in (0, 1) for at in range(13))
        if any(p == partition and a < at for p, a in there) and any(p == partition and a > at for p, a in there)
    }
    assert single(gaps(extents)) == between - there


def test_an_invalid_set_of_extents_is_reported_with_the_extent() -> None:
    found = extent_violations("covered", (Extent(0, 0, 5), Extent(0, 5, 9)))
    assert [(each.field, each.actual) for each in found] == [("covered[1]", "[0]@5..9")]
    assert next(extent_violations("covered", (Extent(0, 4, 4),))).field == "covered[0]"
