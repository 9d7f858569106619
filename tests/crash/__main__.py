"""`python -m tests.crash 0:10`: corrupt objects of every kind, and count wrong answers: neither right nor an error.

Each seed makes 500 corruptions. The test of the gate makes the first of seed "1.0" (`tests/crash/test_corruptions.py`).
"""

import argparse
import logging
import sys
from collections import Counter
from itertools import islice

from tests.crash.corruption import DAMAGES, READERS, UNREAD, corruptions, kind_of, places, wrong

_COUNT = 500


def main() -> int:
    """Print the counts by kind of damage and by reader. Returns 1 if a reader gave a wrong answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="0:1", help="FIRST:END")
    parser.add_argument("--readers", type=int, default=1, help="maximum number of readers of a corrupt object")
    chosen = parser.parse_args()
    first, _, end = chosen.seeds.partition(":")
    logging.disable(logging.CRITICAL)
    kinds, damages, readers, failures = Counter[str](), Counter[str](), Counter[str](), 0
    for seed in range(int(first), int(end or int(first) + 1)):
        for corruption, readers_of in corruptions(_COUNT, f"corruptions {seed}"):
            kinds[kind_of(corruption.key)] += 1
            damages[corruption.damage] += 1
            for reader in islice(readers_of, chosen.readers):
                readers[reader] += 1
                if (failure := wrong(corruption, reader)) is not None:
                    failures += 1
                    print(f"WRONG {corruption}, {reader}: {failure[:2_000]}")
        print(f"seed {seed}: {kinds.total():,} corruptions, {readers.total():,} reads, {failures} wrong", flush=True)
    print(f"kinds of objects: {len(kinds)} of {len(places().keys() - UNREAD)}")
    for names, counts in ((DAMAGES, damages), (READERS, readers)):
        print(", ".join(f"{name} {counts[name]:,}" for name in names))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
