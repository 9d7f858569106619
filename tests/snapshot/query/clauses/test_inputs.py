"""`input('orders')` in SQL: the records that an app had read at a moment, as rows."""

import pytest
from slackwater.errors import Corruption, NotFound, Usage
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.answers import run_statement
from slackwater.snapshot.query.clauses import InputClause, parse_statement
from slackwater.store.archive import index, objects
from slackwater.store.archive.extents import Extent
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.store.archive.small_archives import BY, append
from tests.support.histories import FlightsApp, Kafka, app_of, flights

APP = "flights"


@pytest.fixture
def app() -> FlightsApp:
    """Return an app whose first stage has read 30 records; the archive begins with the fourth record."""
    app = app_of(30)
    for partition, end in enumerate(ends(app)):
        if end > 3:
            append(app.store, APP, Extent(partition, 3, end + 4), topic="flights")
    return app


def ends(app: FlightsApp, ref: str = APP) -> tuple[int, ...]:
    cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
    (at,) = (each for stage in cut.stages.values() for each in stage.inputs.values() if not each.upstream)
    return at.offsets


def ask(app: FlightsApp, sql: str, cache: SstCache, ref: str = APP) -> list[dict[str, object]]:
    cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
    return run_statement(app.store, cache, cut, sql, later={}, now_ms=app.clock.now_ms).to_pylist()


def test_input_has_exactly_the_records_read_by_the_moment(app: FlightsApp, cache: SstCache) -> None:
    for ref in (APP, f"{APP}@~5"):
        expected = [(p, at) for p, end in enumerate(ends(app, ref)) for at in range(3, end)]
        rows = ask(app, "SELECT partition, \"offset\" o FROM input('flights') ORDER BY ALL", cache, ref)
        assert [(each["partition"], each["o"]) for each in rows] == expected
    assert ends(app) != ends(app, f"{APP}@~5")


def test_input_can_be_selected_from_and_joined_like_a_table(app: FlightsApp, cache: SstCache) -> None:
    first = ask(app, "FROM input('flights') ORDER BY partition, \"offset\" LIMIT 1", cache)[0]
    assert (first["topic"], first["offset"], first["value"], first["headers"]) == (
        "flights",
        3,
        f"{first['partition']}:3".encode(),
        [{"key": "h", "value": b"x"}],
    )
    joined = ask(
        app,
        "SELECT count(*) n, any_value(decode(i.value)) v FROM input('flights') i, aircraft WHERE i.\"offset\" = 4",
        cache,
    )
    assert str(joined[0]["v"]).endswith(":4")
    twice = ask(
        app, "SELECT count(*) n FROM input('flights') JOIN INPUT('flights') b USING (partition, \"offset\")", cache
    )
    assert twice == ask(app, "SELECT count(*) n FROM input('flights')", cache)


def test_only_requested_columns_and_ranges_are_read(
    app: FlightsApp, cache: SstCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SMALL_OBJECT_BYTES", 0)
    rows = ask(app, "SELECT count(value) n FROM input('flights') WHERE \"offset\" BETWEEN 4 AND 6", cache)
    assert rows[0]["n"] == sum(min(end, 7) - 4 for end in ends(app) if end > 4)


def test_a_topic_that_is_not_read_or_not_archived_is_named(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(NotFound, match="no input named 'fligths'; the nearest: flights"):
        ask(app, "FROM input('fligths')", cache)
    empty = FlightsApp(MemoryStore(), Kafka())
    empty.run(flights(5))
    with pytest.raises(
        NotFound, match="no input archive named 'flights'; app 'flights' has none of this topic"
    ) as none:
        ask(empty, "FROM input('flights')", cache)
    assert "[retention]" in none.value.hint


@pytest.mark.parametrize("whole", [0, 1 << 20])
def test_a_damaged_object_is_named_and_no_row_is_returned(
    app: FlightsApp, cache: SstCache, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SMALL_OBJECT_BYTES", whole)
    head = index.newest(app.store, APP, "flights")
    assert head is not None
    data = bytearray(app.store.get(head.objects[0].object))
    data[200] ^= 1
    app.store.put(head.objects[0].object, bytes(data))
    with pytest.raises(Corruption, match="is damaged: "):
        ask(app, "SELECT count(value), sum(hash(value, key, timestamp, headers)) FROM input('flights')", cache)
    app.store.delete(head.objects[0].object)
    with pytest.raises(Corruption, match="the object is missing"):
        ask(app, "FROM input('flights')", cache)


def test_a_moment_before_a_topic_was_recreated_has_the_records_of_the_former_topic(
    app: FlightsApp, cache: SstCache
) -> None:
    index.change(
        app.store,
        index.empty_index(APP, "flights", 2),
        index.append_update((), (Extent(0, 0, 100),)),
        by=BY,
        now_ms=app.clock.now_ms + 1,
    )
    assert ask(app, "SELECT count(*) n FROM input('flights')", cache)[0]["n"]


def test_input_is_recognised_only_as_a_table_function() -> None:
    assert parse_statement("FROM input('a') WHERE x = 'input(''b'')'").clauses == (InputClause("a"),)
    assert parse_statement("SELECT input(a), input FROM t").clauses == ()
    with pytest.raises(Usage, match="takes one string"):
        parse_statement("FROM input('a', 'b')")
