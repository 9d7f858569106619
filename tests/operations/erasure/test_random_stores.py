"""Erasure of random keys in random stores: no object keeps the person's records, and other records stay."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from slackwater.errors import Refused
from slackwater.operations.disaster_recovery.replicate import Replicator
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget, search_keys
from slackwater.operations.erasure.held import UNREAD
from slackwater.pipeline.messages.decode import RegistryDecoder
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.models.profiles import SEARCHES
from tests.operations.erasure.random_stores import APP, RandomStore, answer, decoded
from tests.pipeline.messages.test_registry import answering
from tests.support.collecting import fresh


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with answering(answer) as url:
        yield url


@pytest.mark.parametrize("seed", range(200 if SEARCHES else 20))
def test_no_object_keeps_the_person_and_no_record_of_others_is_lost(seed: int, registry: str, tmp_path: Path) -> None:
    rnd = random.Random(seed)
    made = RandomStore(MemoryStore(), registry, rnd)
    made.write()
    gone = set(rnd.sample(made.people, rnd.randint(1, 3)))
    before = decoded(made, made.store)
    asked, how = RequestedKeys.from_values({"people": sorted(gone)}), {"kafka": made, "formats": RegistryDecoder(1)}
    cache, replica = SstCache(tmp_path, 1 << 20), MemoryStore()
    copies = Replicator(made.store, replica, APP, "ada@host", None)
    copies.run_round()
    holders = {key for key, found in before.items() if any(people & gone for people in found.records.values())}
    try:
        dry = forget(made.store, cache, APP, asked, by="ada", dry_run=True, **how)
    except Refused:
        assert not holders
        return
    # Listed before: each object that holds a record of the person, and the number of such records.
    assert {each.object for each in dry.held} == holders
    expected = sum(len([1 for people in before[key].records.values() if people & gone]) for key in holders)
    assert sum(each.rows for each in dry.gone) == expected
    done = forget(made.store, cache, APP, asked, by="ada", **how)
    assert (done.rows, done.gone) == (expected, dry.gone)

    looked = search_keys(fresh(made.store), APP, asked, deep=True, **how)
    named = {each.object for each in (*looked.held, *looked.unproved)}
    after = decoded(made, made.store)
    assert {key for key, found in after.items() if any(people & gone for people in found.records.values())} == set()
    undecoded = {key for key, found in after.items() if found.undecoded}
    assert undecoded <= named
    assert sum(each.records for each in looked.unproved) == made.garbage
    # An unread record would bring the key back, and is named.
    coming = sum(who in gone for rows in made.unread for who in rows["who"].to_pylist())
    assert sum(sum(each.fields.values()) for each in looked.held if each.what == UNREAD) == coming

    numbers = {n for found in before.values() for n, people in found.records.items() if not people & gone}
    assert numbers == {n for found in after.values() for n in found.records}
    assert sum(found.undecoded for found in after.values()) == made.garbage

    copies.run_round()
    copied = decoded(made, replica)
    assert not any(people & gone for found in copied.values() for people in found.records.values())
    assert {n for found in copied.values() for n in found.records} <= numbers
