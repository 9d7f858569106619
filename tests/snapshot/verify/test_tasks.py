"""SSTs of batches with fewer tasks than state partitions pass every check."""

from slackwater.snapshot.verify.verify import verify
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
