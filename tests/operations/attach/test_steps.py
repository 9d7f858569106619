"""Number of batches per version: one while the follower keeps up, more when it does not."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.operations.attach.steps import (
    MAX_BATCHES,
    SMALL_BACKLOG,
    ReadChanges,
    adapt_batches_per_version,
    next_step,
)

PERIOD_S = 2.0
ROUNDS = 400


class Simulated:
    """A follower in simulated time: a version takes `version_s`, plus `batch_s` for each of its batches."""

    def __init__(self, version_s: float, batch_s: float, missed: int) -> None:
        self.version_s, self.batch_s, self.missed = version_s, batch_s, missed
        self.now_s, self.next_batch, self.newest, self.took, self.so_far = 0.0, 1, -1, 0, 1
        self.largest = 1
        """Largest number of batches in a version."""

    def round(self) -> int:
        """Run a round. Returns the number of batches that were waiting at its start."""
        newest = self.missed + int(self.now_s / PERIOD_S)
        waiting, came = newest + 1 - self.next_batch, newest - self.newest
        self.so_far, self.took, self.newest = (
            adapt_batches_per_version(waiting, self.took, came, self.so_far),
            0,
            newest,
        )
        committed = range(newest + 1)
        step = next_step(self.next_batch, committed, lambda: committed, batches_per_version=self.so_far)
        if step is None:
            self.now_s += 1.0
            return waiting
        assert isinstance(step, ReadChanges)
        assert step.batches[0] == self.next_batch
        before = self.next_batch
        for end in step.ends:
            self.largest = max(self.largest, end + 1 - self.next_batch)
            self.now_s += self.version_s + self.batch_s * (end + 1 - self.next_batch)
            self.next_batch = end + 1
        assert self.next_batch == step.batches[-1] + 1
        self.took = self.next_batch - before
        return waiting


@given(version_s=st.floats(0.01, 0.7 * PERIOD_S), missed=st.integers(0, 99))
def test_a_follower_that_keeps_up_makes_one_version_per_batch(version_s: float, missed: int) -> None:
    following = Simulated(version_s, 0.0, missed)
    waiting = [following.round() for _ in range(ROUNDS)]
    assert following.largest == 1
    assert waiting[-1] <= SMALL_BACKLOG


@given(version_s=st.floats(PERIOD_S, 3 * PERIOD_S), batch_s=st.floats(0, 0.3 * PERIOD_S), missed=st.integers(0, 99))
def test_a_slow_follower_puts_several_batches_into_a_version(version_s: float, batch_s: float, missed: int) -> None:
    """The number of batches grows until the backlog is bounded."""
    following = Simulated(version_s, batch_s, missed)
    waiting = [following.round() for _ in range(ROUNDS)]
    assert max(waiting[-50:]) <= MAX_BATCHES, waiting
    assert following.largest <= MAX_BATCHES
    assert following.largest > 1 or max(waiting) <= SMALL_BACKLOG


@given(first=st.integers(0, 50), count=st.integers(1, MAX_BATCHES), step=st.integers(1, MAX_BATCHES))
def test_versions_of_several_batches_cover_each_batch_once(first: int, count: int, step: int) -> None:
    ends = ReadChanges(range(first, first + count), step).ends
    sizes = [end - before for before, end in zip((first - 1, *ends), ends, strict=False)]
    assert sum(sizes) == count
    assert all(size == step for size in sizes[:-1])
    assert 0 < sizes[-1] <= step
