"""Objects of every kind, ways to corrupt them, and readers that must stay correct or name the corrupt object.

The world is an app `flights` with every kind of object that the census lists, its clone `staging`, and its replica
under another root. Journals of unfinished operations prevent verbs from starting, so they are in separate worlds.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from msgspec.structs import replace
from slackwater.cli import main
from slackwater.errors import SlackwaterError
from slackwater.operations.disaster_recovery.recover import recover
from slackwater.operations.disaster_recovery.recover_plan import FailoverTerms
from slackwater.operations.maintenance import tokens
from slackwater.operations.maintenance.removal import protection_of, removal_of
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.kafka import channels
from slackwater.serve.agents.naming import SECRETS, DaySecret
from slackwater.snapshot.change.edit import _encode, change_of
from slackwater.snapshot.change.stages import RETRIES
from slackwater.snapshot.cut.replicas import find_recovery
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.census import object_kind_of
from slackwater.snapshot.gc.inventory import last_collection
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.under_way.exclusion import Intent, check_exclusion
from slackwater.snapshot.under_way.runners import EDITS, HEARTBEATS, EditRequest, find_hold
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.forgotten import find_journal
from slackwater.store.versions.leaves import fold
from slackwater.store.versions.manifest import Edit
from slackwater.store.versions.published import POSITIONS
from typer.testing import CliRunner
from xxhash import xxh3_128_hexdigest

from tests.operations.disaster_recovery.replicate.test_replicate import copy
from tests.operations.failover import FailoverKafka, failover_kafka
from tests.snapshot.gc.test_census import ID, NOTES, REQUESTED, UNFINISHED, whole_app
from tests.support.collecting import AgingStore, copied_world, store_of, wait
from tests.support.histories import STAGES, FlightsApp, flights
from tests.support.manifests import SMALL_LEAVES, claim

BY = "ada@host"
NOW_MS = 2_000_000_000_000
"""Current time for the readers."""
UNREAD = {
    "<app>/channels.json",  # for people: what recovery needs of it is in manifests
    "<app>/gc.json",  # its time and size are all that it says
    "<app>/notice.json",  # any change of it says that there is something new
    "<app>/leaving.json",
    "<app>/refreshing.json",
    "<app>/repairs/<ulid>.json",  # read by repairs alone, which need Spark
    "<app>/snapshots.json",
    "<app>/stages/<stage>/pages/<span>.json",
}
"""Kinds of objects that no reader needs for such a short history."""
DAMAGES = ("bit", "byte", "cut", "zeros", "empty", "swapped", "older", "foreign")
_REPLICA = "/srv/replica"


@dataclass
class World:
    """Stores of an app and its replica, the broker, and the earlier content of overwritten objects."""

    app: FlightsApp
    replica: AgingStore
    older: dict[str, bytes] = field(default_factory=dict)

    def copied(self) -> "World":
        app = copied_world(self.app)
        replica = self.replica.copied()
        for one, other in ((app.store, replica), (replica, app.store)):
            one._stores_by_root[other.url] = other  # type: ignore[attr-defined]
        return World(app, replica)

    def stores(self) -> tuple[AgingStore, AgingStore]:
        return store_of(self.app), self.replica


def _made(more: int) -> World:
    """Return an app with `more` extra flights, and an object of every kind with which verbs can start."""
    with patch.multiple(fold, **SMALL_LEAVES):
        app = whole_app()
        return _completed(app, more)


def _completed(app: FlightsApp, more: int) -> World:
    store, older = store_of(app), dict[str, bytes]()
    store._url = "/srv/flights"
    write = store._write

    def remember(key: str, data: bytes) -> None:
        if key in store._objects:
            older[key] = store._objects[key][0]
        write(key, data)

    store._write = remember  # type: ignore[method-assign]
    for key in NOTES:
        store.delete(key)  # they are in worlds of their own
    app.run(flights(30 + more, delay=3 + more))
    clone(store, "flights", "staging", channels=app.kafka, by=BY, now_ms=app.clock.now_ms)
    FlightsApp(store, app.kafka, "staging", clock=app.clock).step_all()
    for name in ("reports", "graphs"):
        tokens.add(
            store, name, apps_=["flights"], tables=["*"], verbs=["read"], per_s=0, days=0, certificate=True, by=BY,
            now_ms=app.clock.now_ms + more, dry_run=False,
        )  # fmt: skip
    SECRETS.add(store, DaySecret("2025-01-01", f"{more:064x}"))
    replica = AgingStore()
    replica._url = _REPLICA
    world = World(app, replica, older)
    store._stores_by_root[replica.url], replica._stores_by_root[store.url] = replica, store
    copy(app, replica)
    app.run(flights(20, delay=7))
    copy(app, replica)
    wait(app)
    del store._write
    return world


@cache
def world(note: str = "") -> World:
    """Return the world; with `note`, a copy of it that has this note in the folder of `flights`."""
    if not note:
        return _made(0)
    noted = world().copied()
    noted.app.store.put(note, codec.encode((NOTES | UNFINISHED | REQUESTED)[note]))
    if note.startswith(keys.edits("flights")):
        rows = _encode(pa.table({"tail": ["N002"], "flights": [1]}))
        request = EditRequest(Edit(ID, BY, ""), "aircraft", 1, 1, rows=xxh3_128_hexdigest(rows))
        EDITS.put(noted.app.store, request, "flights")
        noted.app.store.put(keys.edit_rows("flights", ID), rows)
    return noted


@cache
def twin() -> World:
    """Return another app with the same name, in another store."""
    return _made(5)


def worlds() -> tuple[str, ...]:
    return ("", *sorted(NOTES | UNFINISHED | REQUESTED))


_CLI = {
    "get": ("get", "flights/aircraft", "N002"),
    "query": ("query", "flights", "FROM aircraft ORDER BY ALL", "--limit", "0"),
    "query of a snapshot": ("query", "flights@before", "FROM carriers ORDER BY ALL", "--limit", "0"),
    "query of a clone": ("query", "staging", "FROM carriers ORDER BY ALL", "--limit", "0"),
    "query in flight": ("query", "flights@before", "FROM inflight('by-aircraft') ORDER BY ALL"),
    "query of the past": ("query", "flights@~2", "FROM carriers ORDER BY ALL", "--limit", "0"),
    "diff": ("diff", "flights@before", "flights"),
    "diff to a clone": ("diff", "staging", "flights"),
    "history": ("history", "flights/carriers", "C1"),
    "log": ("log", "flights", "--limit", "1000"),
    "log of operations": ("log", "flights", "--operations", "--limit", "1000"),
    "bisect": ("bisect", "flights", "--where", "SELECT carrier FROM carriers WHERE delay > 150"),
    "verify": ("verify", "flights", "--deep"),
    "verify a snapshot": ("verify", "flights@before", "--deep"),
    "snapshot list": ("snapshot", "list", "flights"),
    "token list": ("token", "list"),
    "clone list": ("clone", "list"),
    "status": ("status", "flights"),
    "gc": ("gc", "flights", "--dry-run", "--versions", "3"),
    "app rm": ("app", "rm", "flights", "--dry-run"),
    "clone refresh": ("clone", "refresh", "staging", "--dry-run"),
    "rejected": ("rejected", "flights"),
}


@dataclass(frozen=True)
class Answer:
    """A reader's answer.

    `said` is compared with the answer in the undamaged world. If they differ, `errors` must name the damaged object.
    """

    said: str
    errors: str = ""


def _typed(world: World, words: tuple[str, ...]) -> Answer:
    by_root = {store.url: store for store in world.stores()}
    with TemporaryDirectory(ignore_cleanup_errors=True) as cache_folder, pytest.MonkeyPatch.context() as environment:
        environment.setattr("slackwater.store.objects.open.open_store", lambda root, **_settings: by_root[root])
        environment.setattr("slackwater.settings.Settings.store_root", lambda _self: world.app.store.url)
        environment.setattr(channels, "KafkaChannels", lambda _properties: world.app.kafka)
        environment.setattr("slackwater.common.instants.now_ms", lambda: NOW_MS)
        environment.setenv("SLACKWATER_KAFKA", "memory:1")
        environment.setenv("SLACKWATER_CACHE", cache_folder)
        result = CliRunner().invoke(main.app, (*words, "--json"))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "this is a bug" not in result.output, result.output
    said = re.sub(r'"read":{[^}]*}|"(took_ms|requests|bytes_read)":[0-9]+', "", result.stdout)  # what it took
    if words[0] == "gc":
        said = re.sub(r'"bytes":[0-9]+', "", said)  # sizes in the listing, that of the corrupt object too
    return Answer(f"{result.exit_code}\n{said}", result.stderr)


def _rows(store: Any, app: str) -> str:
    """Return the rows of an app's tables by a query."""
    with TemporaryDirectory() as folder:
        con = connect(store, SstCache(Path(folder), 1 << 30), resolve(store, app, now_ms=NOW_MS))
        try:
            return repr([run_query(con, f"FROM {t} ORDER BY ALL").to_pylist() for t in ("aircraft", "carriers")])
        finally:
            con.close()


def _cloned(world: World) -> Answer:
    store = store_of(world.app)
    clone(store, "flights", "next", channels=world.app.kafka, by=BY, now_ms=NOW_MS)
    return Answer(_rows(store, "next"))


def _recovered(world: World) -> Answer:
    kafka = FailoverKafka()
    kafka.topics[world.app.topic] = [[*messages] for messages in world.app.kafka.topics[world.app.topic]]
    recover(
        world.replica, "flights", kafka, primary=None, terms=FailoverTerms(), by=BY, reader=failover_kafka(world.app)
    )
    return Answer(_rows(world.replica, "flights"))


def _restarted(world: World) -> Answer:
    """Claim each stage, and commit a batch without records."""
    store = store_of(world.app)
    check_exclusion(store, "flights", Intent.RUN)
    for stage in STAGES:
        head = claim(store, "flights", stage, writer="next", by=BY, now_ms=NOW_MS, build=lambda draft: draft)
        commit(store, successor(head, kind="batch", epoch=head.epoch, writer="next", by=BY, now_ms=NOW_MS + 1))
    versions = {stage: history.list_versions(store, "flights", stage)[-1] for stage in STAGES}
    return Answer(f"{versions} {_rows(store, 'flights')}")


def _notes(world: World) -> Answer:
    """Return everything that verbs and runners read besides the history: protection, heartbeats, requests, journals."""
    store = store_of(world.app)
    said: list[object] = [protection_of(store, "flights"), removal_of(store, "flights"), find_hold(store, "flights")]
    said += [folder.all(store, "flights") for folder in (HEARTBEATS, RETRIES, EDITS)]
    said += [POSITIONS.newest(store, "flights", "carriers", "sink"), SECRETS.all(store)]
    said += [change_of(store, "flights", request) for request in EDITS.all(store, "flights")]
    said += [find_journal(store, "flights"), find_recovery(store, "flights"), last_collection(store, "flights")[1]]
    return Answer(repr(said))


_CHANGING = {"clone": _cloned, "recover": _recovered, "restart": _restarted}
READERS: Mapping[str, Callable[[World], Answer]] = {
    **{name: lambda world, words=words: _typed(world, words) for name, words in _CLI.items()},
    **_CHANGING,
    "notes": _notes,
}


ROW_READERS = ("get", *(name for name in _CLI if name.startswith(("query", "diff", "history"))), *_CHANGING)
"""Readers whose answers are rows."""
NOTE_READERS = ("notes", "status", "restart", "clone", "clone list", "app rm", "gc", "snapshot list", "recover")
"""Readers to run in the worlds that have a note."""


@contextmanager
def _read_keys(stores: tuple[AgingStore, ...]) -> Iterator[dict[int, set[str]]]:
    """Collect the keys that are read in the block, by number of the store; a listing counts as a read of its prefix."""
    read: dict[int, set[str]] = {number: set() for number in range(len(stores))}
    for number, store in enumerate(stores):
        store.before = lambda verb, key, number=number: read[number].add(key if verb == "get" else f"{verb} {key}")
    yield read


@cache
def undisturbed(note: str, reader: str) -> tuple[Answer, dict[int, set[str]]]:
    """Return a reader's answer in an undamaged world, and the keys that it read."""
    copy = world(note).copied()
    with _read_keys(copy.stores()) as read:
        answer = answered(copy, reader)
    return answer, read


def answered(world: World, reader: str) -> Answer:
    try:
        return READERS[reader](world)
    except SlackwaterError as error:
        return Answer("refused", f"error: {error.message}")


@dataclass(frozen=True)
class Corruption:
    """An object whose content differs from what was written."""

    note: str
    """Note of the world."""
    store: int
    key: str
    damage: str
    seed: int

    def is_read_by(self, reader: str) -> bool:
        return self.key in undisturbed(self.note, reader)[1][self.store]

    def bytes(self) -> bytes:
        """Return the object's damaged content."""
        world_, chance = world(self.note), Random(self.seed)
        store = world_.stores()[self.store]
        old = MemoryStore.get(store, self.key)
        at = chance.randrange(len(old))
        match self.damage:
            case "bit":
                return old[:at] + bytes([old[at] ^ (1 << chance.randrange(8))]) + old[at + 1 :]
            case "byte":
                return old[:at] + bytes([old[at] ^ chance.randrange(1, 256)]) + old[at + 1 :]
            case "cut":
                return old[:at]
            case "zeros":
                size = min(chance.choice((1, 16, 512, 4096)), len(old) - at)
                return old[:at] + bytes(size) + old[at + size :]
            case "empty":
                return b""
            case "swapped":
                kind = kind_of(self.key)
                same = [key for key in sorted(store._objects) if key != self.key and kind_of(key) == kind]
                return MemoryStore.get(store, chance.choice(same)) if same else _of_staging(self.note)
            case "older":
                folder, _, _ = self.key.rpartition("/")
                before = [key for key in store._keys if key.rpartition("/")[0] == folder and key < self.key]
                return world_.older.get(self.key) or (MemoryStore.get(store, before[-1]) if before else b"[]")
            case _:
                theirs = twin().stores()[self.store]._objects
                return theirs[self.key][0] if self.key in theirs else b"null"


def _of_staging(note: str) -> bytes:
    """Return the same note as it was written for another app."""
    value = (NOTES | UNFINISHED | REQUESTED).get(note)
    return codec.encode(replace(value, app="staging")) if hasattr(value, "app") else b"{}"


def kind_of(key: str) -> str:
    kind = object_kind_of(key)
    return key.partition("/")[0] + key.rpartition("/")[0].partition("/")[2] if kind is None else kind.key_pattern


@cache
def places() -> dict[str, list[tuple[str, int, str]]]:
    """Return the objects of each kind, each as (note of the world, number of the store, key)."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for note in worlds():
        for number, store in enumerate(world(note).stores()):
            for key in store._keys if not note else [note] if number == 0 else []:
                found.setdefault(kind_of(key), []).append((note, number, key))
    return found


def corruptions(count: int, seed: str) -> Iterator[tuple[Corruption, Iterator[str]]]:
    """Yield random corruptions, each with the readers of the object in random order.

    Kinds of objects take turns, so that rare kinds are damaged as often as others.
    """
    chance = Random(seed)
    kinds = sorted(places().keys() - UNREAD)
    for number in range(count):
        kind, first = kinds[number % len(kinds)], None
        for _ in range(1_000):
            note, store, key = chance.choice(places()[kind])
            corruption = Corruption(note, store, key, chance.choice(DAMAGES), chance.randrange(1 << 30))
            readers = filter(corruption.is_read_by, chance.sample([*(NOTE_READERS if note else READERS)], 8))
            if (first := next(readers, None)) is not None:
                break
        assert first is not None, f"nobody reads {kind}: it belongs in UNREAD"
        yield corruption, chain((first,), readers)


def wrong(corruption: Corruption, reader: str) -> str | None:
    """Describe how a reader of a corrupt object fails. None if its answer is the same, or names the object."""
    note, key = corruption.note, corruption.key
    expected, new = undisturbed(note, reader)[0], corruption.bytes()
    copy = world(note).copied()
    store = copy.stores()[corruption.store]
    store._objects[key] = new, store._objects[key][1]
    try:
        answer = answered(copy, reader)
    except Exception as error:
        return f"{type(error).__name__} escaped: {error}"
    if answer.said == expected.said:
        return None
    if key in answer.errors or key in answer.said:
        return None
    # The object is a valid object of an app of the same name: its content may be reported as true, but its objects do
    # not exist here.
    if corruption.damage == "foreign" and (answer.errors or reader not in ROW_READERS):
        return None
    return f"does not name it: {answer}"
