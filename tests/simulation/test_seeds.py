import os
import subprocess
import sys

import pytest

from tests.models.profiles import PROFILE

SEEDS = {"default": 30, "ci": 1_000, "nightly": 10_000}
"""Number of seeds by profile. 30 take a minute of CPU time; for a change of the code, `make simulate` runs 200."""


@pytest.mark.timeout(3_000)
def test_all_laws_hold_in_simulated_histories() -> None:
    command = [sys.executable, "-m", "tests.simulation", f"0:{SEEDS[PROFILE]}"]
    # Sets of text are in another order in each process, and a seed must give one history.
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5_000:]}"


@pytest.mark.ci
@pytest.mark.timeout(600)
@pytest.mark.xfail(reason="after a rewind, the app is not caught up 300 s after the last fault: cause not known yet")
def test_an_app_catches_up_after_a_rewind_concurrent_with_a_rescale() -> None:
    faults, verbs = (
        "lost,slow,kafka_refused,skew,kill",
        "snapshot,instant,remove,compact,status,get,diff,rescale,rewind,export",
    )
    command = [sys.executable, "-m", "tests.simulation", "95", "--faults", faults, "--verbs", verbs, "--seconds", "30"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
