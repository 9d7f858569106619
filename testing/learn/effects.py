"""Effects of runs that no condition of the program shows, and that a changed program may lose.

These are rejected and late records, removed rows, and columns of rows that later records change: of single values, a
sum, a maximum and a minimum are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from .. import Ran


def effects_of(results: Sequence[Ran]) -> frozenset[str]:
    """Return a sentence for each effect of runs that continue each other."""
    last = results[-1]
    rejected = last.app.rejected(limit=1).total
    effects = {f"stage {stage!r} rejects a record" for stage, count in rejected.items() if count}
    effects |= {
        f"a row of stage {stage!r} is late"
        for stage, head in last.moment.cut.stages.items()
        if head.event_time is not None and head.event_time.late_total
    }
    for before, after in pairwise(results):
        effects.update(_changes(before, after))
    return frozenset(effects)


def _changes(before: Ran, after: Ran) -> Iterator[str]:
    for table, difference in before.moment.diff(after.moment).items():
        changes = difference.full_diff.changes
        if (changes.had_row & ~changes.has_row).any():
            yield f"later records remove a row of {table!r}"
        for column, differs in changes.differing.items():
            if differs.any():
                yield f"later records change {column!r} of {table!r}"
