"""Simulate a range of seeds, and shrink the first failure: `make simulate SEEDS=0:200`."""

import argparse
import faulthandler
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa

from tests.simulation.planted import PLANTS, planted
from tests.simulation.rare import SOMETIMES
from tests.simulation.scenario import Outcome, Plan, simulate

_REPEATED = 20
"""One of this many seeds runs twice; both traces must be equal."""
_HANG_S = 1_800
_MEMORY = Path("/dev/shm")  # noqa: S108


def run(plan: Plan) -> Outcome:
    pa.set_cpu_count(1)
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
    logging.disable(logging.CRITICAL)
    # Files in memory, if there are any: a simulation syncs many small ones.
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    outcome = simulate(plan, folder)
    if not outcome.failure and plan.seed % _REPEATED == 0 and simulate(plan, folder).trace_hash != outcome.trace_hash:
        outcome.failure = "two runs of this seed differ"
    faulthandler.cancel_dump_traceback_later()
    return outcome


def shrink(failed: Outcome, tries: int = 40) -> Outcome:
    """Return the failure of a smaller plan. Tries fewer faults, then fewer verbs, then less time."""
    smallest, is_smaller = failed, True
    while is_smaller:
        is_smaller = False
        for plan in smallest.plan.smaller():
            tries -= 1
            if tries < 0:
                return smallest
            outcome = run(plan)
            if outcome.failure:
                smallest, is_smaller = outcome, True
                break
    return smallest


def find_planted(plans: Sequence[Plan]) -> int:
    """Print how many seeds it takes to find each planted bug, and the law that finds it.

    Returns the number of bugs that no seed found.
    """
    missed = 0
    for name in PLANTS:
        for number, plan in enumerate(plans, 1):
            with planted(name):
                outcome = run(plan)
            if outcome.failure:
                print(f"{number:>5}  {name}: {outcome.failure[:150]}", flush=True)
                break
        else:
            missed += 1
            print(f"never  {name}", flush=True)
    return missed


def report(outcomes: Sequence[Outcome], *, all_reached: bool) -> int:
    """Print the counts of checked laws, faults, verbs and rare situations.

    Returns 1 if `all_reached` is set and a rare situation was never reached.
    """
    steps, simulated_s = sum(outcome.steps for outcome in outcomes), sum(outcome.simulated_s for outcome in outcomes)
    print(f"{len(outcomes)} seeds, {steps:,} steps, {simulated_s / 3600:,.1f} simulated hours: all laws held")
    reached = sum((outcome.reached for outcome in outcomes), Counter[str]())
    for title, counts in (
        ("laws", sum((outcome.checked for outcome in outcomes), Counter[str]())),
        ("faults", sum((outcome.injected for outcome in outcomes), Counter[str]())),
        ("verbs", sum((outcome.results for outcome in outcomes), Counter[str]())),
        ("reached", reached),
    ):
        print(f"\n{title}")
        for name, count in sorted(counts.items()):
            print(f"{count:>10,}  {name}")
    missing = sorted(SOMETIMES - reached.keys())
    print(f"\nreached {len(SOMETIMES) - len(missing)} of {len(SOMETIMES)}; never: {', '.join(missing) or 'none'}")
    return 1 if missing and all_reached else 0


def _seeds(part: str) -> range:
    first, _, end = part.partition(":")
    return range(int(first), int(end or int(first) + 1))


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="0:200", help="seeds and ranges FIRST:END, joined by commas")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--faults", default=None, help="only these faults, joined by commas; '' for none")
    parser.add_argument("--verbs", default=None, help="only these verbs, joined by commas; '' for none")
    parser.add_argument("--seconds", type=int, help="simulated seconds with faults")
    parser.add_argument("--planted", action="store_true", help="plant bugs, and count the seeds until each is found")
    parser.add_argument("--all-reached", action="store_true", help="fail if a rare situation was never reached")
    chosen = parser.parse_args(None if arguments is None else list(arguments))
    seeds = [seed for part in chosen.seeds.split(",") for seed in _seeds(part)]
    plans = [Plan.of(seed).only(chosen.faults, chosen.verbs, chosen.seconds) for seed in seeds]
    if chosen.planted:
        return find_planted(plans)
    outcomes = []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for outcome in pool.map(run, plans) if chosen.jobs > 1 else map(run, plans):
            outcomes.append(outcome)
            if outcome.failure:
                smaller = shrink(outcome) if len(plans) > 1 else outcome
                print(f"seed {outcome.plan.seed}: {outcome.failure}\n\n{smaller.detail}")
                print(f"again: {smaller.plan.command()}", flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
                return 1
    return report(outcomes, all_reached=chosen.all_reached)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of text are in another order in each process, and a seed must give one history.
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606
    sys.exit(main())
