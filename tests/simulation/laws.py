"""Laws of the simulated ledger, checked at each version by reading stored objects without the product's readers."""

import json
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from slackwater.errors import Refused, SlackwaterError
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.store.versions import apps, forgotten, history
from slackwater.store.versions.manifest import Manifest
from slackwater.testing.simulation import Simulation, World

from tests.simulation.ledger import COPIES, EDIT, SECRET, SECRET_SECTION, TOPIC
from tests.simulation.rare import Rare

Totals = dict[str, tuple[int, int, int]]
"""Number of records, sum of tokens, and sum of their squares, by key."""
SHIFTS = frozenset(("rewind", "reset", "forget"))
"""Kinds of versions after which offsets may go back."""


Token = tuple[int, dict[str, str]]
SECRETS = frozenset((SECRET, SECRET_SECTION))
VersionId = tuple[str, str, int]


def add(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _id(manifest: Manifest) -> VersionId:
    return manifest.app, manifest.stage, manifest.version


class Broken(AssertionError):
    """Raised when a law does not hold."""


class Laws:
    """Observer of a simulation. `check` examines everything that is new since the last call."""

    def __init__(self, simulation: Simulation, rare: Rare) -> None:
        self.simulation, self.store = simulation, simulation.world.objects
        self.checked = Counter[str]()
        """Number of checks of each law."""
        self._versions: dict[tuple[str, str], dict[int, Manifest]] = {}
        self._bytes: dict[str, bytes] = {}
        self._published: Counter[int] = Counter()
        self._read: dict[int, int] = {}
        self.rewound = self.was_reset = self.has_forgotten = False
        self._edited: dict[VersionId, dict[str, int]] = {}
        """Sum of the numbers that edits added to a key, by version."""
        self._topic_records: dict[tuple[str, str, int, str], list[Token]] = {}
        self._ended = 0
        self.rare = rare
        self._objects: frozenset[str] = frozenset()
        self.pinned: dict[tuple[str, str], Mapping[str, Totals]] = {}
        """Tables of each snapshot when the snapshot was first seen."""

    def check(self) -> None:
        """Check all laws for the versions that are new since the last call."""
        # A clone is judged by what is known of its source's versions.
        for app in sorted(apps.list_apps(self.store), key=lambda app: app != self.simulation.app.name):
            with suppress(Refused):  # a clone is being made or removed
                self._check_app(app)
        self._check_sink()
        self._check_replica()
        self._note_deletions()
        for name, error in self.simulation.world.scheduler.thread_errors:
            raise Broken(f"thread {name} died") from error
        for process in self.simulation.ended[self._ended :]:
            self._ended += 1
            self.rare.on_runner_end(process)
            if not isinstance(process.ended, SlackwaterError):
                raise Broken(f"{process.name} ended with {type(process.ended).__name__}") from process.ended

    def _check_app(self, app: str) -> None:
        self.has_forgotten |= forgotten.newest(self.store, app).number > 0
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
        self.was_reset |= after.kind == "reset"
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
        names, stored = {(sst.root, sst.object) for sst in manifest.ssts}, ChainMap(*self.simulation.world.stored)
        missing = [name for root, name in names if root in ("", self.store.url) and name not in stored]
        self._require("what a version names exists", not missing, manifest.stage, manifest.version, missing)

    def _check_table(self, manifest: Manifest) -> None:
        base, name = self._base(manifest), f"{manifest.app}/{manifest.stage}@v{manifest.version} ({manifest.kind})"
        self._edited[_id(manifest)] = edited = dict(self._edited.get(_id(base), {}) if base is not None else {})
        if manifest.table is None:
            return
        actual = self._rows(manifest)
        if base is not None and base.table is not None and manifest.kind in ("rewind", "clone"):
            law = {"rewind": "a rewind is the state of then", "clone": "a clone equals its source at birth"}[
                manifest.kind
            ]
            self._require(law, actual == self._rows(base), name, f"of v{base.version}")
        if manifest.kind == "edit" and base is not None:
            before = self._rows(base)
            changed = {key for key in before.keys() | actual.keys() if before.get(key) != actual.get(key)}
            key, *others = changed or {""}
            fine = not others and key in before and actual.get(key) == add((0, EDIT, 0), before[key])
            self._require("an edit changes what it says", fine, name, changed)
            edited[key] = edited.get(key, 0) + EDIT
        tokens = self.tokens_of(manifest)
        if tokens is None:
            return
        column = manifest.table.key[0].name
        expected: Totals = {}
        for token, values in tokens:
            key = values[column]
            if self.has_forgotten and key in SECRETS:
                continue
            expected[key] = add(expected.get(key, (0, 0, 0)), (1, token, token * token))
        for key, added in edited.items():
            expected[key] = add(expected.get(key, (0, 0, 0)), (0, added, 0))
        self._require(
            "each record is once in each table", expected == actual, name, f"expected {expected}, found {actual}"
        )

    def _rows(self, manifest: Manifest) -> Totals:
        rows = rows_of(self.simulation.world, manifest)
        return without_secrets(rows) if self.has_forgotten else rows

    def _base(self, manifest: Manifest) -> Manifest | None:
        """Return the version on which this one is based: the previous, the one a rewind restores, or the source's."""
        if manifest.rewind is not None:
            return self.version(manifest.app, manifest.stage, manifest.rewind.to)
        if manifest.kind == "clone":
            info = apps.find_app(self.store, manifest.app)
            assert info is not None
            assert info.origin is not None
            return self.version(info.origin.app, manifest.stage, manifest.version)
        return self.version(manifest.app, manifest.stage, manifest.version - 1) if manifest.version > 1 else None

    def tokens_of(self, manifest: Manifest) -> list[Token] | None:
        """Return the records that a version has processed, directly or through other stages; None if unknown."""
        tokens: list[Token] = []
        for channel, at in manifest.inputs.items():
            if not at.upstream:
                tokens += self._records(manifest, channel)
                continue
            if not at.version:
                continue
            sender = self.version(manifest.app, at.upstream, at.version)
            more = self.tokens_of(sender) if sender is not None else None
            if sender is None or more is None:
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
                return None  # some rows of that version are in flight
            tokens += more
        return tokens

    def _records(self, manifest: Manifest, topic: str) -> list[Token]:
        """Return the records of a topic that were read up to a version, in the order of reading."""
        key = (*_id(manifest), topic)
        if key not in self._topic_records:
            base = self._base(manifest)
            records = list(self._records(base, topic)) if base is not None and topic in base.inputs else []
            if manifest.traits.reads_records and base is not None:
                log, was = self.simulation.world.kafka._topics[topic], base.inputs[topic].offsets
                for number, end in enumerate(manifest.inputs[topic].offsets):
                    start = was[number] if number < len(was) else 0
                    records += tokens_in(log[number].log[start:end])
            self._topic_records[key] = records
        return self._topic_records[key]

    def version(self, app: str, stage: str, number: int) -> Manifest | None:
        known = self._versions.setdefault((app, stage), {}).get(number)
        if known is not None and not self.has_forgotten:
            return known
        found = history.find(self.store, app, stage, number)
        if found is not None:
            return found
        info = apps.find_app(self.store, app)
        if info is not None and info.origin is not None and info.origin.app != app:
            return self.version(info.origin.app, stage, number)
        return known

    def _note_deletions(self) -> None:
        now = frozenset(chain(*self.simulation.world.stored))
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
                    tables[stage] = self._rows(manifest)
            first = self.pinned.setdefault((app, snapshot.id), tables)
            if self.has_forgotten:
                first = {stage: without_secrets(rows) for stage, rows in first.items()}
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

    def check_forgotten(self) -> None:
        """Check that the key is in no SST of a version up to the forget. Records read later may bring the key back."""
        for (app, stage), known in self._versions.items():
            last = max((number for number, manifest in known.items() if manifest.kind == "forget"), default=0)
            versions = [self.version(app, stage, number) for number in known if number <= last]
            names = {sst.object for manifest in versions if manifest is not None for sst in manifest.ssts}
            for objects in self.simulation.world.stored:
                for name in names & objects.keys():  # the others were collected with their versions
                    clean = SECRET not in str(_sst_rows(objects[name][0]))
                    self._require("what was forgotten is in no object", clean, name)

    def _check_replica(self) -> None:
        replica = self.simulation.world.replica._objects
        for key, (data, _) in replica.items():
            if "/manifests/" in key and not self.has_forgotten:
                self._require("a replica is a prefix", self._bytes.get(key, data) == data, key)

    def check_end(self) -> None:
        """Check the laws of an app that has read everything, after the end of the faults."""
        self.check()
        simulation = self.simulation
        heads = simulation.heads()
        total = sum(len(partition.log) for partition in simulation.world.kafka._topics[TOPIC])
        accounts = rows_of(simulation.world, heads["accounts"])
        sections = rows_of(simulation.world, heads["sections"])
        if not self.was_reset and not self.has_forgotten:
            arrived = sum(row[0] for row in accounts.values()), sum(row[0] for row in sections.values())
            self._require("all records arrive", arrived == (total, 2 * total), arrived, total)
            log = simulation.world.kafka._topics[TOPIC]
            sent = {
                decoded(message.value())[0] for partition in log for message in partition.log if message is not None
            }
            self._require("all records are published", sent == self._published.keys(), sent ^ self._published.keys())
        requests = open_requests(self.store, simulation.app.name)
        self._require("every open request ends", not requests, [request.name for request in requests])


def without_secrets(rows: Totals) -> Totals:
    return {key: totals for key, totals in rows.items() if key not in SECRETS}


def tokens_in(messages: Iterable[Any]) -> list[Token]:
    return [decoded(message.value()) for message in messages if message is not None]


@lru_cache(maxsize=4_096)
def decoded(data: bytes) -> Token:
    value = json.loads(data)
    return value["token"], value


@lru_cache(maxsize=4_096)
def _sst_rows(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def rows_of(world: World, manifest: Manifest) -> Totals:
    """Read the table of a version, the newest row per key, in plain Python."""
    assert manifest.table is not None
    key, newest = manifest.table.key[0].name, dict[str, dict[str, Any]]()
    stored = ChainMap(*world.stored)
    for sst in manifest.ssts:
        for row in _sst_rows(stored[sst.object][0]):
            if row[key] not in newest or row["_seq"] >= newest[row[key]]["_seq"]:
                newest[row[key]] = row
    return {name: (row["records"], row["tokens"], row["squares"]) for name, row in newest.items() if not row["_op"]}
