"""The law of repairs for random programs: tables and sinks equal those of an app that never read the records.

Plain Python over the other records (`Shape.tables`) gives the expected tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from _pytest.mark.structures import ParameterSet
from slackwater.errors import Refused
from slackwater.store.versions import history
from slackwater.store.versions.side_tables import added_ssts

from tests.models.profiles import PROFILE

from .simulated import OUT, Place, Raw, SimulatedApp, random_record, simulated

PROGRAMS = {"default": 5, "ci": 500, "nightly": 5_000}
KEPT = [285, 341, 448]
"""Programs whose repairs were once wrong.

In 285, a record was read between another repair of its key and that repair's undo. In 341 and 448, a second repair gave
a batch the rows that it had committed at first, while an earlier repair had changed the newest rows.
"""


REFUSED = {489: "the new value gives rows in a version that sent none: its reader never reads up to that version"}
"""Programs whose repairs are refused although the app has read all its input. These are still to be mended."""


def _programs() -> Iterator[ParameterSet]:
    for seed in (*range(PROGRAMS[PROFILE]), *(KEPT if PROFILE == "default" else [])):
        refused = [pytest.mark.xfail(raises=Refused, strict=True, reason=REFUSED[seed])] if seed in REFUSED else []
        yield pytest.param(seed, marks=refused)


@pytest.mark.parametrize("seed", [*_programs()])
def test_tables_and_sinks_are_those_of_an_app_that_never_read_the_records(seed: int, tmp_path: Path) -> None:
    random = Random(f"repair {seed}")
    with simulated(random, tmp_path) as app:
        assert app.tables() == app.expected({})
        check_sink(app, {})
        in_force: list[dict[Place, Raw | None]] = []
        for _ in range(random.randrange(1, 4)):
            if in_force and random.random() < 0.3:
                assert app.repair(replaced(in_force), undo=True).undone
                in_force.pop()
            elif chosen := chosen_records(random, app, in_force):
                in_force.append(chosen)
                # The values of records that were replaced earlier are not kept.
                check_repair(app, chosen | replaced(in_force))
            assert app.tables() == app.expected(all_of(in_force))
            if random.random() < 0.5:
                # The next batches go on from the repaired rows.
                app.feed([(app.shape.topics[0], 0, random_record(random, 1_000 + len(app.sent)))])
                assert app.tables() == app.expected(all_of(in_force))
        app.feed([])
        check_sink(app, all_of(in_force))


def replaced(repairs: list[dict[Place, Raw | None]]) -> dict[Place, Raw | None]:
    return {place: row for place, row in all_of(repairs).items() if row is not None}


def all_of(repairs: list[dict[Place, Raw | None]]) -> dict[Place, Raw | None]:
    return {place: row for repair in repairs for place, row in repair.items()}


def chosen_records(
    random: Random, app: SimulatedApp, earlier: list[dict[Place, Raw | None]]
) -> dict[Place, Raw | None]:
    """Choose one or two records to drop or replace, none of which an earlier repair has taken out."""
    left = [place for place in app.sent if place not in all_of(earlier)]
    # No two records have the same `seq`: which of equals an upsert keeps is not part of the law.
    first = 2_000 + 10 * len(all_of(earlier))
    return {
        place: random_record(random, first + at) if random.random() < 0.3 else None
        for at, place in enumerate(random.sample(left, min(len(left), random.choice((1, 1, 2)))))
    }


def check_repair(app: SimulatedApp, chosen: dict[Place, Raw | None]) -> None:
    before, heads = app.tables(), {name: history.head(app.store, app.name, name) for name in app.tables()}
    planned = app.repair(chosen, dry_run=True)
    assert app.tables() == before
    done = app.repair(chosen)
    for name, was in before.items():
        now, head, then = app.tables()[name], history.head(app.store, app.name, name), heads[name]
        assert head is not None
        assert then is not None
        changed = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
        rows = {len(one.plan.changes.get(name, ())) for one in (planned, done)}
        assert rows == {sum(sst.rows for sst in added_ssts(then, head))}
        # Columns that start with `_` may differ alone.
        assert changed <= {tuple(change.key.values()) for change in done.plan.changes.get(name, ())}
        assert head.version - then.version == (1 if rows != {0} else 0)
    again = app.repair(chosen)
    assert (again.repair, again.versions) == (None, {})


def check_sink(app: SimulatedApp, substitutes: dict[Place, Raw | None]) -> None:
    """Check that a consumer that keeps each key's newest record ends with the table."""
    if app.shape.sink_key is not None:
        assert OUT in app.kafka._topics
        assert app.published() == app.expected(substitutes)["t"]
