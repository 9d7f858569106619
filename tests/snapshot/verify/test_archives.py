"""Verification of input archives counts records, compares them with the indexes, and names gaps."""

import pytest
from msgspec.structs import replace
from slackwater.client.show.status import verification_blocks
from slackwater.errors import Unavailable
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.store.archive import index
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.index import ArchiveIndex
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys

from tests.store.archive.small_archives import append
from tests.support.histories import FlightsApp, app_of

APP, PREFIX = "flights", "flights/input/orders/"


@pytest.fixture
def app() -> FlightsApp:
    app = app_of(5)
    append(app.store, APP, Extent(0, 0, 10), Extent(1, 5, 7))
    append(app.store, APP, Extent(0, 20, 30))
    return app


def check(app: FlightsApp, *, deep: bool) -> Report:
    return verify(app.store, APP, now_ms=app.clock.now_ms, deep=deep)


def head(app: FlightsApp) -> ArchiveIndex:
    found = index.newest(app.store, APP, "orders")
    assert found is not None
    return found


@pytest.mark.parametrize("deep", [False, True])
def test_the_records_of_an_archive_are_counted_and_its_gaps_are_named(app: FlightsApp, deep: bool) -> None:
    report = check(app, deep=deep)
    assert report.consistent
    (found,) = report.archives
    assert (found.topic, found.records, found.objects, found.gaps) == ("orders", 22, 2, ("[0]@10..20",))
    assert [each.checked for each in report.checks if each.check == "archives"] == [2]
    shown = [str(line) for line in verification_blocks(report)]
    assert "it has a gap, orders[0]@10..20: reading it, for example in a replay, fails" in shown


def test_a_missing_or_truncated_object_is_found_by_its_size(app: FlightsApp) -> None:
    first, second = head(app).objects
    app.store.delete(first.object)
    app.store.put(second.object, app.store.get(second.object)[:-1])
    wrong = [each.message for each in check(app, deep=False).differences]
    assert len(wrong) == 2
    assert all(each.startswith("object flights/input/orders/") for each in wrong)


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ({"rows": 9}, "has 12 records; expected 9"),
        ({"time_max_ms": 5_000}, "has records of other times"),
        ({"extents": (Extent(0, 0, 10), Extent(1, 5, 6))}, "has records at [1]@6..7, which its index lacks"),
        ({"checksum": "00"}, "expected checksum 00"),
    ],
)
def test_an_index_entry_that_differs_from_its_object_is_found(
    app: FlightsApp, lie: dict[str, object], says: str
) -> None:
    before = head(app)
    wrong = replace(before, objects=(replace(before.objects[0], **lie), *before.objects[1:]))  # type: ignore[arg-type]
    app.store.put(f"{keys.archive_indexes(PREFIX)}{before.number:020}.json", codec.encode(wrong))
    (found,) = check(app, deep=True).differences
    assert says in found.message


def test_a_damaged_index_is_a_difference_and_an_unavailable_store_is_an_error(app: FlightsApp) -> None:
    key = f"{keys.archive_indexes(PREFIX)}{2:020}.json"
    app.store.put(key, b"{}")
    (found,) = check(app, deep=False).differences
    assert key in found.message

    class Silent(MemoryStore):
        def list_folders(self, prefix: str) -> object:  # type: ignore[override]
            if prefix == keys.archives(APP):
                raise Unavailable("away")
            return super().list_folders(prefix)

    app.store.__class__ = Silent  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        check(app, deep=False)
