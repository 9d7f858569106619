"""Run benchmarks: `python -m bench` for all, `python -m bench NAME …` for some.

A benchmark is a module of this folder, or of `tasks`, with a function `rows(folder, quick)`, or `rows(bootstrap,
folder, quick)` if it needs a Kafka broker. Its name is the module's.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import pkgutil
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.table import Table
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from .support import plot
from .support.memory import Workers
from .support.row import Row

OUT = Path(__file__).parent / "out"
WORKER_LIMIT = 1 << 30
NAME_S = 600
"""Maximum seconds of a measurement; rows that were measured until then are kept.

A module with its own `SECONDS` is measured only if it is named.
"""
MIB = 1 << 20


def main(words: Sequence[str]) -> int:
    """Run benchmarks, print their table, and write `results.json` and `bench.svg`.

    Returns 1 if a figure misses its limit.
    """
    measurements = _measurements()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(measurements)}; all if there is none")
    parser.add_argument("--quick", action="store_true", help="fewer, smaller: to try the benchmark itself")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for results.json and bench.svg (%(default)s)")
    asked = parser.parse_args(words)
    if unknown := set(asked.names) - measurements.keys():
        parser.error(f"no measurement is named {', '.join(sorted(unknown))}; there are {', '.join(measurements)}")
    names = asked.names or [name for name, module in measurements.items() if not hasattr(module, "SECONDS")]
    console = Console()
    rows: list[Row] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slackwater-bench-")))
        broker: EmbeddedKafka | None = None
        workers = stack.enter_context(Workers())
        for name in names:
            console.print(f"{name}: {(measurements[name].__doc__ or '').splitlines()[0]}")
            if broker is None and _wants_broker(measurements[name]):
                broker = stack.enter_context(EmbeddedKafka(folder / "kafka"))
            began = time.monotonic()
            try:
                with _at_most(getattr(measurements[name], "SECONDS", NAME_S)):
                    for row in _measure(measurements[name], broker, folder / name, quick=asked.quick):
                        rows.append(row)
                        console.print(f"  {row.what}: {row.ours}; {row.peer}", markup=False, highlight=False)
                        _write(asked.out, [*rows, *_memory(workers)], failed, seconds)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
                console.print(f"[red]{name} failed:[/red]", markup=True)
                traceback.print_exc()
            seconds[name] = time.monotonic() - began
            shutil.rmtree(folder / name, ignore_errors=True)
            if broker is not None and not workers.resident:
                failed["memory"] = "no worker was seen, though Spark ran"
            else:
                failed.pop("memory", None)
            shown = [*rows, *_memory(workers)]
            # Written after each benchmark, so that nothing is lost if a later benchmark crashes the machine.
            _write(asked.out, shown, failed, seconds)
    plot.draw(shown, asked.out / "bench.svg")
    _print(console, shown)
    for name, why in failed.items():
        console.print(f"not measured: {name} ({why})", markup=False)
    return 0 if not failed and all(row.reached for row in shown) else 1


def _measurements() -> dict[str, ModuleType]:
    """Return the modules that define `rows`, by their names."""
    package = __spec__.parent if __spec__ else "bench"
    found = {}
    here = Path(__file__).parent
    for folder, inner in (
        (here, ""),
        (here / "tasks", ".tasks"),
        *((here / "tasks" / of, f".tasks.{of}") for of in ("queries", "serve", "storage")),
    ):
        for one in pkgutil.iter_modules([str(folder)]):
            if one.name != "__main__":
                module = import_module(f"{inner}.{one.name}", package)
                if hasattr(module, "rows"):
                    found[one.name] = module
    return found


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in the block after this number of seconds."""

    def stop(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"over {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _wants_broker(module: ModuleType) -> bool:
    return "bootstrap" in inspect.signature(module.rows).parameters


def _measure(module: ModuleType, broker: EmbeddedKafka | None, folder: Path, *, quick: bool) -> Iterable[Row]:
    """Run one benchmark and return its rows. A slow benchmark is a generator of rows."""
    folder.mkdir()
    measure: Callable[..., Iterable[Row]] = module.rows
    if _wants_broker(module):
        assert broker is not None
        return measure(broker.bootstrap, folder, quick)
    return measure(folder, quick)


def _memory(workers: Workers) -> list[Row]:
    """Return the row for peak memory of Python workers; no row if Spark did not run."""
    if not workers.resident:
        return []
    ratio = workers.own / WORKER_LIMIT
    own, resident, limit = (f"{size / MIB:,.0f} MiB" for size in (workers.own, workers.resident, WORKER_LIMIT))
    return [
        Row(
            "peak memory of an executor's Python worker in all of these, mapped SSTs left out",
            own,
            f"limit: {limit} (with what is mapped and resident: {resident})",
            ratio,
            "< 1",
            ratio < 1,
        )
    ]


def _write(out: Path, rows: Sequence[Row], failed: dict[str, str], seconds: dict[str, float]) -> None:
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    found = {
        "machine": machine,
        "rows": [asdict(row) for row in rows],
        "failed": failed,
        "seconds": {name: round(taken, 1) for name, taken in seconds.items()},
    }
    out.mkdir(exist_ok=True, parents=True)
    (out / "results.json").write_text(json.dumps(found, indent=2) + "\n")


def _print(console: Console, rows: Sequence[Row]) -> None:
    table = Table("what", "slackwater", "beside", "ratio", "asked", "reached")
    for row in rows:
        verdict = "yes" if row.reached else "[red]no"
        table.add_row(row.what, row.ours, row.peer, f"{row.ratio:.2f}", row.asked, verdict)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
