"""A store of small apps with fixed bytes, whose objects tests damage.

`flights` has tombstones, a rescale, compactions, snapshots with and without markers, in-flight records inside and
outside of a snapshot, an open snapshot request, a thinned history with its boundary, a clone (`staging`) and a log of
operations; `types` has a table with every column type.
"""

import random
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from unittest.mock import patch

import ulid
from msgspec.structs import replace
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.audit_log import record_operation
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick
from slackwater.store.compaction.plan import apply_results
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, horizon
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.leaves import fold
from slackwater.store.versions.manifest import AppInfo, Column, Policy, Table

from tests.support.collecting import HOUR_MS, AgingStore, StoreClock
from tests.support.histories import Flight, FlightsApp, Kafka, flights
from tests.support.manifests import SMALL_LEAVES, claim
from tests.support.state_rows import Key, Values, write_version

BY = "ada@host"
_VALUES = {
    "string": ("", "\u00c5", "A\u030a", None),
    "binary": (b"", b"\0\xff", None),
    "bool": (True, False, None),
    "int8": (-128, 127, None),
    "int16": (-(2**15), 2**15 - 1, None),
    "int32": (-(2**31), 2**31 - 1, None),
    "int64": (-(2**63), 2**63 - 1, None),
    "float": (0.5, -0.0, None),
    "double": (5e-324, 1e300, None),
    "date32[day]": (date(1, 1, 1), date(2013, 1, 31), None),
    "timestamp[us]": (datetime(2013, 1, 31, 1, 2, 3, 4), None),  # noqa: DTZ001 - a type without a zone
    "timestamp[us, tz=UTC]": (datetime(2013, 1, 31, 1, 2, 3, 4, UTC), None),
    "decimal128(10, 2)": (Decimal("-0.01"), Decimal("99999999.99"), None),
    "decimal128(38, 6)": (Decimal("9" * 32 + "." + "9" * 6), None),
}
TYPES = Table(
    key=(Column("s", "string"), Column("x", "double"), Column("at", "timestamp[us, tz=UTC]")),
    values=tuple(Column(f"v{number}", name) for number, name in enumerate(_VALUES)),
    partitions=2,
)


def write_small_store(root: Path) -> Path:
    """Write the store into a new folder; return the folder."""
    store = AgingStore()
    # The URL of a root contains its location, so the location is replaced: the files may lie anywhere.
    store._url = "/srv/slackwater"
    clock = StoreClock(store, 60_000)
    numbers = random.Random(1)
    names = ulid.ULIDGenerator(clock=lambda: store.clock_ms, randomness=lambda _: numbers.randbytes(10))
    with (
        patch.object(ulid, "default_generator", names),
        patch("time.time_ns", lambda: store.clock_ms * 1_000_000),
        patch.multiple(fold, **SMALL_LEAVES),
    ):
        _flights(store, clock)
        _types(store, clock)
    for info in store.list(""):
        path = root / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(info.key))
    return root


def _flights(store: AgingStore, clock: StoreClock) -> None:
    kafka = Kafka()
    app = FlightsApp(store, kafka, clock=clock)
    app.run(flights(40))
    app.delete("aircraft", "N003", "N004")
    app.send(*flights(6))
    asked = request_snapshot(store, app.name, "at-noon", BY)
    app.step_all()
    assert try_complete(store, app.name, asked) is not None
    record_operation(store, app.name, "snapshot take", "at-noon", BY)
    _clone(store, app, kafka)
    app.step_all()
    app.rescale("aircraft", 3)
    app.run(flights(20, aircraft=11))
    _merge(store, app, "aircraft")
    _merge(store, app, "carriers")
    clock.wait(30 * 60_000)
    app.send(*flights(8))
    app.step("legs")
    pin_cut(store, resolve(store, app.name, now_ms=clock.now_ms), "before-deploy", by=BY, reader=kafka)
    clock.wait(3 * HOUR_MS)
    app.run(flights(10))
    clock.wait(HOUR_MS)
    app.run([Flight("N001", "C1", 5000)])
    app.run(flights(10, aircraft=9))
    collect(store, app.name, Retention(all_ms=2 * HOUR_MS, hourly_ms=12 * HOUR_MS), by=BY)
    thinned = horizon.newest(store, app.name)
    assert thinned is not None
    assert any(moment.until_ms for moment in thinned.moments)
    app.step_all()
    request_snapshot(store, app.name, "under-way", BY)
    app.send(*flights(5))
    app.step("legs")


def _clone(store: AgingStore, app: FlightsApp, kafka: Kafka) -> None:
    clone(store, "flights@at-noon", "staging", topics={}, channels=kafka, by=BY, now_ms=app.clock.now_ms)
    record_operation(store, "staging", "clone", "from flights@at-noon", BY)
    copy = FlightsApp(store, kafka, "staging", clock=app.clock)
    copy.send(*flights(9, aircraft=4))
    copy.step_all()


def _merge(store: AgingStore, app: FlightsApp, stage: str) -> None:
    """Commit the merge that the store's compaction picks."""
    head, table = app.heads[stage], app.table(stage)
    with closing(SstCache(Path("/nonexistent"), 0)) as cache:
        picked = pick(head.ssts, table.partitions, Policy(l0_trigger=4))
        done = [run_compaction(store, cache, app.name, stage, table, one) for one in picked]
    assert done
    now_ms = app.clock.tick(stage)
    draft = successor(head, kind="compaction", epoch=head.epoch, writer=head.writer, by=BY, now_ms=now_ms)
    app.commit(replace(draft, ssts=apply_results(head.ssts, done)))


def _types(store: AgingStore, clock: StoreClock) -> None:
    """Write a table with every type; some rows are overwritten or deleted."""
    apps.ensure_app(store, AppInfo("types", clock.now_ms))
    now_ms = clock.tick("rows")
    head = claim(
        store,
        "types",
        "rows",
        writer="w",
        by=BY,
        now_ms=now_ms,
        build=lambda draft: replace(draft, table=TYPES),
    )
    keys: list[Key] = [
        (text, number, moment)
        for text in ("", "\0", "\u00c5", "A\u030a", None)
        for number in (0.0, 1.5, float("inf"), None)
        for moment in (datetime(1970, 1, 1, tzinfo=UTC), None)
    ]
    for version in range(2, 5):
        changes: dict[Key, Values | None] = {
            key: None if (number + version) % 5 == 0 else _row(number + version)
            for number, key in enumerate(keys)
            if (number + version) % 3
        }
        ssts = write_version(store, None, TYPES, changes, version, app="types", base=head.ssts, stage="rows")
        draft = successor(head, kind="batch", epoch=1, writer="w", by=BY, now_ms=clock.tick("rows"))
        head = replace(draft, ssts=(*ssts, *head.ssts))
        commit(store, head)


def _row(number: int) -> Values:
    return tuple(some[number % len(some)] for some in _VALUES.values())
