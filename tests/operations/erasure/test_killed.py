"""A forget that is killed at any request: a version has all rows of the key or none, and a repeated call finishes."""

from pathlib import Path
from typing import Any

from slackwater.errors import Refused
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import ErasureResult, forget
from slackwater.operations.key_search.key_fields import DeclaredFields
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.audit_log import because, list_operations
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.archive.extents import Extent
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import forgotten

from tests.crash.points import killed_at_each_call
from tests.operations.erasure.everything import archive_of, occurrences, tables_of_all_versions
from tests.support.collecting import aging_app, fresh, keys_of, store_of
from tests.support.histories import FlightsApp, flights

LATER_MS = 2_000_000_000_000
KEY = "N003"
FIELDS = DeclaredFields({"aircraft": ("orders:value",)})


def whole_app() -> FlightsApp:
    """Return an app with a snapshot that keeps in-flight records, a clone that has SSTs of its own, and an archive."""
    app = aging_app()
    app.run(flights(20))
    app.compact("aircraft")
    app.run(flights(10))
    app.send(*flights(7))
    app.step("legs")
    pin_cut(app.store, resolve(app.store, "flights", now_ms=LATER_MS), "kept", reader=app.kafka)
    clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host", now_ms=LATER_MS)
    FlightsApp(app.store, app.kafka, "staging", clock=app.clock).step_all()
    archive_of(app.store, "flights", Extent(0, 0, 9), {4: KEY.encode()})
    return app


def make(app: FlightsApp, cache: SstCache) -> ErasureResult:
    asked = RequestedKeys.parse([f"aircraft={KEY}"])
    return forget(app.store, cache, "flights", asked, by="ada@host", now_ms=lambda: LATER_MS, declared=FIELDS)


Tables = dict[tuple[str, int], dict[str, Any]]


def shown(app: FlightsApp) -> dict[str, Tables]:
    return {name: tables_of_all_versions(fresh(app.store), name) for name in ("flights", "staging")}


def test_after_a_kill_each_version_reads_as_before_or_after_and_a_repeated_call_finishes(
    tmp_path: Path,
) -> None:
    cache = SstCache(tmp_path / "cache", 1 << 30)

    def work(app: FlightsApp) -> None:
        with because("request 118"):
            make(app, cache)

    undisturbed, met = whole_app(), set()
    before = shown(undisturbed)
    whole = make(undisturbed, cache)
    for app, ended in killed_at_each_call("forget", whole_app, work, store_of):
        for name, tables in shown(app).items():
            old = {place: rows for place, rows in before[name].items() if KEY in rows}
            gone = {place: {key: row for key, row in rows.items() if key != KEY} for place, rows in old.items()}
            found = {place: tables[place] for place in old}
            # All versions of an app change in one moment.
            assert found in (old, gone)
            met.add((name, found == gone))
            assert {place: tables[place] for place in before[name].keys() - old} == {
                place: before[name][place] for place in before[name].keys() - old
            }
        assert verify(fresh(app.store), "flights", now_ms=LATER_MS, deep=True).consistent
        store_of(app).clock_ms += 60_000
        has_begun = forgotten.find_journal(app.store, "flights") is not None
        try:
            done = make(app, cache)
            if has_begun:
                # The entry describes the whole operation and its reason, regardless of the part that this call did.
                assert (done.rows, done.gone, len(done.versions)) == (whole.rows, whole.gone, len(whole.versions))
                (told,) = list_operations(app.store, "flights", is_match=lambda one: one.has_verb("forget"))
                assert told.message == "request 118"
        except Refused:
            assert ended
        assert occurrences(app.store, KEY) == []
        for name in ("flights", "staging"):
            assert forgotten.find_journal(app.store, name) is None
        known = {key for key in keys_of(store_of(app)) if "/sst/" in key}
        assert known
        assert verify(fresh(app.store), "flights", now_ms=LATER_MS, deep=True).consistent
        assert verify(fresh(app.store), "flights@kept", now_ms=LATER_MS, deep=True).consistent
    assert met == {(name, is_gone) for name in ("flights", "staging") for is_gone in (False, True)}
