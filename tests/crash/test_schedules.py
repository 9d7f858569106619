"""Thread-safe pieces hold under every distinct schedule (`tests.crash.schedules`, in its own process)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.schedules import PIECES
from tests.models.profiles import SEARCHES


@pytest.mark.ci  # frontrun gives up if threads wait for a busy machine, and reports that as a failure
def test_thread_safe_pieces_hold_under_every_schedule() -> None:
    command = [sys.executable, "-m", "tests.crash.schedules", *(("500", "600") if SEARCHES else ("20", "5"))]
    environment = os.environ | {"FRONTRUN_ACTIVE": "1"}
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
    sys.stdout.write(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("schedules, hold") == len(PIECES)
