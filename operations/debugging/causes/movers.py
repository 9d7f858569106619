"""The record that moved a watermark beyond a time, and the version that read it."""

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
    """What moved event time."""

    stage: str
    """Where records have the time that counts."""
    version: int
    record: Address | None
    """The first record of the version with such a time; None where it is not known."""


def mover_of_watermark(bad: BadCommit, stage: str, version: int, to_ms: int) -> Mover | None:
    """What moved a stage's watermark to a time or beyond it, by a version; None where that is not known any more.

    The way goes up to the stage whose function says the watermark, and that version is replayed. Some manifests, as
    binary searches read them.
    """
    store, app = bad.program.store, bad.verdict.app
    read, first = partial(history.find, store, app), partial(history.first_version, store, app)

    def is_before(manifest: Manifest) -> bool:
        return manifest.watermark_ms is None or manifest.watermark_ms < to_ms

    after = history.find(store, app, stage, version)
    if after is None or is_before(after):
        return None
    last = history.newest_where(read, first, after, is_before)
    moved = history.find(store, app, stage, last.version + 1 if last is not None else first(stage))
    if moved is None or stage not in bad.program.shapes:
        return None
    return _mover(bad, moved, last, to_ms)


def _mover(bad: BadCommit, moved: Manifest, before: Manifest | None, to_ms: int) -> Mover | None:
    """What moved the watermark of a version, by the input whose own came last."""
    shape = bad.program.shapes[moved.stage]
    for name in sorted(shape.timed):
        now, then = moved.inputs.get(name), before.inputs.get(name) if before is not None else None
        if now is None or (then is not None and then.watermark_ms is not None and then.watermark_ms >= to_ms):
            continue
        if name in shape.own:
            return Mover(moved.stage, moved.version, _record(bad, moved, name, to_ms))
        if now.upstream:
            return mover_of_watermark(bad, now.upstream, now.version, to_ms)
    return None


def _record(bad: BadCommit, moved: Manifest, name: str, to_ms: int) -> Address | None:
    """The first record of a batch by which its own watermark is at that time or later."""
    bound_ms = moved.event_time.bound_ms if moved.event_time is not None else None
    try:
        replay = bad.replay(moved.stage, moved.version)

        def movers(rows: pa.Table) -> pa.Table:
            """The rows whose time moves the watermark as far as that."""
            mine = np.zeros(rows.num_rows, bool)
            for watermark in replay.shape.watermarks:
                for column in watermark.columns if name in watermark.inputs else ():
                    times = event_ms(rows[column])
                    late = pc.greater_equal(times, to_ms + watermark.delay_ms)
                    if bound_ms is not None:
                        late = pc.and_(late, pc.less_equal(times, bound_ms))
                    mine |= np.asarray(pc.fill_null(late, False))
            return rows.filter(pa.array(mine))

        if not (found := movers(replay.rows())).num_rows:
            return None
        if replay.knows_records:
            return bad.source_of(replay, int(np.min(found[RECORD].to_numpy())))
        # A Spark job for each prefix that is tried.
        number = turning_point(
            replay.count, lambda count: bool(movers(replay.rows(np.arange(count, dtype=np.int64))).num_rows)
        )
        return bad.source_of(replay, number)
    except (SlackwaterError, KeyError):
        return None
