"""Trial of a release on a million keys and a million records: the reported rows, and the time for 1 % of the keys.

Times are relative to the smallest trial: one record on the same state. Its clone, migration, query start and first
batch do not depend on the number of records or keys.

Everything is measured twice: with records from Kafka, and with records from the app's input archive.

`python -m bench.tasks.trial BOOTSTRAP FOLDER TOPIC SHARE` runs one trial in a fresh process and prints JSON: its
seconds without Spark's start, and the numbers of keys rightly and wrongly reported. SHARE is `100%` for all keys, and
`least` for the smallest trial, with 1 % of the keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from ..support import side
from ..support.events import fill_legs
from ..support.row import Row

_TOPIC = "bench-trial"
_CHANGED = 1_000
_TURNS = 3
"""Number of trials of each kind, which alternate. The median counts, because a trial varies by half a second."""
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
    """Try a program that changes one column of 1,000 keys, on all keys and on 1 % of them."""
    yield from _of(bootstrap, folder, _TOPIC, 100_000 if quick else 1_000_000)


def _of(bootstrap: str, folder: Path, topic: str, count: int) -> Iterator[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    keys = np.random.default_rng(0).permutation(count)
    for step, records in (("build", keys), ("follow", keys[::-1]), ("one", keys[:1])):
        fill_legs(bootstrap, topic, records)
        side.run("tasks.trial", bootstrap, folder, topic, step)
    yield from _shares(bootstrap, folder, topic, count, "from Kafka")
    side.run("tasks.trial", bootstrap, folder, topic, "archive")
    yield from _shares(bootstrap, folder, topic, count, "from the input archive")


def _shares(bootstrap: str, folder: Path, topic: str, count: int, read: str) -> Iterator[Row]:
    shares = ("100%", "1%", "least")
    turns = [[side.run("tasks.trial", bootstrap, folder, topic, share) for share in shares] for _ in range(_TURNS)]
    whole, some, least = (
        {key: median(each[key] for each in one) for key in one[0]} for one in zip(*turns, strict=True)
    )
    what = f"trial over {count:,} records {read}, of {count:,} keys, of which {_CHANGED:,} differ"
    named = f"{whole['right']:,} named, {whole['wrong']:,} wrongly"
    yield Row.at_most(what, named, f"{_CHANGED:,}, and no other", abs(whole["right"] - _CHANGED) + whole["wrong"], 0)
    beyond = [each["seconds"] - least["seconds"] for each in (some, whole)]
    yield Row.at_most(
        f"{what}: a share of 1 %, beyond the {least['seconds']:.1f} s of a trial of one record",
        f"{beyond[0]:.1f} s ({some['seconds']:.1f} s in all), {some['right']:,} named, {some['wrong']:,} wrongly",
        f"all keys: {beyond[1]:.1f} s ({whole['seconds']:.1f} s in all)",
        max(beyond[0], 0.0) / beyond[1],
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
        start, end = ("followed", "now") if share == "least" else ("built", "followed")
        keys = {"100%": "", "least": "1%"}.get(share, share)
        found = client.app("bench").trial(new, start=start, end=end, keys=keys)
        seconds = time.monotonic() - began
    (table,) = found.data["tables"]  # type: ignore[index]
    named = [int(row["key"]["leg"][-7:]) for row in json.loads(bytes(table["rows"]))]
    right = sum(number < _CHANGED for number in named)
    return {"seconds": seconds, "right": right, "wrong": len(named) - right}


if __name__ == "__main__":
    bootstrap, where, topic, what = sys.argv[1:]
    folder = Path(where)
    old, new = _programs(folder, topic)
    if what == "archive":
        import slackwater as sw

        with sw.open(str(folder / "store"), kafka=bootstrap) as client:
            client.app("bench").archive(since="beginning")
        print("{}")
    elif what in ("build", "follow", "one"):
        _work_off(bootstrap, folder, old)
        if name := {"build": "built", "follow": "followed"}.get(what):
            import slackwater as sw

            with sw.open(str(folder / "store"), kafka=bootstrap) as client:
                client.app("bench").snapshot(name, instant=True)
        print("{}")
    else:
        print(json.dumps(_tried(bootstrap, folder, new, what)))
