"""The store's data plane beside a dictionary.

Whatever is written, deleted, merged and rescaled, and whenever it is looked at.
"""

import math
import shutil
import tempfile
from datetime import UTC, datetime
from decimal import Context, Decimal
from itertools import combinations
from pathlib import Path

import duckdb
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from msgspec.structs import replace
from slackwater.store.cache import SstCache
from slackwater.store.compaction import Compaction, Done, apply
from slackwater.store.index import multi_get, point_get
from slackwater.store.manifest import Column, Policy, Sst, Table
from slackwater.store.memory import MemoryStore
from slackwater.store.merging import run
from slackwater.store.picking import pick, pick_all
from slackwater.store.relation import register
from slackwater.store.runs import by_partition, depth, sorted_runs, touched

from .state_rows import Hashes, Key, Values, columns, manifest_of, write_version

NAN = float("nan")
STRINGS = (None, "", " ", "\0", "a", "A", "\u00c5", "A\u030a", "null", "x" * 40)
DOUBLES = (None, 0.0, -0.0, NAN, -NAN, float("inf"), 5e-324, 1.0)
DECIMALS = (None, Decimal(0), Decimal("0.01"), Decimal("-0.01"), Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36))
MOMENTS = (
    None,
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2013, 1, 31, 1, 2, 3, 4, UTC),
)
BYTES = (None, b"", b"\0", b"\0\0", b"\xff", b"a")
NUMBERS = (None, 0, 1, -1, 127, -128)

TABLES: dict[str, tuple[tuple[Column, ...], st.SearchStrategy[Key]]] = {
    "string, double": (
        (Column("s", "string"), Column("x", "double")),
        st.tuples(st.sampled_from(STRINGS), st.sampled_from(DOUBLES)),
    ),
    "decimal, timestamp": (
        (Column("d", "decimal128(38, 2)"), Column("at", "timestamp[us, tz=UTC]")),
        st.tuples(st.sampled_from(DECIMALS), st.sampled_from(MOMENTS)),
    ),
    "binary, byte, boolean, float": (
        (Column("b", "binary"), Column("i", "int8"), Column("f", "bool"), Column("y", "float")),
        st.tuples(
            st.sampled_from(BYTES),
            st.sampled_from(NUMBERS),
            st.sampled_from((None, True, False)),
            st.sampled_from((None, 0.0, -0.0, NAN)),
        ),
    ),
    "long": ((Column("n", "int64"),), st.tuples(st.integers(0, 20))),
}
Model = dict[tuple[object, ...], tuple[Key, Values]]
"""Of each key's one form: the key as it was last written, and its values."""
VALUES = (Column("v", "int64"), Column("w", "string"))
values = st.none() | st.tuples(st.none() | st.integers(-5, 5), st.sampled_from(STRINGS))


def same_form(key: Key) -> tuple[object, ...]:
    """Keys that are one key compare equal as Python values."""
    return tuple(map(_one_form, key))


def _one_form(part: object) -> object:
    match part:
        case float():
            return "NaN" if math.isnan(part) else part + 0.0
        case datetime():
            return part.astimezone(UTC)
        case Decimal():
            return part.quantize(Decimal("0.01"), context=Context(prec=38))
        case _:
            return part


# Files and levels of a few rows: an SST of one has 2 to 3 kB.
POLICIES = st.builds(
    Policy,
    kind=st.sampled_from(["universal", "leveled"]),
    l0_trigger=st.integers(2, 4),
    max_space_amplification=st.sampled_from([0.5, 100.0]),
    level_base_bytes=st.sampled_from([1, 4000, 16_000]),
    fanout=st.sampled_from([2.0, 3.0]),
    target_file_bytes=st.sampled_from([500, 4000, 64 << 20]),
)


class StateModel(RuleBasedStateMachine):
    """Versions of one table, merges that start at one version and land at a later one, and a dictionary."""

    merges = Bundle("merges")

    @initialize(
        name=st.sampled_from(sorted(TABLES)),
        partitions=st.sampled_from([1, 3]),
        modulus=st.sampled_from([0, 2, 7]),
        cached=st.booleans(),
    )
    def start(self, name: str, partitions: int, modulus: int, cached: bool) -> None:
        key, self.keys = TABLES[name]
        self.table = Table(key, VALUES, partitions, "test")
        self.hashes = Hashes(modulus)
        self.folder = Path(tempfile.mkdtemp())
        self.store, self.cache = MemoryStore(), SstCache(self.folder, 1 << 30 if cached else 0)
        self.con = duckdb.connect()
        self.con.execute("SET TimeZone = 'UTC'")
        self.ssts: tuple[Sst, ...] = ()
        self.model: Model = {}
        self.history: list[tuple[tuple[Sst, ...], Model]] = []
        self.seen: dict[tuple[object, ...], Key] = {}
        self.version = 0

    @rule(data=st.data(), into_cache=st.booleans())
    def write(self, data: st.DataObject, into_cache: bool) -> None:
        drawn = data.draw(st.lists(st.tuples(self.keys, values), min_size=1, max_size=12))
        # A batch has each key once.
        changes = {same_form(key): (key, put) for key, put in drawn}
        self.version += 1
        cache = self.cache if into_cache else None
        rows = dict(changes.values())
        self.ssts = (*write_version(self.store, cache, self.table, rows, self.version, self.hashes), *self.ssts)
        for form, (key, put) in changes.items():
            self.seen[form] = key
            self.model.pop(form, None)
            if put is not None:
                self.model[form] = (key, put)

    @rule(target=merges, policy=POLICIES)
    def merge_what_is_picked(self, policy: Policy) -> object:
        done = [self.merge(one) for one in pick(self.ssts, self.table.partitions, policy)]
        return multiple(*done)

    @rule(policy=POLICIES)
    def merge_until_nothing_is_picked(self, policy: Policy) -> None:
        for _ in range(200):
            picked = pick(self.ssts, self.table.partitions, policy)
            if not picked:
                break
            self.ssts = apply(self.ssts, [self.merge(one) for one in picked])
        else:
            raise AssertionError(f"merging does not end: {policy}")
        if policy.kind == "universal":
            for mine in by_partition(self.ssts, self.table.partitions).values():
                assert sum(map(depth, sorted_runs(mine))) < policy.l0_trigger

    @rule(policy=POLICIES)
    def merge_all(self, policy: Policy) -> None:
        partitions = self.table.partitions
        for partition in range(partitions):
            picked = pick_all(self.ssts, partitions, policy, only=partition.__eq__)
            self.ssts = apply(self.ssts, [self.merge(one) for one in picked])
        for mine in by_partition(self.ssts, partitions).values():
            assert len(sorted_runs(mine)) == 1
            assert not any(sst.tombstones for sst in mine)

    @rule(partitions=st.integers(1, 6))
    def rescale(self, partitions: int) -> None:
        self.table = replace(self.table, partitions=partitions)
        self.version += 1

    @rule(target=merges, data=st.data())
    def merge_any_neighbours(self, data: st.DataObject) -> object:
        if not self.ssts:
            return multiple()
        partitions = self.table.partitions
        partition, mine = data.draw(st.sampled_from(sorted(by_partition(self.ssts, partitions).items(), key=repr)))
        runs = sorted_runs(mine)
        start = data.draw(st.integers(0, len(runs) - 1))
        end = data.draw(st.integers(start + 1, len(runs)))
        inputs = tuple(entry for run in runs[start:end] for entry in run)
        return self.merge(Compaction(partition, partitions, inputs, drops_tombstones=end == len(runs)))

    def merge(self, one: Compaction) -> Done:
        done = run(self.store, self.cache, "app", "stage", self.table, one)
        assert all(len(touched(output, one.partitions)) == 1 for output in done.outputs)
        return done

    @rule(done=consumes(merges))
    def land(self, done: Done) -> None:
        self.ssts = apply(self.ssts, [done])
        self.version += 1

    @invariant()
    def ssts_that_share_hashes_share_no_seq(self) -> None:
        for one, other in combinations(getattr(self, "ssts", ()), 2):
            if one.hash_min <= other.hash_max and other.hash_min <= one.hash_max:
                assert one.seq_max < other.seq_min or other.seq_max < one.seq_min

    @invariant()
    def look_ups_equal_the_dictionary(self) -> None:
        if not getattr(self, "seen", None):
            return
        asked = [*self.seen.values(), *self.seen.values()]
        keys = columns(self.table.key, asked)
        hashes = self.hashes.of(self.table, keys)
        expected = [self.model[form][1] if form in self.model else (None, None) for form in map(same_form, asked)]
        present = [form in self.model for form in map(same_form, asked)]
        found, there = multi_get(self.store, self.cache, self.ssts, self.table, hashes, keys)
        assert there.tolist() == present
        assert [tuple(row.values()) for row in found.to_pylist()] == expected
        point = point_get(self.store, self.ssts, self.table, hashes, keys)
        assert point.present.tolist() == present
        assert point.values == found

    @invariant()
    def the_relation_equals_the_dictionary(self) -> None:
        if not hasattr(self, "con"):
            return
        self.history.append((self.ssts, dict(self.model)))
        self.check_relation(self.ssts, self.model)

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        self.check_relation(*data.draw(st.sampled_from(self.history)))

    def check_relation(self, ssts: tuple[Sst, ...], model: Model) -> None:
        register(self.con, "t", self.store, self.cache, manifest_of(self.table, ssts))
        found = self.con.sql("FROM t").to_arrow_table().to_pylist()
        width = len(self.table.key)
        rows = [tuple(row.values()) for row in found]
        actual = sorted(repr((*same_form(row[:width]), *row[width:])) for row in rows)
        expected = sorted(repr((*form, *put)) for form, (_, put) in model.items())
        assert actual == expected

    def teardown(self) -> None:
        if hasattr(self, "con"):
            self.con.close()
            self.cache.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestStateModel = StateModel.TestCase
TestStateModel.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
