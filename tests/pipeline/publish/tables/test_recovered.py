"""A table returns to the cut of a recovery, without the rows that the recovery sends again."""

import pyarrow as pa
from msgspec.structs import replace
from slackwater.pipeline.publish.tables.lookup import sink_id
from slackwater.pipeline.publish.tables.protocol import Mark
from slackwater.pipeline.publish.tables.target import TableTarget
from slackwater.pipeline.publish.targets import SinkProgress
from slackwater.store.versions import history, published
from slackwater.store.versions.manifest import Manifest, Sink
from slackwater.store.versions.published import PublishedPosition

from tests.operations.disaster_recovery.recover.test_recover import (
    copy,
    elsewhere,
    failover_kafka,
    recovered,
    running,
    successor_of,
)
from tests.pipeline.publish.tables.lakes import Lake, Writer
from tests.support.collecting import AgingStore
from tests.support.histories import Message, flights
from tests.support.manifests import claim


def test_a_recovery_takes_the_table_to_what_was_published_at_its_cut(lake: Lake) -> None:
    app, target, writer = running(), AgingStore(), Writer(lake)
    kafka, head = failover_kafka(app), app.heads["carriers"]
    name, rows = sink_id(app.name, 1, "carriers", "alerts"), flights(6)
    kafka.topics["out"] = [[Message((row,), app.name, 0, f"attempt-{at}") for at, row in enumerate(rows)]]
    sink = Sink("out", 0, head.version + 1, "table", id="first", table="delta:/lake/alerts")
    app.commit(head := replace(successor_of(head), sinks={"alerts": sink}))

    def commit(count: int) -> Manifest:
        last = app.heads["carriers"]
        now = last.sinks["alerts"]
        attempts = tuple(f"attempt-{at}" for at in range(now.sent, now.sent + count))
        changed = replace(now, end=now.end + count, attempts=attempts, rows=count, sent=now.sent + count)
        app.commit(made := replace(successor_of(last), sinks={"alerts": changed}))
        writer.table.publish(Mark(name, "first", made.version), pa.table({"n": range(now.sent, changed.sent)}))
        return made

    writer.table.load(name, "first")
    stored = commit(3)
    published.write_position(app.store, stored, "alerts", PublishedPosition(stored.version, 3, 3), None)
    commit(2)  # published, which the store does not know
    copy(app, target)
    commit(1)  # lost
    assert sorted(lake.read()["n"].to_pylist()) == list(range(6))

    done = recovered(app, target, elsewhere(app))

    newest = history.read(target, app.name, "carriers", done.versions["carriers"])
    now = newest.sinks["alerts"]
    assert (now.rows, now.table) == (2, "delta:/lake/alerts")
    assert now.id not in ("", "first")
    claimed = claim(
        target,
        app.name,
        "carriers",
        writer="w",
        by="test",
        now_ms=newest.time_ms,
    )
    place = TableTarget(writer.table, SinkProgress(target, claimed, "alerts"), 1).open()
    assert sorted(lake.read()["n"].to_pylist()) == [0, 1, 2]
    assert place.rows == 0
    assert TableTarget(writer.table, SinkProgress(target, claimed, "alerts"), 1).open() == place
