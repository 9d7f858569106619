"""Search for the record that moved a watermark past a time, and the version that read the record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import SlackwaterError
from ....snapshot.bisect.verdict import Address
from ....state.failing import RECORD, turning_point
from ....store.sst.schema import event_ms
from ....store.versions import history
from ....store.versions.manifest import Manifest
from .bad_commit import BadCommit


@dataclass(frozen=True, slots=True)
class Mover:
    """The record and version that moved the watermark."""

    stage: str
    """Stage whose function defines the watermark."""
    version: int
    record: Address | None
    """First record of the version with an event time that late; None if not known."""


def mover_of_watermark(bad: BadCommit, stage: str, version: int, to_ms: int) -> Mover | None:
    """Return what moved a stage's watermark to a time, up to a version; None if no longer known.

    Follows the watermark upstream to the stage whose function defines it, and replays that version. Reads a few
    manifests by binary search.
    """
    store, app = bad.program.store, bad.verdict.app
    read, first = partial(history.find, store, app), partial(history.first_version, store, app)

    def is_before(manifest: Manifest) -> bool:
        return manifest.watermark_ms is None or manifest.watermark_ms < to_ms

    after = history.find(store, app, stage, version)
    if after is None or is_before(after):
        return None
    last = history.newest_where(read, first, after, is_before)
    version_moved = history.find(store, app, stage, last.version + 1 if last is not None else first(stage))
    if version_moved is None or stage not in bad.program.shapes:
        return None
    return _mover(bad, version_moved, last, to_ms)


def _mover(bad: BadCommit, after: Manifest, previous: Manifest | None, to_ms: int) -> Mover | None:
    """Return what moved the watermark of a version: the input whose own watermark was the last to pass the time."""
    shape = bad.program.shapes[after.stage]
    for name in sorted(shape.timed):
        current, earlier = after.inputs.get(name), previous.inputs.get(name) if previous is not None else None
        if current is None or (
            earlier is not None and earlier.watermark_ms is not None and earlier.watermark_ms >= to_ms
        ):
            continue
        if name in shape.own:
            return Mover(after.stage, after.version, _record(bad, after, name, to_ms))
        if current.upstream:
            return mover_of_watermark(bad, current.upstream, current.version, to_ms)
    return None


def _record(bad: BadCommit, moved: Manifest, name: str, to_ms: int) -> Address | None:
    """Return the first record of a batch whose watermark reaches that time."""
    bound_ms = moved.event_time.bound_ms if moved.event_time is not None else None
    try:
        replay = bad.replay(moved.stage, moved.version)

        def movers(rows: pa.Table) -> pa.Table:
            """Return the rows whose event time moves the watermark that far."""
            is_mover = np.zeros(rows.num_rows, bool)
            for watermark in replay.shape.watermarks:
                for column in watermark.columns if name in watermark.inputs else ():
                    times = event_ms(rows[column])
                    late = pc.greater_equal(times, to_ms + watermark.delay_ms)
                    if bound_ms is not None:
                        late = pc.and_(late, pc.less_equal(times, bound_ms))
                    is_mover |= np.asarray(pc.fill_null(late, False))
            return rows.filter(pa.array(is_mover))

        if not (rows_found := movers(replay.rows())).num_rows:
            return None
        if replay.knows_records:
            return bad.source_of(replay, int(np.min(rows_found[RECORD].to_numpy())))
        # Costs one Spark job for each prefix.
        number = turning_point(
            replay.count, lambda count: bool(movers(replay.rows(np.arange(count, dtype=np.int64))).num_rows)
        )
        return bad.source_of(replay, number)
    except (SlackwaterError, KeyError):
        return None
