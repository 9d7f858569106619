"""How long a person waits for a verb: whole processes, wall clock."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median


def seconds(*words: str, runs: int = 7) -> float:
    """Median wall clock of `slackwater` with these words, after one run that warms the disk's cache."""
    command = [str(Path(sys.executable).parent / "slackwater"), *words]
    found = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - began)
    return median(found[1:])
