"""The rows that have expired at a moment: now, earlier, in a snapshot, in a clone, and in bisect."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.cli import main
from slackwater.common import instants
from slackwater.operations.maintenance.compact import plan
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query import columns
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.snapshot.verify.version_chain import version_faults
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import ttl
from slackwater.store.versions import apps, history, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table, Ttl
from typer.testing import CliRunner

from tests.support.histories import START_MS, Kafka
from tests.support.manifests import claim
from tests.support.state_rows import Key, Values, write_version

HOUR_MS = 3_600_000
LATER_MS = START_MS + 100 * HOUR_MS


class Hourly:
    """An app of one stage, with a batch every hour and rows that live for two hours."""

    def __init__(
        self, cache: SstCache, column: str = "", *, store: ObjectStore | None = None, start_ms: int = START_MS
    ) -> None:
        self.store, self.cache = store or MemoryStore(), cache
        values = (Column("v", "int64"), Column("at", "timestamp[us]"))
        self.table = Table((Column("k", "string"),), values, 1, ttl=Ttl(2 * HOUR_MS, column))
        apps.ensure_app(self.store, AppInfo("app", start_ms))
        self.now_ms = start_ms
        self.head = claim(
            self.store,
            "app",
            "stage",
            writer="w",
            by="test:1",
            now_ms=self.now_ms,
            build=lambda draft: replace(
                draft, table=self.table, clock_ms=ttl.claim_clock_ms(None, self.table, draft.clock_ms)
            ),
        )

    def batch(self, **rows: int) -> Manifest:
        self.now_ms += HOUR_MS
        draft = successor(self.head, kind="batch", epoch=1, writer="w", by="test:1", now_ms=self.now_ms)
        changes: dict[Key, Values | None] = {(key,): (value, None) for key, value in rows.items()}
        clock_ms = ttl.batch_clock_ms(self.head, self.now_ms)
        ssts = write_version(self.store, None, self.table, changes, draft.version, clock_ms=clock_ms) if rows else ()
        self.head = replace(draft, ssts=(*ssts, *draft.ssts), clock_ms=clock_ms)
        commit(self.store, self.head)
        return self.head

    def version_clock(self, version: int) -> int:
        return history.read(self.store, "app", "stage", version).clock_ms

    def seen(self, ref: str, now_ms: int = LATER_MS) -> str:
        """Return the keys that a query shows. First checks that `get` finds the same keys."""
        cut = resolve(self.store, ref, now_ms=now_ms)
        with closing(connect(self.store, self.cache, cut)) as con:
            keys = run_query(con, "SELECT k FROM stage ORDER BY k")["k"].to_pylist()
        assert keys == [key for key in "abcd" if columns.get(self.store, cut, "stage", [key]).num_rows]
        return "".join(keys)


@pytest.fixture
def app(cache: SstCache) -> Hourly:
    app = Hourly(cache)
    app.batch(a=1, b=1)  # v2
    app.batch(b=2)  # v3
    app.batch(c=3)  # v4: a has expired
    return app


def test_the_head_keeps_expiring_and_old_versions_show_what_they_showed(app: Hourly) -> None:
    assert [app.seen(f"app/stage@v{version}") for version in (2, 3, 4)] == ["ab", "ab", "bc"]
    after_ms = app.now_ms + HOUR_MS
    assert (app.seen("app", app.now_ms), app.seen("app", after_ms), app.seen("app")) == ("bc", "c", "")
    # A time is seen as it was seen then, also when nothing was committed for long.
    assert app.seen("app@-1h", app.now_ms) == "ab"
    assert app.seen("app@-1h", after_ms + HOUR_MS) == "c"
    # Another machine's clock may be ahead; ours says what has expired.
    ahead = datetime.fromtimestamp(after_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert (app.seen(f"app@{ahead}", after_ms - 1), app.seen(f"app@{ahead}", after_ms)) == ("bc", "c")


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("stage", ["", "/stage"], ids=["the app", "a stage, as another is damaged"])
def test_query_and_get_show_no_expired_row(cache: SstCache, tmp_path: Path, stage: str) -> None:
    store = open_store(str(tmp_path / "store"))
    # The second batch was an hour and a half ago: its row has half an hour left, the other's time is over.
    app = Hourly(cache, store=store, start_ms=instants.now_ms() - 7 * HOUR_MS // 2)
    app.batch(a=1)
    app.batch(b=2)
    if stage:
        store.put(keys.manifest("app", "other", 1), b"{}")

    def of_table(ref: str) -> str:
        return ref if "/" in ref else "app/stage".join(ref.split("app", 1))

    def shown(ref: str) -> list[str]:
        query = CliRunner().invoke(main.app, ["query", ref, "SELECT k FROM stage ORDER BY k"])
        assert query.exit_code == 0, query.output
        found = query.stdout.split()[1:]
        got = [CliRunner().invoke(main.app, ["get", of_table(ref), key]).exit_code for key in "ab"]
        assert got == [0 if key in found else 1 for key in "ab"]
        return found

    assert shown(f"app{stage}") == ["b"]
    assert shown(f"app{stage}@-20m") == ["b"]
    assert shown(f"app{stage}@-1h") == ["a", "b"]
    assert shown("app/stage@v3") == ["a", "b"], "a version is seen as it was committed"


def test_a_snapshot_keeps_showing_its_rows(app: Hourly) -> None:
    pin_cut(app.store, resolve(app.store, "app/stage@v3", now_ms=app.now_ms), "kept", by="ada@host")
    for _ in range(3):
        app.batch()
    assert (app.seen("app"), app.seen("app@kept")) == ("", "ab")


def test_a_clone_shows_the_rows_of_its_source_and_keeps_the_time_to_live(app: Hourly) -> None:
    clone(app.store, "app/stage@v3", "copy", topics={}, channels=Kafka(), by="ada@host", now_ms=app.now_ms)
    first = history.read(app.store, "copy", "stage", 3)
    assert (first.table, first.clock_ms) == (app.table, app.version_clock(3))
    assert app.seen("copy/stage@v3") == "ab"
    assert app.seen("copy") == "", "its own clock goes on as its source's would"


def test_with_event_time_nothing_expires_without_new_records(cache: SstCache) -> None:
    app = Hourly(cache, "at")
    app.batch(a=1)
    assert app.head.clock_ms == ttl.BEFORE_FIRST_EVENT_MS
    assert app.seen("app") == "a"


def test_bisect_finds_the_version_by_which_a_row_had_expired(app: Hourly) -> None:
    for _ in range(9):
        app.batch()
    where = "SELECT 'b' AS k WHERE NOT EXISTS (FROM stage WHERE k = 'b')"
    found = bisect(app.store, app.cache, "app", where, good="app/stage@v3", now_ms=LATER_MS)
    assert (found.good_version, found.bad_version) == (4, 5)
    (key,) = found.keys
    assert (key.key, key.after) == ({"k": "b"}, None)
    assert key.before is not None
    # Without keys in the result: those that were written, and those that expired.
    found = bisect(app.store, app.cache, "app", "SELECT 1 WHERE (SELECT count(*) FROM stage) = 0", good="app/stage@v3")
    assert (found.bad_version, [dict(key.key) for key in found.keys]) == (6, [{"k": "c"}])
    assert found.evaluations < 12, "versions in which nothing expired hold the same rows"


def test_verify_accepts_expiring_rows_and_detects_a_clock_that_went_back(app: Hourly) -> None:
    report = verify(app.store, "app", now_ms=app.now_ms, deep=True)
    assert report.consistent, report
    earlier = replace(app.head, version=app.head.version - 1, time_ms=1, clock_ms=app.head.clock_ms + 1)
    assert any("clock" in found for found in version_faults(earlier, app.head))


def test_compaction_plans_use_the_versions_clock(cache: SstCache) -> None:
    app = Hourly(cache)
    app.batch(a=1, b=2)
    assert (plan(app.store, "app"), plan(app.store, "app", full=True)) == ((), ())
    for _ in range(3):
        app.batch()
    for full in (False, True):
        (due,) = plan(app.store, "app", full=full)
        assert (due.inputs, due.bytes) == (1, app.head.ssts[0].bytes)
