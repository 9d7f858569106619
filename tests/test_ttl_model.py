"""Tables whose rows expire, beside a dictionary whose entries do.

Whatever is written, merged and rescaled, whenever the clock goes on, and whichever version is looked at.
"""

import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from msgspec.structs import replace
from slackwater.store import ttl
from slackwater.store.cache import SstCache
from slackwater.store.compaction import Compaction, Done, apply
from slackwater.store.index import multi_get, point_get
from slackwater.store.manifest import Column, Manifest, Policy, Sst, Table, Ttl
from slackwater.store.memory import MemoryStore
from slackwater.store.merging import run
from slackwater.store.picking import pick
from slackwater.store.relation import register
from slackwater.store.runs import by_partition, sorted_runs

from .state_rows import Hashes, Key, Values, columns, manifest_of, write_version

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS: list[Key] = [(n,) for n in range(6)]
VALUES = (Column("v", "int64"), Column("at", "timestamp[us, tz=UTC]"))

moments = st.sampled_from([None, -50, 0, 50, 99, 100, 150, 200, 300])
"""Milliseconds since 1970: around the wall clock of a test, which begins at 0."""
batches = st.dictionaries(st.sampled_from(KEYS), st.none() | st.tuples(st.integers(0, 9), moments), max_size=4)


POLICIES = st.builds(
    Policy,
    kind=st.sampled_from(["universal", "leveled"]),
    l0_trigger=st.integers(2, 4),
    level_base_bytes=st.sampled_from([1, 4000]),
    fanout=st.just(2.0),
    target_file_bytes=st.sampled_from([500, 64 << 20]),
)


@dataclass(frozen=True)
class Entry:
    """What the dictionary holds of a key."""

    values: Values
    expires_ms: int | None


def visible(model: dict[Key, Entry], clock_ms: int) -> dict[Key, Values]:
    return {
        key: entry.values for key, entry in model.items() if entry.expires_ms is None or entry.expires_ms > clock_ms
    }


class Expiring(RuleBasedStateMachine):
    """Versions of one table, merges that land later than they were picked, a wall clock, and a dictionary."""

    merges = Bundle("merges")

    @initialize(
        column=st.sampled_from(["", "at"]),
        born=st.booleans(),
        partitions=st.sampled_from([1, 3]),
        modulus=st.sampled_from([0, 2]),
        cached=st.booleans(),
    )
    def start(self, column: str, born: bool, partitions: int, modulus: int, cached: bool) -> None:
        self.column = column
        self.hashes = Hashes(modulus)
        self.folder = Path(tempfile.mkdtemp())
        self.store, self.cache = MemoryStore(), SstCache(self.folder, 1 << 30 if cached else 0)
        self.con = duckdb.connect()
        self.con.execute("SET TimeZone = 'UTC'")
        self.now_ms = 0
        table = Table((Column("k", "int64"),), VALUES, partitions, "test", Ttl(100, column) if born else None)
        self.head = manifest_of(table, (), 1, ttl.first_clock_ms(None, table, 0))
        self.model: dict[Key, Entry] = {}
        self.history: list[tuple[Manifest, dict[Key, Entry]]] = []

    @property
    def table(self) -> Table:
        assert self.head.table is not None
        return self.head.table

    def commit(self, head: Manifest) -> None:
        assert head.clock_ms >= self.head.clock_ms or self.table.ttl is None
        self.head = replace(head, version=self.head.version + 1)
        self.history.append((self.head, dict(self.model)))

    @rule(
        batches=st.lists(batches, min_size=1, max_size=4), step_ms=st.sampled_from([0, 50, 100]), cached=st.booleans()
    )
    def write(self, batches: list[dict[Key, tuple[int, int | None] | None]], step_ms: int, cached: bool) -> None:
        for changes in batches:
            self.now_ms += step_ms
            self.write_one(changes, cached)

    def write_one(self, changes: dict[Key, tuple[int, int | None] | None], into_cache: bool) -> None:
        clock_ms = ttl.batch_clock_ms(self.head, self.now_ms)
        self.check_look_ups(self.head, self.model, clock_ms)
        rows = {k: put and (put[0], None if put[1] is None else at(put[1])) for k, put in changes.items()}
        cache, seq = self.cache if into_cache else None, self.head.version + 1
        ssts: tuple[Sst, ...] = ()
        if rows:
            ssts = write_version(self.store, cache, self.table, rows, seq, self.hashes, clock_ms=clock_ms)
        lifetime, latest_ms = self.table.ttl, clock_ms
        for key, put in changes.items():
            self.model.pop(key, None)
            if put is not None:
                moment_ms = put[1] if self.column else clock_ms
                stamped = lifetime is not None and lifetime.ms > 0 and moment_ms is not None
                expires_ms = moment_ms + lifetime.ms if stamped and lifetime and moment_ms is not None else None
                self.model[key] = Entry(rows[key] or (), expires_ms)
                latest_ms = max(latest_ms, moment_ms) if stamped and moment_ms is not None else latest_ms
        self.commit(replace(self.head, clock_ms=latest_ms, ssts=(*ssts, *self.head.ssts)))

    @rule(lifetime_ms=st.sampled_from([0, 50, 100, 1000]))
    def turn_the_knob(self, lifetime_ms: int) -> None:
        if lifetime_ms == 0 and self.table.ttl is None:
            return
        table = replace(self.table, ttl=Ttl(lifetime_ms, self.column))
        clock_ms = ttl.first_clock_ms(self.table, table, self.head.clock_ms)
        self.commit(replace(self.head, table=table, clock_ms=clock_ms))

    @rule(partitions=st.integers(1, 4))
    def rescale(self, partitions: int) -> None:
        self.commit(replace(self.head, table=replace(self.table, partitions=partitions)))

    @rule(target=merges, policy=POLICIES)
    def merge_what_is_picked(self, policy: Policy) -> object:
        picked = pick(self.head.ssts, self.table.partitions, policy, clock_ms=self.head.clock_ms)
        return multiple(*(self.merge(one) for one in picked))

    @rule(target=merges, data=st.data())
    def merge_any_neighbours(self, data: st.DataObject) -> object:
        if not self.head.ssts:
            return multiple()
        partitions = self.table.partitions
        of_partition = sorted(by_partition(self.head.ssts, partitions).items(), key=repr)
        partition, mine = data.draw(st.sampled_from(of_partition))
        runs = sorted_runs(mine)
        start = data.draw(st.integers(0, len(runs) - 1))
        end = data.draw(st.integers(start + 1, len(runs)))
        inputs = tuple(entry for run in runs[start:end] for entry in run)
        return self.merge(Compaction(partition, partitions, inputs, end == len(runs), clock_ms=self.head.clock_ms))

    def merge(self, one: Compaction) -> Done:
        done = run(self.store, self.cache, "app", "stage", self.table, one)
        for output in done.outputs[: one.drops_tombstones]:
            kept = output.partition != one.partition or one.clock_ms is None
            assert kept or not ttl.may_have_expired(output, one.clock_ms or 0), "expired rows go from storage"
        return done

    @rule(step_ms=st.sampled_from([50, 100]), policy=POLICIES)
    def merge_what_is_picked_later(self, step_ms: int, policy: Policy) -> None:
        self.now_ms += step_ms
        self.write_one({}, False)
        picked = pick(self.head.ssts, self.table.partitions, policy, clock_ms=self.head.clock_ms)
        ssts = apply(self.head.ssts, [self.merge(one) for one in picked])
        self.commit(replace(self.head, ssts=ssts))

    @rule(done=consumes(merges))
    def land(self, done: Done) -> None:
        self.commit(replace(self.head, ssts=apply(self.head.ssts, [done])))

    @invariant()
    def the_head_equals_the_dictionary(self) -> None:
        if hasattr(self, "con"):
            # As one sees it who looks now.
            self.check(self.head, self.model, ttl.seen_clock_ms(self.head, self.now_ms + 1))

    @rule(data=st.data())
    def every_version_shows_what_it_showed(self, data: st.DataObject) -> None:
        if self.history:
            manifest, model = data.draw(st.sampled_from(self.history))
            self.check(manifest, model, manifest.clock_ms)

    def check(self, manifest: Manifest, model: dict[Key, Entry], clock_ms: int) -> None:
        self.check_look_ups(manifest, model, clock_ms)
        register(self.con, "t", self.store, self.cache, manifest, clock_ms=clock_ms)
        rows = [tuple(row.values()) for row in self.con.sql("FROM t").to_arrow_table().to_pylist()]
        found = {row[:1]: row[1:] for row in rows}
        assert len(found) == len(rows)
        assert found == visible(model, clock_ms)

    def check_look_ups(self, manifest: Manifest, model: dict[Key, Entry], clock_ms: int) -> None:
        assert manifest.table is not None
        keys = columns(manifest.table.key, KEYS)
        hashes = self.hashes.of(manifest.table, keys)
        expected = visible(model, clock_ms)
        ssts, table = manifest.ssts, manifest.table
        found, there = multi_get(self.store, self.cache, ssts, table, hashes, keys, clock_ms=clock_ms)
        assert there.tolist() == [key in expected for key in KEYS]
        assert [tuple(row.values()) for row in found.to_pylist()] == [expected.get(k, (None, None)) for k in KEYS]
        assert point_get(self.store, ssts, table, hashes, keys, clock_ms=clock_ms).values == found

    def teardown(self) -> None:
        if hasattr(self, "con"):
            self.con.close()
            self.cache.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def at(moment_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=moment_ms)


TestExpiring = Expiring.TestCase
TestExpiring.settings = settings(max_examples=40, stateful_step_count=10, deadline=None)
