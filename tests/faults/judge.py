"""Computes the truth about a planted fault from the sent records, and finds errors in a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slackwater.snapshot.cut.resolve import resolve

from tests.faults.apps import EVENT_TTL_S
from tests.faults.history import History, Record
from tests.faults.plants import DELAY_MS, MINUTE_MS, Plant

_ADDRESS = re.compile(r"[\w.-]+\[\d+\]@\d+(?:\+\d+)?")


@dataclass(frozen=True)
class Truth:
    """Correct facts about one fault."""

    topics: frozenset[str]
    """Users' topics. An address in any other topic belongs to a row between two stages."""
    turns: tuple[int, ...]
    """Versions of the stage at which the query began to return bad rows."""
    guilty: frozenset[str]
    """Addresses of the records that a verdict may blame."""
    first: Mapping[int, frozenset[str]]
    """First records at fault in each version; several if their order is not defined."""
    in_batch: Mapping[int, tuple[str, ...]]
    """All records at fault that the stage read with each version."""
    movers: frozenset[str] = frozenset()
    """Records that moved the watermark or the clock so far that other records were late, or rows expired."""
    moved_version: str = ""
    """Version that read the first of `movers`."""
    late: frozenset[str] = frozenset()
    """Addresses of records that a verdict may call late."""
    changed: int | None = None
    """First version of the stage that ran the second release."""
    operations: frozenset[tuple[str, int]] = frozenset()
    """Stages and versions that the operation made."""


def truth(history: History, plant: Plant) -> Truth | None:
    """Return the truth about a plant whose history has run.

    None if no commit was bad, because a wrong row was corrected in its own batch.
    """
    after = 0
    if plant.good:
        after = resolve(history.store, f"{history.app}@{plant.good}", now_ms=0).stages[plant.stage].version
    turns = history.turns(plant.stage, plant.where, after)
    if not turns:
        return None
    brought = {
        # What waited in a state came before.
        version: history.read_by(plant.stage, version, plant.guilty)
        or history.read_up_to(plant.stage, version, plant.guilty)
        for version in turns
    }
    late = history.read_by(plant.stage, turns[0], plant.late)
    movers = _movers(history, plant, turns[0], late)
    source = next(iter(history.shape.stages), "win")
    moved = (
        f"{source}@v{manifest.version}"
        for manifest in (history.versions(source) if late else ())
        if history.read_by(source, manifest.version, movers)
    )
    second = (
        manifest.version
        for manifest in history.versions(plant.stage)
        if manifest.program is not None and manifest.program.path.endswith("release2.py")
    )
    operations = (
        (stage, manifest.version)
        for stage in (*history.shape.stages, plant.stage)
        for manifest in history.versions(stage)
        if manifest.kind == plant.operation_kind
    )
    return Truth(
        topics=frozenset(record.topic for record in history.sent),
        turns=tuple(turns),
        guilty=frozenset(record.address for record in plant.guilty),
        first={version: frozenset(_first(history, plant.stage, some)) for version, some in brought.items()},
        in_batch={version: tuple(record.address for record in some) for version, some in brought.items()},
        movers=frozenset(record.address for record in movers),
        moved_version=next(moved, ""),
        late=frozenset(record.address for record in late),
        changed=next(second, None),
        operations=frozenset(operations),
    )


def _first(history: History, stage: str, records: list[Record]) -> Iterator[str]:
    """Yield the addresses of the records that were read first: the `earliest` of the first version that read any."""
    source = "pairs" if stage == "settled" else next(iter(history.shape.stages), stage)
    by_version = (history.read_by(source, manifest.version, records) for manifest in history.versions(source))
    return (record.address for record in earliest(next(filter(None, by_version), [])))


def earliest(records: Iterable[Record]) -> list[Record]:
    """Return the first records of a batch: by offset within a partition, by time across partitions. Ties count."""
    heads: dict[tuple[str, int], Record] = {}
    for record in sorted(records, key=lambda each: each.offset):
        heads.setdefault((record.topic, record.partition), record)
    least = min((record.time_ms for record in heads.values()), default=0)
    return [record for record in heads.values() if record.time_ms == least]


def _movers(history: History, plant: Plant, version: int, late: list[Record]) -> list[Record]:
    """Return the records that moved the watermark past a late record's window, or the clock past a row's expiry."""
    orders = [record for record in history.sent if not record.refund]
    if plant.name == "expiry":
        (kept,) = (record for _, record in plant.records)
        return [
            record
            for record in history.read_up_to(plant.stage, version, orders)
            if record.number("seq") >= kept.number("seq") + EVENT_TTL_S
        ]
    if not late:
        return []
    end = min(record.number("ts") // MINUTE_MS * MINUTE_MS + MINUTE_MS for record in late)
    # The windows decide which records were late, by the records that were read there before.
    found = next(each.version for each in history.versions("win") if history.read_by("win", each.version, late))
    before = history.read_up_to("win", found - 1, orders)
    return [record for record in before if record.number("ts") - DELAY_MS >= end]


def wrong(verdict: Mapping[str, Any], shown: str, plant: Plant, truth: Truth, *, whole: bool) -> Iterator[str]:
    """Yield the errors of a verdict, in the JSON and in the title that `bisect` prints.

    With `whole` False, programs were missing, so the verdict may leave the cause open, but must not name a healthy
    record.
    """
    stage, version, cause = verdict["stage"], verdict["first_bad"]["version"], verdict["cause"]
    if stage != plant.stage or version not in truth.turns:
        yield f"the commit: {stage}@v{version}, and it turned bad at {plant.stage}@v{truth.turns}"
        return
    if "is the first bad commit" in shown and version != truth.turns[0]:
        yield f"v{version} is called the first bad commit, and v{truth.turns[0]} was bad before"
    if cause is None:
        if whole:
            yield "no cause is given"
        return
    yield from _names(verdict, cause, truth)
    if not whole and (cause["class"] == "unknown" or not cause["proved"]):
        return
    if cause["class"] not in plant.causes:
        right = "/".join(sorted(plant.causes))
        yield f"the class: {cause['class']} (proved: {cause['proved']}), and it is {right}: {cause['sentence']}"
        return
    if cause["class"] == "unknown":
        return
    if not cause["proved"] and cause["class"] != "absence":
        yield f"it is not proved: {cause['sentence']}"
    if whole:
        yield from _record(cause, plant, truth, version)
    yield from _evidence(cause, plant, truth, version)


def _names(verdict: Mapping[str, Any], cause: Mapping[str, Any], truth: Truth) -> Iterator[str]:
    """Yield healthy records that the verdict blames."""
    evidence = dict(cause["evidence"])
    moved_by, late = evidence.pop("moved_by", None), evidence.pop("late", None)
    evidence.pop("read_to", None)
    for what, named, right in (("moved by", moved_by, truth.movers), ("late", late, truth.late)):
        if not right.issuperset(_users(truth, named)):
            yield f"{what} {named}, and the right ones are {sorted(right)[:5]}"
    way = verdict["record"] or {}
    in_words = _users(truth, cause["sentence"]) - truth.movers
    accused = _users(truth, (cause["record"], cause["records"], evidence, way.get("address"), way.get("hops")))
    for address in sorted((accused | in_words) - truth.guilty - truth.late):
        yield f"a healthy record is named: {address}; at fault: {sorted(truth.guilty)}: {cause['sentence']}"


def _users(truth: Truth, text: object) -> set[str]:
    """Return the addresses in a text that belong to users' topics."""
    return {address for address in _ADDRESS.findall(str(text)) if address.rpartition("[")[0] in truth.topics}


def _record(cause: Mapping[str, Any], plant: Plant, truth: Truth, version: int) -> Iterator[str]:
    """Yield errors about the named record."""
    if plant.name == "watermark":
        return  # it has its own in the evidence
    if plant.name == "duplicate":
        if set(cause["records"]) != truth.guilty:
            yield f"the records: {cause['records']}, and they are {sorted(truth.guilty)}"
        return
    first, brought = truth.first.get(version, frozenset()), truth.in_batch.get(version, ())
    if not first:
        if cause["record"] is not None:
            yield f"the record: {cause['record']}, and there is none at fault"
        return
    if cause["record"] not in first:
        yield f"the record: {cause['record']}, and the first is {_list(first)} of {_list(brought)}"
    elif (cause["one_of"] or 1) != len(first):
        yield f"one of {cause['one_of']}, and {len(first)} are as early: {_list(first)}"
    if plant.name == "several records" and len(brought) > 1 and cause["class"] != "records":
        yield f"the class: {cause['class']}, and {len(brought)} records are at fault: {_list(brought)}"
    if cause["class"] == "records" and not set(cause["records"]) <= set(brought):
        yield f"the records: {cause['records']}, and they are {_list(brought)}"


def _list(addresses: Iterable[str]) -> str:
    return ", ".join(sorted(addresses))


def _evidence(cause: Mapping[str, Any], plant: Plant, truth: Truth, version: int) -> Iterator[str]:
    """Yield errors of the evidence."""
    evidence = cause["evidence"]
    match cause["class"]:
        case "deploy":
            paths = [str(evidence[side]["path"]).rpartition("/")[2] for side in ("from", "to")]
            if paths != ["release1.py", "release2.py"]:
                yield f"the program changed from {paths[0]} to {paths[1]}"
            if evidence["stage"] == plant.stage and evidence["version"] != truth.changed:
                found = f"{evidence['stage']}@v{evidence['version']}"
                yield f"the program changed at {found}, and it did at v{truth.changed}"
        case "operation":
            found = evidence["stage"], evidence["version"]
            if evidence["kind"] != plant.operation_kind or found not in truth.operations:
                yield f"{evidence['kind']} at {found}, and it was {plant.operation_kind} at {sorted(truth.operations)}"
        case "time" if evidence["version"] != version:
            yield f"time at v{evidence['version']}, and it was at v{version}"
        case "absence" if plant.key not in str(evidence):
            yield f"absent is {evidence}, and it is {plant.key}"
        case "watermark":
            if not evidence["moved_by"]:
                yield "no record is named that moved the watermark"
            if evidence["moved_version"] != truth.moved_version:
                yield f"moved by {evidence['moved_version']}, and it was {truth.moved_version}"
