"""The store beside a dictionary.

Whatever is put, deleted, committed, merged, rescaled, pinned, cloned, dropped and collected, whatever expires, whoever
dies over it, and whenever it is looked at: every version that must stay shows what it showed, and what nobody needs
goes in time.

The model is icechunk's `test_stateful_repo_ops.py`: rules for every operation, invariants after each step. Where the
choice is the store's own (did the commit of a writer that died get through?), it is asked, and held to its answer.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from threading import Event

import duckdb
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from slackwater.snapshot.clone import clone
from slackwater.snapshot.cut import resolve
from slackwater.snapshot.gc import collect
from slackwater.snapshot.requests import Request
from slackwater.snapshot.rescale import rescale
from slackwater.snapshot.retention import Retention
from slackwater.snapshot.snapshots import list_snapshots, pin, remove
from slackwater.snapshot.stage_compactor import StageCompactor
from slackwater.snapshot.succession import differences
from slackwater.snapshot.taking import request, try_complete
from slackwater.store import apps, boundary, history, keys
from slackwater.store.cache import SstCache
from slackwater.store.compaction import Compaction, apply
from slackwater.store.errors import Fenced, NotFound, Refused
from slackwater.store.faults import FaultyStore
from slackwater.store.manifest import AppInfo, Manifest, Policy, Sst, Table, Ttl
from slackwater.store.merging import run
from slackwater.store.picking import pick_for
from slackwater.store.runs import by_partition, depth, sorted_runs, touched
from slackwater.store.ttl import may_have_expired, seen_clock_ms

from .collecting import HOUR_MS, AgingStore, Killed, fresh, keys_of
from .histories import Kafka
from .model_checks import check_grace, check_reads, check_what_stays, expired_objects
from .model_states import Shown, State, moment
from .model_tables import LIFETIMES_MS, POLICIES, TABLES, VALUES, Form, same_form, values
from .profiles import scaled
from .state_rows import Hashes, Key, Values
from .writers import STAGE, STEP_MS, Writer, patiently

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
    ("merging", "expiring"),
    ("dying", "collecting", "copying", "expiring"),
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
        lifetime_ms=st.sampled_from(LIFETIMES_MS),
        column=st.sampled_from(["", "at"]),
        focus=st.sampled_from(FOCUS),
    )
    def start(
        self,
        name: str,
        partitions: int,
        modulus: int,
        cached: bool,
        lifetime_ms: int,
        column: str,
        focus: tuple[str, ...],
    ) -> None:
        self.focus, self.column = focus, column
        key, self.keys = TABLES[name]
        self.table = Table(key, VALUES, partitions, "test", Ttl(lifetime_ms, column) if lifetime_ms else None)
        """As all programs declare it that start from now on."""
        self.hashes = Hashes(modulus)
        self.folder = Path(tempfile.mkdtemp())
        self.cache_bytes = 1 << 30 if cached else 0
        self.store, self.cache = AgingStore(), SstCache(self.folder, self.cache_bytes)
        self.con = connection()
        self.written: dict[Form, Key] = {}
        self.writers: dict[str, Writer] = {}
        self.zombies: list[Writer] = []
        self.heads: dict[str, int] = {}
        self.states: dict[tuple[str, int], State] = {}
        """What each version that was ever committed held."""
        self.pending: dict[str, dict[Form, tuple[Key, Values | None]]] = {}
        """What was put and deleted and is not committed yet, by app."""
        self.pins: dict[tuple[str, str], int] = {}
        """The version of each snapshot, by app and name; what clones live from among them."""
        self.asked: dict[tuple[str, str], Request] = {}
        self.clones: dict[str, str] = {}
        """The app that each clone lives from."""
        self.proven: dict[tuple[tuple[Sst, ...], Table | None, int], tuple[Shown, dict[str, bytes]]] = {}
        """What was read by which clock and found right: what it showed, and the objects that it was read from."""
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
        rows = data.draw(st.lists(st.tuples(self.keys, values), min_size=1, max_size=8), "rows")
        self.change(app, ((key, row and (*row[:-1], self.in_minutes(row[-1]))) for key, row in rows))

    def in_minutes(self, minutes: int | None) -> object:
        return None if minutes is None else moment(self.store.clock_ms + minutes * 60_000)

    def commit_some(self, data: st.DataObject, app: str) -> None:
        self.put_some(data, app)
        writer = self.writers[app]
        self.try_to_commit(writer, self.batch(writer, into_cache=data.draw(st.booleans(), "into cache")))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(sorted(self.written, key=repr)), min_size=1, max_size=6, unique=True)
        self.change(self.any_app(data), [(self.written[form], None) for form in data.draw(some)])

    def change(self, app: str, changes: Iterable[tuple[Key, Values | None]]) -> None:
        for key, row in changes:
            self.written[same_form(key)] = key
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
            self.committed(writer.head, writer.began_ms)

    def committed(self, manifest: Manifest, began_ms: int) -> None:
        state = self.states[manifest.app, self.heads[manifest.app]]
        if manifest.kind == "batch":
            state = state.after(self.pending[manifest.app], began_ms)
            self.pending[manifest.app] = {}
        self.follows(manifest.app, manifest.version, state)

    def follows(self, app: str, version: int, state: State) -> None:
        assert version == self.heads[app] + 1
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
            self.committed(manifest, writer.began_ms)
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

    def take_over(self, app: str, behind_ms: int = 0) -> None:
        self.writers[app] = Writer(self.store, app, self.table, self.hashes, behind_ms)
        before = self.states.get((app, self.heads.setdefault(app, 0)), State())
        self.follows(app, self.writers[app].head.version, before.claimed(self.table.ttl))
        self.pending.setdefault(app, {})

    @about("dying")
    @rule(data=st.data(), behind_ms=st.sampled_from([0, HOUR_MS // 2]))
    def take_over_from_one_that_lives(self, data: st.DataObject, behind_ms: int) -> None:
        """On a machine whose clock may be behind."""
        app = self.any_app(data)
        self.zombies = [*self.zombies, self.writers[app]][-3:]
        self.take_over(app, behind_ms)

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
            self.follows(app, done.version, self.states[app, self.heads[app]])
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

    def due(
        self, writer: Writer, policy: Policy, *, full: bool = False, only: Callable[[int], bool] = lambda _: True
    ) -> tuple[Compaction, ...]:
        """What the product picks where the table has this policy."""
        assert writer.head.table is not None
        head = replace(writer.head, table=replace(writer.head.table, compaction=policy))
        return pick_for(head, full=full, only=only)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, batches=st.integers(0, 2))
    def merge_what_is_picked(self, data: st.DataObject, policy: Policy, batches: int) -> None:
        """Slowly: batches are committed before it lands."""
        writer = self.with_something_to_merge(data)
        for one in self.due(writer, policy):
            self.merge(writer, one)
        slow, writer.merges = writer.merges, []
        for _ in range(batches):
            self.commit_some(data, writer.app)
        writer.merges = slow

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
            self.merge(writer, self.compaction(writer, partition, inputs, drops_tombstones=end == len(runs)))

    def compaction(
        self, writer: Writer, partition: int, inputs: tuple[Sst, ...], *, drops_tombstones: bool
    ) -> Compaction:
        """By the clock of the head that it is picked from."""
        return Compaction(partition, writer.partitions, inputs, drops_tombstones, clock_ms=writer.head.clock_ms)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES)
    def merge_until_nothing_is_picked(self, data: st.DataObject, policy: Policy) -> None:
        app = self.with_something_to_merge(data).app
        for _ in range(200):
            writer = self.writers[app]
            writer.merges.clear()
            for one in self.due(writer, policy):
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
            for one in self.due(writer, policy, full=True, only=partition.__eq__):
                self.merge(writer, one)
            self.try_to_commit(writer, writer.landing())
        writer = self.writers[app]
        if not writer.fenced:
            for mine in by_partition(writer.head.ssts, writer.partitions).values():
                assert len(sorted_runs(mine)) == 1
                assert not any(sst.tombstones for sst in mine)
            self.check_nothing_is_stored_that_expired(app)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, requests=st.integers(0, 6))
    def die_while_merging(self, data: st.DataObject, policy: Policy, requests: int) -> None:
        writer = self.with_something_to_merge(data)
        with suppress(Killed), self.death_after(requests):
            for one in self.due(writer, policy):
                self.merge(writer, one)
        self.take_over(writer.app)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, merging=st.booleans())
    def commit_behind_a_compaction(self, data: st.DataObject, policy: Policy, merging: bool) -> None:
        """Another process merges while a batch is under way, which may bring merges of its own: the batch follows."""
        writer = self.with_something_to_merge(data)
        if merging:
            for one in self.due(writer, policy):
                self.merge(writer, one)
        self.put_some(data, writer.app)
        batch = self.batch(writer)
        self.compact_outside(writer.app)
        self.try_to_commit(writer, batch)

    def compact_outside(self, app: str) -> None:
        """As `slackwater compact --full` does it."""
        store = fresh(self.store)
        head = history.read(store, app, STAGE, self.heads[app])
        compactor = StageCompactor(
            store, self.cache, head, by="test", threads=1, now_ms=self.writers[app].tick, stop=Event()
        )
        for done in compactor.until_done(full=True):
            self.follows(app, done.version, self.states[app, self.heads[app]])

    def merge_everything(self, app: str) -> None:
        writer = self.writers[app]
        for partition, mine in by_partition(writer.head.ssts, writer.partitions).items():
            inputs = tuple(entry for run in sorted_runs(mine) for entry in run)
            self.merge(writer, self.compaction(writer, partition, inputs, drops_tombstones=True))

    def merge(self, writer: Writer, one: Compaction) -> None:
        table = writer.head.table
        assert table is not None
        done = run(writer.view, self.cache, writer.app, STAGE, table, one)
        assert all(len(touched(output, one.partitions)) == 1 for output in done.outputs)
        if one.drops_tombstones and one.clock_ms is not None:
            for output in done.outputs:
                assert output.partition != one.partition or not may_have_expired(output, one.clock_ms)
        # Nothing has come between: it fits.
        assert apply(writer.head.ssts, [done]) != writer.head.ssts
        writer.merges.append(done)

    @about("merging")
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """Put what was merged in its place by a version of its own, not with the next batch."""
        writer = self.writers[self.any_app(data)]
        self.try_to_commit(writer, writer.landing())

    def check_nothing_is_stored_that_expired(self, app: str) -> None:
        """By the bytes of the head's SSTs, after all of them were merged."""
        head = history.read(fresh(self.store), app, STAGE, self.heads[app])
        assert expired_objects(self.store, app, head.clock_ms).isdisjoint(sst.object for sst in head.ssts)

    # Expiring.

    @about("expiring")
    @rule(data=st.data(), late_ms=st.sampled_from([-1, 0, 1]))
    def expire(self, data: st.DataObject, late_ms: int) -> None:
        """Time goes on until a row has had its own, or nearly, and a batch tells."""
        app = self.any_app(data)
        self.commit_some(data, app)
        self.let_expire(data, app, late_ms)

    def let_expire(self, data: st.DataObject, app: str, late_ms: int = 0) -> None:
        state, writer = self.states[app, self.heads[app]], self.writers[app]
        if moments := state.to_come():
            at_ms = data.draw(st.sampled_from(moments), "expires") + late_ms
            if state.by_write_time:
                # The batch begins at that moment.
                self.wait_until(at_ms + writer.behind_ms - STEP_MS)
            else:
                self.change(app, [(data.draw(self.keys), (0, None, moment(at_ms)))])
        self.check_as_seen_now(app)
        self.try_to_commit(writer, self.batch(writer))

    def check_as_seen_now(self, app: str) -> None:
        """By write time, rows of the head expire also while nothing is committed."""
        manifest, state = (
            history.read(fresh(self.store), app, STAGE, self.heads[app]),
            self.states[app, self.heads[app]],
        )
        clock_ms = seen_clock_ms(manifest, self.store.clock_ms)
        assert clock_ms == state.seen(self.store.clock_ms)
        self.check_reads(manifest, clock_ms, state.shown(clock_ms))

    @about("expiring")
    @rule(data=st.data(), lifetime_ms=st.sampled_from(LIFETIMES_MS))
    def turn_the_knob(self, data: st.DataObject, lifetime_ms: int) -> None:
        """Another program takes over, by which rows live for another time, or for ever."""
        self.table = replace(self.table, ttl=Ttl(lifetime_ms, self.column) if lifetime_ms else None)
        self.take_over(self.any_app(data))

    @about("collecting")
    @about("expiring")
    @rule(data=st.data())
    def forget_what_expired(self, data: st.DataObject) -> None:
        """What had expired before all was merged is in storage only where an older version has it that must stay."""
        app = self.any_app(data)
        self.commit_some(data, app)
        self.let_expire(data, app)
        expired = expired_objects(self.store, app, self.states[app, self.heads[app]].clock_ms)
        self.compact_outside(app)
        merged = self.heads[app]
        self.check_nothing_is_stored_that_expired(app)
        self.commit_some(data, app)
        for _ in range(2):
            self.wait(70)
            self.commit_some(data, app)
        self.wait(70)
        self.gc_of(app, Retention(versions=1))
        older = [version for version in history.versions(fresh(self.store), app, STAGE) if version < merged]
        held = {sst.object for version in older for sst in history.read(self.store, app, STAGE, version).ssts}
        assert expired & keys_of(self.store, keys.ssts(app, STAGE)) <= held

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
        self.wait_until(self.store.clock_ms + minutes * 60_000)

    def wait_until(self, clock_ms: int) -> None:
        self.store.clock_ms = max(self.store.clock_ms, clock_ms)
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
        pinned = {version for (of, _), version in self.pins.items() if of == app}
        check_what_stays(self.store, app, retention, before, whole, pinned)
        check_grace(self.store, app)

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

    # What must hold whatever was done.

    @invariant()
    def every_version_that_is_there_shows_what_it_showed(self) -> None:
        for app, head in getattr(self, "heads", {}).items():
            store = fresh(self.store)
            versions = history.versions(store, app, STAGE)
            assert versions[-1] == head
            assert {version for (of, _), version in self.pins.items() if of == app} <= set(versions)
            for version in versions:
                manifest, state = history.read(store, app, STAGE, version), self.states[app, version]
                assert manifest.table is not None
                assert (manifest.clock_ms, manifest.table.ttl) == (state.clock_ms, state.lifetime)
                found = {sst.object: self.store.get(sst.object) for sst in manifest.ssts}
                # The same bytes read the same: most versions are looked at again without reading them again.
                right = (state.shown(), found)
                if self.proven.get((manifest.ssts, manifest.table, manifest.clock_ms)) != right:
                    self.check_reads(manifest, manifest.clock_ms, state.shown())
                    self.proven[manifest.ssts, manifest.table, manifest.clock_ms] = right

    def check_reads(self, manifest: Manifest, clock_ms: int, shown: Shown) -> None:
        written = self.written.values()
        check_reads(self.con, self.store, self.cache, manifest, clock_ms, self.hashes, written, shown)

    @invariant()
    def snapshots_are_those_that_were_taken_and_not_removed(self) -> None:
        for app in getattr(self, "heads", {}):
            found = {(app, each.name): each.stages[STAGE] for each in list_snapshots(fresh(self.store), app)}
            assert found == {place: version for place, version in self.pins.items() if place[0] == app}

    @invariant()
    def each_version_follows_from_the_one_before(self) -> None:
        for app in getattr(self, "heads", {}):
            store = fresh(self.store)
            manifests = [history.read(store, app, STAGE, version) for version in history.versions(store, app, STAGE)]
            for earlier, later in pairwise(manifests):
                if later.version == earlier.version + 1:
                    assert list(differences(earlier, later)) == []

    @invariant()
    def ssts_that_share_hashes_share_no_seq(self) -> None:
        for app, head in getattr(self, "heads", {}).items():
            for one, other in combinations(history.read(self.store, app, STAGE, head).ssts, 2):
                if one.hash_min <= other.hash_max and other.hash_min <= one.hash_max:
                    assert one.seq_max < other.seq_min or other.seq_max < one.seq_min

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.cache.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestStateModel = StateModel.TestCase
TestStateModel.settings = scaled(45, 25)
