"""Exit codes of command-line processes, despite background threads of Arrow, DuckDB and librdkafka.

Arrow's threads used to release Python memory while the interpreter was shutting down; on a busy machine, one process in
thirty then aborted after printing the right output.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.kafka import protocol
from slackwater.pipeline.kafka.messages import encode_rows, send_messages
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.open import open_store

from tests.support.histories import CAPTURED, KAFKA_PARTITIONS, FlightsApp, Kafka, flights

pytestmark = pytest.mark.kafka

AT_ONCE = 4
"""Number of concurrent processes: twice the minimum number of cores, so that threads are delayed."""


@pytest.fixture(scope="module")
def app(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app with sixty in-flight records, in Kafka and in the snapshot `kept`."""
    store = open_store(str(tmp_path_factory.mktemp("endings")))
    # Topics are distinguished by their ids, so the history gets the broker's ids.
    name, memory, broker = f"endings-{uuid4().hex[:8]}", Kafka(), open_kafka(kafka.bootstrap)
    topics = [f"{name}-flights", *(f"{name}-{channel}-repartition" for channel in ("by-aircraft", "by-carrier"))]
    broker.create_topics(dict.fromkeys(topics, KAFKA_PARTITIONS))
    memory.ids |= broker.topic_ids(topics)
    app = FlightsApp(store, memory, name, topic=topics[0])
    app.run(flights(60))
    for _ in range(3):
        app.send(*flights(20))
        app.step("legs")
    pin_cut(store, resolve(store, app.name, now_ms=app.clock.now_ms), "kept", reader=app.kafka)
    _mirror(app, broker)
    return app


def _mirror(app: FlightsApp, kafka: protocol.Kafka) -> None:
    """Copy the repartition topics to the broker, each message to its original offset."""
    columns = CAPTURED.names[:3]
    for topic, partitions in app.kafka.topics.items():
        for number, messages in enumerate(partitions):
            if topic == app.topic:
                records = [Record(b"a flight", partition=number) for _ in messages]
                kafka.send(topic, records, patience_s=180)
                continue
            for message in messages:
                rows = pa.RecordBatch.from_pylist(
                    [dict(zip(columns, flight, strict=True)) for flight in message.flights],
                    pa.schema([CAPTURED.field(name) for name in columns]),
                )
                send_messages(kafka, topic, [(number, encode_rows(rows))], message.attempt.encode(), patience_s=180)


LONG = (pytest.mark.soak, pytest.mark.timeout(3600))


@pytest.mark.parametrize(
    ("moment", "runs"),
    [
        pytest.param("", 2, id="from-kafka"),
        pytest.param("", 200, id="from-kafka-200-times", marks=LONG),
        pytest.param("@kept", 200, id="kept-200-times", marks=LONG),
    ],
)
@pytest.mark.parametrize("verb", ["verify", "query"])
def test_a_verb_exits_with_its_own_code(
    app: FlightsApp, kafka: EmbeddedKafka, tmp_path: Path, verb: str, moment: str, runs: int
) -> None:
    asked = {
        "verify": ("verify", f"{app.name}{moment}", "--deep"),
        "query": ("query", f"{app.name}{moment}", "SELECT count(*) AS rows FROM inflight('by-aircraft')"),
    }[verb]
    words = (sys.executable, "-m", "slackwater.cli.main", *asked, "--store", app.store.url, "--kafka", kafka.bootstrap)
    environment = os.environ | {"SLACKWATER_CACHE": str(tmp_path / "cache")}

    def ended(_number: int) -> tuple[int, str]:
        run = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
        assert ("consistent (" if verb == "verify" else "60") in run.stdout, run.stderr
        return run.returncode, run.stderr if run.returncode else ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert set(pool.map(ended, range(runs))) == {(0, "")}
