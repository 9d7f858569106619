"""A repair that is killed at any of its requests: it leaves nothing half done, and the same call finishes it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from slackwater.common import runtime
from slackwater.operations.repair.records.journal import REPAIRS, standing_repairs
from slackwater.snapshot.under_way.runners import EDITS, find_hold
from slackwater.snapshot.verify.verify import verify

from tests.crash.points import NumberedBroker, NumberedStore, killed_at_each_call

from .simulated import KEY, OUT, Place, Raw, Shape, SimulatedApp, simulated

SHAPE = Shape("sum", ("in",), 9, 8, has_parser=True, has_groups=True, sink_key=KEY)


class World(NamedTuple):
    app: SimulatedApp
    store: NumberedStore
    chosen: dict[Place, Raw | None]

    @property
    def kafka(self) -> NumberedBroker:
        return NumberedBroker(self.app.kafka, self.store)

    def repair(self, *, undo: bool) -> None:
        program = self.app.program(self.store, self.kafka)
        self.app.repair({} if undo else self.chosen, program=program, undo=undo)


@pytest.mark.parametrize(
    ("undo", "has_runner"),
    [
        pytest.param(False, False, id="repair"),
        pytest.param(True, False, id="undo", marks=pytest.mark.ci),
        pytest.param(False, True, id="repair beside a runner", marks=pytest.mark.ci),
        pytest.param(True, True, id="undo beside a runner", marks=pytest.mark.ci),
    ],
)
@pytest.mark.timeout(3_000)
def test_the_same_call_finishes_it(undo: bool, has_runner: bool, tmp_path: Path) -> None:
    with ExitStack() as stack:

        def build() -> World:
            stack.close()
            app = stack.enter_context(simulated(Random(7), tmp_path, SHAPE))
            chosen = {next(place for place, row in app.sent.items() if row["x"] == 8): None}
            if undo:
                app.repair(chosen)
                app.feed([])
            if has_runner:
                app.simulation.start_runner(gc_every_ms=None)
                app.simulation.run_for(5.0)
            return World(app, NumberedStore(app.store), chosen)

        for world, _ended in killed_at_each_call(
            f"{'undo of a ' if undo else ''}repair{' beside a runner' if has_runner else ''}",
            build,
            lambda world: world.repair(undo=undo),
            lambda world: world.store,
        ):
            app, before, after = world.app, {} if not undo else world.chosen, world.chosen if not undo else {}
            # Each table is as before or as after.
            for name, rows in app.tables().items():
                assert rows in (app.expected(before)[name], app.expected(after)[name])
            begun = standing_repairs(app.store, app.name)
            if not undo or begun:
                world.repair(undo=undo)
            assert app.tables() == app.expected(after)
            assert [repair.state for repair in REPAIRS.all(app.store, app.name)] == ["undone" if undo else "done"]
            assert EDITS.all(app.store, app.name) == ()
            assert verify(app.store, app.name).consistent
            if has_runner:
                runtime.sleep(60.0)
                assert app.simulation.is_caught_up()
                assert find_hold(app.store, app.name) is None
            else:
                app.feed([])
            assert app.published() == app.expected(after)["t"]
            records = [record for partition in app.kafka._topics[OUT] for record in partition.log if record is not None]
            assert len(records) == app.simulation.heads()["t"].sinks[OUT].sent  # each once
