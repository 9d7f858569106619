"""How long a person waits for a verb, and what it takes of the processor: whole processes."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from . import snapshots
from .support.row import Row


def rows(folder: Path, quick: bool) -> list[Row]:
    """How long a person waits for a verb, and the processor's time of a get, a query and a log, user and system."""
    snapshots.requests(folder, 10_000)
    store = str(folder / "requests-10000")
    verbs = {
        "slackwater --help": (seconds("--help"), 0.4),
        "slackwater query, local store": (
            seconds("query", "bench", "SELECT count(*) FROM legs", "--store", store),
            1.0,
        ),
    }
    get, query = ("get", "bench/legs", "17"), ("query", "bench", "SELECT count(*) FROM legs")
    for words in (get, query, ("log", "bench")):
        taken = processor_seconds(*words, "--store", store)
        verbs[f"processor of slackwater {words[0]}, local store"] = (taken, 0.5)
    return [
        Row(what, f"{taken:.2f} s", f"limit: {limit} s", taken / limit, "< 1", taken < limit)
        for what, (taken, limit) in verbs.items()
    ]


def processor_seconds(*words: str, runs: int = 7) -> float:
    """Median of the processor's seconds of `slackwater` with these words, user and system, after one run to warm up."""
    command = [str(Path(sys.executable).parent / "slackwater"), *words]
    found = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return median(found[1:])


def seconds(*words: str, runs: int = 7) -> float:
    """Median wall clock of `slackwater` with these words, after one run that warms the disk's cache."""
    command = [str(Path(sys.executable).parent / "slackwater"), *words]
    found = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - began)
    return median(found[1:])
