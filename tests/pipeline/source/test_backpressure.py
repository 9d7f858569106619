"""Backpressure within a runner: writers wait for slow readers, and then continue."""

from pathlib import Path

import pytest
from slackwater.pipeline.source.planner import Pace
from slackwater.pipeline.source.wake import Backpressure, PlannerFiles
from slackwater.store.versions.manifest import Input, Manifest, Output


def writer(sent: int) -> Manifest:
    return Manifest("a", "w", 1, 1, "x", 1, "batch", outputs={"c": Output("t", (sent, 0), sent=(sent, 0))})


def reader(consumed: int | None, name: str = "r") -> Manifest:
    counts = () if consumed is None else (consumed, 0)
    return Manifest("a", name, 1, 1, "x", 1, "batch", inputs={"c": Input("t", (0, 0), "w", consumed=counts)})


def look(backpressure: Backpressure, heads: dict[str, Manifest]) -> None:
    """Update the backpressure with these heads, which no unflushed versions follow."""
    for head in heads.values():
        backpressure.on_version(head, head)


@pytest.fixture
def backpressure(tmp_path: Path) -> Backpressure:
    return Backpressure(PlannerFiles(tmp_path), {"r": 100})


def test_a_writer_is_held_while_its_reader_is_more_than_one_batch_behind(backpressure: Backpressure) -> None:
    held = Pace(0, is_held=lambda: backpressure.planners.is_held("w"))
    for sent, consumed, waits in ((100, 0, False), (101, 0, True), (500, 300, True), (500, 400, False)):
        look(backpressure, {"w": writer(sent), "r": reader(consumed)})
        assert held.is_due() is not waits


def test_the_slowest_of_several_readers_decides(tmp_path: Path) -> None:
    backpressure = Backpressure(PlannerFiles(tmp_path), {"r": 100, "s": 100})
    look(backpressure, {"w": writer(300), "r": reader(300), "s": reader(0, "s")})
    assert backpressure.planners.is_held("w")
    assert backpressure.slow_readers == {"w": ("s",)}
    assert not backpressure.planners.is_held("r")


def test_a_reader_in_another_process_or_with_an_unknown_position_holds_no_writer(backpressure: Backpressure) -> None:
    look(backpressure, {"w": writer(900), "r": reader(None)})
    assert not backpressure.planners.is_held("w")
    elsewhere = Backpressure(backpressure.planners, {})
    look(elsewhere, {"w": writer(900)})
    assert not elsewhere.planners.is_held("w")


def test_uncommitted_progress_of_a_reader_releases_its_writer(backpressure: Backpressure) -> None:
    look(backpressure, {"w": writer(500), "r": reader(0)})
    assert backpressure.planners.is_held("w")
    backpressure.on_version(reader(0), reader(450))
    assert not backpressure.planners.is_held("w")
    # What a writer has not committed is not there to be read.
    backpressure.on_version(writer(500), writer(900))
    assert not backpressure.planners.is_held("w")


def test_a_channel_that_now_has_another_writer_holds_nobody(backpressure: Backpressure) -> None:
    moved = Manifest("a", "w", 1, 1, "x", 1, "batch")
    look(backpressure, {"w": moved, "r": reader(0)})
    assert not backpressure.planners.is_held("w")
