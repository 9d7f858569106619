"""SSTs of batches that had fewer tasks than there are state partitions pass all checks."""

from collections import Counter

from slackwater.snapshot.verify.verify import verify
from slackwater.store.sst.sorted_runs import overlapped_partitions
from slackwater.store.versions.apps import AppInfo, ensure_app
from slackwater.store.versions.manifest import Column, Table

from tests.models.writers import Writer
from tests.support.collecting import AgingStore
from tests.support.state_rows import AS_ALWAYS


def test_the_ssts_of_programs_with_other_numbers_of_tasks_are_consistent() -> None:
    store = AgingStore()
    ensure_app(store, AppInfo("app", store.clock_ms))
    table = Table((Column("key", "string"),), (Column("n", "int64"),), 16)
    for tasks, num_ssts in ((2, 2), (0, 16), (8, 8), (3, 3)):
        writer = Writer(store, "app", table, AS_ALWAYS, tasks=tasks)
        before = len(writer.head.ssts)
        writer.commit(writer.batch({(f"k{number}",): (tasks,) for number in range(500)}, None))
        assert len(writer.head.ssts) - before == num_ssts
        assert verify(store, "app", deep=True).consistent


def test_the_ssts_of_batches_with_fewer_tasks_than_the_program_allows_are_consistent() -> None:
    store = AgingStore()
    ensure_app(store, AppInfo("app", store.clock_ms))
    table = Table((Column("key", "string"),), (Column("n", "int64"),), 16)
    writer = Writer(store, "app", table, AS_ALWAYS, varies_tasks=True)
    for number in range(5):
        writer.commit(writer.batch({(f"k{key}",): (number,) for key in range(500)}, None))
    by_width = Counter(len(overlapped_partitions(sst, 16)) for sst in writer.head.ssts)
    assert by_width == {1: 16, 2: 8, 4: 4, 8: 2, 16: 1}
    assert verify(store, "app", deep=True).consistent
