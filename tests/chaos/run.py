"""`make chaos MINUTES=10 SEED=1`: kill random processes of an app on real servers, and check that nothing is lost."""

from __future__ import annotations

import argparse
import csv
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps

from tests.chaos.storm import KILLS, Storm, storm

RUNS = Path(__file__).with_name("runs.csv")
KINDS = (*KILLS, "promoter", "verb")
COLUMNS = ("seed", "minutes", *KINDS, "kills", "records", "versions", "snapshots", "clones", "promotions")
COLUMNS += ("collections", "messages", "lost", "doubled")
_CALM_S = 600.0
_PER_SECOND = 40


def run(folder: Path, seed: int, seconds: float) -> tuple[dict[str, int], list[str]]:
    """Kill processes for some time, then check all state.

    Returns the figures and a list of all faults that were found.
    """
    with storm(folder, seed) as blowing:
        with blowing.flights.flowing(_PER_SECOND, Random(seed)):
            blowing.blow(seconds)
            # The feeder ends only when the broker has accepted all records.
            blowing.broker.launch()
        blowing.calm(_CALM_S)
        figures = judge(blowing)
    kills = {kind: blowing.kills[kind] for kind in KINDS}
    figures |= {"seed": seed, "minutes": round(seconds / 60), **kills, "kills": sum(kills.values())}
    blowing.log(f"{figures}, {dict(blowing.done)}")
    return {name: figures[name] for name in COLUMNS}, blowing.problems


def judge(blowing: Storm) -> dict[str, int]:
    """Compare everything in the store and the sink with the raw input."""
    flights, store = blowing.flights, open_store(blowing.flights.store)
    judged = flights.judge()
    judged.check_tables(apps.folder_of(store, flights.app))
    judged.check_rejected()
    messages, folders = judged.check_sink(), apps.list_apps(store)
    snapshots, versions = (sum(count) for count in zip(*map(judged.check_app, folders), strict=True))
    blowing.problems += judged.problems
    figures = {"records": flights.sent + flights.garbage, "versions": versions, "snapshots": snapshots}
    verbs = {"clones": "clone: 0", "promotions": "promote: 0", "collections": "gc: 0"}
    figures |= {name: blowing.done[success] for name, success in verbs.items()}
    return figures | {"messages": messages, "lost": judged.lost, "doubled": judged.doubled}


def append(figures: dict[str, int], table: Path = RUNS) -> None:
    """Append a run to the table of runs."""
    is_new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(figures)


def main() -> int:
    """Run once, print the figures, and append them to the table. Returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", help="a folder for logs and servers, which is kept")
    parser.add_argument("--table", type=Path, help="append the figures to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the programs must not outlive this one
    folder = Path(options.folder or tempfile.mkdtemp(prefix="slackwater-chaos-"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    figures, wrong = run(folder, options.seed, options.minutes * 60)
    print("\n".join(f"{name:<12}{value:>10,}" for name, value in figures.items()))
    for line in wrong:
        print(line)
    if options.table:
        append(figures, options.table)
    if not wrong and not options.folder:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
