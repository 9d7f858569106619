"""Effects of a run that do not depend on a condition of the program, and that a changed program may lose.

The effects are rejected and late records, removed rows, and columns that a later batch changes. Only a later change
distinguishes a sum from a maximum or a minimum.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ...client.backends import Backends
from ...snapshot.diff.moments import diff_table
from ...snapshot.diff.stored_rows import TableSide
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .. import Ran


def effects_of(ran: Ran) -> frozenset[str]:
    """Return a sentence for each effect of a run."""
    client = ran.app._client
    rejected = ran.app.rejected(limit=1).total
    effects = {f"stage {stage!r} rejects a record" for stage, count in rejected.items() if count}
    for stage, head in ran.moment.cut.stages.items():
        if head.event_time is not None and head.event_time.late_total:
            effects.add(f"a row of stage {stage!r} is late")
        effects.update(_later_changes(client, ran.app.name, stage))
    return frozenset(effects)


def _later_changes(client: Backends, app: str, stage: str) -> Iterator[str]:
    versions = [
        history.read(client.store, app, stage, number) for number in history.list_versions(client.store, app, stage)
    ]
    for before, after in pairwise(versions):
        if before.table is None or after.table is None or before.ssts == after.ssts:
            continue
        sides = (_side(client, version) for version in (before, after))
        for change in diff_table(stage, *sides).changes:
            if change.before is None:
                continue
            if change.after is None:
                yield f"a later batch removes a row of {stage!r}"
                continue
            for column, value in change.before.items():
                if change.after[column] != value:
                    yield f"a later batch changes {column!r} of {stage!r}"


def _side(client: Backends, version: Manifest) -> TableSide:
    assert version.table is not None  # noqa: S101  checked above
    return TableSide(client.store, client.cache, version.table, version, version.clock_ms)
