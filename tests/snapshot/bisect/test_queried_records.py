"""A predicate over an input archive finds the bad record, without a program, Spark or Kafka."""

import pytest
from slackwater.errors import NotFound
from slackwater.snapshot.bisect.queried_records import find_queried_records
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import RecordLocation, Verdict
from slackwater.store.archive.extents import Extent
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history

from tests.store.archive.small_archives import append
from tests.support.histories import FlightsApp, app_of

APP = TOPIC = "flights"


@pytest.fixture
def app() -> FlightsApp:
    """Return an app whose first stage has read 30 records in batches of ten, all archived."""
    app = app_of(30)
    for partition, end in enumerate(last(app)):
        append(app.store, APP, Extent(partition, 0, end), topic=TOPIC)
    return app


def last(app: FlightsApp, version: int = 0) -> tuple[int, ...]:
    """Return the offsets up to which `legs` has read at a version, by default the newest."""
    manifest = history.read(app.store, APP, "legs", version or app.heads["legs"].version)
    return manifest.inputs[TOPIC].offsets


def search(app: FlightsApp, cache: SstCache, condition: str, select: str = "*") -> Verdict:
    sql = f"SELECT {select} FROM input('{TOPIC}') WHERE {condition}"
    return bisect(app.store, cache, APP, sql, now_ms=app.clock.now_ms)


def test_each_record_is_found_with_the_version_that_read_it(app: FlightsApp, cache: SstCache) -> None:
    for partition, end in enumerate(last(app)):
        for offset in range(end):
            verdict = search(app, cache, f"decode(value) = '{partition}:{offset}'")
            first = next(v for v in range(1, app.heads["legs"].version + 1) if last(app, v)[partition] > offset)
            assert (verdict.stage, verdict.bad_version) == ("legs", first)
            found = find_queried_records(verdict)
            assert found is not None
            assert found.cause.record == RecordLocation(TOPIC, partition, offset)
            assert (found.cause.kind, found.cause.proved) == ("record", True)
            assert found.record_path is not None
            message = found.record_path.source_record
            assert message is not None
            assert (message.value, message.time_ms) == (f"{partition}:{offset}".encode(), 1_000 + offset)
            assert message.headers == ((("h", b"x"),) if offset % 3 == 0 else ())


def test_the_earliest_of_several_bad_records_is_named_with_its_ties(app: FlightsApp, cache: SstCache) -> None:
    found = find_queried_records(search(app, cache, '"offset" IN (1, 2, 99)'))
    assert found is not None
    assert (found.cause.kind, found.cause.evidence["alone"], found.cause.one_of) == ("records", 4, 2)
    assert [(at.partition, at.offset) for at in found.cause.records] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert found.record_path is not None
    assert found.record_path.tied == (RecordLocation(TOPIC, 1, 1),)


@pytest.mark.parametrize(
    ("condition", "select"),
    [
        ("decode(value) = '0:3'", 'partition, "offset"'),  # not whole records
        ("decode(value) = '0:3'", "* REPLACE ('?' AS value)"),
        ("(SELECT count(*) FROM carriers) > 0", "*"),
        ("decode(value) = '0:0' AND (SELECT count(*) FROM input('flights')) > 15", "*"),  # read by an earlier batch
    ],
)
def test_no_record_is_named_if_the_query_does_not_prove_it(
    app: FlightsApp, cache: SstCache, condition: str, select: str
) -> None:
    assert find_queried_records(search(app, cache, condition, select)) is None


def test_a_topic_that_no_version_reads_is_named(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(NotFound, match="no input named 'fligths'"):
        bisect(app.store, cache, APP, "FROM input('fligths')", now_ms=app.clock.now_ms)
