"""Checks of versions and of garbage collection for the store's model, computed independently of the product."""

from collections.abc import Iterable, Mapping
from itertools import islice

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import register_table
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.schema import EXPIRES
from slackwater.store.versions import history, keys
from slackwater.store.versions.manifest import Manifest

from tests.models.states import Shown
from tests.models.tables import same_form
from tests.models.writers import STAGE
from tests.support.collecting import HOUR_MS, AgingStore, fresh, keys_of
from tests.support.state_rows import Hashes, Key, columns, rows_of_open


def check_reads(
    con: duckdb.DuckDBPyConnection,
    store: AgingStore,
    cache: SstCache,
    manifest: Manifest,
    clock_ms: int,
    hashes: Hashes,
    written: Iterable[Key],
    shown: Shown,
) -> None:
    """Check that look-ups of all kinds, and the relation, equal the dictionary at this clock."""
    table = manifest.table
    assert table is not None
    # Some are asked for twice.
    asked = [*written, *islice(written, 3)]
    forms = [same_form(key) for key in asked]
    asked_for = columns(table.key, asked)
    hashed = hashes.of(table, asked_for)
    found, there = multi_get(store, cache, manifest.ssts, table, hashed, asked_for, clock_ms=clock_ms)
    assert there.tolist() == [form in shown for form in forms]
    nothing = (None,) * len(table.values)
    assert [tuple(row.values()) for row in found.to_pylist()] == [shown.get(form, nothing) for form in forms]
    values, present = multi_get(store, None, manifest.ssts, table, hashed, asked_for, clock_ms=clock_ms)
    assert present.tolist() == there.tolist()
    assert values == found
    opened = rows_of_open(store, cache, manifest.ssts, table, hashed, asked_for, clock_ms)
    assert [row and tuple(row.values()) for row in opened] == [shown.get(form) for form in forms]
    register_table(con, "t", store, cache, manifest, clock_ms=clock_ms)
    rows = (tuple(row.values()) for row in con.sql("FROM t").to_arrow_table().to_pylist())
    actual = sorted(repr(same_form(row)) for row in rows)
    assert actual == sorted(repr(same_form((*form, *values))) for form, values in shown.items())


def check_kept_versions(
    store: AgingStore,
    app: str,
    retention: Retention,
    before: Mapping[int, tuple[int, int]],
    whole: int,
    pinned: set[int],
) -> None:
    """Check which versions were kept, by those rules that a few lines can express.

    `before` has all earlier versions with their times of commit and of writing. Before the version `whole`, only
    versions remain that snapshots pin, or pinned until they were removed; retention does not count these.
    """
    head, clock_ms = max(before), store.clock_ms
    wanted = {head, *history.read(fresh(store), app, STAGE, head).recorded.values()}
    wanted.update(version for version, (_, written_ms) in before.items() if written_ms > clock_ms - HOUR_MS)
    if retention.versions is not None:
        wanted.add(head - retention.versions + 1)
    if retention.all_ms is not None:
        since_ms = clock_ms - retention.all_ms
        wanted.add(max((v for v, (time_ms, _) in before.items() if v >= whole and time_ms <= since_ms), default=1))
    first = 1 if retention.keeps_everything else max(min(wanted), whole)
    after = set(history.list_versions(fresh(store), app, STAGE))
    assert {version for version in before if version >= first or version in pinned} <= after
    if retention.hourly_ms is None and retention.daily_ms is None:
        assert all(version >= first or version in pinned for version in after)


def check_grace(store: AgingStore, app: str) -> None:
    """Check that no unreferenced object older than the margin is left."""
    versions = history.list_versions(fresh(store), app, STAGE)
    written = {info.key: info.modified_ms for info in store.list(keys.manifests(app, STAGE))}
    assert written.keys() == {keys.manifest(app, STAGE, version) for version in versions}
    manifests = [history.read(fresh(store), app, STAGE, version) for version in versions]
    named = {sst.object for manifest in manifests for sst in manifest.ssts}
    last = max((m.version for m in manifests if m.kind in ("batch", "claim")), default=0)
    due_ms = written[keys.manifest(app, STAGE, last)] - HOUR_MS if last else 0
    for info in store.list(keys.ssts(app, STAGE)):
        assert info.key in named or info.modified_ms > due_ms


def expired_objects(store: AgingStore, app: str, clock_ms: int) -> set[str]:
    """Return the stored SSTs that contain a row which has expired at this clock."""
    found = set()
    for key in keys_of(store, keys.ssts(app, STAGE)):
        rows = pq.read_table(pa.BufferReader(store.get(key)))
        stamps = rows[EXPIRES].to_pylist() if EXPIRES in rows.column_names else []
        if any(stamp is not None and stamp <= clock_ms for stamp in stamps):
            found.add(key)
    return found
