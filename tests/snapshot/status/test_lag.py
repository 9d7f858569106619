"""Lag of stages, computed from manifests alone."""

import time

import pytest
from slackwater.cli.reporter import idle_line
from slackwater.client.show.status import _lag
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.status.overview import InputLag, StageLag, input_lag, sink_lags, stages_at
from slackwater.store.versions.manifest import Input, Manifest, Output, Sink
from slackwater.store.versions.published import PublishedPosition

NOW_MS = time.time_ns() // 1_000_000


def head(stage: str, version: int = 7, epoch: int = 1, **fields: dict[str, object]) -> Manifest:
    return Manifest("a", stage, version, epoch, "w", NOW_MS, "batch", **fields)  # type: ignore[arg-type]


def unknown(topic: str) -> None:
    return None


def test_lag_of_a_topic_is_its_unread_records_including_all_of_a_new_partition() -> None:
    reader = head("s", inputs={"t": Input("t", (3, 5))})
    lag = input_lag("t", reader, {}, lambda topic: (10, 5, 4))
    assert (lag.lag, lag.records, lag.versions) == (11, 11, None)
    lag = input_lag("t", reader, {}, unknown)
    assert (lag.lag, lag.records, lag.versions) == (None, None, None)


def test_the_lag_behind_files_is_a_lower_bound_while_no_runner_lists_new_ones() -> None:
    lag = InputLag("in", "files:in", "", (0,), (5,), 5, 5, None)
    assert (_lag(lag, is_live=True), _lag(lag, is_live=False)) == ("files:in 5", "files:in 5 or more")
    of_topic = InputLag("t", "t", "", (0,), (5,), 5, 5, None)
    assert _lag(of_topic, is_live=False) == "t 5"


def test_lag_of_a_channel_is_its_unread_versions_and_rows() -> None:
    writer = head("up", 9, outputs={"c": Output("a-c", (8, 8), sent=(50, 60))})
    reader = head("s", inputs={"c": Input("a-c", (6, 8), "up", 7, consumed=(30, 60))})
    lag = input_lag("c", reader, {"up": writer}, unknown)
    assert (lag.lag, lag.records, lag.versions, lag.ends) == (2, 20, 2, (8, 8))


def test_versions_that_sent_nothing_are_no_lag() -> None:
    writer = head("up", 9, outputs={"c": Output("a-c", (8,), sent=(50,))})
    reader = head("s", inputs={"c": Input("a-c", (8,), "up", 3)})
    lag = input_lag("c", reader, {"up": writer}, unknown)
    assert (lag.lag, lag.records, lag.versions) == (0, 0, 0)


def test_the_lag_in_rows_is_unknown_for_a_reader_that_began_within_a_channel() -> None:
    writer = head("up", 9, outputs={"c": Output("a-c", (8,), sent=(50,))})
    reader = head("s", inputs={"c": Input("a-c", (6,), "up", 7)})
    assert input_lag("c", reader, {"up": writer}, unknown).records is None
    assert input_lag("c", reader, {}, unknown).lag is None


def stage_lag(stage: str, records: int | None, *, running: bool = True) -> StageLag:
    return StageLag("a", stage, (InputLag("t", "t", "", (), None, records, records, None),), running)


@pytest.mark.parametrize(
    ("stages", "quiet_s", "line"),
    [
        ((), None, "waiting for records; no commit yet"),
        ((stage_lag("s", None),), 61.4, "waiting for records; no commit for 61 s"),
        ((stage_lag("s", 0),), 3.0, "waiting for records: everything is read; no commit for 3 s"),
        ((stage_lag("s", 1200), stage_lag("r", 0)), 3.0, "behind: s 1,200 offsets; no commit for 3 s"),
        (
            (stage_lag("s", 0), stage_lag("old", 0, running=False)),
            3.0,
            "waiting for records: everything is read; no commit for 3 s; not running: old",
        ),
    ],
)
def test_an_idle_run_reports_what_it_waits_for(stages: tuple[StageLag, ...], quiet_s: float | None, line: str) -> None:
    assert idle_line(stages, quiet_s) == line


def test_lag_of_a_sink_is_known_at_earlier_moments() -> None:
    writer = head("s", 9, sinks={"alerts": Sink("a-s-alerts-sink", 30, since=4, rows=0, sent=25)})
    (stage,) = stages_at(Cut(writer.app, {"s": writer}))
    assert [(each.name, each.place, each.sent) for each in stage.sinks] == [("alerts", None, 25)]


def test_lag_of_a_sink_is_its_unpublished_rows_and_versions() -> None:
    writer = head("s", 9, sinks={"alerts": Sink("a-s-alerts-sink", 30, since=4, rows=0, sent=25)})
    for place, expected in (
        (None, (None, 25, 5)),
        (PublishedPosition(6, 20, 15), (6, 10, 3)),
        (PublishedPosition(8, 30, 25), (8, 0, 0)),
    ):
        (lag,) = sink_lags(writer, {"alerts": place})
        assert (lag.name, lag.topic, lag.sent) == ("alerts", "a-s-alerts-sink", 25)
        assert (lag.place, lag.rows, lag.versions) == expected
