"""One seed: a random app, a history with one fault of each chosen class, and the verdicts of bisect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from slackwater.common.instants import now_ms

from tests.faults import apps, judge
from tests.faults.apps import shape
from tests.faults.history import History, Record
from tests.faults.judge import Truth
from tests.faults.plants import CLASSES, PHASES, Plant, Planter, fault_of
from tests.support.running import eventually

HEALTHY = 60
"""Number of records in each phase that belong to no plant."""
ALL, NEVER_BAD = "all programs", "it never was bad"


@dataclass(frozen=True)
class Outcome:
    """Result of one fault."""

    seed: int
    name: str
    asked: str
    """Arguments of bisect."""
    wrong: tuple[str, ...]
    """Errors in the verdict; empty if it is right."""
    took_s: float
    repeat: str
    """Command that repeats the search."""


def trial(bootstrap: str, folder: Path, seed: int, names: Sequence[str], *, partial: bool = True) -> Iterator[Outcome]:
    """Plant a fault of each class, and judge the verdicts, with all programs and with a random subset."""
    plants = [fault_of(name, seed) for name in names]
    shared = [one for one in plants if not one.is_alone]
    if shape(seed, ()).hops < 3:
        apart = [one for one in shared if one.name == "three hops"]
        shared = [one for one in shared if one not in apart]
    else:
        apart = []
    for at, some in [("any", shared), ("three", apart), *((one.name, [one]) for one in plants if one.is_alone)]:
        if some:
            history = ran(bootstrap, folder / at, seed, some, hops=3 if some is apart else None)
            for one in some:
                yield from judged(history, one, seed, partial=partial)


def ran(bootstrap: str, folder: Path, seed: int, plants: Sequence[Plant], hops: int | None = None) -> History:
    """Run a history with these faults, and return it."""
    tables = sorted({table for one in plants for table in CLASSES[one.name][1]} | {"totals"})
    history = History(bootstrap, folder, shape(seed, tuple(tables), hops), Random(f"history {seed}"))
    order = Random(f"order {seed}")
    two = order.random() < 0.3 or any(one.name == "deploy" for one in plants)
    healthy = Planter(Random(f"healthy {seed}"), 0)
    for phase in range(PHASES):
        history.send(_mixed(order, healthy, plants, phase))
        history.run(2 if two and phase == PHASES - 1 else 1)
        history.did("snapshot", "take", history.app, f"phase-{phase}", "--instant")
        if upkeep := order.choice(
            ((), ("compact", history.app), ("rescale", f"{history.app}/totals", "--partitions", "4"))
        ):
            history.did(*upkeep)
        for one in plants:
            if one.operation is not None and phase == 0:
                one.operation(history)
        if "recent" in tables and phase == 0:
            eventually(partial(_is_past, now_ms() + apps.CLOCK_TTL_S * 1000), "rows of `recent` expire")
    return history


def _is_past(time_ms: int) -> bool:
    return now_ms() > time_ms


def _mixed(order: Random, healthy: Planter, plants: Sequence[Plant], phase: int) -> list[Record]:
    """Return the records of a phase: healthy records, and at random places those of each plant in their order."""
    sent: list[list[Record]] = [[healthy.ordinary()] for _ in range(HEALTHY)]
    last: list[Record] = []
    for plant in plants:
        mine = [record for at, record in plant.records if at == phase]
        if plant.at_end:
            last += mine
            continue
        if order.random() < 0.5:
            # Close to one another, like records of one bad producer.
            place = order.randrange(len(sent))
            sent[place] += mine
        else:
            for place, record in zip(sorted(order.choices(range(len(sent)), k=len(mine))), mine, strict=True):
                sent[place].append(record)
    return [record for some in sent for record in some] + last


def judged(history: History, plant: Plant, seed: int, *, partial: bool) -> Iterator[Outcome]:
    """Yield the outcomes for a planted fault, with all programs and with a random subset."""
    truth = judge.truth(history, plant)
    if truth is None:
        yield Outcome(seed, plant.name, NEVER_BAD, (), 0, "")
        return
    programs = [word for file in dict.fromkeys(history.ran) for word in ("--code", str(file))]
    asked = [(ALL, programs)]
    if partial:
        first, last = history.ran[0], history.ran[-1]
        less = [("no program", []), ("no replay", ["--no-replay", *programs])]
        less.append(("another program", ["--code", str(history.program(apps.NEVER_RAN))]))
        if first != last:
            less += [("the first program", ["--code", str(first)]), ("the last program", ["--code", str(last)])]
        asked.append(Random(f"asked {seed} {plant.name}").choice(less))
    for how, words in asked:
        began = time.monotonic()
        found, repeat = ask(history, plant, truth, words, whole=how == ALL)
        yield Outcome(seed, plant.name, how, found, time.monotonic() - began, repeat)


def ask(
    history: History, plant: Plant, truth: Truth, words: Sequence[str], *, whole: bool
) -> tuple[tuple[str, ...], str]:
    """Run one search. Returns the errors in its answer, and the command that repeats it."""
    good = ("--good", f"{history.app}@{plant.good}") if plant.good else ()
    command = ["bisect", history.app, "--where", plant.where, *good, *words]
    repeat = f"{history.folder}: {' '.join(command)}"
    try:
        code, out, said = history.verb(*command, "--json")
        if code:
            return (f"exit code {code}: {said.strip()[-300:]}",), repeat
        verdict: dict[str, Any] = json.loads(out)
        # The claim of the title matters only if there is an earlier bad commit.
        again = verdict["first_bad"]["version"] != truth.turns[0]
        shown = history.did("bisect", history.app, "--where", plant.where, *good, "--no-replay") if again else ""
    except Exception as error:  # any exception that the verb lets through is a wrong answer
        return (f"it crashed: {type(error).__name__}: {error}",), repeat
    return tuple(judge.wrong(verdict, shown, plant, truth, whole=whole)), repeat
