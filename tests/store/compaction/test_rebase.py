"""A batch is rebased on a compaction that took the batch's version number."""

from dataclasses import dataclass, field
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction.plan import Compaction, CompactionResult, apply_results, rebase
from slackwater.store.versions.commit import successor
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import Column, Input, Manifest, Table

from tests.support.manifests import manifest as plain

TABLE = Table((Column("k", "int64"),), (Column("v", "int64"),), 2)
KEYS = range(6)

Rows = dict[int, int]
"""A key and the `_seq` of its newest row."""
Slice = tuple[int, int, int]
"""State partition, and the range of its runs to merge, counted from the newest."""


@dataclass
class Runs:
    """Artificial content of SSTs. A key's parity determines its state partition."""

    rows: dict[str, Rows] = field(default_factory=dict)

    def sst(self, partition: int, rows: Rows, level: int) -> Sst:
        name = f"sst-{len(self.rows)}"
        self.rows[name] = rows
        seqs = rows.values()
        return Sst(
            name, partition, level, len(rows), 10, "", *hash_bounds(partition, 2), min(seqs), max(seqs), 0, "", 0
        )

    def written(self, keys: frozenset[int], seq: int) -> tuple[Sst, ...]:
        """Return the SSTs of a batch that writes these keys."""
        parts = ({key: seq for key in keys if key % 2 == partition} for partition in range(2))
        return tuple(self.sst(partition, rows, 0) for partition, rows in enumerate(parts) if rows)

    def merged(self, ssts: tuple[Sst, ...], where: Slice) -> CompactionResult | None:
        """Return the merge of this slice, or None if the slice has no merge."""
        partition, start, end = where
        runs = sorted((sst for sst in ssts if sst.partition == partition), key=lambda sst: -sst.seq_max)
        inputs = tuple(runs[start:end])
        if len(inputs) < 2:
            return None
        rows = self.table(inputs)
        made = self.sst(partition, rows, 1 + max(sst.level for sst in inputs))
        made = replace(made, seq_min=inputs[-1].seq_min, seq_max=inputs[0].seq_max)
        return CompactionResult(Compaction(partition, 2, inputs, drops_tombstones=end >= len(runs)), (made,))

    def table(self, ssts: tuple[Sst, ...]) -> Rows:
        """Return the newest row of each key."""
        found: Rows = {}
        for sst in ssts:
            for key, seq in self.rows[sst.object].items():
                found[key] = max(found.get(key, 0), seq)
        return found


def after(head: Manifest, ssts: tuple[Sst, ...], *, kind: VersionKind = "batch", **changes: object) -> Manifest:
    draft = successor(head, kind=kind, epoch=head.epoch, writer=kind, by="", now_ms=head.time_ms + 10)
    return replace(draft, ssts=ssts, **changes)


def begun(runs: Runs, batches: list[frozenset[int]]) -> Manifest:
    head = replace(plain(1), table=TABLE)
    for keys in batches:
        head = after(head, (*runs.written(keys, head.version + 1), *head.ssts))
    return head


batches = st.lists(st.frozensets(st.sampled_from(KEYS), min_size=1), min_size=1, max_size=6)
slices = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 6)), max_size=3, unique_by=lambda one: one[0]
)


def merges(runs: Runs, head: Manifest, wanted: list[Slice]) -> tuple[CompactionResult, ...]:
    return tuple(done for where in wanted if (done := runs.merged(head.ssts, where)) is not None)


def compacted(runs: Runs, head: Manifest, wanted: list[Slice]) -> Manifest:
    """Return the head after another process has compacted these slices."""
    return after(head, apply_results(head.ssts, merges(runs, head, wanted)), kind="compaction")


@given(batches, st.frozensets(st.sampled_from(KEYS)), slices, st.lists(slices, min_size=1, max_size=3))
def test_a_rebase_keeps_the_batchs_rows_and_both_sides_merges(
    history: list[frozenset[int]], keys: frozenset[int], own: list[Slice], others: list[list[Slice]]
) -> None:
    runs = Runs()
    before = begun(runs, history)
    mine = merges(runs, before, own)
    added = runs.written(keys, before.version + 1)
    batch = after(before, apply_results((*added, *before.ssts), mine))
    onto = reduce(lambda head, wanted: compacted(runs, head, wanted), others, before)
    found = rebase(before, batch, onto, mine)
    # No row is lost or older than it was.
    assert runs.table(found.ssts) == runs.table(batch.ssts) == runs.table((*before.ssts, *added))
    assert set(added) <= set(found.ssts)
    assert len(set(found.ssts)) == len(found.ssts)
    # The SSTs that the compaction merged do not come back.
    assert not (set(before.ssts) - set(onto.ssts)) & set(found.ssts)
    # Of the runner's own merges, those whose inputs all still exist remain; the others disappear.
    for done in mine:
        stays = set(done.compaction.inputs) <= set(onto.ssts)
        assert set(done.outputs) <= set(found.ssts) if stays else set(done.outputs).isdisjoint(found.ssts)
    assert (found.version, found.row_seq) == (onto.version + 1, batch.version)
    assert all(sst.seq_max < found.row_seq for sst in found.ssts if sst not in added)


@given(batches, st.lists(st.tuples(st.frozensets(st.sampled_from(KEYS)), slices), min_size=1, max_size=4), slices)
def test_consecutive_waiting_versions_are_rebased_one_after_the_other(
    history: list[frozenset[int]], waiting: list[tuple[frozenset[int], list[Slice]]], other: list[Slice]
) -> None:
    runs = Runs()
    committed = before = begun(runs, history)
    onto = compacted(runs, committed, other)
    recorded: dict[str, int] = {}
    for keys, own in waiting:
        mine = merges(runs, before, own)
        added = runs.written(keys, before.version + 1)
        recorded = recorded | {f"snapshot-{before.version + 1}": before.version + 1}
        batch = after(before, apply_results((*added, *before.ssts), mine), recorded=recorded)
        found = rebase(before, batch, onto, mine)
        assert runs.table(found.ssts) == runs.table(batch.ssts)
        assert (found.version, found.row_seq, found.time_ms > onto.time_ms) == (onto.version + 1, batch.version, True)
        # Each snapshot is of the version whose batch recorded it.
        assert found.recorded == {name: version + 1 for name, version in recorded.items()}
        before, onto = batch, found


def test_a_compaction_does_not_change_which_inputs_a_version_read() -> None:
    head = replace(plain(4), table=TABLE, inputs={"t": Input("t", (3,))}, recorded={"old": 2, "new": 4})
    batch = after(head, (), inputs={"t": Input("t", (9,), rows=6)}, recorded={"old": 2, "new": 4, "mine": 5})
    found = rebase(head, batch, after(head, (), kind="compaction"))
    assert (found.inputs, found.writer, found.kind) == (batch.inputs, batch.writer, "batch")
    assert found.recorded == {"old": 2, "new": 4, "mine": 6}


def test_a_rebased_version_needs_no_separate_sequence_number() -> None:
    head = plain(4)
    assert rebase(head, after(head, ()), head).seq == 0
    assert after(rebase(head, after(head, ()), after(head, (), kind="compaction")), ()).seq == 0


@pytest.mark.parametrize("onto", [plain(5, epoch=2), plain(3), replace(plain(5), stage="other")])
def test_a_batch_is_not_rebased_on_another_writers_head(onto: Manifest) -> None:
    head = plain(4)
    with pytest.raises(ValueError, match="expected a head of stage with epoch 1 at v4 or later"):
        rebase(head, after(head, ()), onto)
