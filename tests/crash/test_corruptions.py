"""Objects of every kind, corrupted: readers answer as before, or fail with one sentence that names the object."""

from itertools import islice

import pytest
from slackwater.store.versions import keys

from tests.crash.corruption import ID, UNREAD, Corruption, corruptions, kind_of, places, worlds, wrong
from tests.crash.points import SEED
from tests.models.profiles import SEARCHES


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(10 if SEARCHES else 1))
def test_with_any_corrupt_object_a_reader_answers_as_before_or_names_it(part: int) -> None:
    kinds = set()
    for corruption, readers in corruptions(500 if SEARCHES else 40, f"{SEED}.{part}"):
        for reader in readers if SEARCHES else islice(readers, 1):
            assert wrong(corruption, reader) is None, (corruption, reader)
        kinds.add(kind_of(corruption.key))
    assert kinds == places().keys() - UNREAD


@pytest.mark.parametrize(
    ("key", "damage", "reader"),
    [
        *((key("flights"), "swapped", "notes") for key in (keys.protected, keys.removed)),
        (keys.removal_journal("flights"), "swapped", "app rm"),
        (keys.app_info("flights"), "cut", "verify"),
        (keys.edit_rows("flights", ID), "bit", "notes"),
        (keys.manifest("staging", "legs", 22), "zeros", "clone list"),
    ],
    # The id is another one in each process, and pytest's workers must find equal names.
    ids=["protected", "removed", "removal", "app", "edit", "clone"],
)
def test_a_corruption_that_an_earlier_version_did_not_name_is_named(key: str, damage: str, reader: str) -> None:
    note = key if key in worlds() else ""
    corruption = Corruption(note, 0, key, damage, 1)
    assert corruption.is_read_by(reader)
    assert wrong(corruption, reader) is None
