"""Sinks of a repaired app get corrections where possible; repairs may begin at a given moment."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from slackwater.client.repair.result import repair_result
from slackwater.errors import NotFound, Refused
from slackwater.operations.repair.records.journal import REPAIRS

from .simulated import KEY, OUT, Raw, Shape, SimulatedApp, simulated

ROWS = [("in", 0, {"k": key, "x": x, "seq": at}) for at, (key, x) in enumerate([("ax", 1), ("ax", 2), ("by", 4)])]


def shape(sink_key: tuple[str, ...] | None) -> Shape:
    return Shape("sum", ("in",), 99, 99, has_parser=True, has_groups=False, sink_key=sink_key)


def sent(app: SimulatedApp) -> list[tuple[Raw, Raw | None]]:
    messages = [message for partition in app.kafka._topics[OUT] for message in partition.log if message is not None]
    return [(json.loads(message.key()), message.value() and json.loads(message.value())) for message in messages]


def test_the_newest_rows_and_tombstones_are_sent_once_and_shown(tmp_path: Path) -> None:
    with simulated(Random(1), tmp_path, shape(KEY), ROWS) as app:
        first = sent(app)
        dropped = {("in", 0, 0): None, ("in", 0, 2): None}
        planned = app.repair(dropped, dry_run=True)
        shown = repair_result(planned, dry_run=True)
        assert shown.data["corrected"] == {"t": (OUT,)}
        assert "corrections sent to sinks" in str(shown)
        app.repair(dropped)
        assert sent(app) == first  # nothing is published without a runner
        for _ in range(2):
            app.feed([])
            expected = [
                *first,
                ({"g": "a", "k": "ax"}, {"g": "a", "k": "ax", "total": 2}),
                ({"g": "b", "k": "by"}, None),
            ]
            assert sorted(sent(app), key=str) == sorted(expected, key=str)
            app.repair(dropped)
        app.repair({}, undo=True)
        app.feed([])
        assert app.published() == app.expected({})["t"]
        assert len(sent(app)) == len(first) + 4


def test_a_repair_without_sinks_sends_nothing(tmp_path: Path) -> None:
    with simulated(Random(1), tmp_path, shape(KEY), ROWS) as app:
        first = sent(app)
        done = app.repair({("in", 0, 0): None}, no_sinks=True)
        shown = repair_result(done, dry_run=False)
        assert shown.data["corrected"] == {}
        assert "rows published to sinks that the repair does not correct" in str(shown)
        app.feed([])
        assert sent(app) == first
        assert app.tables() == app.expected({("in", 0, 0): None})


@pytest.mark.parametrize("key", [(), ("g",), ("g", "k", "total")])
def test_a_sink_with_another_key_is_named_with_its_rows_and_left_to_the_user(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    with simulated(Random(1), tmp_path, shape(key), ROWS) as app:
        before = app.tables()
        with pytest.raises(Refused, match=r"2 of t to 'out'") as told:
            app.repair({("in", 0, 0): None})
        assert "--no-sinks" in told.value.hint
        assert (app.tables(), REPAIRS.all(app.store, app.name)) == (before, ())
        app.repair({("in", 0, 0): None}, no_sinks=True)
        assert app.tables() == app.expected({("in", 0, 0): None})


def test_of_a_record_that_was_read_twice_only_the_repetition_goes(tmp_path: Path) -> None:
    place = "in", 0, 0
    with simulated(Random(1), tmp_path, shape(None), ROWS) as app:
        versions = {stage: head.version for stage, head in app.simulation.heads().items()}
        app.simulation.client().app(app.name).reset("in", to_earliest=True)
        app.feed([])
        rows = [*app.sent.values()]
        assert app.tables() == app.shape.tables([*rows, *rows])
        done = app.repair({place: None}, since=versions)
        once = app.shape.tables([*rows, *rows[1:]])
        assert app.tables() == once
        assert done.repair is not None
        assert done.repair.since == versions
        again = app.repair({place: None}, since=versions)
        assert (again.repair, again.versions, app.tables()) == (None, {}, once)
        with pytest.raises(Refused, match="is in force for"):
            app.repair({place: None})
        app.repair({}, undo=True)
        assert app.tables() == app.shape.tables([*rows, *rows])
        app.repair({place: None})
        assert app.tables() == app.shape.tables([*rows[1:], *rows[1:]])


def test_a_record_that_was_read_only_earlier_is_refused(tmp_path: Path) -> None:
    with simulated(Random(1), tmp_path, shape(None), ROWS) as app:
        versions = {stage: head.version for stage, head in app.simulation.heads().items()}
        with pytest.raises(NotFound, match="since the moment of --from") as told:
            app.repair({("in", 0, 0): None}, since=versions)
        assert "earlier moment" in told.value.hint


def test_what_the_app_itself_sent_is_no_record_to_take_out(tmp_path: Path) -> None:
    with simulated(Random(1), tmp_path, shape(KEY), ROWS) as app:
        (channel,) = [topic for topic in app.kafka._topics if topic.endswith("-repartition")]
        for topic in (channel, OUT):
            for partition in range(2):
                with pytest.raises(NotFound, match=r"the app's topics: in\b"):
                    app.repair({(topic, partition, 0): None})
        assert app.tables() == app.expected({})
        assert REPAIRS.all(app.store, app.name) == ()
