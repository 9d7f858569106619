"""One seed: an app by chance, a history with a fault of each chosen class in it, and what bisect says of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from slackwater.instants import now_ms

from tests.faults import apps, judge
from tests.faults.apps import shape
from tests.faults.history import History, Record
from tests.faults.judge import Truth
from tests.faults.plants import CLASSES, PHASES, Plant, Planter
from tests.support.running import eventually

HEALTHY = 60
"""Records of each phase that belong to no plant."""
ALL, NEVER_BAD = "all programs", "it never was bad"


@dataclass(frozen=True)
class Outcome:
    """What came of one fault."""

    seed: int
    name: str
    asked: str
    """With what it was asked."""
    wrong: tuple[str, ...]
    """What is not so; empty where all is right."""
    took_s: float
    repeat: str
    """What to type to look at it."""


def trial(bootstrap: str, folder: Path, seed: int, names: Sequence[str], *, partial: bool = True) -> Iterator[Outcome]:
    """Plant a fault of each class, and judge what is said of it: with all programs, and with less."""
    together = shape(seed, ()).hops == 3
    three = [] if together else [name for name in names if name == "three hops"]
    others = [name for name in names if name not in three]
    for at, chosen in (("any", others), ("three", three)):
        if chosen:
            history, plants = planted(bootstrap, folder / at, seed, chosen, hops=3 if three == chosen else None)
            for plant in plants:
                yield from judged(history, plant, seed, partial=partial)


def planted(
    bootstrap: str, folder: Path, seed: int, names: Sequence[str], hops: int | None = None
) -> tuple[History, list[Plant]]:
    """A history that has run, with a fault of each of these classes."""
    tables = sorted({table for name in names for table in CLASSES[name][1]} | {"totals"})
    history = History(bootstrap, folder, shape(seed, tuple(tables), hops), Random(f"history {seed}"))
    planter = Planter(Random(f"plants {seed}"))
    plants = [CLASSES[name][0](planter) for name in names]
    order = Random(f"order {seed}")
    releases = (1, 1, 2 if "deploy" in names or order.random() < 0.3 else 1)
    for phase in range(PHASES):
        history.send(_mixed(order, planter, plants, phase))
        history.run(releases[phase])
        if phase == 0:
            history.did("snapshot", "take", history.app, "phase-0", "--instant")
            for plant in plants:
                if plant.operation is not None:
                    plant.operation(history)
            if "recent" in tables:
                eventually(partial(_is_past, now_ms() + apps.CLOCK_TTL_S * 1000), "rows of `recent` expire")
    return history, plants


def _is_past(time_ms: int) -> bool:
    return now_ms() > time_ms


def _mixed(order: Random, planter: Planter, plants: Sequence[Plant], phase: int) -> list[Record]:
    """The records of a phase: each plant's in its own order, somewhere among the healthy ones."""
    sent: list[list[Record]] = [[planter.ordinary()] for _ in range(HEALTHY)]
    last: list[Record] = []
    for plant in plants:
        mine = [record for at, record in plant.records if at == phase]
        if plant.at_end:
            last += mine
            continue
        if order.random() < 0.5:
            # Close to one another, as from one bad producer.
            place = order.randrange(len(sent))
            sent[place] += mine
        else:
            for place, record in zip(sorted(order.choices(range(len(sent)), k=len(mine))), mine, strict=True):
                sent[place].append(record)
    return [record for some in sent for record in some] + last


def judged(history: History, plant: Plant, seed: int, *, partial: bool) -> Iterator[Outcome]:
    """What is said of a fault that was planted, with all programs; and with less, by chance."""
    truth = judge.truth(history, plant)
    if truth is None:
        yield Outcome(seed, plant.name, NEVER_BAD, (), 0, "")
        return
    programs = [word for file in dict.fromkeys(history.ran) for word in ("--code", str(file))]
    asked = [(ALL, programs)]
    if partial:
        first, last = history.ran[0], history.ran[-1]
        less = [("no program", []), ("no replay", ["--no-replay", *programs])]
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
    """What is wrong in the answer to one search, and the command that repeats it."""
    good = ("--good", f"{history.app}@{plant.good}") if plant.good else ()
    command = ["bisect", history.app, "--where", plant.where, *good, *words]
    repeat = f"{history.folder}: {' '.join(command)}"
    try:
        code, out, said = history.verb(*command, "--json")
        if code:
            return (f"exit code {code}: {said.strip()[-300:]}",), repeat
        verdict: dict[str, Any] = json.loads(out)
        # What its title claims is only of interest where there is an earlier one.
        again = verdict["first_bad"]["version"] != truth.turns[0]
        shown = history.did("bisect", history.app, "--where", plant.where, *good, "--no-replay") if again else ""
    except Exception as error:  # whatever the verb lets through is a wrong answer
        return (f"it crashed: {type(error).__name__}: {error}",), repeat
    return tuple(judge.wrong(verdict, shown, plant, truth, whole=whole)), repeat
