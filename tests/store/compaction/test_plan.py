"""The place of a merge's result among runs that have changed meanwhile, and when the result is dropped."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.compaction.plan import CompactionResult, apply_results

from tests.store.compaction.runs import a_run, compaction_of, merged, runs_of


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12), st.integers(0, 6), st.data())
def test_a_result_has_the_same_place_if_newer_runs_came_before_or_after_it(
    sizes: list[int], num_newer: int, data: st.DataObject
) -> None:
    ssts = runs_of(*sizes)
    other = tuple(a_run(i, i, 5, partition=1) for i in range(3))
    start = data.draw(st.integers(0, len(ssts) - 2))
    end = data.draw(st.integers(start + 2, len(ssts)))
    done = merged(compaction_of(ssts[start:end], drops_tombstones=end == len(ssts)))
    if data.draw(st.booleans()):
        done = CompactionResult(done.compaction, ())
    newer = tuple(a_run(len(ssts) + i, len(ssts) + i, 7) for i in range(num_newer, 0, -1))
    assert apply_results((*newer, *ssts, *other), [done]) == (*newer, *apply_results((*ssts, *other), [done]))


def test_results_of_several_partitions_are_applied_together() -> None:
    left, right = runs_of(1, 1), tuple(a_run(i, i, 1, partition=1) for i in (2, 1))
    done = [
        merged(compaction_of(left, drops_tombstones=True)),
        merged(compaction_of(right, drops_tombstones=True, partition=1)),
    ]
    assert apply_results((*left, *right), done) == (*done[0].outputs, *done[1].outputs)


def test_a_result_whose_inputs_no_longer_exist_is_dropped() -> None:
    ssts = runs_of(1, 1, 1, 1)
    first = merged(compaction_of(ssts[1:3], drops_tombstones=False))
    second = merged(compaction_of(ssts[:2], drops_tombstones=False))
    after = apply_results(ssts, [first])
    assert apply_results(after, [second]) == after
    assert apply_results((), [first]) == ()


def test_a_result_is_dropped_if_a_run_now_lies_between_its_inputs() -> None:
    newest, between, oldest = runs_of(1, 1, 1)
    done = merged(compaction_of((newest, oldest), drops_tombstones=True))
    assert apply_results((newest, between, oldest), [done]) == (newest, between, oldest)


def test_a_result_without_tombstones_is_dropped_if_there_is_now_an_older_run() -> None:
    newest, older, oldest = runs_of(1, 1, 1)
    done = merged(compaction_of((newest, older), drops_tombstones=True))
    assert apply_results((newest, older, oldest), [done]) == (newest, older, oldest)
    assert apply_results((newest, older), [done]) == done.outputs
