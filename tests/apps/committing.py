"""A runner without Spark, for tests that kill it: claims a stage, commits batches, and publishes their rows.

`python committing.py STORE KAFKA APP ROWS DELTA SQLITE` commits until the stage has sent ROWS rows, waits until all
are published, and exits. Rows are numbered consecutively, so that readers detect missing rows.
"""

import json
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import slackwater as sw
from msgspec.structs import replace
from slackwater.pipeline.api.stage import Stage
from slackwater.pipeline.kafka.messages import send_messages, split_into_messages
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Kafka
from slackwater.pipeline.messages import outgoing
from slackwater.pipeline.publish.publishers import Publishers
from slackwater.pipeline.publish.sinks import claim_sinks, create_internal_topics
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import amend, apps, commit
from slackwater.store.versions.manifest import AppInfo, Manifest, Sink
from ulid import ULID

STORE, KAFKA, APP, ROWS, DELTA, SQLITE = sys.argv[1:]
TOPIC = f"{APP}-numbers"
BATCH = 500


def to_sqlite(app: str, stage: str, version: int, rows: pa.Table) -> None:
    """Write rows and their version number in one SQLite transaction."""
    with sqlite3.connect(SQLITE) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY, version INTEGER)")
        known = database.execute("SELECT version FROM done WHERE id = ?", [f"{app}/{stage}"]).fetchone()
        if known is not None and known[0] >= version:
            return
        database.executemany("INSERT INTO numbers VALUES (?)", zip(rows["n"].to_pylist(), strict=True))
        database.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", [f"{app}/{stage}", version])


def declared() -> sw.App:
    """Return the app; its function is never called."""
    app = sw.App(APP)
    writes = [
        sw.sink(TOPIC, key="k", headers={"batch": "h"}),
        sw.delta(DELTA, name="to-delta"),
        sw.foreach_version(to_sqlite),
    ]
    app.stage(reads=sw.topic("numbers-in"), writes=writes, name="numbers")(lambda raw: raw)
    return app


def main() -> None:
    store, kafka = open_store(STORE), open_kafka(json.loads(KAFKA))
    (stage,) = declared().stages_in_order()
    apps.ensure_app(store, AppInfo(APP, 1))
    create_internal_topics(kafka, APP, (stage,), None, validate_only=False)
    writer = str(ULID())

    def build(draft: Manifest) -> Manifest:
        return replace(draft, sinks=claim_sinks(store, kafka, stage, draft, None, False))

    head = amend.amend(
        store,
        (APP, stage.name),
        amend.Amendment("claim", build),
        writer=writer,
        by="test",
        now_ms=time.time_ns() // 10**6,
    ).manifest
    publishers = Publishers(
        store, apps.read_app(store, APP), kafka, (stage,), {stage.name: head}, accept_loss=False, patience_s=60
    )
    try:
        commit_batches(store, kafka, stage, head, publishers)
    finally:
        # Like a runner: if Python ends while a thread is writing to Delta, the process would crash.
        publishers.close()
    publishers.check()
    assert kafka.offset_bounds(TOPIC)
    assert Path(SQLITE).exists()


def commit_batches(store: ObjectStore, kafka: Kafka, stage: Stage, head: Manifest, publishers: Publishers) -> None:
    """Commit batches until all rows are sent, and wait until all are published."""
    publishers.start()
    attempt, writer = 0, head.writer
    while (sent := head.sinks[TOPIC].sent) < int(ROWS):
        rows = pa.table({"n": np.arange(sent, sent + BATCH), "k": [f"k{n % 7}" for n in range(sent, sent + BATCH)]})
        rows = rows.append_column("h", pa.array([f"b{head.version}"] * BATCH))
        draft = commit.successor(head, kind="batch", epoch=head.epoch, writer=writer, by="test", now_ms=head.time_ms)
        sinks: dict[str, Sink] = {}
        for one in stage.sinks:
            mine = outgoing.encode_records(rows, one.encoding, 30) if one.encoding is not None else rows
            sink = head.sinks[one.name]
            # Every second attempt belongs to a task whose attempt does not count.
            for name in (f"{writer}.lost.{attempt}", f"{writer}.{attempt}"):
                messages = list(split_into_messages(mine, np.zeros(len(rows), np.int32)))
                end = send_messages(kafka, sink.topic, messages, name.encode(), patience_s=60)[0]
            sinks[one.name] = replace(sink, end=end, attempts=(name,), rows=BATCH, sent=sent + BATCH)
        attempt += 1
        head = replace(draft, sinks=sinks)
        commit.commit(store, head)
        publishers.on_version(head)
        publishers.check()
        sys.stdout.write(f"{head.version}\n")
        sys.stdout.flush()
    while not publishers.is_done:
        publishers.check()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
