import os
import subprocess
import sys

import pytest

from tests.models.profiles import PROFILE

SEEDS = {"default": 30, "ci": 1_000, "nightly": 10_000}
"""Number of seeds by profile. 30 take a minute of CPU time. After a change of the code, `make simulate` runs 200."""


@pytest.mark.timeout(3_000)
def test_all_laws_hold_in_simulated_histories() -> None:
    command = [sys.executable, "-m", "tests.simulation", f"0:{SEEDS[PROFILE]}"]
    # Sets of text are in another order in each process, and a seed must give one history.
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5_000:]}"
