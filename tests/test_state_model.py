"""The store beside a dictionary.

Whatever is put, deleted, committed, merged, rescaled, pinned, cloned, dropped and collected, whoever dies over it, and
whenever it is looked at: every version that must stay holds what it held, and what nobody needs goes in time.

The model is icechunk's `test_stateful_repo_ops.py`: rules for every operation, invariants after each step. Where the
choice is the store's own (did the commit of a writer that died get through?), it is asked, and held to its answer.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import cache
from itertools import combinations, islice
from pathlib import Path

import duckdb
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slackwater.snapshot.clone import clone
from slackwater.snapshot.cut import resolve
from slackwater.snapshot.gc import collect
from slackwater.snapshot.requests import Request
from slackwater.snapshot.rescale import rescale
from slackwater.snapshot.retention import Retention
from slackwater.snapshot.snapshots import list_snapshots, pin, remove
from slackwater.snapshot.taking import request, try_complete
from slackwater.store import apps, boundary, history, keys
from slackwater.store.cache import SstCache
from slackwater.store.compaction import Compaction, apply
from slackwater.store.errors import Fenced, NotFound, Refused
from slackwater.store.faults import FaultyStore
from slackwater.store.index import multi_get, point_get
from slackwater.store.manifest import AppInfo, Column, Manifest, Policy, Sst, Table
from slackwater.store.merging import run
from slackwater.store.picking import pick, pick_all
from slackwater.store.relation import register
from slackwater.store.runs import by_partition, depth, sorted_runs, touched

from .collecting import HOUR_MS, AgingStore, Killed, fresh, keys_of
from .histories import Kafka
from .profiles import scaled
from .state_rows import Hashes, Key, Values, columns
from .writers import STAGE, Writer, patiently

NAN = float("nan")
STRINGS = (None, "", " ", "\0", "a", "A", "\u00c5", "A\u030a", "null", "x" * 40)
DOUBLES = (None, 0.0, -0.0, NAN, -NAN, float("inf"), 5e-324, 1.0)
DECIMALS = (None, Decimal(0), Decimal("0.01"), Decimal("-0.01"), Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36))
MOMENTS = (
    None,
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2013, 1, 31, 1, 2, 3, 4, UTC),
)
BYTES = (None, b"", b"\0", b"\0\0", b"\xff", b"a")
NUMBERS = (None, 0, 1, -1, 127, -128)

TABLES: dict[str, tuple[tuple[Column, ...], st.SearchStrategy[Key]]] = {
    "string, double": (
        (Column("s", "string"), Column("x", "double")),
        st.tuples(st.sampled_from(STRINGS), st.sampled_from(DOUBLES)),
    ),
    "decimal, timestamp": (
        (Column("d", "decimal128(38, 2)"), Column("at", "timestamp[us, tz=UTC]")),
        st.tuples(st.sampled_from(DECIMALS), st.sampled_from(MOMENTS)),
    ),
    "binary, byte, boolean, float": (
        (Column("b", "binary"), Column("i", "int8"), Column("f", "bool"), Column("y", "float")),
        st.tuples(
            st.sampled_from(BYTES),
            st.sampled_from(NUMBERS),
            st.sampled_from((None, True, False)),
            st.sampled_from((None, 0.0, -0.0, NAN)),
        ),
    ),
    "long": ((Column("n", "int64"),), st.tuples(st.integers(0, 20))),
    "long text, date": (
        (Column("t", "string"), Column("day", "date32[day]")),
        st.tuples(
            st.sampled_from(("m" * (1 << 20), "m" * ((1 << 20) - 1) + "n")),
            st.sampled_from((None, date(1, 1, 1))),
        ),
    ),
    "timestamp without zone": (
        (Column("at", "timestamp[us]"),),
        st.tuples(st.sampled_from((None, *(datetime(1969, 12, 31, 23, 59, 59, us) for us in range(6))))),  # noqa: DTZ001
    ),
}
Model = dict[tuple[object, ...], tuple[Key, Values]]
"""Of each key's one form: the key as it was last written, and its values."""
Changes = dict[tuple[object, ...], tuple[Key, Values | None]]
"""The same of what is to be written; None deletes."""
VALUES = (Column("v", "int64"), Column("w", "string"))
values = st.none() | st.tuples(st.none() | st.integers(-5, 5), st.sampled_from(STRINGS))


def same_form(key: Key) -> tuple[object, ...]:
    """Keys that are one key compare equal as Python values."""
    return tuple(map(_one_form, key))


def _one_form(part: object) -> object:
    match part:
        case float():
            return "NaN" if math.isnan(part) else part + 0.0
        case datetime():
            return part.astimezone(UTC) if part.tzinfo else part
        case Decimal():
            return part.quantize(Decimal("0.01"), context=Context(prec=38))
        case _:
            return part


# Files and levels of a few rows: an SST of one has 2 to 3 kB.
POLICIES = st.builds(
    Policy,
    kind=st.sampled_from(["universal", "leveled"]),
    l0_trigger=st.integers(2, 4),
    max_space_amplification=st.sampled_from([0.5, 100.0]),
    level_base_bytes=st.sampled_from([1, 4000, 16_000]),
    fanout=st.sampled_from([2.0, 3.0]),
    target_file_bytes=st.sampled_from([500, 4000, 64 << 20]),
)
RULES = st.sampled_from(
    [
        Retention(versions=1),
        Retention(versions=2),
        Retention(),
        Retention(versions=3),
        Retention(all_ms=HOUR_MS),
        Retention(all_ms=2 * HOUR_MS, hourly_ms=8 * HOUR_MS),
        Retention(all_ms=0, daily_ms=100 * HOUR_MS),
    ]
)


FOCUS = (
    ("merging",),
    ("merging", "dying"),
    ("collecting",),
    ("collecting", "copying", "racing"),
    ("merging", "dying", "collecting", "copying"),
)
"""What an example is about, besides writing: with all rules at once, few of them come to much."""


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """One for all examples: it takes longer to make than most of what an example does."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    return con


def about(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A rule of examples that are about this."""
    return precondition(lambda self: what in self.focus)


class StateModel(RuleBasedStateMachine):
    """One app, its clones, and for each of their versions the dictionary that it must be."""

    @initialize(
        name=st.sampled_from(sorted(TABLES)),
        partitions=st.sampled_from([1, 3]),
        modulus=st.sampled_from([0, 2, 7]),
        cached=st.booleans(),
        focus=st.sampled_from(FOCUS),
    )
    def start(self, name: str, partitions: int, modulus: int, cached: bool, focus: tuple[str, ...]) -> None:
        self.focus = focus
        key, self.keys = TABLES[name]
        self.table = Table(key, VALUES, partitions, "test")
        self.hashes = Hashes(modulus)
        self.folder = Path(tempfile.mkdtemp())
        self.cache_bytes = 1 << 30 if cached else 0
        self.store, self.cache = AgingStore(), SstCache(self.folder, self.cache_bytes)
        self.con = connection()
        self.seen: dict[tuple[object, ...], Key] = {}
        self.writers: dict[str, Writer] = {}
        self.zombies: list[Writer] = []
        self.heads: dict[str, int] = {}
        self.states: dict[tuple[str, int], Model] = {}
        """What each version that was ever committed held."""
        self.pending: dict[str, Changes] = {}
        """What was put and deleted and is not committed yet, by app."""
        self.pins: dict[tuple[str, str], int] = {}
        """The version of each snapshot, by app and name; what clones live from among them."""
        self.asked: dict[tuple[str, str], Request] = {}
        self.clones: dict[str, str] = {}
        """The app that each clone lives from."""
        self.proven: dict[tuple[tuple[Sst, ...], Table | None], tuple[Model, dict[str, bytes]]] = {}
        """What was read and found right: what it held, and the objects that it was read from."""
        apps.ensure_app(self.store, AppInfo("app", self.store.clock_ms))
        self.take_over("app")

    def any_app(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.writers)), "app")

    def any_version(self, data: st.DataObject, app: str) -> int:
        return data.draw(st.sampled_from(history.versions(self.store, app, STAGE)), "version")

    # Writing.

    @rule(data=st.data(), batches=st.integers(1, 4))
    def put(self, data: st.DataObject, batches: int) -> None:
        """Some batches, and rows that wait for the next one."""
        app = self.any_app(data)
        for _ in range(batches):
            self.commit_some(data, app)
        self.put_some(data, app)

    def put_some(self, data: st.DataObject, app: str) -> None:
        self.change(app, data.draw(st.lists(st.tuples(self.keys, values), min_size=1, max_size=8), "rows"))

    def commit_some(self, data: st.DataObject, app: str) -> None:
        self.put_some(data, app)
        writer = self.writers[app]
        self.try_to_commit(writer, self.batch(writer, into_cache=data.draw(st.booleans(), "into cache")))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(sorted(self.seen, key=repr)), min_size=1, max_size=6, unique=True)
        self.change(self.any_app(data), [(self.seen[form], None) for form in data.draw(some)])

    def change(self, app: str, changes: Iterable[tuple[Key, Values | None]]) -> None:
        for key, row in changes:
            self.seen[same_form(key)] = key
            # A batch has each key once.
            self.pending[app][same_form(key)] = (key, row)

    def batch(self, writer: Writer, *, into_cache: bool = False) -> Manifest:
        return writer.batch(dict(self.pending[writer.app].values()), self.cache if into_cache else None)

    @rule(data=st.data(), into_cache=st.booleans())
    def commit(self, data: st.DataObject, into_cache: bool) -> None:
        writer = self.writers[self.any_app(data)]
        self.try_to_commit(writer, self.batch(writer, into_cache=into_cache))

    @about("dying")
    @rule(data=st.data(), seed=st.integers(0, 1000))
    def commit_in_bad_weather(self, data: st.DataObject, seed: int) -> None:
        """Requests are refused, lost, late and repeated; the writer goes on until it hears that it is done."""
        writer = self.writers[self.any_app(data)]
        storm = FaultyStore(writer.view, seed, refused=0.2, lost=0.2, late=0.2, echoed=0.2)
        calm, writer.view = writer.view, storm
        self.try_to_commit(writer, patiently(lambda: self.batch(writer)))
        storm.settle()
        writer.view = calm

    def try_to_commit(self, writer: Writer, manifest: Manifest) -> None:
        try:
            patiently(lambda: writer.commit(manifest))
        except Fenced:
            assert writer.fenced
            self.take_over(writer.app)
        else:
            assert not writer.fenced
            self.committed(manifest)

    def committed(self, manifest: Manifest) -> None:
        app, version = manifest.app, manifest.version
        assert version == self.heads[app] + 1
        state = dict(self.states[app, self.heads[app]])
        if manifest.kind == "batch":
            for form, (key, row) in self.pending[app].items():
                state.pop(form, None)
                if row is not None:
                    state[form] = (key, row)
            self.pending[app] = {}
        self.states[app, version], self.heads[app] = state, version

    @about("dying")
    @rule(data=st.data(), requests=st.integers(0, 12))
    def die_while_committing(self, data: st.DataObject, requests: int) -> None:
        """Between any two requests: all of a batch is there, or nothing; storage says which."""
        writer, manifest = self.writers[self.any_app(data)], None
        with suppress(Killed, Fenced), self.death_after(requests):
            manifest = self.batch(writer)
            writer.commit(manifest)
        if manifest and history.find(fresh(self.store), writer.app, STAGE, manifest.version) == manifest:
            self.committed(manifest)
        self.take_over(writer.app)

    @contextmanager
    def death_after(self, requests: int) -> Iterator[None]:
        left = requests

        def count(_verb: str, _key: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        self.store.before = count
        try:
            yield
        finally:
            self.store.before = lambda _verb, _key: None

    # Taking over, and being taken over.

    def take_over(self, app: str) -> None:
        writer = Writer(self.store, app, self.table, self.hashes)
        before = self.heads.get(app, 0)
        assert writer.head.version == before + 1
        self.writers[app], self.heads[app] = writer, before + 1
        self.states[app, before + 1] = dict(self.states.get((app, before), {}))
        self.pending.setdefault(app, {})

    @about("dying")
    @rule(data=st.data())
    def take_over_from_one_that_lives(self, data: st.DataObject) -> None:
        app = self.any_app(data)
        self.zombies = [*self.zombies, self.writers[app]][-3:]
        self.take_over(app)

    @precondition(lambda self: self.zombies)
    @about("collecting")
    @rule(data=st.data())
    def a_zombie_commits(self, data: st.DataObject) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        with pytest.raises(Fenced):
            zombie.commit(self.batch(zombie))

    @about("merging")
    @rule(data=st.data(), partitions=st.integers(1, 6))
    def rescale(self, data: st.DataObject, partitions: int) -> None:
        self.rescale_to(self.any_app(data), partitions)

    def rescale_to(self, app: str, partitions: int) -> None:
        done = rescale(fresh(self.store), app, STAGE, partitions, by="test", now_ms=self.store.clock_ms)
        if done.before != partitions:
            assert done.version == self.heads[app] + 1
            self.states[app, done.version] = self.states[app, self.heads[app]]
            self.heads[app] = done.version
            self.writers[app].fenced = True

    @about("dying")
    @rule(empty=st.booleans())
    def reopen(self, empty: bool) -> None:
        """Other processes, on a machine that may have lost its disk: everything is read again."""
        self.cache.close()
        if empty:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.cache = SstCache(self.folder, self.cache_bytes)
        self.proven.clear()
        for writer in (*self.writers.values(), *self.zombies):
            writer.sleep()

    # Merging.

    def with_something_to_merge(self, data: st.DataObject) -> Writer:
        """After some batches, perhaps a rescale, and some more."""
        app = self.any_app(data)
        for partitions in data.draw(st.lists(st.sampled_from([None, None, 1, 2, 3, 5]), max_size=4), "rescaled to"):
            self.commit_some(data, app)
            if partitions:
                self.rescale_to(app, partitions)
        if self.writers[app].fenced:
            self.take_over(app)
        return self.writers[app]

    @about("merging")
    @rule(data=st.data(), policy=POLICIES)
    def merge_what_is_picked(self, data: st.DataObject, policy: Policy) -> None:
        writer = self.with_something_to_merge(data)
        for one in pick(writer.head.ssts, writer.partitions, policy):
            self.merge(writer, one)

    @about("merging")
    @rule(data=st.data(), merges=st.integers(1, 2))
    def merge_any_neighbours(self, data: st.DataObject, merges: int) -> None:
        """Two merges may want the same SST: the one that lands first has it."""
        writer = self.with_something_to_merge(data)
        found = by_partition(writer.head.ssts, writer.partitions)
        for _ in range(merges if found else 0):
            partition, mine = data.draw(st.sampled_from(sorted(found.items(), key=repr)))
            runs = sorted_runs(mine)
            start = data.draw(st.integers(0, len(runs) - 1))
            end = data.draw(st.integers(start + 1, len(runs)))
            inputs = tuple(entry for run in runs[start:end] for entry in run)
            self.merge(writer, Compaction(partition, writer.partitions, inputs, drops_tombstones=end == len(runs)))

    @about("merging")
    @rule(data=st.data(), policy=POLICIES)
    def merge_until_nothing_is_picked(self, data: st.DataObject, policy: Policy) -> None:
        app = self.with_something_to_merge(data).app
        for _ in range(200):
            writer = self.writers[app]
            writer.merges.clear()
            for one in pick(writer.head.ssts, writer.partitions, policy):
                self.merge(writer, one)
            if not writer.merges:
                if policy.kind == "universal":
                    for mine in by_partition(writer.head.ssts, writer.partitions).values():
                        assert sum(map(depth, sorted_runs(mine))) < policy.l0_trigger
                return
            self.try_to_commit(writer, writer.landing())
        raise AssertionError("merging does not come to an end")

    @about("merging")
    @rule(data=st.data(), policy=POLICIES)
    def merge_all(self, data: st.DataObject, policy: Policy) -> None:
        """One partition after the other, as an SST may reach into several."""
        app = self.with_something_to_merge(data).app
        for partition in range(self.writers[app].partitions):
            writer = self.writers[app]
            writer.merges.clear()
            for one in pick_all(writer.head.ssts, writer.partitions, policy, only=partition.__eq__):
                self.merge(writer, one)
            self.try_to_commit(writer, writer.landing())
        writer = self.writers[app]
        if not writer.fenced:
            for mine in by_partition(writer.head.ssts, writer.partitions).values():
                assert len(sorted_runs(mine)) == 1
                assert not any(sst.tombstones for sst in mine)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, requests=st.integers(0, 6))
    def die_while_merging(self, data: st.DataObject, policy: Policy, requests: int) -> None:
        writer = self.with_something_to_merge(data)
        with suppress(Killed), self.death_after(requests):
            for one in pick(writer.head.ssts, writer.partitions, policy):
                self.merge(writer, one)
        self.take_over(writer.app)

    def merge_everything(self, app: str) -> None:
        writer = self.writers[app]
        for partition, mine in by_partition(writer.head.ssts, writer.partitions).items():
            inputs = tuple(entry for run in sorted_runs(mine) for entry in run)
            self.merge(writer, Compaction(partition, writer.partitions, inputs, drops_tombstones=True))

    def merge(self, writer: Writer, one: Compaction) -> None:
        table = writer.head.table
        assert table is not None
        done = run(writer.view, self.cache, writer.app, STAGE, table, one)
        assert all(len(touched(output, one.partitions)) == 1 for output in done.outputs)
        # Nothing has come between: it fits.
        assert apply(writer.head.ssts, [done]) != writer.head.ssts
        writer.merges.append(done)

    @about("merging")
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """Put what was merged in its place by a version of its own, not with the next batch."""
        writer = self.writers[self.any_app(data)]
        self.try_to_commit(writer, writer.landing())

    # Naming moments, and copying them.

    @about("collecting")
    @rule(data=st.data(), number=st.integers(0, 2))
    def pin(self, data: st.DataObject, number: int) -> None:
        app, name = self.any_app(data), f"s{number}"
        self.pin_version(app, name, self.any_version(data, app))

    def pin_version(self, app: str, name: str, version: int) -> None:
        if (app, name) not in self.pins and (app, name) not in self.asked:
            store = fresh(self.store)
            pin(store, resolve(store, f"{app}/{STAGE}@v{version}", now_ms=self.store.clock_ms), name)
            self.pins[app, name] = version

    @about("collecting")
    @rule(data=st.data(), number=st.integers(0, 2))
    def ask_for_a_snapshot(self, data: st.DataObject, number: int) -> None:
        app, name = self.any_app(data), f"s{number}"
        if (app, name) not in self.pins and (app, name) not in self.asked:
            self.asked[app, name] = request(fresh(self.store), app, name, "test")

    @precondition(lambda self: self.asked)
    @about("collecting")
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        app, name = data.draw(st.sampled_from(sorted(self.asked)))
        asked = self.asked[app, name]
        head = history.read(fresh(self.store), app, STAGE, self.heads[app])
        snapshot = try_complete(fresh(self.store), app, asked)
        assert (snapshot.stages[STAGE] if snapshot else None) == head.recorded.get(asked.id)
        if snapshot:
            self.pins[app, name] = snapshot.stages[STAGE]
            del self.asked[app, name]

    @precondition(lambda self: self.pins)
    @about("collecting")
    @rule(data=st.data())
    def remove_a_snapshot(self, data: st.DataObject) -> None:
        app, name = data.draw(st.sampled_from(sorted(self.pins)))
        if name.startswith("clone-"):
            with pytest.raises(Refused, match="is a clone that lives from"):
                remove(fresh(self.store), app, name)
        else:
            remove(fresh(self.store), app, name)
            del self.pins[app, name]

    @precondition(lambda self: len(self.clones) < 2)
    @about("copying")
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        source, store = self.any_app(data), fresh(self.store)
        version, name = self.any_version(data, source), f"copy{len(self.states)}"
        clone(store, f"{source}/{STAGE}@v{version}", name, topics={}, channels=Kafka(), by="test", now_ms=0)
        self.pins[source, f"clone-{name}"] = version
        self.clones[name] = source
        self.heads[name], self.states[name, version] = version, self.states[source, version]
        self.take_over(name)

    @about("copying")
    @rule(data=st.data())
    def drop_a_clone(self, data: st.DataObject) -> None:
        # A clone's clone lives from it.
        ends = sorted(self.clones.keys() - set(self.clones.values()))
        if ends:
            name = data.draw(st.sampled_from(ends))
            for key in keys_of(self.store, f"{name}/"):
                self.store.delete(key)
            source = self.clones.pop(name)
            remove(fresh(self.store), source, f"clone-{name}")
            del self.pins[source, f"clone-{name}"], self.writers[name], self.heads[name], self.pending[name]
            self.zombies = [zombie for zombie in self.zombies if zombie.app != name]
            for mine in (self.pins, self.asked):
                for place in [place for place in mine if place[0] == name]:
                    del mine[place]

    # Time, and collecting.

    @about("collecting")
    @rule(data=st.data(), versions=st.integers(1, 3))
    def gc_of_few(self, data: st.DataObject, versions: int) -> None:
        """Of what was written in the last hour nothing goes, however few versions are to stay."""
        app = self.any_app(data)
        for _ in range(3):
            self.commit_some(data, app)
        self.gc_of(app, Retention(versions=versions))

    @about("collecting")
    @rule(minutes=st.sampled_from([10, 70, 200]))
    def wait(self, minutes: int) -> None:
        self.store.clock_ms += minutes * 60_000
        for writer in (*self.writers.values(), *self.zombies):
            writer.sleep()

    @about("collecting")
    @rule(data=st.data(), retention=RULES, merging=st.booleans())
    def gc(self, data: st.DataObject, retention: Retention, merging: bool) -> None:
        """Amid the writing: of young versions, and of a merge that the next batch takes along, nothing goes."""
        app = self.any_app(data)
        for _ in range(2):
            self.commit_some(data, app)
        if merging:
            self.merge_everything(app)
        self.gc_of(app, retention)
        if merging:
            self.commit_some(data, app)

    @about("collecting")
    @rule(data=st.data(), retention=RULES, merged=st.booleans(), pinned=st.booleans())
    def gc_long_after(self, data: st.DataObject, retention: Retention, merged: bool, pinned: bool) -> None:
        """All that is there has had its time, and two batches have come since; old SSTs may be in old versions."""
        app = self.any_app(data)
        if pinned:
            self.commit_some(data, app)
            self.pin_version(app, "s0", self.heads[app])
        for _ in range(2):
            if merged:
                self.merge_everything(app)
            self.wait(70)
            self.commit_some(data, app)
        self.wait(70)
        self.gc_of(app, retention)

    def gc_of(self, app: str, retention: Retention) -> None:
        store = fresh(self.store)
        written = {info.key: info.modified_ms for info in store.list(keys.manifests(app, STAGE))}
        before = {
            version: (history.read(store, app, STAGE, version).time_ms, written[keys.manifest(app, STAGE, version)])
            for version in history.versions(store, app, STAGE)
        }
        limit = next((each for each in reversed(boundary.all_of(store, app)) if each.final), None)
        whole = limit.first.get(STAGE, 1) if limit else 1
        collect(store, app, retention, by="test")
        self.check_what_stays(app, retention, before, whole)
        self.check_grace(app)

    @about("collecting")
    @rule(data=st.data(), retention=RULES, requests=st.integers(1, 60))
    def die_while_collecting(self, data: st.DataObject, retention: Retention, requests: int) -> None:
        app = self.any_app(data)
        with suppress(Killed), self.death_after(requests):
            collect(fresh(self.store), app, retention, by="test")

    @about("racing")
    @rule(data=st.data(), retention=RULES, number=st.integers(0, 2), before=st.integers(1, 2))
    def collect_while_somebody_pins(self, data: st.DataObject, retention: Retention, number: int, before: int) -> None:
        """Before the first boundary or the second. One of the two sees the other: it stays, or is not pinned."""
        app, name = self.any_app(data), f"s{number}"
        self.wait(70)
        self.commit_some(data, app)
        self.wait(70)
        if (app, name) in self.pins or (app, name) in self.asked:
            return
        store, left = fresh(self.store), before
        version = self.any_version(data, app)
        cut = resolve(store, f"{app}/{STAGE}@v{version}", now_ms=self.store.clock_ms)

        def pin_between(verb: str, key: str) -> None:
            nonlocal left
            left -= verb == "put_if_absent" and "/boundaries/" in key
            if not left:
                self.store.before = lambda _verb, _key: None
                with suppress(NotFound):
                    pin(store, cut, name)
                    self.pins[app, name] = version

        self.store.before = pin_between
        collect(fresh(self.store), app, retention, by="test")
        self.store.before = lambda _verb, _key: None

    def check_what_stays(
        self, app: str, retention: Retention, before: Mapping[int, tuple[int, int]], whole: int
    ) -> None:
        """Worked out anew, for the rules that a few lines can tell.

        `before` has what was there, by version, and when each was committed and written. Before `whole`, that is only
        what snapshots pin, or pinned until they were removed: no part of what retention counts back in.
        """
        head, clock_ms = self.heads[app], self.store.clock_ms
        wanted = {head, *history.read(fresh(self.store), app, STAGE, head).recorded.values()}
        wanted.update(version for version, (_, written_ms) in before.items() if written_ms > clock_ms - HOUR_MS)
        if retention.versions is not None:
            wanted.add(head - retention.versions + 1)
        if retention.all_ms is not None:
            since_ms = clock_ms - retention.all_ms
            wanted.add(max((v for v, (time_ms, _) in before.items() if v >= whole and time_ms <= since_ms), default=1))
        first = 1 if retention.keeps_everything else max(min(wanted), whole)
        pinned = {version for (of, _), version in self.pins.items() if of == app}
        after = set(history.versions(fresh(self.store), app, STAGE))
        assert {version for version in before if version >= first or version in pinned} <= after
        if retention.hourly_ms is None and retention.daily_ms is None:
            assert all(version >= first or version in pinned for version in after)

    def check_grace(self, app: str) -> None:
        """Nothing is left that nothing names and that has had its time."""
        versions = history.versions(fresh(self.store), app, STAGE)
        written = {info.key: info.modified_ms for info in self.store.list(keys.manifests(app, STAGE))}
        assert written.keys() == {keys.manifest(app, STAGE, version) for version in versions}
        manifests = [history.read(fresh(self.store), app, STAGE, version) for version in versions]
        named = {sst.object for manifest in manifests for sst in manifest.ssts}
        last = max((m.version for m in manifests if m.kind in ("batch", "claim")), default=0)
        due_ms = written[keys.manifest(app, STAGE, last)] - HOUR_MS if last else 0
        for info in self.store.list(keys.ssts(app, STAGE)):
            assert info.key in named or info.modified_ms > due_ms

    # What must hold whatever was done.

    @invariant()
    def every_version_that_is_there_holds_what_it_held(self) -> None:
        for app, head in getattr(self, "heads", {}).items():
            store = fresh(self.store)
            versions = history.versions(store, app, STAGE)
            assert versions[-1] == head
            assert {version for (of, _), version in self.pins.items() if of == app} <= set(versions)
            for version in versions:
                manifest = history.read(store, app, STAGE, version)
                found = {sst.object: self.store.get(sst.object) for sst in manifest.ssts}
                # The same bytes read the same: most versions are looked at again without reading them again.
                right = (self.states[app, version], found)
                if self.proven.get((manifest.ssts, manifest.table)) != right:
                    self.check_reads(manifest, self.states[app, version])
                    self.proven[manifest.ssts, manifest.table] = right

    @invariant()
    def snapshots_are_those_that_were_taken_and_not_removed(self) -> None:
        for app in getattr(self, "heads", {}):
            found = {(app, each.name): each.stages[STAGE] for each in list_snapshots(fresh(self.store), app)}
            assert found == {place: version for place, version in self.pins.items() if place[0] == app}

    @invariant()
    def ssts_that_share_hashes_share_no_seq(self) -> None:
        for app, head in getattr(self, "heads", {}).items():
            for one, other in combinations(history.read(self.store, app, STAGE, head).ssts, 2):
                if one.hash_min <= other.hash_max and other.hash_min <= one.hash_max:
                    assert one.seq_max < other.seq_min or other.seq_max < one.seq_min

    def check_reads(self, manifest: Manifest, model: Model) -> None:
        """Look-ups through the cache and past it, and the relation: all equal the dictionary."""
        self.check_look_ups(manifest, model)
        register(self.con, "t", self.store, self.cache, manifest)
        width = len(self.table.key)
        rows = [tuple(row.values()) for row in self.con.sql("FROM t").to_arrow_table().to_pylist()]
        actual = sorted(repr((*same_form(row[:width]), *row[width:])) for row in rows)
        assert actual == sorted(repr((*form, *row)) for form, (_, row) in model.items())

    def check_look_ups(self, manifest: Manifest, model: Model) -> None:
        table, asked = manifest.table, [*self.seen.values(), *islice(self.seen.values(), 3)]
        assert table is not None
        asked_for = columns(table.key, asked)
        hashes = self.hashes.of(table, asked_for)
        expected = [model[form][1] if form in model else (None, None) for form in map(same_form, asked)]
        present = [form in model for form in map(same_form, asked)]
        found, there = multi_get(self.store, self.cache, manifest.ssts, table, hashes, asked_for)
        assert there.tolist() == present
        assert [tuple(row.values()) for row in found.to_pylist()] == expected
        point = point_get(self.store, manifest.ssts, table, hashes, asked_for)
        assert point.present.tolist() == present
        assert point.values == found

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.cache.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestStateModel = StateModel.TestCase
TestStateModel.settings = scaled(45, 25)
