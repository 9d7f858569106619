"""One minute of chaos, in the normal test suite."""

from pathlib import Path

import pytest

from tests.chaos.run import KINDS, run

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.ci
@pytest.mark.timeout(2_400)
def test_a_minute_of_random_kills_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    figures, wrong = run(tmp_path, 54, 60)
    assert wrong == []
    assert figures["records"] > 0
    assert sum(figures[kind] > 0 for kind in KINDS) >= 3, figures
