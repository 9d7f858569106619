"""A release tried on a million keys and a million records: what is named, and what a share of the keys costs.

`python -m bench.tasks.trial BOOTSTRAP FOLDER TOPIC SHARE` tries it in a fresh process and prints JSON: the seconds of
the trial without the start of Spark, and how many keys differ, rightly and wrongly. SHARE is `100%` for all keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..support import side
from ..support.events import fill_legs
from ..support.row import Row

_TOPIC = "bench-trial"
_CHANGED = 1_000
_PROGRAM = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("bench")

@app.stage(reads=sw.topic("{topic}"), key="leg", state=sw.aggregate(flights=sw.count(), delay=sw.sum("delay")))
def legs(raw):
    event = F.from_json(F.col("value").cast("string"), "arr_delay double")
    return raw.select(F.col("key").cast("string").alias("leg"), {delay})
"""
_DELAY = 'event["arr_delay"].alias("delay")'
_OTHER = '(event["arr_delay"] + (F.substring(F.col("key").cast("string"), -7, 7).cast("int") < {changed}).cast("int"))'


def rows(bootstrap: str, folder: Path, quick: bool) -> Iterator[Row]:
    """A trial of a program that changes one column of 1,000 keys in 1 M, over 1 M records; of all keys, and of 1 %."""
    count = 100_000 if quick else 1_000_000
    folder.mkdir(parents=True, exist_ok=True)
    keys = np.random.default_rng(0).permutation(count)
    fill_legs(bootstrap, _TOPIC, keys)
    side.run("tasks.trial", bootstrap, folder, _TOPIC, "build")
    fill_legs(bootstrap, _TOPIC, keys[::-1])
    side.run("tasks.trial", bootstrap, folder, _TOPIC, "follow")
    whole, some = (side.run("tasks.trial", bootstrap, folder, _TOPIC, share) for share in ("100%", "1%"))
    what = f"trial over {count:,} records of {count:,} keys, of which {_CHANGED:,} differ"
    named = f"{whole['right']:,} named, {whole['wrong']:,} wrongly"
    yield Row.at_most(what, named, f"{_CHANGED:,}, and no other", abs(whole["right"] - _CHANGED) + whole["wrong"], 0)
    yield Row.at_most(
        f"{what}: a share of 1 %, without Spark's start",
        f"{some['seconds']:.1f} s, {some['right']:,} named, {some['wrong']:,} wrongly",
        f"all keys: {whole['seconds']:.1f} s",
        some["seconds"] / whole["seconds"],
        0.1,
    )


def _programs(folder: Path, topic: str) -> tuple[Path, Path]:
    old, new = folder / "old.py", folder / "new.py"
    old.write_text(_PROGRAM.format(topic=topic, delay=_DELAY))
    new.write_text(_PROGRAM.format(topic=topic, delay=_OTHER.format(changed=_CHANGED) + '.alias("delay")'))
    return old, new


def _work_off(bootstrap: str, folder: Path, old: Path) -> None:
    from slackwater.pipeline.run.program import load_app

    side.commits_ms(load_app(str(old)), bootstrap, str(folder / "store"), folder / "cache", 250_000)


def _tried(bootstrap: str, folder: Path, new: Path, share: str) -> dict[str, float]:
    import time

    import slackwater as sw
    from slackwater.pipeline.spark.session import spark_session

    with spark_session("bench", master="local[2]"), sw.open(str(folder / "store"), kafka=bootstrap) as client:
        began = time.monotonic()
        found = client.app("bench").trial(new, start="built", keys="" if share == "100%" else share)
        seconds = time.monotonic() - began
    (table,) = found.data["tables"]  # type: ignore[index]
    named = [int(row["key"]["leg"][-7:]) for row in json.loads(bytes(table["rows"]))]
    right = sum(number < _CHANGED for number in named)
    return {"seconds": seconds, "right": right, "wrong": len(named) - right}


if __name__ == "__main__":
    bootstrap, where, topic, what = sys.argv[1:]
    folder = Path(where)
    old, new = _programs(folder, topic)
    if what in ("build", "follow"):
        _work_off(bootstrap, folder, old)
        if what == "build":
            import slackwater as sw

            with sw.open(str(folder / "store"), kafka=bootstrap) as client:
                client.app("bench").snapshot("built", instant=True)
        print("{}")
    else:
        print(json.dumps(_tried(bootstrap, folder, new, what)))
