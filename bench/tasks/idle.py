"""Monthly cost of idle stages at S3's prices: the requests that they and their runner make.

`python -m bench.tasks.idle run BOOTSTRAP FOLDER TOPIC SECONDS` runs the app in a fresh process, leaves it idle for that
time, and prints a JSON object: by stage, the requests per hour that the stage and its runner made.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from msgspec.structs import asdict

from ..support import side
from ..support.row import Row
from .freshness import create, send

IDLE_S = 180.0
LIMIT = 1.0
"""Maximum cost in USD per month."""
_OTHERS = 120
"""Number of listings per hour by which a runner looks for other runners, as part of its heartbeats.

They do not depend on its stages.
"""


def rows(bootstrap: str, folder: Path, quick: bool) -> list[Row]:
    """Measure the monthly cost of an idle stage: one on a user's topic, one on a repartition topic."""
    from slackwater.store.objects.counting import Prices, Stats, monthly_cost

    idle_s = 30.0 if quick else IDLE_S
    words = ("run", bootstrap, folder, "bench-idle", idle_s)
    found: dict[str, dict[str, int]] = side.run("tasks.idle", *words)
    made = []
    for stage, what in (("flights", "a topic, with what its runner looks for"), ("legs", "a repartition topic")):
        hour = found[stage]
        lists = max(0, hour["lists"] - (_OTHERS if stage == "flights" else 0))
        cost = monthly_cost(Stats(gets=hour["gets"], lists=lists), 0, Prices()).requests
        made.append(
            Row.at_most(
                f"reads and listings of an idle stage on {what}, a month at S3's prices",
                f"{cost:.2f} USD ({hour['gets']:,} and {lists:,} an hour)",
                f"limit: {LIMIT:g} USD; a listing a second: 13.14 USD",
                cost / LIMIT,
                1,
            )
        )
    return made


def _idle(bootstrap: str, folder: Path, topic: str, idle_s: float) -> dict[str, dict[str, int]]:
    import slackwater as sw
    from slackwater.pipeline.listener import BatchReport, Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run
    from slackwater.pipeline.run.stopping import StopEvent, StopRequested
    from slackwater.snapshot.status.cost import per_hour, recent_usage
    from slackwater.store.objects.open import open_store
    from slackwater.store.versions import history

    app = sw.App("bench")
    by_leg = sw.repartition("by-leg", "leg", partitions=2)
    app.stage(name="flights", reads=sw.topic(topic), writes=by_leg)(
        lambda raw: raw.selectExpr("CAST(key AS string) leg")
    )
    app.stage(name="legs", reads=by_leg, key="leg", state=sw.aggregate(flights=sw.count()))(lambda rows: rows)
    stop, first, second = StopEvent(), threading.Event(), threading.Event()

    def note(report: BatchReport) -> None:
        if report.stage == "legs" and report.rows_in:
            (second if first.is_set() else first).set()

    def feed() -> None:
        send(bootstrap, topic, 1, [])
        first.wait()
        # The next version contains the requests made since this version.
        second.wait(idle_s)
        send(bootstrap, topic, 1, [])
        second.wait()
        stop.set()

    create(bootstrap, topic)
    feeder = threading.Thread(target=feed, name="feeder", daemon=True)
    feeder.start()
    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        cache_folder=folder / "cache",
        master="local[2]",
    )
    try:
        run(app, options, Callbacks(committed=note), stop=stop)
    except StopRequested:
        feeder.join()
    store, found = open_store(str(folder / "store")), {}
    for stage in app.stages:
        head = history.head(store, "bench", stage)
        assert head is not None
        hour = per_hour(recent_usage(store, head, 1)[1])
        assert hour is not None
        found[stage] = asdict(hour)
    return found


if __name__ == "__main__":
    _, bootstrap, folder, topic, seconds = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    print(json.dumps(_idle(bootstrap, work, topic, float(seconds))))
