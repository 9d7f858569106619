"""`slackwater migrate --backfill` as it tells what it did."""

import pytest
from slackwater.client.show.programs import past_words
from slackwater.operations.program_changes.backfill import Backfilled, Filled
from slackwater.operations.program_changes.backfill_targets import BackfillTarget
from slackwater.snapshot.change.migrate import Migrated
from slackwater.snapshot.change.migrate_plan import Plan

NOTHING = Migrated(Plan("shop", ()), 0, "", {})


@pytest.mark.parametrize(("exact", "said"), [(True, "40 keys brought in"), (False, "at most 40 keys brought in")])
def test_keys_that_several_runs_may_have_are_told_as_at_most_so_many(exact: bool, said: str) -> None:
    target = BackfillTarget("shop", "customers", 3, ("n",), (3,), {"t": (0,)}, {"t": (9,)}, begins=True)
    filled = Filled(target, target.starts, True, 9, None, version=4, keys=40, keys_exact=exact, ssts=2, bytes=100)
    lines = list(past_words(Backfilled(NOTHING, (filled,), ()), dry_run=False))
    assert any(str(line).strip().startswith(said) for line in lines)
