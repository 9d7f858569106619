"""The minimum that a compaction must write, as the benchmark computes it."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.bench import write_amplification
from slackwater.bench.write_amplification import leveled_optimum, universal_optimum

from tests.models.profiles import scaled


def by_trying_all(keys: int, draws: int, batches: int, most: int) -> float:
    """Compute `universal_optimum` by trying every schedule for merges of the newest runs."""

    def rows(num_batches: int) -> float:
        return keys * (1 - (1 - 1 / keys) ** (num_batches * draws))

    @cache
    def least(left: int, runs: tuple[int, ...]) -> float:
        if not left:
            return 0.0
        grown = (*runs, 1)
        choices = [least(left - 1, grown)] if len(grown) <= most else []
        for width in range(2, len(grown) + 1):
            if len(grown) - width + 1 <= most:
                merged = sum(grown[-width:])
                choices.append(rows(merged) + least(left - 1, (*grown[:-width], merged)))
        return rows(1) + min(choices)

    return least(batches, ()) / (batches * rows(1))


@scaled(30)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(50, 10_000))
def test_no_schedule_of_merges_writes_less_than_the_optimum(batches: int, runs: int, keys: int) -> None:
    assert universal_optimum(keys, 50, batches, runs) == pytest.approx(by_trying_all(keys, 50, batches, runs))


def test_levels_that_hold_everything_rewrite_level_1_once_per_trigger() -> None:
    # Each four batches of ten new rows make level 1 longer by forty: 40, 80 and 120 rows are written, and 120 flushed.
    assert leveled_optimum(10**9, 10, 12, 4, 10**9, 2) == pytest.approx(1 + 240 / 120)
    # What goes down at once takes the half of the last level with it, each time.
    assert leveled_optimum(10**6, 10, 4, 4, 0.5, 2) == pytest.approx(1 + (40 + 10**6) / 40, rel=1e-3)


def test_both_policies_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_amplification, "KEYS", 20_000)
    monkeypatch.setattr(write_amplification, "BATCH", 500)
    monkeypatch.setattr(write_amplification, "BATCHES", 12)
    monkeypatch.setattr(write_amplification, "LEVEL_1_ROWS", 2000)
    rows = write_amplification.rows(tmp_path, quick=False)
    assert [row.asked for row in rows] == ["<= 1.2"] * 2
    # Of files this small a good part is footer.
    assert all(0.8 < row.ratio < 3 for row in rows)
