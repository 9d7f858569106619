"""Damage to manifests is found without reading records."""

import re
from typing import Any

import pytest
from msgspec.structs import replace
from slackwater.snapshot.verify.version_chain import version_faults
from slackwater.store.versions import keys
from slackwater.store.versions.manifest import Column, EventTime, Manifest, SideTable, Sink, Table

from tests.snapshot.verify.damaging import Change, change, of_input, of_output, only, report
from tests.support.fan_in import FanIn

TABLE = Table((Column("at", "int64"),), (), 1)


def unmarked(manifest: Manifest) -> Manifest:
    return of_output("by-right", markers={})(manifest)


MANIFESTS: dict[str, tuple[str, int, Change, str]] = {
    "a count off by one in sent": (
        "right",
        5,
        of_output("by-right", sent=(5, 6)),
        r"by-right\[0\]: right at version 5 sent 5 records, but join at version 3 consumed 1 and 3 are in flight",
    ),
    "a count off by one in consumed": (
        "join",
        3,
        of_input("by-left", consumed=(4, 3), rows=2),
        r"by-left: left at version 3 sent 8 records, but join at version 3 consumed 7 and 0 are in flight",
    ),
    "counts that hide each other in the sum": (
        "join",
        3,
        of_input("by-left", consumed=(6, 2)),
        r"by-left\[0\]: join at version 3 consumed 6 records, but left at version 3 had sent only 5",
    ),
    "a receiver ahead of the sender": (
        "join",
        3,
        of_input("by-left", version=4),
        "join@v3 consumed left@v4, but the cut holds left@v3",
    ),
    "offsets gone back": (
        "join",
        3,
        of_input("by-left", offsets=(0, 4)),
        "bank/join v3, input 'by-left': offset of partition 0 went back from 2 to 0",
    ),
    "consumed counts gone back": (
        "join",
        3,
        of_input("by-right", consumed=(0, 4), rows=0),
        "number of records consumed of partition 0 went back from 1 to 0",
    ),
    "ends gone back": (
        "left",
        3,
        of_output("by-left", ends=(5, 1), markers={}),
        "bank/left v3, channel 'by-left': end of partition 1 went back from 2 to 1",
    ),
    "sent counts gone back": (
        "left",
        3,
        of_output("by-left", sent=(2, 3), rows=0),
        "number of records sent of partition 0 went back from 3 to 2",
    ),
    "rows that are not what was consumed": (
        "join",
        3,
        of_input("by-left", rows=4),
        "bank/join v3, input 'by-left': 4 records read; expected 3",
    ),
    "rows of a user's topic that are not its offsets": (
        "left",
        3,
        of_input("events", rows=4),
        "bank/left v3, input 'events': 4 records read; expected at most 3, the offsets that were passed",
    ),
    "rows that are not what was sent": (
        "left",
        3,
        of_output("by-left", rows=4),
        "bank/left v3, channel 'by-left': 4 records written; expected 3",
    ),
    "an upstream version gone back": (
        "join",
        3,
        of_input("by-right", version=1),
        "bank/join v3, input 'by-right': version 1 of 'right' is consumed; previously 2",
    ),
    "a clock gone back": (
        "join",
        3,
        lambda manifest: replace(manifest, time_ms=1_010),
        "bank/join v3 was committed at 1010 ms; expected a time after 1010",
    ),
    "a watermark gone": (
        "join",
        2,
        lambda manifest: replace(manifest, event_time=EventTime(5)),
        "bank/join v3 has the watermark None ms; expected at least 5, as in the previous version",
    ),
    "an epoch gone back": (
        "right",
        5,
        lambda manifest: replace(manifest, epoch=1),
        "bank/right v5 has epoch 1; expected at least 2",
    ),
    "an input gone": (
        "join",
        3,
        lambda manifest: replace(manifest, inputs={"by-left": manifest.inputs["by-left"]}),
        "bank/join v3 has no input 'by-right'; the previous version had",
    ),
    "partitions gone": (
        "join",
        3,
        of_input("by-left", consumed=(5,)),
        r"inputs\['by-left'\].consumed is \(5,\); expected as many numbers as offsets, 2, or none",
    ),
    "a marker that no manifest names": (
        "right",
        5,
        unmarked,
        "right@v5 names no marker of snapshot 'good' on channel 'by-right'",
    ),
    "a marker in one partition only": (
        "right",
        5,
        lambda manifest: of_output(
            "by-right", markers={id_: at[:1] for id_, at in manifest.outputs["by-right"].markers.items()}
        )(manifest),
        r"outputs\['by-right'\]\.markers\[.*\] is \(\d+,\); expected an offset for each partition",
    ),
    "a marker of an earlier version": (
        "right",
        5,
        lambda manifest: of_output("by-right", markers=dict.fromkeys(manifest.outputs["by-right"].markers, (1, 1)))(
            manifest
        ),
        "bank/right v5, channel 'by-right': marker of",
    ),
    "a reader past the marker": (
        "join",
        3,
        of_input("by-left", offsets=(6, 5)),
        r"join@v3 consumed by-left\[0\] up to 6, past the marker of snapshot 'good': expected at most 5",
    ),
    "another schema": (
        "right",
        5,
        of_output("by-right", schema="amount long"),
        "snapshot 'good', by-right to join: it keeps records with schema amount int; expected amount long",
    ),
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_damage_to_a_manifest_is_found_without_reading_records(app: FanIn, damage: str) -> None:
    stage, version, how, expected = MANIFESTS[damage]
    change(app, stage, version, how)
    messages = [difference.message for difference in report(app).differences]
    assert any(re.search(expected, message) for message in messages), messages


def test_a_missing_or_undecodable_manifest_is_named(app: FanIn) -> None:
    for damage in (app.store.delete, lambda key: app.store.put(key, b"{"), lambda key: app.store.put(key, b"\xff")):
        key = keys.manifest("bank", "join", 3)
        whole = app.store.get(key)
        damage(key)
        first = report(app).differences[0]
        assert (first.check, first.subject) == ("versions", key)
        assert key in first.message
        app.store.put(key, whole)
    assert report(app).consistent


def test_an_unreadable_head_of_a_stage_is_named(app: FanIn) -> None:
    key = keys.manifest("bank", "join", app.heads["join"].version)
    app.store.put(key, b"{}")
    assert key in only(report(app, "bank"))


def test_a_manifest_of_another_stage_in_its_place_is_named(app: FanIn) -> None:
    key = keys.manifest("bank", "left", 3)
    app.store.put(key, app.store.get(keys.manifest("bank", "right", 3)))
    assert "holds the manifest of bank/right v3; expected bank/left v3" in report(app).differences[0].message


def test_a_gap_in_the_history_is_found_by_deep_verification(app: FanIn) -> None:
    app.store.delete(keys.manifest("bank", "join", 3))
    found = report(app, "bank", deep=True)
    assert f"{keys.manifest('bank', 'join', 3)} is missing: join has v2, then v4" in only(found)


def test_damage_to_an_old_version_is_found_by_deep_verification(app: FanIn) -> None:
    change(app, "left", 2, of_output("by-left", sent=(4, 2), rows=6))
    assert report(app, "bank").consistent
    assert "bank/left v3, channel 'by-left': 3 records written; expected 2" in only(report(app, "bank", deep=True))


def test_a_missing_version_between_reader_and_sender_is_found(app: FanIn) -> None:
    app.store.delete(keys.manifest("bank", "right", 6))
    app.send("right", 1, 1)
    messages = [difference.message for difference in report(app, "bank").differences]
    assert any("by-right from right to join: no version of bank/right named 'v6'" in message for message in messages)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (Sink("alerts-internal", 9, 1, rows=2, sent=5), None),
        (Sink("alerts-internal", 0, 7), None),
        (Sink("alerts-internal", 9, 1, rows=1, sent=5), "sink 'alerts': 1 rows written; expected 2"),
        (Sink("alerts-internal", 4, 1, rows=2, sent=5), "sink 'alerts': end went back from 5 to 4"),
        (None, "bank/join v8 has no sink 'alerts'; the previous version had"),
    ],
)
def test_a_sinks_counts_that_decrease_are_found(later: Sink | None, expected: str | None) -> None:
    before = batch(7, sinks={"alerts": Sink("alerts-internal", 5, 1, rows=1, sent=3)})
    found = list(version_faults(before, batch(8, sinks={"alerts": later} if later else {})))
    assert found == [] if expected is None else expected in found[0]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (SideTable(TABLE, rows=2, total=7, waiting=4), None),
        (SideTable(TABLE, rows=0, total=5, waiting=1), None),
        (SideTable(TABLE, rows=1, total=7, waiting=3), "1 rows added; expected 2"),
        (SideTable(TABLE, rows=2, total=7, waiting=5), "5 are waiting; expected at most 4"),
        (None, "bank/join v8 has no table of rejected records"),
    ],
)
def test_rejected_records_are_counted(later: SideTable | None, expected: str | None) -> None:
    before = batch(7, side_tables={"rejected": SideTable(TABLE, rows=1, total=5, waiting=2)})
    found = list(version_faults(before, batch(8, side_tables={"rejected": later} if later else {})))
    assert found == [] if expected is None else expected in found[0]


def batch(version: int, **more: Any) -> Manifest:
    return Manifest("bank", "join", version, 1, "w", version, "batch", **more)
