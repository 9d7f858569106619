"""From a bad commit to the input record: replays on a real broker and Spark find planted records."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import slackwater as sw
from confluent_kafka import Producer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.debugging.replay.record import find_record
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.telemetry import spans
from slackwater.pipeline.telemetry.spans import Tracing
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import Hop, RecordPath
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

BRANCHES = "SELECT branch FROM branches WHERE total > 1000000"


HEADERS = (("origin", b"test"), ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))


def plant(ledger: Ledger, amount: int, *, account: str = "a7", branch: int = 3) -> str:
    """Send one record with a header; return its address."""
    producer = Producer(ledger.kafka.properties)
    places: list[str] = []
    entry = {"seq": ledger.sent, "account": account, "branch": branch, "amount": amount}
    producer.produce(
        ledger.topic,
        json.dumps(entry).encode(),
        key=b"planted",
        partition=1,
        headers=list(HEADERS),
        on_delivery=lambda _error, message: places.append(
            f"{message.topic()}[{message.partition()}]@{message.offset()}"
        ),
    )
    assert producer.flush(30) == 0
    ledger.sent += 1
    return places[0]


@dataclass
class Planted:
    """A ledger that has processed two records with far too large amounts, and the address of the first of them."""

    ledger: Ledger
    first: str
    began: float


def planted_in(ledger: Ledger, *, variant: str = "") -> Planted:
    began = time.time()
    ledger.send(1_000)
    first = plant(ledger, 5_000_000)
    plant(ledger, 6_000_000)
    ledger.send(1_000)
    ledger.catch_up(max_records=700, variant=variant)
    return Planted(ledger, first, began)


@pytest.fixture(scope="module")
def planted(kafka: EmbeddedKafka, one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Return the ledger that all tests share and none changes."""
    return planted_in(Ledger(kafka.bootstrap, tmp_path_factory.mktemp("planted")))


def guilty(ledger: Ledger, where: str, *, variant: str = "") -> RecordPath:
    """Run the search with this variant of the program, and return its result."""
    store, cache = open_store(ledger.store), SstCache(ledger.folder / "cache" / "query", 1 << 30)
    verdict = bisect(store, cache, ledger.app, where)
    os.environ.update(LEDGER_TOPIC=ledger.topic, LEDGER_VARIANT=variant)
    app = load_app(str(ledger.program), name=ledger.app)
    hops: list[Hop] = []
    with open_program(app, store, cache, ledger.kafka) as program:
        found = find_record(program, verdict, SqlPredicate(where), hops.append)
    assert tuple(hops) == found.hops
    return found


def test_a_bad_row_of_the_last_table_leads_through_all_stages_to_its_record(planted: Planted) -> None:
    leads_to_the_record(planted)


@pytest.mark.ci
def test_the_record_is_found_even_if_batches_are_computed_as_a_whole(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    whole = "whole batches"
    leads_to_the_record(planted_in(Ledger(kafka.bootstrap, tmp_path), variant=whole), variant=whole)


def leads_to_the_record(planted: Planted, *, variant: str = "") -> None:
    found = guilty(planted.ledger, BRANCHES, variant=variant)
    assert found.source_record is not None, found.reason
    assert str(found.source_record.location) == planted.first
    assert [hop.stage for hop in found.hops] == ["branches", "accounts", "entries"]
    assert all(hop.alone for hop in found.hops)
    assert found.others == 1
    assert found.source_record.key == b"planted"
    assert found.source_record.headers == HEADERS
    assert planted.began - 1 <= found.source_record.time_ms / 1000 <= time.time()
    assert found.keys is not None
    (key,) = found.keys
    assert key.key == {"branch": 3}
    assert key.before is not None
    assert key.after is not None
    assert key.after["total"] - key.before["total"] == 5_000_000  # type: ignore[operator]
    assert key.after["n"] - key.before["n"] == 1  # type: ignore[operator]


@pytest.mark.ci  # test_planted_faults.py has such records, too
def test_the_record_that_exceeds_a_limit_is_found_if_none_is_bad_alone(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(300)
    places = [plant(ledger, 400_000) for _ in range(4)]
    ledger.send(300)
    ledger.catch_up(max_records=700)
    found = guilty(ledger, BRANCHES)
    assert found.source_record is not None, found.reason
    assert str(found.source_record.location) == places[2]
    assert not found.hops[0].alone
    # One of the two records before it may have been in the previous batch.
    assert found.hops[0].needs in (1, 2)


def test_a_notebook_shows_the_record(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LEDGER_TOPIC", planted.ledger.topic)
    monkeypatch.setenv("LEDGER_VARIANT", "")
    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(spans, "configured_tracing", lambda: Tracing(provider))
    app = sw.open(store=planted.ledger.store, kafka=planted.ledger.bootstrap).app(planted.ledger.app)
    found = app.bisect(where="SELECT account FROM accounts WHERE balance > 1000000", code=planted.ledger.program)
    assert found.record is not None
    assert found.record.source_record is not None, found.record.reason
    assert str(found.record.source_record.location) == planted.first
    assert planted.first in repr(found)
    # A trace of the record has the bisect.
    (span,) = exported.get_finished_spans()
    assert span.name == f"bisect {planted.ledger.app}"
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [HEADERS[1][1].decode().split("-")[1]]
    assert (span.attributes or {})["slackwater.record"] == planted.first


def test_with_a_changed_program_the_search_says_so_and_proves_nothing(planted: Planted) -> None:
    found = guilty(planted.ledger, BRANCHES, variant="books double")
    assert [hop.stage for hop in found.hops] == ["branches"]
    assert found.source_record is None
    assert "accounts@v" in found.reason
    # The file is the same, but its behaviour depends on an environment variable.
    assert "The program's file is the one that ran then" in found.reason
    assert not found.proved
    assert found.windows[0].end - found.windows[0].start == 1
