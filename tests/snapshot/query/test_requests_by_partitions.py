"""The number of requests for a whole table, or for a diff, does not grow with the number of state partitions."""

from pathlib import Path

import pytest
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.query.answers import run_statement
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.apps import AppInfo, ensure_app
from slackwater.store.versions.manifest import Column, Manifest, Table

from tests.models.writers import STAGE, Writer
from tests.support.collecting import AgingStore
from tests.support.state_rows import AS_ALWAYS

KEYS = 12_000
BATCHES = 6
TASKS = 4


def gets(store: MemoryStore, first: Manifest, last: Manifest, folder: Path) -> tuple[int, int]:
    """Return the numbers of requests of a query and of a diff, each with an empty cache."""
    counted = []
    for name in ("query", "diff"):
        counting, cache = CountingStore(store), SstCache(folder / name, 1 << 30)
        then, now = (Cut("app", {STAGE: head}) for head in (first, last))
        if name == "query":
            table = run_statement(counting, cache, now, f"SELECT count(*) FROM {STAGE}", later=now.stages)
            assert table.to_pydict() == {"count_star()": [KEYS]}
        else:
            (difference,) = diff(cache, StoredCut(counting, then), StoredCut(counting, now))
            assert len(difference.changes) == KEYS // BATCHES
        counted.append(counting.take_stats().gets)
    return counted[0], counted[1]


@pytest.mark.parametrize("partitions", [512])
def test_a_table_in_many_state_partitions_is_read_with_few_requests(partitions: int, tmp_path: Path) -> None:
    counts = {}
    for count in (TASKS, partitions):
        store = AgingStore()
        ensure_app(store, AppInfo("app", store.clock_ms))
        table = Table((Column("key", "string"),), (Column("n", "int64"),), count)
        writer = Writer(store, "app", table, AS_ALWAYS, tasks=TASKS)
        heads = []
        for batch in range(BATCHES):
            rows = {(f"k{number}",): (batch,) for number in range(batch, KEYS, BATCHES)}
            writer.commit(writer.batch(rows, None))
            heads.append(writer.head)
        counts[count] = gets(store, heads[-2], heads[-1], tmp_path / str(count))
    assert counts[partitions] == counts[TASKS]
