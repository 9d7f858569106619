"""A replay of the program proves which record of a version was counted, if stored rows cannot show this."""

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from slackwater.pipeline.run.program import load_app
from slackwater.testing import Ran, run

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

PROGRAM = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("counts")


@app.stage(reads=sw.topic("in"), key="k", state=sw.aggregate(n=sw.count()))
def t(raw):
    fields = raw.select(F.from_json(F.col("value").cast("string"), "k string, x long").alias("r"))
    return fields.select("r.*").where("x < 90")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "counts.py"
    file.write_text(PROGRAM)
    return file


def kinds(ran: Ran, key: object, **how: Any) -> Mapping[str, tuple[str, bool]]:
    """Return the kind of each record's fate, and True if it is proved, by location."""
    found = ran.app.why_not("t", key, **how).full_result
    return {str(reason.record): (reason.kind, reason.proved) for reason in (*found.reasons, *found.counted)}


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(2, 20))])
def test_a_replay_tells_counted_records_from_filtered_ones_of_the_same_version(program: Path, seed: int) -> None:
    random, sent = Random(seed), list[list[dict[str, Any]]]()
    ran: Ran | None = None
    for _ in range(3):
        sent.append([{"k": random.choice("ab"), "x": random.choice([1, 95])} for _ in range(random.randrange(1, 5))])
        ran = run(load_app(str(program)), {"in": [json.dumps(row).encode() for row in sent[-1]]}, after=ran)
    assert ran is not None
    rows = [(version, row) for version, batch in enumerate(sent) for row in batch]
    for key in "ab":
        own = {f"in[0]@{at}": (version, row["x"]) for at, (version, row) in enumerate(rows) if row["k"] == key}
        if not own:
            continue
        truth = {place: "counted" if x < 90 else "filtered" for place, (_, x) in own.items()}
        assert kinds(ran, key, code=program) == {place: (kind, True) for place, kind in truth.items()}
        # Stored rows alone: versions that counted no record filtered all; of others, all may be counted.
        stored = kinds(ran, key)
        for place, (version, _) in own.items():
            of_version = [x for number, x in own.values() if number == version]
            assert stored[place] == ("counted" if min(of_version) < 90 else "filtered", _is_clear(of_version)), stored
        for place in own:
            alone = kinds(ran, key, record=place)
            assert alone == {place: stored[place]}


def _is_clear(of_version: list[int]) -> bool:
    return len(of_version) == 1 or min(of_version) >= 90


WINDOWS = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("windows")
by_k = sw.repartition("by-k", key="k", partitions=1)


@app.stage(reads=sw.topic("in"), writes=by_k)
def parse(raw):
    fields = raw.select(F.from_json(F.col("value").cast("string"), "k string, x long, at timestamp").alias("r"))
    return fields.select("r.*").where("x < 90").withWatermark("at", "1 minute")


@app.stage(reads=by_k, key=["k", "w"], state=sw.aggregate(n=sw.count()))
def t(rows):
    return rows.where("x <> 7").withColumn("w", F.window("at", "1 minute"))
"""


@pytest.mark.ci
def test_a_replay_tells_late_records_from_filtered_ones_across_stages(tmp_path: Path) -> None:
    program = tmp_path / "windows.py"
    program.write_text(WINDOWS)

    def row(x: int, minute: int) -> bytes:
        return json.dumps({"k": "a", "x": x, "at": f"2026-01-01T00:{minute:02d}:30Z"}).encode()

    ran = run(load_app(str(program)), {"in": [row(1, 30)]})
    ran = run(load_app(str(program)), {"in": [row(1, 31), row(1, 1), row(95, 1), row(7, 1)]}, after=ran)
    (window,) = (r["w"] for r in ran.rows("t") if r["w"]["start"].minute == 30)  # type: ignore[index]
    closed = {name: at.replace(minute=minute) for (name, at), minute in zip(window.items(), (1, 2), strict=True)}
    late = [f"in[0]@{offset}" for offset in (2, 3, 4)]
    stored = [kinds(ran, ("a", closed), record=place)[place] for place in late]
    assert stored == [("late", False)] * 3
    proved = [kinds(ran, ("a", closed), record=place, code=program)[place] for place in late]
    assert proved == [("late", True), ("filtered", True), ("filtered", True)]
    assert kinds(ran, ("a", window), record="in[0]@0", code=program) == {"in[0]@0": ("counted", True)}
