"""An app of 30 stages with a backlog on two cores: fairness between stages, first commits, processes and memory.

The stages are a chain of ten, ten that read the same topic, and ten that read the chain's channels.

`python -m bench.tasks.queries.stages BOOTSTRAP FOLDER STAGES SECONDS` runs the app in a fresh process for that time,
and prints a JSON object: by stage, the number of batches and the seconds until the first commit; processes by kind;
bytes of memory.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import psutil

from ...support import side
from ...support.events import send
from ...support.row import Row

if TYPE_CHECKING:
    import slackwater as sw

TOPIC = "bench-stages"
STAGES = 30
SECONDS_OF_RUN = 110.0
BATCH, RECORDS = 500, 300_000
ACCOUNTS = 1_000
_CHUNK = 50_000
_SAMPLE_S = 1.0


class Measured(TypedDict):
    """Figures of one run: by stage, and for all its processes."""

    batches: dict[str, int]
    first: dict[str, float]
    processes: int
    kinds: dict[str, int]
    resident: int
    proportional: int


def rows(bootstrap: str, folder: Path, quick: bool) -> Iterator[Row]:
    """Measure 30 stages with a backlog on two cores, and one stage alone."""
    _fill(bootstrap, RECORDS)
    many: Measured = side.run("tasks.queries.stages", bootstrap, folder / "many", STAGES, SECONDS_OF_RUN)
    few: Measured = side.run("tasks.queries.stages", bootstrap, folder / "one", 1, 60)
    least, most = min(many["batches"].values()), max(many["batches"].values())
    last = max(many["first"].values(), default=SECONDS_OF_RUN) if least else SECONDS_OF_RUN
    what = f"{STAGES} stages with a backlog on two cores"
    yield Row.at_least(
        f"{what}: least batches of a stage beside the most in {SECONDS_OF_RUN:.0f} s",
        f"{least}",
        f"{most}; {sum(many['batches'].values())} of all",
        least / most,
        1 / 3,
    )
    one_s = few["first"].get(_name(0), 0.0)
    yield Row.at_most(f"{what}: first commit of the last stage", f"{last:.1f} s", f"one: {one_s:.1f} s", last / 35, 1)
    yield Row.at_most(
        f"{what}: processes", f"{many['processes']}", f"one: {few['processes']}", many["processes"] / 20, 1
    )
    memory, one = (measured["resident"] / 1e9 for measured in (many, few))
    share = many["proportional"] / 1e9
    yield Row.at_most(
        f"{what}: resident memory of all processes (shared pages once: {share:.2f} GB)",
        f"{memory:.2f} GB",
        f"one: {one:.2f} GB",
        memory / 2.5,
        1,
    )


def _name(number: int) -> str:
    return f"s{number:02}"


def _fill(bootstrap: str, records: int) -> None:
    accounts = np.random.default_rng(1).integers(0, ACCOUNTS, records)
    chunks = np.split(accounts, range(_CHUNK, records, _CHUNK))
    send(bootstrap, TOPIC, ([(b"a%d" % account, b"") for account in chunk.tolist()] for chunk in chunks))


def app_of(stages: int) -> sw.App:
    """Return an app with a chain of stages, as many that read the same topic, and as many that read the channels."""
    import slackwater as sw

    app, chain = sw.App("bench"), max(1, stages // 3)
    channels = [sw.repartition(f"c{number:02}", "account", partitions=2) for number in range(chain)]
    for number in range(stages):
        part, at = divmod(number, chain)
        upstream = (at - 1, -1, at)[part]
        app.stage(
            name=_name(number),
            reads=sw.topic(TOPIC) if upstream < 0 else channels[upstream],
            writes=channels[at : at + 1] if part == 0 and stages > 1 else (),
            key="account",
            state=sw.aggregate(n=sw.count()),
            table=sw.table(partitions=2),
        )(
            lambda rows: (
                rows.selectExpr("CAST(key AS string) account") if "key" in rows.columns else rows.select("account")
            )
        )
    return app


def _run(bootstrap: str, folder: Path, stages: int, seconds: float) -> Measured:
    from slackwater.pipeline.listener import BatchReport, Callbacks
    from slackwater.pipeline.run.options import Options
    from slackwater.pipeline.run.runner import run
    from slackwater.pipeline.run.stopping import StopEvent, StopRequested

    began_s = time.monotonic()
    stop, batches, first = StopEvent(), Counter[str](), dict[str, float]()
    measured = Measured(batches={}, first={}, processes=0, kinds={}, resident=0, proportional=0)

    def count(report: BatchReport) -> None:
        batches[report.stage] += 1
        first.setdefault(report.stage, time.monotonic() - began_s)

    def sample() -> None:
        before: set[psutil.Process] = set()
        while not stop.wait(_SAMPLE_S):
            processes = {psutil.Process(), *psutil.Process().children(recursive=True)}
            # Without commands that Spark runs only for a moment.
            lasting, before = processes & before, processes
            if len(lasting) > measured["processes"]:
                measured["processes"] = len(lasting)
                measured["kinds"] = dict(Counter(_kind(process) for process in lasting))
            if time.monotonic() - began_s > seconds:
                memory = [_memory(process) for process in lasting]
                measured["resident"], measured["proportional"] = (sum(sizes) for sizes in zip(*memory, strict=True))
                stop.set()

    sampler = threading.Thread(target=sample, name="sampler")
    sampler.start()
    options = Options(
        store=str(folder / "store"),
        kafka={"bootstrap.servers": bootstrap},
        max_records=BATCH,
        cache_folder=folder / "cache",
        master="local[2]",
    )
    try:
        run(app := app_of(stages), options, Callbacks(committed=count), stop=stop)
    except StopRequested:
        pass
    finally:
        stop.set()
        sampler.join()
    return Measured(**{**measured, "batches": {name: batches[name] for name in app.stages}, "first": {**first}})


def _kind(process: psutil.Process) -> str:
    """Return the kind of a process: its program, and the last words of its command that are not paths."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return ""
    words = [word for word in command[1:] if "/" not in word and not word.startswith("-")]
    return " ".join([Path(command[0]).name, *words[-2:]]) if command else ""


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Return the resident bytes (RSS) of a process, and its proportional share of shared memory (PSS)."""
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0, 0
    return memory.rss, memory.pss


if __name__ == "__main__":
    _, address, root, count_of_stages, length_s = sys.argv
    work = Path(root)
    work.mkdir(parents=True, exist_ok=True)
    print(json.dumps(_run(address, work, int(count_of_stages), float(length_s))))
