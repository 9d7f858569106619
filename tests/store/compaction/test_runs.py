"""A picker that follows a table from version to version picks the same merges as a new picker for each version."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.store.compaction.picker import Picker, pick_for_manifest
from slackwater.store.compaction.plan import Compaction, CompactionResult, apply_results
from slackwater.store.compaction.runs import TableRuns
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import keys
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst, Ssts
from slackwater.store.versions.leaves.fold import apply_fold, plan_fold, write_fold
from slackwater.store.versions.manifest import Column, Manifest, Policy, Table

from tests.models.profiles import scaled
from tests.support.manifests import manifest

CHANGES = ["batch"] * 4 + ["merges"] * 3 + ["fold", "rewind", "rescale", "clock"]
SMALL = 165 * 4
TABLE = Table((Column("k", "int64"),), (Column("v", "int64"),), 64, tasks=4)
numbers = count(1)


def sst(
    low: int, high: int, size: int, seqs: tuple[int, int], level: int = 0, expires: tuple[int, int] = (0, 0)
) -> Sst:
    key = keys.sst("app", "stage", f"{next(numbers):026}")
    expiring = size if expires[1] else 0
    ends = {"expiring": expiring, "expires_min": expires[0], "expires_max": expires[1]}
    return Sst(key, 0, level, size, size, "", low, high, *seqs, 0, "", 0, **ends)


def carried_out(done: Compaction) -> CompactionResult:
    """Return a result of one SST, without rows."""
    inputs = done.inputs
    seqs = min(sst.seq_min for sst in inputs), max(sst.seq_max for sst in inputs)
    expires = min(sst.expires_min for sst in inputs), max(sst.expires_max for sst in inputs)
    size = sum(sst.bytes for sst in inputs)
    return CompactionResult(done, (sst(*done.hash_range, size, seqs, done.output_level, expires),))


def batch(head: Manifest, tasks: int, size: int, ttl_ms: int) -> Ssts:
    expires = (head.clock_ms, head.clock_ms + ttl_ms) if ttl_ms else (0, 0)
    seqs = head.version + 1, head.version + 1
    return head.ssts.plus(sst(*hash_bounds(task, tasks), size, seqs, 0, expires) for task in range(tasks))


@scaled(100, in_ci=2000)
@given(st.data(), st.sampled_from(["universal", "leveled"]), st.booleans())
def test_a_picker_that_follows_versions_picks_the_same_as_a_new_one(
    data: st.DataObject, kind: str, expires: bool
) -> None:
    policy = Policy(kind=kind, l0_trigger=data.draw(st.integers(2, 6), "trigger"), level_base_bytes=4 << 20)
    store, picker = MemoryStore(), Picker()
    head = replace(manifest(1), table=replace(TABLE, compaction=policy), clock_ms=10)
    versions = [head]
    for change in data.draw(st.lists(st.sampled_from(CHANGES), max_size=30), "changes"):
        table = head.table
        assert table is not None
        ssts, clock_ms = head.ssts, head.clock_ms
        match change:
            case "batch":
                tasks = data.draw(st.sampled_from([n for n in (1, 2, 4, 8) if table.ranges % n == 0]), "tasks")
                size = data.draw(st.sampled_from([900, 300_000, 2_000_000]), "bytes")
                ssts = batch(head, tasks, size, data.draw(st.integers(1, 900), "ttl") if expires else 0)
            case "merges":
                due = pick_for_manifest(head)
                chosen = data.draw(st.lists(st.sampled_from(due), unique=True), "merges") if due else []
                ssts = apply_results(ssts, [*map(carried_out, chosen)])
            case "fold":
                ssts = apply_fold(ssts, write_fold(store, "app", "stage", plan_fold(ssts, SMALL, per_leaf=3)))
            case "rewind":
                ssts = data.draw(st.sampled_from(versions), "earlier").ssts
            case "rescale":
                table = replace(table, tasks=data.draw(st.sampled_from([2, 4, 8]), "ranges"))
            case _:
                clock_ms += data.draw(st.integers(1, 300), "ms")
        head = replace(head, version=head.version + 1, table=table, ssts=ssts, clock_ms=clock_ms)
        versions.append(head)
        if data.draw(st.booleans(), "picked"):
            assert picker.pick(head) == pick_for_manifest(head)
    assert picker.pick(head) == pick_for_manifest(head)


def test_batches_and_merges_do_not_recompute_the_description_of_a_large_old_run() -> None:
    old = [sst(*hash_bounds(slot, 4000), 64 << 20, (1, 1), 7) for slot in range(4000)]
    head, table = replace(manifest(1), table=TABLE, ssts=Ssts(old)), TableRuns(TABLE.ranges)
    table.update(head.ssts)
    before = [runs[-1] for runs in table.by_range.values()]
    assert sum(len(run.ssts) for run in before) == 4000
    for _ in range(40):
        head = replace(head, version=head.version + 1, ssts=batch(head, 4, 64 << 10, 0))
        table.update(head.ssts)
        head = replace(head, ssts=apply_results(head.ssts, [*map(carried_out, pick_for_manifest(head))]))
    assert [runs[-1] for runs in table.by_range.values()] == before  # runs compare by identity
    assert max(map(len, table.by_range.values())) < TABLE.compaction.l0_trigger + 1
