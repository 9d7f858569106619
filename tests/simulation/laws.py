"""Laws of a simulated ledger, checked at each version by reading the stored objects without the product's readers."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from slackwater.errors import Refused, SlackwaterError
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import Manifest
from slackwater.testing.simulation import Simulation

from tests.simulation.ledger import COPIES, TOPIC
from tests.simulation.rare import Rare

Totals = dict[str, tuple[int, int, int]]
"""Records, sum of tokens and sum of their squares, by key."""
SHIFTS = frozenset(("rewind", "reset", "edit", "forget"))
"""Kinds of versions after which offsets may go back."""


class Broken(AssertionError):
    """A law does not hold."""


class Laws:
    """Observer of a simulation. `check` looks at everything that is new."""

    def __init__(self, simulation: Simulation, rare: Rare) -> None:
        self.simulation, self.store = simulation, simulation.world.objects
        self.checked = Counter[str]()
        """Number of checks of each law."""
        self._versions: dict[tuple[str, str], dict[int, Manifest]] = {}
        self._bytes: dict[str, bytes] = {}
        self._published: Counter[int] = Counter()
        self._read: dict[int, int] = {}
        self.rewound = False
        self._ended = 0
        self.rare = rare
        self._objects: frozenset[str] = frozenset()
        self.pinned: dict[tuple[str, str], Mapping[str, Totals]] = {}
        """Tables of each snapshot when it was first seen."""

    def check(self) -> None:
        """Check all laws for the versions since the last call."""
        for app in apps.list_apps(self.store):
            with suppress(Refused):  # a clone is being made or removed
                self._check_app(app)
        self._check_sink()
        self._note_deletions()
        for name, error in self.simulation.world.scheduler.thread_errors:
            raise Broken(f"thread {name} died") from error
        for process in self.simulation.ended[self._ended :]:
            self._ended += 1
            self.rare.on_runner_end(process)
            if not isinstance(process.ended, SlackwaterError):
                raise Broken(f"{process.name} ended with {type(process.ended).__name__}") from process.ended

    def _check_app(self, app: str) -> None:
        for stage in history.list_stages(self.store, app):
            self._check_stage(app, stage)
        self._check_snapshots(app)

    def _require(self, law: str, condition: object, *found: object) -> None:
        self.checked[law] += 1
        if not condition:
            raise Broken(f"{law}: {' '.join(map(str, found))}")

    def _check_stage(self, app: str, stage: str) -> None:
        known = self._versions.setdefault((app, stage), {})
        prefix = f"{app}/stages/{stage}/manifests/"
        keys = [info.key for info in self.store.list(prefix)]
        for key in keys:
            data = self.store.get(key)
            previous = self._bytes.setdefault(key, data)
            forgotten = b'"forgotten"' in data
            self._require("a committed version never changes", previous == data or forgotten, key)
        for key in keys:
            number = int(key.removeprefix(prefix).removesuffix(".json"))
            if number not in known:
                manifest = history.read(self.store, app, stage, number)
                before = known.get(number - 1)
                self._require("versions have no gaps", not known or before is not None, key)
                if before is not None:
                    self._check_step(before, manifest)
                known[number] = manifest
                self._check_objects(manifest)
                self._check_table(manifest)

    def _check_step(self, before: Manifest, after: Manifest) -> None:
        name = f"{after.app}/{after.stage}@v{after.version}"
        self.rare.on_version(before, after)
        self._require("a fenced writer commits nothing", after.epoch >= before.epoch, name, before.epoch, after.epoch)
        self.rewound |= after.kind in ("rewind", "reset")
        if after.kind in SHIFTS:
            return
        for channel, at in after.inputs.items():
            if (was := before.inputs.get(channel)) is not None:
                back = any(new < old for new, old in zip(at.offsets, was.offsets, strict=False))
                self._require("offsets do not go back", not back, name, channel, was.offsets, at.offsets)
        for channel, output in after.outputs.items():
            if (sent := before.outputs.get(channel)) is not None:
                added = sum(output.sent) - sum(sent.sent)
                self._require("rows sent add up", added == output.rows, name, channel, added, output.rows)
        requested = {request.id for request in open_requests(self.store, after.app)}
        for snapshot in after.recorded.keys() & before.recorded.keys() & requested:
            same = after.recorded[snapshot] == before.recorded[snapshot]
            self._require("a stage records a snapshot once", same, name, snapshot)

    def _check_objects(self, manifest: Manifest) -> None:
        names = {(sst.root, sst.object) for sst in manifest.ssts}
        missing = [name for root, name in names if root in ("", self.store.url) and name not in self.store._objects]
        self._require("what a version names exists", not missing, manifest.stage, manifest.version, missing)

    def _check_table(self, manifest: Manifest) -> None:
        if manifest.table is None:
            return
        tokens = self.tokens_of(manifest)
        if tokens is None:
            return
        key = manifest.table.key[0].name
        expected: dict[str, list[int]] = {}
        for token, values in tokens:
            totals = expected.setdefault(values[key], [0, 0, 0])
            totals[0], totals[1], totals[2] = totals[0] + 1, totals[1] + token, totals[2] + token * token
        actual = rows_of(self.store, manifest)
        self._require(
            "each record is once in each table",
            {name: tuple(totals) for name, totals in expected.items()} == actual,
            f"{manifest.app}/{manifest.stage}@v{manifest.version} ({manifest.kind})",
            f"expected {expected}, found {actual}",
        )

    def tokens_of(self, manifest: Manifest) -> list[tuple[int, dict[str, str]]] | None:
        """Return the records that a version has read, directly or through other stages; None if that is unknown."""
        tokens: list[tuple[int, dict[str, str]]] = []
        for channel, at in manifest.inputs.items():
            if not at.upstream:
                tokens += self._records(at.offsets)
                continue
            if not at.version:
                continue
            sender = self.version(manifest.app, at.upstream, at.version)
            if sender is None:
                return None
            more = self.tokens_of(sender)
            if more is None:
                return None
            sent = sender.outputs.get(channel)
            self._require(
                "nothing is consumed that was not sent",
                sent is not None and sum(at.rows_passed) <= sum(sent.sent),
                f"{manifest.stage}@v{manifest.version}",
                channel,
                at.rows_passed,
                sent and sent.sent,
            )
            if sent is None or sum(at.rows_passed) != sum(sent.sent):
                self.rare.add("a rewind has rows in flight", manifest.kind == "rewind")
                self.rare.add("a clone has rows in flight", manifest.kind == "clone")
                return None  # after a rewind or in a clone: some rows of that version are in flight
            tokens += more
        return tokens

    def version(self, app: str, stage: str, number: int) -> Manifest | None:
        known = self._versions.setdefault((app, stage), {}).get(number)
        if known is not None:
            return known
        info = apps.find_app(self.store, app)
        if info is not None and info.origin is not None and info.origin.app != app:
            return self.version(info.origin.app, stage, number)
        try:
            return history.read(self.store, app, stage, number)
        except SlackwaterError:
            return None

    def _records(self, offsets: Iterable[int]) -> list[tuple[int, dict[str, str]]]:
        partitions = self.simulation.world.kafka._topics[TOPIC]
        return [
            _decoded(message.value())
            for partition, end in zip(partitions, offsets, strict=False)
            for message in partition.log[:end]
            if message is not None
        ]

    def _note_deletions(self) -> None:
        now = frozenset(self.store._objects)
        gone, self._objects = self._objects - now, now
        self.rare.add("a collection deletes a version", any("/manifests/" in key for key in gone))
        self.rare.add("a collection deletes an SST", any(key.endswith(".parquet") for key in gone))
        self.rare.add("a pin is removed", any("/snapshots/" in key for key in gone))

    def _check_sink(self) -> None:
        topic = self.simulation.world.kafka._topics[COPIES]
        for number, partition in enumerate(topic):
            start = self._read.get(number, 0)
            self._read[number] = len(partition.log)
            for message in partition.log[start:]:
                if message is not None:
                    token = json.loads(message.value())["token"]
                    self._published[token] += 1
                    again = self._published[token] > 1 and not self.rewound
                    self._require("each record is published once", not again, token)

    def _check_snapshots(self, app: str) -> None:
        for snapshot in list_snapshots(self.store, app):
            tables = {}
            for stage, number in snapshot.stages.items():
                manifest = self.version(app, stage, number)
                self._require("a pinned version stays", manifest is not None, app, snapshot.name, stage, number)
                assert manifest is not None
                self._check_objects(manifest)
                if manifest.table is not None:
                    tables[stage] = rows_of(self.store, manifest)
            first = self.pinned.setdefault((app, snapshot.id), tables)
            self._require("a pinned cut reads the same for ever", first == tables, app, snapshot.name)
            self._check_cut(app, snapshot.name, snapshot.stages)

    def _check_cut(self, app: str, name: str, versions: Mapping[str, int]) -> None:
        for stage, number in versions.items():
            manifest = self.version(app, stage, number)
            for channel, at in manifest.inputs.items() if manifest is not None else ():
                if at.upstream in versions:
                    sender = self.version(app, at.upstream, versions[at.upstream])
                    sent = sender.outputs[channel] if sender is not None and channel in sender.outputs else None
                    if sent is not None:
                        fine = sum(at.rows_passed) <= sum(sent.sent)
                        self._require("a cut is consistent", fine, app, name, stage, channel, at.rows_passed, sent.sent)

    def check_end(self) -> None:
        """Check the laws of an app that has read everything, after all faults have ended."""
        self.check()
        simulation = self.simulation
        heads = simulation.heads()
        total = sum(len(partition.log) for partition in simulation.world.kafka._topics[TOPIC])
        accounts = rows_of(self.store, heads["accounts"])
        sections = rows_of(self.store, heads["sections"])
        self._require("all records arrive", sum(row[0] for row in accounts.values()) == total, accounts, total)
        self._require("all records arrive", sum(row[0] for row in sections.values()) == 2 * total, sections, total)
        sent = {record for record, _ in self._records([1 << 60] * 99)}
        self._require("all records are published", sent == self._published.keys(), sent ^ self._published.keys())
        left = open_requests(self.store, simulation.app.name)
        self._require("every open request ends", not left, [request.name for request in left])


def _decoded(data: bytes) -> tuple[int, dict[str, str]]:
    value = json.loads(data)
    return value["token"], value


@lru_cache(maxsize=4_096)
def _sst_rows(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def rows_of(store: Any, manifest: Manifest) -> Totals:
    """Read the table of a version: the newest row of each key, in plain Python."""
    assert manifest.table is not None
    key, newest = manifest.table.key[0].name, dict[str, dict[str, Any]]()
    for sst in manifest.ssts:
        for row in _sst_rows(store._objects[sst.object][0]):
            if row[key] not in newest or row["_seq"] >= newest[row[key]]["_seq"]:
                newest[row[key]] = row
    return {name: (row["records"], row["tokens"], row["squares"]) for name, row in newest.items() if not row["_op"]}
