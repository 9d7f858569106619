"""`attach` to a running Spark query: the delay until its batches are readable, and the effect on the query.

The query is `examples/spark_totals.py`: each batch, one a second, changes 10,000 of 100,000 keys. It runs alone and
with `slackwater attach` on the same machine, in turn, and starts from nothing each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...support.row import Row

QUERY = Path(__file__).parents[3] / "examples" / "spark_totals.py"
ATTACH = [sys.executable, "-m", "slackwater.cli.main", "attach"]
WARM_UP_S, MEASURED_S, TURNS = 35.0, 45.0, 2
MEDIAN_S, COST = 2.0, 1.05


def rows(folder: Path, quick: bool) -> list[Row]:
    """Measure the delay from Spark's commit to ours, and the query's batch time with and without `attach`."""
    measured_s, turns = (15.0, 1) if quick else (MEASURED_S, TURNS)
    took: dict[bool, list[float]] = {False: [], True: []}
    delays: list[float] = []
    for turn in range(turns):
        for attached in (False, True) if turn % 2 == 0 else (True, False):
            where = folder / f"{turn}-{attached}"
            where.mkdir(parents=True)
            batches, behind = _run(where, measured_s, attached=attached)
            took[attached] += batches
            delays += behind
    delay = float(np.median(delays))
    alone, beside = (float(np.median(took[attached])) for attached in (False, True))
    return [
        Row(
            f"attach: from Spark's commit of a batch to ours, 10,000 changed keys, median of {len(delays)}",
            f"{delay:.2f} s",
            f"limit: {MEDIAN_S:g} s; p90 {np.percentile(delays, 90):.2f} s",
            delay / MEDIAN_S,
            "< 1",
            delay < MEDIAN_S,
        ),
        Row(
            f"attach: a batch of the query that is followed, on the same machine, median of {len(took[True])}",
            f"{beside:.0f} ms",
            f"the query alone: {alone:.0f} ms, median of {len(took[False])}",
            beside / alone,
            f"<= {COST}",
            beside / alone <= COST,
        ),
    ]


def _run(where: Path, measured_s: float, *, attached: bool) -> tuple[list[float], list[float]]:
    """Return batch times of the query in ms, and delays of our versions in s, both without warm-up."""
    checkpoint, store = where / "totals", where / "store"
    with _process([sys.executable, str(QUERY), str(checkpoint)], where / "query") as query:
        _wait_for(checkpoint / "commits" / "3", query)
        if attached:
            words = [str(checkpoint), "--app", "bench", "--store", str(store), "--json"]
            with _process([*ATTACH, *words], where / "attach"):
                since = _measured(where, measured_s)
        else:
            since = _measured(where, measured_s)
    batches = [each["took_ms"] for each in _lines(where / "query") if each["batch"] > since]
    behind = [each["behind_ms"] / 1_000 for each in _lines(where / "attach") if each["batch"] > since]
    return batches, behind


def _measured(where: Path, measured_s: float) -> int:
    """Wait for the warm-up and then for the measured time. Returns the last batch of the warm-up."""
    time.sleep(WARM_UP_S)
    since = max(each["batch"] for each in _lines(where / "query"))
    time.sleep(measured_s)
    return int(since)


def _lines(file: Path) -> Iterable[dict[str, float]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def _wait_for(path: Path, query: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while not path.exists():
        if query.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the query committed no batch: {path.parent} has no {path.name}")
        time.sleep(0.1)


@contextmanager
def _process(words: list[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with its output in a file. Terminate it at the end."""
    with out.open("wb") as file, out.with_suffix(".err").open("wb") as errors:
        started = subprocess.Popen(words, stdout=file, stderr=errors)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
