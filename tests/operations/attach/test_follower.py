"""The backlog of a follower is up to date, even during long reads."""

from itertools import repeat
from pathlib import Path

from slackwater.common import instants
from slackwater.operations.attach.follower import Follower
from slackwater.snapshot.under_way.runners import batch_lag, live_heartbeats
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.operations.attach.following import commit, query, tail
from tests.support.running import eventually


def test_batches_committed_during_a_long_read_count_as_backlog(tmp_path: Path) -> None:
    store, checkpoint = MemoryStore(), query()
    for _ in range(3):
        commit(checkpoint, {})
    following = tail(store, SstCache(tmp_path / "cache", 1 << 30), checkpoint)
    behind: list[int | None] = []

    def said() -> int | None:
        assert following.head is not None
        return batch_lag(following.head, live_heartbeats(store, "shop", instants.now_ms()))

    def while_it_reads() -> None:
        if following.newest_batch >= 0 and len(checkpoint.batches) == 3:
            for _ in range(5):
                commit(checkpoint, {})
            eventually(lambda: said() == 8, "a sign of life that counts them", 60)
            behind.append(said())

    checkpoint.between = repeat(while_it_reads)
    landed = Follower(following, store, lambda _: None).catch_up()
    assert behind == [8]
    assert landed == 8, "each batch is a version"
    assert said() is None, "nobody follows any more"
