"""Wall-clock and CPU time of verbs, each run as a whole process."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from . import snapshots
from .support.row import Row
from .support.stores import s3_or_folder


def rows(folder: Path, quick: bool) -> list[Row]:
    """Measure wall-clock time of verbs, and CPU time (user and system) of `get`, `query` and `log`."""
    local = str(folder / "local")
    snapshots.requests(local, 10_000)
    get, query = ("get", "bench/legs", "17"), ("query", "bench", "SELECT count(*) FROM legs")
    verbs = {
        "slackwater --help": (seconds("--help"), 0.4),
        "slackwater query, local store": (seconds(*query, "--store", local), 1.0),
    }
    with s3_or_folder(folder / "far") as (where, root):
        snapshots.requests(root, 10_000)
        for place, store in (("local store", local), (f"{where}, empty cache", root)):
            for words in (get, query, ("log", "bench")):
                taken = processor_seconds(*words, "--store", store, cache=folder / "cache")
                verbs[f"processor of slackwater {words[0]}, {place}"] = (taken, 0.5)
    return [
        Row(what, f"{taken:.2f} s", f"limit: {limit} s", taken / limit, "< 1", taken < limit)
        for what, (taken, limit) in verbs.items()
    ]


def processor_seconds(*words: str, cache: Path, runs: int = 7) -> float:
    """Return the median CPU seconds (user and system) of a `slackwater` command, after one warm-up run.

    The cache folder is empty at the start of each run.
    """
    command = [str(Path(sys.executable).parent / "slackwater"), *words]
    found = []
    for _ in range(runs + 1):
        shutil.rmtree(cache, ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, stdout=subprocess.DEVNULL, check=True, env=os.environ | {"SLACKWATER_CACHE": str(cache)}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return median(found[1:])


def seconds(*words: str, runs: int = 7) -> float:
    """Return the median wall-clock seconds of a `slackwater` command, after one run to warm the page cache."""
    command = [str(Path(sys.executable).parent / "slackwater"), *words]
    found = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - began)
    return median(found[1:])
