"""Explanations why an object is kept or deleted."""

import pytest
from slackwater.errors import NotFound
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.collect import explain
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.versions import keys

from tests.support.collecting import FEW, aging_app, wait
from tests.support.histories import flights


def _key(cut: Cut, stage: str) -> str:
    return keys.manifest(cut.app, stage, cut.versions[stage])


def test_explain_says_why_an_object_stays_or_is_deleted() -> None:
    app = aging_app()
    app.run(flights(30))
    early = resolve(app.store, "flights", now_ms=0)
    pin_cut(app.store, early, "early")
    app.run(flights(60))
    app.compact("carriers")
    wait(app)
    app.run(flights(40))

    def why(key: str) -> tuple[bool, str]:
        told = explain(app.store, "flights", key, FEW)
        return told.kept, "; ".join(told.reasons)

    now = resolve(app.store, "flights", now_ms=0)
    assert why(_key(now, "carriers")) == (
        True,
        "it is the newest version of its stage; retention keeps the newest 3 versions",
    )
    pinned = "snapshot early pins it, or needs it for in-flight records and lineage"
    assert why(_key(early, "carriers")) == (True, pinned)
    old = early.stages["carriers"].ssts[0].object
    kept, reason = why(old)
    assert kept
    assert pinned in reason
    assert why(keys.manifest("flights", "carriers", 6))[0] is False
    between = next(
        sst.object
        for sst in app.version("carriers", 6).ssts
        if sst.object not in {one.object for one in early.stages["carriers"].ssts}
    )
    assert why(between) == (False, "no kept version names it, and carriers has committed without it since")
    assert why("app.json")[0]
    with pytest.raises(NotFound):
        why("stages/carriers/sst/none.parquet")
