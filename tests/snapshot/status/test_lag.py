"""How far stages are behind, from manifests alone; and who has them."""

import os
import time
from pathlib import Path

import pytest
from slackwater.cli.reporter import idle
from slackwater.errors import Corruption
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.status.lag import (
    RUNNERS,
    Beat,
    InputLag,
    StageLag,
    beats,
    input_lag,
    lapsed,
    runner_of,
    sink_lags,
    sweep,
)
from slackwater.snapshot.status.overview import stages_at
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.versions.manifest import Input, Manifest, Output, Sink
from slackwater.store.versions.published import Place
from ulid import ULID

NOW_MS = time.time_ns() // 1_000_000


def head(stage: str, version: int = 7, epoch: int = 1, **fields: dict[str, object]) -> Manifest:
    return Manifest("a", stage, version, epoch, "w", NOW_MS, "batch", **fields)  # type: ignore[arg-type]


def unknown(topic: str) -> None:
    return None


def test_a_topic_is_behind_by_its_records_and_a_new_partition_by_all_of_them() -> None:
    reader = head("s", inputs={"t": Input("t", (3, 5))})
    lag = input_lag("t", reader, {}, lambda topic: (10, 5, 4))
    assert (lag.lag, lag.records, lag.versions) == (11, 11, None)
    lag = input_lag("t", reader, {}, unknown)
    assert (lag.lag, lag.records, lag.versions) == (None, None, None)


def test_a_channel_is_behind_by_its_writers_versions_and_rows() -> None:
    writer = head("up", 9, outputs={"c": Output("a-c", (8, 8), sent=(50, 60))})
    reader = head("s", inputs={"c": Input("a-c", (6, 8), "up", 7, consumed=(30, 60))})
    lag = input_lag("c", reader, {"up": writer}, unknown)
    assert (lag.lag, lag.records, lag.versions, lag.ends) == (2, 20, 2, (8, 8))


def test_versions_that_sent_nothing_are_no_lag() -> None:
    writer = head("up", 9, outputs={"c": Output("a-c", (8,), sent=(50,))})
    reader = head("s", inputs={"c": Input("a-c", (8,), "up", 3)})
    lag = input_lag("c", reader, {"up": writer}, unknown)
    assert (lag.lag, lag.records, lag.versions) == (0, 0, 0)


def test_rows_of_a_reader_that_began_amidst_a_channel_are_not_known() -> None:
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
def test_an_idle_run_says_what_it_waits_for(stages: tuple[StageLag, ...], quiet_s: float | None, line: str) -> None:
    assert idle(stages, quiet_s) == line


def test_a_runner_has_the_stages_of_the_epoch_it_claimed() -> None:
    store, second = MemoryStore(), str(ULID())
    RUNNERS.put(store, Beat(str(ULID()), "host:1", {"s": 1, "r": 4}), "a")
    RUNNERS.put(store, Beat(second, "host:2", {"s": 2}), "a")
    alive = beats(store, "a", NOW_MS)
    assert runner_of(head("s", epoch=2), alive) == "host:2"
    assert runner_of(head("s", epoch=3), alive) == ""
    assert runner_of(head("r", epoch=4), alive) == "host:1"
    RUNNERS.remove(store, second, "a")
    assert [one.by for one in beats(store, "a", NOW_MS)] == ["host:1"]


def test_an_old_sign_of_life_is_none_and_goes_in_the_end(tmp_path: Path) -> None:
    store, killed, new = open_store(str(tmp_path)), str(ULID()), str(ULID())
    RUNNERS.put(store, Beat(killed, "host:1", {"s": 1}), "a")
    written_ms = next(iter(store.list("a/runners/"))).modified_ms
    assert beats(store, "a", written_ms + 59_000)
    assert not beats(store, "a", written_ms + 61_000)
    RUNNERS.put(store, Beat(new, "host:2", {"s": 2}), "a")
    sweep(store, "a", new)
    assert len(list(store.list("a/runners/"))) == 2
    path = store.local_path(f"a/runners/{killed}.json")
    assert path is not None

    os.utime(path, (written_ms / 1000 - 3_700, written_ms / 1000 - 3_700))
    sweep(store, "a", new)
    assert [info.key for info in store.list("a/runners/")] == [f"a/runners/{new}.json"]


def test_of_a_runner_that_was_killed_the_last_sign_lapses_and_one_that_lives_gives_another(tmp_path: Path) -> None:
    store, runner = open_store(str(tmp_path)), Beat(str(ULID()), "host:1", {"s": 1})
    RUNNERS.put(store, runner, "a")
    (first,) = store.list("a/runners/")
    path, looks = store.local_path(first.key), iter(range(100))
    assert path is not None
    now_s = [first.modified_ms / 1000]

    def later() -> None:
        now_s[0] += 1
        next(looks)

    assert lapsed(store, "a", later, lambda: int(now_s[0] * 1000))
    assert next(looks) == 61
    assert lapsed(store, "b", later, lambda: int(now_s[0] * 1000))
    now_s[0] -= 61

    def beats_on() -> None:
        later()
        if next(looks) > 70:
            RUNNERS.put(store, runner, "a")
            os.utime(path, (now_s[0], now_s[0]))

    assert not lapsed(store, "a", beats_on, lambda: int(now_s[0] * 1000))


def test_a_damaged_sign_of_life_is_told() -> None:
    store = MemoryStore()
    store.put("a/runners/w.json", b"{")
    with pytest.raises(Corruption, match="a/runners/w"):
        beats(store, "a", NOW_MS)


def test_at_a_moment_of_the_past_it_is_known_what_a_sink_was_given() -> None:
    writer = head("s", 9, sinks={"alerts": Sink("a-s-alerts-sink", 30, since=4, rows=0, sent=25)})
    (stage,) = stages_at(Cut(writer.app, {"s": writer}))
    assert [(each.name, each.place, each.sent) for each in stage.sinks] == [("alerts", None, 25)]


def test_a_sink_is_behind_by_its_rows_and_the_versions_since() -> None:
    writer = head("s", 9, sinks={"alerts": Sink("a-s-alerts-sink", 30, since=4, rows=0, sent=25)})
    for place, expected in (
        (None, (None, 25, 5)),
        (Place(6, 20, 15), (6, 10, 3)),
        (Place(8, 30, 25), (8, 0, 0)),
    ):
        (lag,) = sink_lags(writer, {"alerts": place})
        assert (lag.name, lag.topic, lag.sent) == ("alerts", "a-s-alerts-sink", 25)
        assert (lag.place, lag.rows, lag.versions) == expected
