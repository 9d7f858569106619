"""A stage run by hand before and after its program was changed, and a backfill of what is new."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import slackwater as sw
from msgspec.structs import replace
from slackwater.operations.maintenance.compact import StageCompactor
from slackwater.operations.program_changes.backfill_swap import swap_in
from slackwater.operations.program_changes.backfill_targets import BackfillTarget, backfillable
from slackwater.pipeline.batch.committer import Committer, PendingVersion
from slackwater.snapshot.change.fill import fill_changes
from slackwater.snapshot.change.migration import applied
from slackwater.snapshot.cut.migrations import MigratedStage
from slackwater.state import step as fold_step
from slackwater.state.fits import Declared, DeclaredStage, evolve
from slackwater.state.kinds.kind import Bound, Kind
from slackwater.state.kinds.upsert import Upsert
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import Wrapper
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import LookUps, multi_get
from slackwater.store.sst import writer
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys, partition_of
from slackwater.store.sst.sorted_runs import touching
from slackwater.store.versions import apps, commit, history
from slackwater.store.versions.manifest import AppInfo, Backfill, Column, Input, Manifest, Sst, Table

from tests.support.collecting import AgingStore, Killed
from tests.support.manifests import claim

T = TypeVar("T")
NAMES = ("app", "stage")
RECORDS = pa.schema([("k", pa.int64()), ("by", pa.int64()), ("amount", pa.int64()), ("name", pa.string())])
OLD = {"n": sw.count(), "total": sw.sum("amount")}
NEW = {
    "amounts": sw.count("amount"),
    "sum": sw.sum("amount"),
    "low": sw.min("name"),
    "high": sw.max("amount"),
    "average": sw.mean("amount"),
    "opened": sw.first("name", by="by"),
    "touched": sw.last("name", by="by"),
}
DEFAULTS = {"amounts": 0, "opened": "nobody"}


def bound(state: Kind) -> Bound:
    return state.bind([RECORDS], ("k",))


def table_of(state: Kind) -> Table:
    values = (
        Column(each.name, from_arrow(each.type), default=str(DEFAULTS[each.name]) if each.name in DEFAULTS else None)
        for each in bound(state).values
    )
    return Table((Column("k", "int64"),), tuple(values), 2, state.stored)


class Mortal(Wrapper):
    """A store whose user is killed at some request."""

    def __init__(self, inner: ObjectStore, requests: int) -> None:
        super().__init__(inner)
        self.left = requests

    def _ask(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return request()


@dataclass
class App:
    """A stage of a topic with one partition, run by hand: before and after its program was changed."""

    folder: Path
    records: pa.Table
    state: Kind
    then: Kind
    store: AgingStore = field(default_factory=AgingStore)
    max_unflushed: int = 0

    def __post_init__(self) -> None:
        self.cache = SstCache(self.folder, 1 << 30)
        self.under_way: list[PendingVersion] = []
        self.claim(NAMES[0], table_of(self.state))

    def claim(self, app: str, table: Table | None = None) -> None:
        apps.ensure_app(self.store, AppInfo(app, 1))

        def build(draft: Manifest) -> Manifest:
            if draft.version > 1:
                return draft
            return replace(draft, table=table, inputs={"t": Input("t", (0,))})

        claimed = claim(self.store, app, "stage", writer=app, by="host:1", now_ms=1, build=build)
        self.committer = Committer(
            self.store,
            claimed,
            max_unflushed=self.max_unflushed if app == NAMES[0] else 0,
            fill=partial(fill_changes, self.store, self.cache),
        )

    def migrate(self) -> BackfillTarget:
        """The changed program, and what is to be computed for it."""
        stored = self.head.table
        assert stored is not None
        table, _ = evolve("stage", stored, table_of(self.then), {})
        step = MigratedStage(table=table, schema=stored.schema)
        claim(
            self.store,
            *NAMES,
            writer="m",
            by="me",
            now_ms=1,
            kind="migration",
            build=lambda draft: applied(draft, step, draft.migration + 1),
        )
        self.state = self.then
        declared = Declared("app", {"stage": DeclaredStage("stage", {"t": ""}, {}, table_of(self.state))})
        found = backfillable(self.store, {"stage": self.head}, declared)
        assert found.left == ()
        self.claim(NAMES[0])
        return found.targets[0]

    @property
    def head(self) -> Manifest:
        found = history.head(self.store, *NAMES)
        assert found is not None
        return found

    def begin(self, count: int, state: Kind | None = None) -> PendingVersion:
        """What a batch of so many records makes of what it finds when it begins."""
        base = self.committer.tip
        (start,) = base.inputs["t"].offsets
        rows = self.records.slice(start, count)
        draft = commit.successor(base, kind="batch", epoch=base.epoch, writer=base.writer, by="host:1", now_ms=1)
        ssts = self._ssts(base, rows, state or self.state) if rows.num_rows else ()
        read = Input("t", (start + rows.num_rows,), rows=rows.num_rows)
        made = replace(draft, inputs={"t": read}, ssts=(*base.ssts, *ssts))
        return PendingVersion(base, made, (), time.monotonic(), lambda _committed: None)

    def _ssts(self, base: Manifest, rows: pa.Table, state: Kind) -> tuple[Sst, ...]:
        assert base.table is not None
        hashes = hash_keys(rows, ["k"])
        rows = rows.append_column("_hash", pa.array(hashes))
        partitions = partition_of(hashes, base.table.partitions)
        made = []
        for partition in np.unique(partitions).tolist():
            ssts = touching(base.ssts, partition, base.table.partitions)
            mine = rows.filter(pa.array(partitions == partition))
            merging = fold_step.Step(base.table, bound(state), base.version + 1, 0)
            new = merging.made(mine, LookUps(self.store, self.cache, base.table, ssts, 0)).new
            if new.num_rows:
                made.append(
                    writer.write(
                        self.store,
                        self.cache,
                        app=base.app,
                        stage="stage",
                        table=base.table,
                        partition=partition,
                        rows=new,
                    )
                )
        return tuple(made)

    def batch(self, count: int) -> None:
        self.committer.submit(self.begin(count))

    def compact(self) -> None:
        compactor = StageCompactor(
            self.store,
            self.cache,
            self.head,
            by="c",
            threads=1,
            now_ms=lambda: 1,
            stop=threading.Event(),
        )
        tuple(compactor.until_done(full=True))

    def compute(self, target: BackfillTarget, batches: Sequence[int]) -> Backfill:
        """The past in an app of its own, in batches of its own, from where that stands."""
        runner, state = self.committer, self.state.narrowed(target.columns)
        self.claim(target.scratch, table_of(state))
        (end,) = target.ends["t"]
        for count in (*batches, end):
            (start,) = self.committer.tip.inputs["t"].offsets
            self.committer.submit(self.begin(min(count, end - start), state))
        source, self.committer = self.committer.head, runner
        assert source.inputs["t"].offsets == (end,)
        return Backfill(
            target.since + 1,
            target.since,
            target.ids,
            target.scratch,
            source.version,
            source.writer,
            dict(target.starts),
            whole=True,
        )

    def swap(self, backfill: Backfill) -> None:
        swap_in(self.store, self.cache, NAMES, backfill, writer="b", by="me", now_ms=lambda: 1)

    def survives(self, requests: int, act: Callable[[], None]) -> bool:
        """Whether an act ends with so many requests to the store: at the next whoever does it is killed."""
        store, runner = self.store, self.committer
        self.store = Mortal(store, requests)  # type: ignore[assignment]
        try:
            act()
        except Killed:
            return False
        finally:
            self.store, self.committer = store, runner
        return True

    def rows(self, at: Manifest | None = None) -> dict[int, dict[str, object]]:
        """The visible rows of a version, by key."""
        at = at or self.head
        assert at.table is not None
        keys = pa.table({"k": np.unique(self.records["k"].to_numpy())})
        values, there = multi_get(self.store, self.cache, at.ssts, at.table, hash_keys(keys, ["k"]), keys)
        found = zip(keys["k"].to_pylist(), values.to_pylist(), there.tolist(), strict=True)
        return {key: seen(row) for key, row, is_there in found if is_there}

    def expected(self, count: int) -> dict[int, dict[str, object]]:
        """What the declaration makes of the first so many records, all at once."""
        rows = self.records.slice(0, count)
        if not rows.num_rows:
            return {}
        state, table = bound(self.state), table_of(self.state)
        sorted_rows, groups = fold_step.group(rows.append_column("_hash", pa.array(hash_keys(rows, ["k"]))), ["k"])
        keys = sorted_rows.select(["k"]).take(pa.array(groups.starts))
        nothing = pa.table([pa.nulls(groups.num, each.type) for each in state.values], schema=state.values)
        made = state.merge(sorted_rows, groups, keys, nothing).values
        assert made.column_names == [each.name for each in table.values]
        return {key: seen(row) for key, row in zip(keys["k"].to_pylist(), made.to_pylist(), strict=True)}


def seen(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def records(num: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    amounts = random.integers(-50, 50, num)
    return pa.table(
        {
            "k": random.integers(0, 8, num),
            "by": random.permutation(num),
            "amount": pa.array(amounts, pa.int64(), mask=amounts % 5 == 0),
            "name": pa.array([f"n{number}" for number in random.integers(0, 99, num)]),
        },
        schema=RECORDS,
    )


AGGREGATES = sw.aggregate(**OLD), sw.aggregate(**OLD, **NEW)
UPSERT = sw.upsert(by="by")


class _Narrow(Upsert, frozen=True, tag="narrow"):
    """An upsert of fewer columns."""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        return UPSERT.bind([pa.schema([each for each in rows[0] if each.name in ("k", "by", "amount")])], key)

    @property
    def declaration(self) -> Kind:
        return UPSERT


UPSERTS = _Narrow("by"), UPSERT
