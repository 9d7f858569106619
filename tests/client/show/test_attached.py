"""Output of `attach`: tables, batches and versions."""

from pathlib import Path

from slackwater.client.show.programs import attach_plan_result, attached_version_result
from slackwater.client.show.programs import attach_result as shown_caught_up
from slackwater.client.show.shown import Result
from slackwater.operations.attach.tail import Tail
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.operations.attach.following import caught_up, commit, query, tail
from tests.operations.attach.memory_checkpoint import MemoryCheckpoint


def said(result: Result) -> str:
    return str(result)


def test_a_plan_lists_the_tables_and_where_history_begins(tmp_path: Path) -> None:
    store, checkpoint = MemoryStore(), query()

    def plan(following: Tail) -> str:
        return said(attach_plan_result(following.plan(), checkpoint))

    def batches(count: int, checkpoint: MemoryCheckpoint = checkpoint) -> None:
        for number in range(count):
            commit(checkpoint, {"": {("DE",): (number, 1.0)}})

    following = tail(store, SstCache(tmp_path / "cache", 1 << 30), checkpoint)
    assert "the query has not committed a batch yet" in plan(following)
    batches(5)
    checkpoint.clean_up(before=2)
    text = plan(following)
    assert (
        "would attach the query 6a1c9c30-0000-4000-8000-000000000000 of memory:checkpoint as shop/totals; nothing"
        in text
    )
    assert "totals_seen" in text
    assert (
        "batches 2 to 4 can be read: history begins 2023-11-14T22:13:22Z, with all rows at the end of batch 2" in text
    )
    assert store.list_folders("") == [] or not list(store.list("shop/")), "a look writes nothing"
    made = caught_up(following)
    assert "shop/totals@v2  batches 0 to 2, 1 row changed" in said(attached_version_result("shop", made[0]))
    assert "batches 2 to 4 can be read; all of them have versions" in plan(following)
    batches(1)
    assert "the next is batch 5" in plan(following)
    batches(4)
    checkpoint.clean_up(before=8)
    assert "batches 8 to 9 can be read; batches 5 to 8 become one version" in plan(following)
    assert following.head is not None
    assert "shop/totals: 3 versions more, up to batch 4" in said(shown_caught_up(following.head, 3))
