"""An adoption that is killed at any time: no part of it is visible, and the same call finishes it."""

import random
from pathlib import Path

import pytest
from slackwater.store.objects.local import LocalStore
from slackwater.store.read.cache import SstCache

from tests.models.profiles import SEARCHES
from tests.operations.from_spark.adopt.adopting import adoption
from tests.operations.from_spark.adopt.test_adoption import check, filled, is_there
from tests.operations.victims import Victims

BATCHES = 12


def adopts(folder: str) -> None:
    """Run the adoption of a victim process."""
    query = filled(BATCHES)
    cache = SstCache(Path(folder) / "cache", 1 << 30)
    adoption(LocalStore(Path(folder) / "store"), cache, query.checkpoint, query.table).run()


@pytest.mark.ci  # each request is the last one once in test_adoption.py
def test_an_adoption_killed_at_any_time_is_finished_by_the_same_call(tmp_path: Path) -> None:
    query, chance = filled(BATCHES), random.Random(7)
    with Victims("tests.operations.from_spark.adopt.test_killed") as victims:
        whole = victims.run("adopts", str(tmp_path / "whole"))
        for number in range(30 if SEARCHES else 4):
            folder = tmp_path / str(number)
            victims.run("adopts", str(folder), chance.uniform(0, whole))
            store = LocalStore(folder / "store")
            if is_there(store):
                check(store, SstCache(folder / "cache", 1 << 30), query)
            victims.run("adopts", str(folder))
            check(store, SstCache(folder / "cache", 1 << 30), query)
