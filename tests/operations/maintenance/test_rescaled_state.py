"""State written under changing numbers of state partitions and tasks, compared with a dictionary."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import duckdb
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction import picker
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick
from slackwater.store.compaction.plan import CompactionResult, apply_results
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.duckdb_view import register_table
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.sorted_runs import by_partition, max_overlap, overlapped_partitions, sorted_runs
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Policy

from tests.models.profiles import SEARCHES, scaled
from tests.support.state_rows import ROUTES, Hashes, Key, columns, manifest_of, write_version

KEYS: list[Key] = [(f"k{n}", "x") for n in range(24)]

batches = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 99), min_size=1, max_size=12)


@dataclass(frozen=True)
class Era:
    """Operations during which the table has one number of state partitions."""

    partitions: int
    batches: list[tuple[int, dict[Key, int | None]]]
    """Changes, each with a number that chooses the number of tasks among the divisors of `partitions`."""
    trigger: int
    """Number of SSTs at which compaction begins."""
    width: int
    """Maximum number of runs per merge.

    Without it, all of these SSTs would be merged, because they have the same size.
    """
    late: int
    """Number of batches after which merges are committed; those that remain are committed in the next era."""


eras = st.builds(
    Era,
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 3), batches), max_size=5),
    st.integers(2, 5),
    st.integers(2, 3),
    st.integers(0, 3),
)


class State:
    """A table, and a dictionary that has the same rows after every step."""

    def __init__(self, folder: Path, con: duckdb.DuckDBPyConnection, hashes: Hashes) -> None:
        self.store, self.cache, self.con, self.hashes = MemoryStore(), SstCache(folder, 1 << 30), con, hashes
        self.table = ROUTES
        self.ssts: tuple[Sst, ...] = ()
        self.model: dict[Key, int] = {}
        self.seq = 0

    def rescale(self, partitions: int) -> None:
        self.table = replace(self.table, partitions=partitions)

    def write(self, changes: Mapping[Key, int | None], choice: int) -> None:
        self.seq += 1
        divisors = [tasks for tasks in range(1, self.table.partitions + 1) if self.table.partitions % tasks == 0]
        table = replace(self.table, tasks=divisors[choice % len(divisors)])
        rows = {key: None if value is None else (value, None, None) for key, value in changes.items()}
        self.ssts = (*write_version(self.store, self.cache, table, rows, self.seq, self.hashes), *self.ssts)
        self.model |= {key: value for key, value in changes.items() if value is not None}
        for key in [key for key, value in changes.items() if value is None]:
            self.model.pop(key, None)
        self.check()

    def merge(self, trigger: int, width: int) -> tuple[CompactionResult, ...]:
        """Carry out the picked merges, without a commit."""
        policy = Policy(l0_trigger=trigger, max_merge_width=width, max_space_amplification=1e9)
        picked = pick(self.ssts, self.table.partitions, policy)
        done = tuple(run_compaction(self.store, self.cache, "app", "stage", self.table, one) for one in picked)
        for one in done:
            is_cut = all(len(overlapped_partitions(output, self.table.partitions)) == 1 for output in one.outputs)
            assert is_cut or not one.compaction.cuts
            # A wide result needs one put.
            assert is_cut or len(one.outputs) == 1
        return done

    def land(self, *done: CompactionResult) -> None:
        if done:  # else nothing has changed since the last check
            self.ssts = apply_results(self.ssts, done)
            self.check()

    def check(self) -> None:
        for one, other in combinations(self.ssts, 2):
            if one.hash_min <= other.hash_max and other.hash_min <= one.hash_max:
                assert one.seq_max < other.seq_min or other.seq_max < one.seq_min
        keys = columns(self.table.key, KEYS)
        hashes = self.hashes.of(self.table, keys)
        expected = [self.model.get(key) for key in KEYS]
        values, present = multi_get(self.store, self.cache, self.ssts, self.table, hashes, keys)
        assert (values["flights"].to_pylist(), present.tolist()) == (expected, [key in self.model for key in KEYS])
        assert multi_get(self.store, None, self.ssts, self.table, hashes, keys)[0] == values
        register_table(self.con, "t", self.store, self.cache, manifest_of(self.table, self.ssts))
        rows = self.con.sql("SELECT origin, dest, flights FROM t").fetchall()
        assert sorted(rows) == sorted((*key, value) for key, value in self.model.items())


@contextmanager
def a_state(hashes: Hashes) -> Iterator[State]:
    folder = Path(tempfile.mkdtemp())
    with duckdb.connect() as con:
        state = State(folder, con, hashes)
        with closing(state.cache):
            yield state
    shutil.rmtree(folder, ignore_errors=True)


@scaled(17, in_ci=100)
@given(
    st.lists(eras, min_size=2, max_size=6 if SEARCHES else 3),
    st.sampled_from([0, 7]),
    st.sampled_from([picker.WIDE_BYTES, 3_000, 0]),
)
def test_batches_merges_and_rescales_lose_no_row(history: list[Era], modulus: int, wide_bytes: int) -> None:
    with a_state(Hashes(modulus)) as state, patch.object(picker, "WIDE_BYTES", wide_bytes):
        waiting: list[tuple[int, CompactionResult]] = []
        for era in history:
            state.rescale(era.partitions)
            for choice, changes in era.batches:
                state.write(changes, choice)
                state.land(*(done for at, done in waiting if at <= state.seq))
                waiting = [(at, done) for at, done in waiting if at > state.seq]
                waiting += [(state.seq + era.late, done) for done in state.merge(era.trigger, era.width)]
        state.land(*(done for _, done in waiting))
        while done := state.merge(3, 2):
            state.land(*done)
            assert not {sst for one in done for sst in one.compaction.inputs} & set(state.ssts)
        for mine in by_partition(state.ssts, state.table.partitions).values():
            assert sum(map(max_overlap, sorted_runs(mine))) < 3
