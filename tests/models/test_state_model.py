"""A model test of the store against a dictionary of rows by version.

Rules put, delete, commit, merge, rescale, pin, clone, drop, collect and expire, kill any process, and read at any time.
Every version that must stay keeps its rows, and garbage is deleted in time.

The structure is that of icechunk's `test_stateful_repo_ops.py`: rules for every operation, invariants after each step.
If the store decides an outcome (for example, if a killed writer's commit succeeded), the model reads the outcome once,
and expects it from then on.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from slackwater.errors import Fenced, NotFound, Refused
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import by_partition, max_overlap, overlapped_partitions, sorted_runs
from slackwater.store.versions import history, keys
from slackwater.store.versions.manifest import Policy, Ttl

from tests.crash.points import Killed
from tests.models.checks import expired_objects
from tests.models.profiles import SECONDS, scaled
from tests.models.state_machine import StateMachine
from tests.models.tables import LIFETIMES_MS, POLICIES, TABLES
from tests.models.writers import STAGE, patiently
from tests.store.objects.faulty_store import FaultyStore
from tests.support.collecting import HOUR_MS, fresh, keys_of
from tests.support.histories import Kafka
from tests.support.state_rows import Hashes

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

BEHIND_MS = st.sampled_from([HOUR_MS // 2, 0])
"""Delays of a machine's clock."""
FOCUS = (
    # Tests that the profile `ci` tries most come first, because several processes get the tests in this order.
    ("migrating", "merging", "dying"),
    ("migrating", "collecting", "copying", "expiring"),
    ("beginning", "migrating", "dying", "expiring"),
    ("merging",),
    ("merging", "dying"),
    ("collecting",),
    ("racing",),
    ("collecting", "copying", "racing"),
    ("merging", "dying", "collecting", "copying"),
    ("merging", "expiring"),
    ("merging", "dying", "expiring"),
    ("collecting", "expiring"),
    ("dying", "collecting", "copying", "expiring"),
)
"""Groups of rules. With all rules at once, few examples would test much."""


MIGRATIONS = 500
"""Number of examples with changed programs, of all three kinds together, in the profiles that search."""


def about(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a rule only in examples with this focus."""
    return precondition(lambda self: what in self.focus)


class StateModel(StateMachine):
    """Rules of the model; the invariants are in `StateMachine`."""

    @initialize(
        name=st.sampled_from(sorted(TABLES)),
        partitions=st.sampled_from([1, 3]),
        modulus=st.sampled_from([0, 2, 7]),
        cached=st.booleans(),
        lifetime_ms=st.sampled_from(LIFETIMES_MS),
        column=st.sampled_from(["", "at"]),
    )
    def start(
        self,
        name: str,
        partitions: int,
        modulus: int,
        cached: bool,
        lifetime_ms: int,
        column: str,
    ) -> None:
        lifetime = Ttl(lifetime_ms, column) if lifetime_ms else None
        # Rows from elsewhere are hashed in the usual way.
        self.begin(name, partitions, Hashes(0 if "beginning" in self.focus else modulus), lifetime, column, cached)

    # Writing.

    @rule(data=st.data(), batches=st.integers(1, 4))
    def put(self, data: st.DataObject, batches: int) -> None:
        """Commit some batches, and leave pending rows for the next batch."""
        app = self.any_app(data)
        for _ in range(batches):
            self.commit_some(data, app)
        self.put_some(data, app)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(sorted(self.written, key=repr)), min_size=1, max_size=6, unique=True)
        self.change(self.any_app(data), [(self.written[form], None) for form in data.draw(some)])

    @rule(data=st.data(), into_cache=st.booleans())
    def commit(self, data: st.DataObject, into_cache: bool) -> None:
        writer = self.writers[self.any_app(data)]
        self.try_to_commit(writer, self.batch(writer, into_cache=into_cache))

    @about("dying")
    @rule(data=st.data(), seed=st.integers(0, 1000))
    def commit_with_store_faults(self, data: st.DataObject, seed: int) -> None:
        """Commit while requests fail, are lost, or arrive late or twice. Retries until the outcome is known."""
        writer = self.writers[self.any_app(data)]
        storm = FaultyStore(writer.view, seed, refused=0.2, lost=0.2, late=0.2, echoed=0.2)
        calm, writer.view = writer.view, storm
        self.try_to_commit(writer, patiently(lambda: self.batch(writer)))
        storm.settle()
        writer.view = calm

    @about("dying")
    @rule(data=st.data(), requests=st.integers(0, 12))
    def kill_during_commit(self, data: st.DataObject, requests: int) -> None:
        """Kill the writer after any request of a commit. Storage shows if the batch is complete or absent."""
        writer, manifest = self.writers[self.any_app(data)], None
        with suppress(Killed, Fenced), self.store.death_after(requests):
            manifest = self.batch(writer)
            writer.commit(manifest)
        if manifest and history.find(fresh(self.store), writer.app, STAGE, manifest.version) == manifest:
            self.committed(manifest, writer.began_ms)
        self.take_over(writer.app)

    # Taking over, and being taken over.

    @about("dying")
    @rule(data=st.data(), behind_ms=BEHIND_MS)
    def take_over_from_live_writer(self, data: st.DataObject, behind_ms: int) -> None:
        """Take over from a live writer, on a machine whose clock may lag."""
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

    @precondition(lambda self: self.heads != self.reopened)
    @about("dying")
    @rule(empty=st.booleans())
    def reopen(self, empty: bool) -> None:
        """Reopen the store as another process would, on a machine that may have lost its disk."""
        self.cache.close()
        if empty:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.cache = SstCache(self.folder, self.cache_bytes)
        self.proven.clear()
        self.reopened = dict(self.heads)
        for writer in (*self.writers.values(), *self.zombies):
            writer.sleep()

    # Migrating.

    @about("migrating")
    @rule(data=st.data(), waiting=st.booleans())
    def migrate(self, data: st.DataObject, waiting: bool) -> None:
        """Migrate between batches; pending rows get the new columns."""
        app = self.any_app(data)
        self.commit_some(data, app)
        if waiting:
            self.put_some(data, app)
        self.migrate_to(data, app, None)
        self.take_over(app)
        self.commit_some(data, app)

    @about("migrating")
    @rule(data=st.data(), requests=st.integers(0, 25), at_once=st.booleans())
    def kill_during_migration(self, data: st.DataObject, requests: int, at_once: bool) -> None:
        """Kill a migration. If it was decided, the next caller finishes it; otherwise, the old program continues."""
        app = self.any_app(data)
        self.migrate_to(data, app, requests)
        if at_once or self.writers[app].fenced:
            self.take_over(app)

    # Beginning with rows from elsewhere.

    @precondition(lambda self: len(self.writers) < 3)
    @about("beginning")
    @rule(data=st.data(), dies_after=st.none() | st.integers(0, 12))
    def create_app_from_file(self, data: st.DataObject, dies_after: int | None) -> None:
        self.begin_with_rows(data, f"loaded{len(self.states)}", dies_after)

    # Merging.

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, batches=st.integers(0, 2))
    def merge_picked_compactions(self, data: st.DataObject, policy: Policy, batches: int) -> None:
        """Commit batches while picked merges are still running."""
        writer = self.writer_with_due_merges(data)
        for one in self.due(writer, policy):
            self.merge(writer, one)
        slow, writer.merges = writer.merges, []
        for _ in range(batches):
            self.commit_some(data, writer.app)
        writer.merges = slow

    @about("merging")
    @rule(data=st.data(), merges=st.integers(1, 2))
    def merge_any_neighbours(self, data: st.DataObject, merges: int) -> None:
        """Merge any neighbouring runs. If two merges have a common SST, the first to commit wins."""
        writer = self.writer_with_due_merges(data)
        ranges = by_partition(writer.head.ssts, writer.ranges).values()
        whole = [mine for mine in ranges if all(len(overlapped_partitions(sst, writer.ranges)) == 1 for sst in mine)]
        for _ in range(merges if writer.head.ssts else 0):
            runs = sorted_runs(data.draw(st.sampled_from([list(writer.head.ssts), *whole]), "of"))
            start = data.draw(st.integers(0, len(runs) - 1))
            end = data.draw(st.integers(start + 1, len(runs)))
            inputs = tuple(entry for run in runs[start:end] for entry in run)
            drops, cuts = end == len(runs), data.draw(st.booleans(), "cuts")
            self.merge(writer, self.compaction(writer, inputs, drops_tombstones=drops, cuts=cuts))

    @about("merging")
    @rule(data=st.data(), policy=POLICIES)
    def merge_until_nothing_is_picked(self, data: st.DataObject, policy: Policy) -> None:
        app = self.writer_with_due_merges(data).app
        for _ in range(200):
            writer = self.writers[app]
            writer.merges.clear()
            for one in self.due(writer, policy):
                self.merge(writer, one)
            if not writer.merges:
                if policy.kind == "universal":
                    for mine in by_partition(writer.head.ssts, writer.ranges).values():
                        assert sum(map(max_overlap, sorted_runs(mine))) < policy.l0_trigger
                return
            self.try_to_commit(writer, writer.landing())
        raise AssertionError("merging does not come to an end")

    @about("merging")
    @rule(data=st.data(), policy=POLICIES)
    def merge_all(self, data: st.DataObject, policy: Policy) -> None:
        """Merge all ranges in turn. Wide SSTs are cut first, unless all SSTs that they overlap are merged with them."""
        app = self.writer_with_due_merges(data).app
        for partition in range(self.writers[app].ranges):
            cuts = True
            while cuts:
                writer = self.writers[app]
                writer.merges.clear()
                due = self.due(writer, policy, full=True, only=partition.__eq__)
                for one in due:
                    self.merge(writer, one)
                cuts = any(one.cuts for one in due)
                self.try_to_commit(writer, writer.landing())
        writer = self.writers[app]
        if not writer.fenced:
            for mine in by_partition(writer.head.ssts, writer.ranges).values():
                assert len(sorted_runs(mine)) == 1
                assert not any(sst.tombstones for sst in mine)
            self.check_no_expired_rows_are_stored(app)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, requests=st.integers(0, 6))
    def kill_during_merge(self, data: st.DataObject, policy: Policy, requests: int) -> None:
        writer = self.writer_with_due_merges(data)
        with suppress(Killed), self.store.death_after(requests):
            for one in self.due(writer, policy):
                self.merge(writer, one)
        self.take_over(writer.app)

    @about("merging")
    @rule(data=st.data(), policy=POLICIES, merging=st.booleans())
    def commit_after_foreign_compaction(self, data: st.DataObject, policy: Policy, merging: bool) -> None:
        """Commit a batch after a compaction by another process. The batch may also commit merges."""
        writer = self.writer_with_due_merges(data)
        if merging:
            for one in self.due(writer, policy):
                self.merge(writer, one)
        self.put_some(data, writer.app)
        batch = self.batch(writer)
        self.compact_outside_the_runner(writer.app)
        self.try_to_commit(writer, batch)

    @about("merging")
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """Commit merges in a version of their own, without a batch."""
        writer = self.writers[self.any_app(data)]
        self.try_to_commit(writer, writer.landing())

    # Expiring.

    @about("expiring")
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Let a row expire, or almost expire. Readers and the next batch see the change at once."""
        app = self.any_app(data)
        self.commit_some(data, app)
        self.advance_to_an_expiry(data, app)
        self.check_visible_rows_now(app)
        self.try_to_commit(self.writers[app], self.batch(self.writers[app]))

    @about("expiring")
    @rule(data=st.data(), lifetime_ms=st.sampled_from(LIFETIMES_MS), behind_ms=BEHIND_MS)
    def change_time_to_live(self, data: st.DataObject, lifetime_ms: int, behind_ms: int) -> None:
        """Take over with a program that declares another time to live, or none."""
        app = self.any_app(data)
        self.commit_some(data, app)
        self.table = replace(self.table, ttl=Ttl(lifetime_ms, self.column) if lifetime_ms else None)
        self.take_over(app, behind_ms)
        self.commit_some(data, app)

    @about("collecting")
    @about("expiring")
    @rule(data=st.data())
    def merge_away_expired_rows(self, data: st.DataObject) -> None:
        """Check that a full merge removes expired rows, except from older kept versions."""
        app = self.any_app(data)
        for _ in range(2):
            self.commit_some(data, app)
        expired = expired_objects(self.store, app, self.states[app, self.heads[app]].clock_ms)
        self.compact_outside_the_runner(app)
        merged = self.heads[app]
        self.check_no_expired_rows_are_stored(app)
        self.commit_some(data, app)
        for _ in range(2):
            self.wait(70)
            self.commit_some(data, app)
        self.wait(70)
        self.gc_of(app, Retention(versions=1))
        older = [version for version in history.list_versions(fresh(self.store), app, STAGE) if version < merged]
        held = {sst.object for version in older for sst in history.read(self.store, app, STAGE, version).ssts}
        assert expired & keys_of(self.store, keys.ssts(app, STAGE)) <= held

    # Naming moments, and copying them.

    @about("collecting")
    @rule(data=st.data(), number=st.integers(0, 2))
    def pin(self, data: st.DataObject, number: int) -> None:
        app, name = self.any_app(data), f"s{number}"
        self.pin_version(app, name, self.any_version(data, app))

    @about("collecting")
    @rule(data=st.data(), number=st.integers(0, 2))
    def request_snapshot_by_markers(self, data: st.DataObject, number: int) -> None:
        app, name = self.any_app(data), f"s{number}"
        if (app, name) not in self.pins and (app, name) not in self.asked:
            self.asked[app, name] = request_snapshot(fresh(self.store), app, name, "test")

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
            with pytest.raises(Refused, match="is a clone that uses"):
                delete_snapshot(fresh(self.store), app, name)
        else:
            delete_snapshot(fresh(self.store), app, name)
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
            delete_snapshot(fresh(self.store), source, f"clone-{name}")
            del self.pins[source, f"clone-{name}"], self.writers[name], self.heads[name], self.pending[name]
            self.undone.pop(name, None)
            self.zombies = [zombie for zombie in self.zombies if zombie.app != name]
            for mine in (self.pins, self.asked):
                for place in [place for place in mine if place[0] == name]:
                    del mine[place]

    # Time, and collecting.

    @about("collecting")
    @rule(data=st.data(), versions=st.integers(1, 3))
    def gc_keeping_few_versions(self, data: st.DataObject, versions: int) -> None:
        """Collect with a rule that keeps few versions. Versions of the last hour stay in any case."""
        app = self.any_app(data)
        for _ in range(3):
            self.commit_some(data, app)
        self.gc_of(app, Retention(versions=versions))

    @about("collecting")
    @rule(minutes=st.sampled_from([10, 70, 200]))
    def wait(self, minutes: int) -> None:
        self.wait_until(self.store.clock_ms + minutes * 60_000)

    @about("collecting")
    @rule(data=st.data(), retention=RULES, merging=st.booleans())
    def gc(self, data: st.DataObject, retention: Retention, merging: bool) -> None:
        """Collect during batches and a merge. Young versions stay, and so do the merge's inputs and outputs."""
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
    def gc_of_old_versions(self, data: st.DataObject, retention: Retention, merged: bool, pinned: bool) -> None:
        """Collect when everything is old and two batches have followed. Only old versions may name some of the SSTs."""
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

    @about("collecting")
    @rule(data=st.data(), retention=RULES, requests=st.integers(1, 60))
    def kill_during_gc(self, data: st.DataObject, retention: Retention, requests: int) -> None:
        app = self.any_app(data)
        with suppress(Killed), self.store.death_after(requests):
            collect(fresh(self.store), app, retention, by="test")

    @about("racing")
    @rule(data=st.data(), retention=RULES, number=st.integers(0, 2), before=st.integers(1, 2))
    def pin_during_gc(self, data: st.DataObject, retention: Retention, number: int, before: int) -> None:
        """Pin a version during a collection, before one of its two boundaries. The version stays, or the pin fails."""
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
                    pin_cut(store, cut, name)
                    self.pins[app, name] = version

        self.store.before = pin_between
        collect(fresh(self.store), app, retention, by="test")
        self.store.before = lambda _verb, _key: None


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("focus", FOCUS, ids=" ".join)
def test_every_kept_version_shows_the_same_rows_and_garbage_is_deleted(focus: tuple[str, ...]) -> None:
    # A separate class with its own name has separate failures in Hypothesis's database.
    in_ci = MIGRATIONS // 3 + 1 if "migrating" in focus else 0
    machine = type("_".join(focus), (StateModel,), {"focus": focus})
    run_state_machine_as_test(machine, settings=scaled(3, 25, in_ci=in_ci))
