"""`make faults`: plant faults of each class, by seed, and count the right verdicts of bisect."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.spark.session import spark_session

from tests.faults.plants import CLASSES
from tests.faults.trial import ALL, NEVER_BAD, Outcome, trial
from tests.programs.spark_classes import SHORT_LIVED

SEEDS = 20


def main() -> int:
    """Run the requested trials. Prints each wrong answer at once, and a table at the end."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", default=str(SEEDS), help="how many, or FIRST-LAST")
    asked.add_argument("--classes", default="", help=f"of {', '.join(CLASSES)}; separated by commas, default all")
    asked.add_argument("--keep", help="a folder for the histories, which stay there")
    asked.add_argument("--kafka", help="the address of a broker; default one of its own")
    options = asked.parse_args()
    first, dash, last = options.seeds.partition("-")
    seeds = range(int(first), int(last) + 1) if dash else range(int(first))
    names = [name.strip() for name in options.classes.split(",") if name.strip()] or [*CLASSES]
    if strange := [name for name in names if name not in CLASSES]:
        asked.error(f"no class is called {strange[0]!r}; expected one of {', '.join(CLASSES)}")
    folder = Path(options.keep or tempfile.mkdtemp(prefix="slackwater-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED
    outcomes: list[Outcome] = []
    with (
        EmbeddedKafka(Path(tempfile.mkdtemp(prefix="slackwater-faults-kafka-"))) as broker,
        spark_session("faults", master="local[2]"),
    ):
        for seed in seeds:
            began, searched_s = time.monotonic(), 0.0
            for outcome in trial(broker.bootstrap, folder / str(seed), seed, names):
                outcomes.append(outcome)
                searched_s += outcome.took_s
                if outcome.asked == NEVER_BAD:
                    print(f"seed {seed}, {outcome.name}: {NEVER_BAD}", flush=True)
                for what in outcome.wrong:
                    print(f"seed {seed}, {outcome.name}, {outcome.asked}: {what}\n  {outcome.repeat}", flush=True)
            print(f"seed {seed}: {time.monotonic() - began:.0f} s, {searched_s:.0f} of them searching", flush=True)
    print(table(outcomes))
    return 1 if any(outcome.wrong for outcome in outcomes) or not outcomes else 0


def table(outcomes: list[Outcome]) -> str:
    """Return a table of right answers by class, and by the programs that bisect was given."""
    counts = Counter(
        (outcome.name, outcome.asked == ALL, bool(outcome.wrong)) for outcome in outcomes if outcome.repeat
    )
    never = Counter(outcome.name for outcome in outcomes if outcome.asked == NEVER_BAD)
    lines = [f"{'class':<16} {'right':>6} {'wrong':>6}   {'right with less':>15} {'wrong':>6}   {'never bad':>9}"]
    for name in dict.fromkeys(outcome.name for outcome in outcomes):
        right, wrong, right_less, wrong_less = (
            counts[name, all_, no] for all_ in (True, False) for no in (False, True)
        )
        lines.append(f"{name:<16} {right:>6} {wrong:>6}   {right_less:>15} {wrong_less:>6}   {never[name]:>9}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
