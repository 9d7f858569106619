"""Effect of serving on a job: its batches with and without 500 look-ups a second in its table on the same machine.

The job has one batch a second. For some seconds, its table gets requests from vegeta; for the next seconds, it is not
served at all, because the server is stopped (SIGSTOP); and so on. The median batches of neighbouring periods of the
same job are compared. The server has a lower CPU priority than the job, as the documentation recommends for a shared
machine. So has the load generator, which would normally run elsewhere.

`python -m bench.tasks.serve.serving_beside BOOTSTRAP TOPIC FOLDER TURNS` starts a new job and prints JSON: the seconds
of the batches in each period, those without requests first; and figures of the answers.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.programs.go import is_built

from ...support import events, served, side
from ...support.row import Row
from ...throughput import app_of

TOPIC = "bench-serving-beside"
BATCH = 20_000
RATE = 500
TURN_S, SETTLED_S = 10.0, 2.0
WARM_UP = 25
TURNS = 20
LIMIT = 1.05


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Compare the median batch with requests with the median batch without. Takes about five minutes."""
    if not is_built("vegeta"):
        raise RuntimeError("vegeta is not built: `make bench` does it, with Go on PATH")
    turns = 4 if quick else TURNS
    events.fill(bootstrap, BATCH * round(WARM_UP + turns * TURN_S + 5), topic=TOPIC)
    found = side.run("tasks.serve.serving_beside", bootstrap, TOPIC, folder, turns)
    without, beside = ([median(turn) for turn in each] for each in (found["turns"][::2], found["turns"][1::2]))
    ratio = median(with_ / alone for alone, with_ in zip(without, beside, strict=True))
    load = found["load"]
    return [
        Row.at_most(
            f"batch of {BATCH:,} records, one a second, while {RATE} requests/s are served from the same store",
            f"{median(beside):.3f} s",
            f"without: {median(without):.3f} s, {len(without)} turns of each; "
            f"{load['ok']:.2%} answered, p50 {load['p50']:.1f} ms, p99 {load['p99']:.1f} ms, "
            f"{load['cpu_us']:.0f} µs of processor a request",
            ratio,
            LIMIT,
        )
    ]


def _run(bootstrap: str, topic: str, folder: Path, turns: int) -> dict[str, Any]:
    found: list[tuple[float, float]] = []
    enough, spans, load = threading.Event(), list[tuple[float, float]](), dict[str, float]()
    store, cache = str(folder / "store"), folder / "cache"

    def note(report: Any) -> None:
        found.append((report.time_ms / 1_000, report.seconds))
        if len(found) == WARM_UP:
            enough.set()

    def ask() -> None:
        enough.wait()
        numbers = np.random.default_rng(3).integers(events.KEYS, size=RATE * 30)
        asked = [f"/apps/bench/at/now/tables/legs?key={name.decode()}" for name in events.names(numbers).to_pylist()]
        with served.serving(store, cache, gives_way=True) as (url, process):
            targets = served.targets(folder, [url], asked)
            served.attack(targets, RATE, 3, gives_way=True)
            for turn in range(turns):
                began_s = time.time()
                if turn % 2:
                    process.send_signal(signal.SIGCONT)
                    load.update(served.attack(targets, RATE, TURN_S, process, gives_way=True))
                else:
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(TURN_S)
                spans.append((began_s + SETTLED_S, time.time()))
            process.send_signal(signal.SIGCONT)

    asks = threading.Thread(target=ask, name="asks")
    asks.start()
    options = {"trigger_ms": 1_000, "on_report": note}
    side.reports(app_of(topic), bootstrap, store, cache, BATCH, **options)
    asks.join()
    each = [[seconds for at_s, seconds in found if begin <= at_s < end] for begin, end in spans]
    return {"turns": each, "load": load}


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))), flush=True)
