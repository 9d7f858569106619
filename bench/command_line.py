"""How long a person waits for a verb: whole processes, wall clock."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from . import snapshots
from .support.row import Row


def rows(folder: Path, quick: bool) -> list[Row]:
    """How long a person waits for a verb."""
    snapshots.requests(folder, 10_000)
    store = str(folder / "requests-10000")
    verbs = {
        "slackwater --help": (seconds("--help"), 0.4),
        "slackwater query, local store": (
            seconds("query", "bench", "SELECT count(*) FROM legs", "--store", store),
            1.0,
        ),
    }
    return [
        Row(what, f"{taken:.2f} s", f"limit: {limit} s", taken / limit, "< 1", taken < limit)
        for what, (taken, limit) in verbs.items()
    ]


def seconds(*words: str, runs: int = 7) -> float:
    """Median wall clock of `slackwater` with these words, after one run that warms the disk's cache."""
    command = [str(Path(sys.executable).parent / "slackwater"), *words]
    found = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - began)
    return median(found[1:])
