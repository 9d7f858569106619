"""Killed repairs that the same call finishes, followed by a rewind, another repair, or a collection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from slackwater.operations.repair.records.commit import RepairCall
from slackwater.store.versions import keys

from .simulated import Shape, SimulatedApp, simulated

ROWS = [("in", 0, {"k": k, "x": x, "seq": at}) for at, (k, x) in enumerate([("ax", 1), ("ax", 2), ("ax", 4)])]
SUMS = Shape("sum", ("in",), 99, 99, has_parser=False, has_groups=False, sink_key=None)


class Killed(BaseException):
    """Simulated end of the process, which the product never catches."""


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, *, is_committed: bool) -> Iterator[None]:
    """Expect that the repair in this block is killed, either before or after its commits."""
    commit = RepairCall._commit

    def kill(call: RepairCall, plan: object) -> None:
        if is_committed:
            commit(call, plan)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):  # noqa: PT012  the block is the caller's
        patch.setattr(RepairCall, "_commit", kill)
        yield


def total(app: SimulatedApp) -> object:
    return app.tables()["t"]["a", "ax"]["total"]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_rewind_undoes_a_repair_that_was_interrupted_and_finished(
    is_committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(Random(1), tmp_path, SUMS, ROWS) as app:
        before = app.simulation.heads()["t"].version
        with killed(monkeypatch, is_committed=is_committed):
            app.repair({("in", 0, 0): None})
        app.repair({("in", 0, 0): None})
        assert total(app) == 6
        app.simulation.client().app(app.name).rewind(f"repaired/t@v{before}", keep_offsets=True)
        app.repair({("in", 0, 1): None})
        assert total(app) == 5


def test_the_same_call_finishes_a_repair_of_which_one_record_was_taken_out_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(Random(1), tmp_path, SUMS, ROWS) as app:
        app.repair({("in", 0, 0): None})
        both = {("in", 0, 0): None, ("in", 0, 1): None}
        with killed(monkeypatch, is_committed=False):
            app.repair(both)
        app.repair(both)
        assert total(app) == 4


def test_a_repair_from_a_moment_on_needs_no_version_before_it(tmp_path: Path) -> None:
    with simulated(Random(1), tmp_path, SUMS, ROWS) as app:
        since = {stage: head.version for stage, head in app.simulation.heads().items()}
        app.simulation.client().app(app.name).reset("in", to_earliest=True)
        app.feed([])
        assert total(app) == 14
        for version in range(1, since["t"]):
            app.store.delete(keys.manifest(app.name, "t", version))
        app.repair({("in", 0, 0): None}, since=since)
        assert total(app) == 13


def test_a_sink_that_is_younger_than_the_record_got_no_row_of_it(tmp_path: Path) -> None:
    with simulated(Random(1), tmp_path, SUMS, ROWS) as app:
        app.simulation.app = Shape("sum", ("in",), 99, 99, False, False, sink_key=("g",)).app("repaired")
        app.feed([("in", 0, {"k": "by", "x": 1, "seq": 9})])
        assert app.repair({("in", 0, 0): None}).plan.sinks == ()
        assert total(app) == 6
