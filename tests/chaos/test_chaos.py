"""A minute of chaos."""

from pathlib import Path

import pytest

from tests.chaos.run import KINDS, run

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.ci
@pytest.mark.timeout(2_400)
def test_nothing_is_lost_or_doubled_in_a_minute_of_chaos(tmp_path: Path) -> None:
    figures, wrong = run(tmp_path, 54, 60)
    assert wrong == []
    assert figures["records"] > 0
    assert sum(figures[kind] > 0 for kind in KINDS) >= 3, figures
