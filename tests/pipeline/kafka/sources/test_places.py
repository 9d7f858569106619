"""Messages name the file and the line of a record, and errors of a source reach the run that plans batches."""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import slackwater as sw
from deltalake import DeltaTable, write_deltalake
from slackwater.client.explain.result import source_data
from slackwater.client.show.verdict import record_data
from slackwater.errors import Gone, Refused, Usage
from slackwater.operations.debugging.replay.record import read_message
from slackwater.pipeline.api.topic import Topic
from slackwater.pipeline.kafka.archived import with_archives
from slackwater.pipeline.kafka.protocol import Patience
from slackwater.pipeline.source.planner import Pace, TopicPlanner
from slackwater.snapshot.bisect.verdict import RecordLocation, RecordPath
from slackwater.state.records import Position

from tests.pipeline.kafka.sources.reading import OpenSource

Open = Callable[[Topic], OpenSource]


def test_a_record_that_a_replay_found_has_its_place(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"n": 1}\n\n{"n": 2}\n')
    source = opened(sw.read_files(str(tmp_path / "in")))
    kafka, place = with_archives(source.kafka, source.store, "app"), f"file://{tmp_path}/in/a.jsonl line 3"
    record = read_message(kafka, RecordLocation.parse("files:in[0]@2"), source.kafka.topic_id("files:in"), 1)
    assert (str(record.location), record.location.place, record.value) == ("files:in[0]@2", place, b'{"n": 2}')
    assert source_data(record)["place"] == place
    data = record_data(RecordPath((), record, "", (), None))
    assert data is not None
    assert (data["address"], data["place"]) == ("files:in[0]@2", place)
    with pytest.raises(Gone, match=r"there is no message at files:in\[0\]@1 any more"):
        read_message(kafka, RecordLocation("files:in", 0, 1), "", 1)
    with pytest.raises(Usage, match="is not the location of a record"):
        RecordLocation.parse("other:in[0]@2")


def test_a_change_of_a_table_ends_the_run_that_plans_batches(tmp_path: Path, opened: Open) -> None:
    write_deltalake(tmp_path / "t", pa.table({"n": [1]}))
    source = opened(sw.read_delta(str(tmp_path / "t")))
    source.kafka.finds_new = True

    def plan(first: int) -> tuple[int, ...]:
        planner = TopicPlanner(
            source.kafka, source.topic, Pace(0), None, Patience("t", 1), requests=tuple, handled_snapshots=set()
        )
        return planner.plan_end(Position("t", (first,))).offsets

    def plan_until_it_ends() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert plan(1) == (1,)

    assert plan(0) == (1,)
    DeltaTable(tmp_path / "t").delete()
    with pytest.raises(Refused, match=r"version 1 \(DELETE\) removes or changes rows"):
        plan_until_it_ends()
