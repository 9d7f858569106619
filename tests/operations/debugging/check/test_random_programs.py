"""Two hundred random programs: `check` reports each planted dependence with its reason, and nothing else."""

from pathlib import Path

import pytest
from slackwater.operations.debugging.check.check import CheckedVersion, check
from slackwater.store.objects.local import LocalStore

from tests.models.random_programs import random_program, versions_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]
IN_GATE = (4, 5, 6, 40)
"""Programs with batch boundaries, chance, the process, and no plant; `test_verb.py` has clock and order."""


@pytest.mark.parametrize(
    "number", [pytest.param(at, marks=[] if at in IN_GATE else pytest.mark.ci) for at in range(200)]
)
def test_each_planted_dependence_is_reported_and_nothing_else(number: int, tmp_path: Path) -> None:
    from pyspark.sql import SparkSession  # collecting the tests need not import this

    made = random_program(number)
    program, versions = versions_of(made, SparkSession.active(), LocalStore(tmp_path / "scratch"), 2, number)
    checked = list(check(program, versions))
    assert all(isinstance(each, CheckedVersion) for each in checked), (made.words, checked)
    reasons = {one.reason for each in checked if isinstance(each, CheckedVersion) for one in each.found}
    if made.planted is None:
        assert reasons == set(), (made.words, checked)
    else:
        assert reasons, made.words
        assert reasons <= {made.planted.reason, made.planted.or_else}, (made.words, checked)
