"""The store's model: its state, the steps of its rules, and its invariants.

The rules are in `test_state_model.py`.
"""

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from threading import Event
from unittest.mock import patch

import duckdb
import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec.structs import replace
from slackwater.errors import Fenced
from slackwater.operations.exchange.initialise import initialise
from slackwater.operations.maintenance.compact import StageCompactor
from slackwater.snapshot.change.migrate import MIGRATION_SNAPSHOT_PREFIX, find_plan, migrate
from slackwater.snapshot.change.migration import finish_newest_migration
from slackwater.snapshot.change.stages import rescale
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import SnapshotRequest, list_snapshots
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.row_source import RowSource
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.version_chain import version_faults
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.store.compaction import picker
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction, apply_results
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import by_partition, overlapped_partitions, sorted_runs
from slackwater.store.sst.ttl import has_expired_rows, read_clock_ms
from slackwater.store.versions import apps, history, horizon, keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import AppInfo, Manifest, Policy, Table, Ttl

from tests.crash.points import Killed
from tests.models.checks import check_grace, check_kept_versions, check_reads, expired_objects
from tests.models.programs import Change as RowChange
from tests.models.programs import another_program
from tests.models.states import Shown, State, moment
from tests.models.tables import TABLES, VALUES, Form, in_columns, same_form, values
from tests.models.writers import STAGE, STEP_MS, Writer, patiently
from tests.support.collecting import AgingStore, fresh
from tests.support.state_rows import Hashes, Key, Values, columns


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """Return one connection for all examples, because it is slow to create."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    # For a few rows, one thread is faster than waking several.
    con.execute("SET threads = 1")
    return con


TASKS = (0, 2, 1, 3)
"""Numbers of tasks that writers declare, in turn; 0 means one per state partition."""
WIDE_BYTES = (picker.WIDE_BYTES, 0, 3_000)
"""Sizes of a hash range up to which merges of wide SSTs stay wide, used in turn."""


class StateMachine(RuleBasedStateMachine):
    """One app and its clones, with the expected dictionary of each version."""

    focus: tuple[str, ...] = ()
    """Groups of rules that run in addition to those of writing."""

    def begin(
        self,
        name: str,
        partitions: int,
        hashes: Hashes,
        lifetime: Ttl | None,
        column: str,
        cached: bool,
    ) -> None:
        """Create a table with these keys, and its writer.

        `column` is the clock of the time to live. If it is empty, the clock is the write time.
        """
        key, self.keys = TABLES[name]
        self.column = column
        self.table = Table(key, VALUES, partitions, ttl=lifetime)
        """Declaration in the programs that start from now on."""
        self.hashes = hashes
        self.folder = Path(tempfile.mkdtemp())
        self.cache_bytes = 1 << 30 if cached else 0
        self.store, self.cache = AgingStore(), SstCache(self.folder, self.cache_bytes)
        self.con = connection()
        self.written: dict[Form, Key] = {}
        self.writers: dict[str, Writer] = {}
        self.zombies: list[Writer] = []
        self.heads: dict[str, int] = {}
        self.states: dict[tuple[str, int], State] = {}
        """Rows of each version ever committed."""
        self.pending: dict[str, dict[Form, tuple[Key, Values | None]]] = {}
        """Uncommitted puts and deletes, by app."""
        self.pins: dict[tuple[str, str], int] = {}
        """Version of each snapshot, by app and name; also of snapshots that pin clones."""
        self.asked: dict[tuple[str, str], SnapshotRequest] = {}
        self.clones: dict[str, str] = {}
        """Source app of each clone."""
        self.proven: dict[tuple[tuple[Sst, ...], Table | None, int], tuple[Shown, dict[str, bytes]]] = {}
        """Reads that were checked before: the clock, the shown rows, and the objects that were read."""
        self.decoded: dict[tuple[str, int], tuple[bytes, Manifest]] = {}
        """Object and decoded manifest of each version at the last read."""
        self.undone: dict[str, RowChange] = {}
        """Row changes by a migration whose caller died.

        They stay here until it is known if the migration was decided.
        """
        self.reopened: dict[str, int] = {}
        """Heads when everything was last read again."""
        apps.ensure_app(self.store, AppInfo("app", self.store.clock_ms))
        self.take_over("app")

    def any_app(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.writers)), "app")

    def any_version(self, data: st.DataObject, app: str) -> int:
        return data.draw(st.sampled_from(history.list_versions(self.store, app, STAGE)), "version")

    # Writing.

    def put_some(self, data: st.DataObject, app: str) -> None:
        rows = data.draw(st.lists(st.tuples(self.keys, values), min_size=1, max_size=8), "rows")
        self.change(app, ((key, row and (*row[:-1], self.in_minutes(row[-1]))) for key, row in rows))

    def in_minutes(self, minutes: int | None) -> object:
        return None if minutes is None else moment(self.store.clock_ms + minutes * 60_000)

    def commit_some(self, data: st.DataObject, app: str) -> None:
        self.put_some(data, app)
        if "expiring" in self.focus and data.draw(st.booleans(), "later"):
            self.advance_to_an_expiry(data, app)
        writer = self.writers[app]
        self.try_to_commit(writer, self.batch(writer, into_cache=data.draw(st.booleans(), "into cache")))

    def change(self, app: str, changes: Iterable[tuple[Key, Values | None]]) -> None:
        for key, row in changes:
            self.written[same_form(key)] = key
            # A batch has each key once.
            self.pending[app][same_form(key)] = (key, row)

    def batch(self, writer: Writer, *, into_cache: bool = False) -> Manifest:
        changes = self.changes_of(writer.app, writer.head).values()
        return writer.batch(dict(changes), self.cache if into_cache else None)

    def changes_of(self, app: str, head: Manifest) -> dict[Form, tuple[Key, Values | None]]:
        """Return pending puts and deletes, with values for the columns of this version's table."""
        assert head.table is not None
        return {form: (key, in_columns(row, head.table)) for form, (key, row) in self.pending[app].items()}

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
            state = state.after(self.changes_of(manifest.app, manifest), began_ms)
            self.pending[manifest.app] = {}
        self.follows(manifest.app, manifest.version, state)

    def follows(self, app: str, version: int, state: State) -> None:
        assert version == self.heads[app] + 1
        self.states[app, version], self.heads[app] = state, version

    # Dying, and taking over.

    def take_over(self, app: str, behind_ms: int = 0) -> None:
        self.finish_interrupted_migration(app)
        # Programs that follow each other run on different numbers of cores.
        tasks = TASKS[len(self.states) % len(TASKS)]
        self.writers[app] = Writer(self.store, app, self.table, self.hashes, behind_ms, tasks=tasks, varies_tasks=True)
        before = self.states.get((app, self.heads.setdefault(app, 0)), State())
        self.follows(app, self.writers[app].head.version, before.claimed(self.table.ttl))
        self.pending.setdefault(app, {})

    def rescale_to(self, app: str, partitions: int) -> None:
        done = rescale(fresh(self.store), app, STAGE, partitions, by="test", now_ms=self.store.clock_ms)
        if done.before != partitions:
            self.follows(app, done.version, self.states[app, self.heads[app]])
            self.writers[app].fenced = True

    # Migrating.

    def migrate_to(self, data: st.DataObject, app: str, dies_after: int | None) -> None:
        """Migrate to a program with an added, removed, widened or renamed column. The caller may be killed."""
        self.finish_interrupted_migration(app)
        store = fresh(self.store)
        head = history.read(store, app, STAGE, self.heads[app])
        assert head.table is not None
        declared, renames, change = another_program(data, head.table)
        program = Declared(app, {STAGE: DeclaredStage(STAGE, {}, {}, declared)})
        writer = self.writers[app]
        with suppress(Killed), self.store.death_after(1_000_000 if dies_after is None else dies_after):
            migrate(store, find_plan(store, program, renames), {}, by="test", now_ms=writer.tick())
        self.pins |= {
            (app, each.name): each.stages[STAGE]
            for each in list_snapshots(fresh(self.store), app)
            if each.name.startswith(MIGRATION_SNAPSHOT_PREFIX)
        }
        self.undone[app] = change
        self._follow_migration(app)

    def finish_interrupted_migration(self, app: str) -> None:
        """Finish or abandon an interrupted migration, as the next caller would."""
        if app in self.undone:
            finish_newest_migration(fresh(self.store), app, now_ms=self.writers[app].tick())
            self._follow_migration(app)
            self.undone.pop(app, None)

    def _follow_migration(self, app: str) -> None:
        head = self.heads[app]
        if history.find(fresh(self.store), app, STAGE, head + 1) is not None:
            self.follows(app, head + 1, self.states[app, head].migrated(self.undone.pop(app)))
            self.writers[app].fenced = True

    # Beginning with rows from elsewhere.

    def begin_with_rows(self, data: st.DataObject, app: str, dies_after: int | None) -> None:
        """Create an app whose first version has rows from a file. The call may be killed and repeated."""
        some = data.draw(st.lists(st.tuples(self.keys, values), min_size=1, max_size=8), "rows")
        rows = {
            same_form(key): (key, (*row[:-1], self.in_minutes(row[-1])))
            for key, row in some
            if row is not None and None not in key
        }
        if not rows:
            return
        source = RowSource(str(self._file_of(rows.values())))
        self.store.clock_ms += STEP_MS
        began_ms = self.store.clock_ms
        first = Manifest(app, STAGE, 1, 1, "init", began_ms, "init", table=self.table, by="test")
        with patch("time.time_ns", lambda: began_ms * 1_000_000):
            if dies_after is not None:
                with suppress(Killed), self.store.death_after(dies_after):
                    initialise(fresh(self.store), first, source)
                head = history.head(fresh(self.store), app, STAGE)
                assert head is None or sum(sst.rows for sst in head.ssts) == len(rows)
            assert initialise(fresh(self.store), first, source).rows == len(rows)
        self.written |= {form: key for form, (key, _) in rows.items()}
        self.heads[app], self.states[app, 1] = 1, State().claimed(self.table.ttl).after(rows, began_ms)
        self.take_over(app)

    def _file_of(self, rows: Collection[tuple[Key, Values]]) -> Path:
        path = self.folder / f"rows-{self.store.clock_ms}.parquet"
        self.folder.mkdir(exist_ok=True)
        assert self.table.values == VALUES
        table = columns((*self.table.key, *VALUES), ((*key, *row) for key, row in rows))
        pq.write_table(table, path)
        return path

    # Merging.

    def writer_with_due_merges(self, data: st.DataObject) -> Writer:
        """Return a writer after some batches and perhaps a rescale, so that there are SSTs to merge."""
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
        """Return the merges that the product picks for this policy."""
        assert writer.head.table is not None
        head = replace(writer.head, table=replace(writer.head.table, compaction=policy))
        with self.sizes():
            return picker.pick_for_manifest(head, full=full, accepts=only)

    def sizes(self) -> AbstractContextManager[object]:
        """Let the picker treat the SSTs as small, large or mixed, in turn; in fact, all are small."""
        return patch.object(picker, "WIDE_BYTES", WIDE_BYTES[len(self.states) % len(WIDE_BYTES)])

    def compaction(
        self, writer: Writer, inputs: tuple[Sst, ...], *, drops_tombstones: bool, cuts: bool = False
    ) -> Compaction:
        """Describe a merge. Its clock is that of the head from which it was picked."""
        window = min(sst.hash_min for sst in inputs), max(sst.hash_max for sst in inputs)
        clock_ms = writer.head.clock_ms
        return Compaction(0, writer.ranges, inputs, drops_tombstones, window=window, clock_ms=clock_ms, cuts=cuts)

    def compact_outside_the_runner(self, app: str) -> None:
        """Compact like `slackwater compact --full`."""
        store = fresh(self.store)
        head = history.read(store, app, STAGE, self.heads[app])
        compactor = StageCompactor(
            store, self.cache, head, by="test", threads=1, now_ms=self.writers[app].tick, stop=Event()
        )
        with self.sizes():
            for done in compactor.merge_until_done(full=True):
                self.follows(app, done.version, self.states[app, self.heads[app]])
        after = history.read(store, app, STAGE, self.heads[app])
        assert after.table is not None
        for mine in by_partition(after.ssts, after.table.ranges).values():
            assert len(sorted_runs(mine)) == 1

    def merge_everything(self, app: str) -> None:
        writer = self.writers[app]
        if inputs := tuple(entry for run in sorted_runs(writer.head.ssts) for entry in run):
            self.merge(writer, self.compaction(writer, inputs, drops_tombstones=True))

    def merge(self, writer: Writer, one: Compaction) -> None:
        table = writer.head.table
        assert table is not None
        done = run_compaction(writer.view, self.cache, writer.app, STAGE, table, one)
        assert not one.cuts or all(len(overlapped_partitions(output, one.partitions)) == 1 for output in done.outputs)
        if one.drops_tombstones and one.clock_ms is not None:
            assert not any(has_expired_rows(output, one.clock_ms) for output in done.outputs)
        # Nothing has come between: it fits.
        assert apply_results(writer.head.ssts, [done]) != writer.head.ssts
        writer.merges.append(done)

    def check_no_expired_rows_are_stored(self, app: str) -> None:
        """Check in storage that no SST of the head has expired rows after a full merge."""
        head = history.read(fresh(self.store), app, STAGE, self.heads[app])
        assert expired_objects(self.store, app, head.clock_ms).isdisjoint(sst.object for sst in head.ssts)

    # Expiring.

    def advance_to_an_expiry(self, data: st.DataObject, app: str) -> None:
        """Let the next batch begin when some row expires, or a millisecond before or after; or write such a row."""
        state = self.states[app, self.heads[app]]
        if moments := state.to_come():
            at_ms = data.draw(st.sampled_from(moments), "expires") + data.draw(st.sampled_from([0, -1, 1]), "late")
            if state.by_write_time:
                self.wait_until(at_ms + self.writers[app].behind_ms - STEP_MS)
            else:
                self.change(app, [(data.draw(self.keys), (0, None, moment(at_ms)))])

    def check_visible_rows_now(self, app: str) -> None:
        """Check that rows of the head expire by write time even without a commit."""
        manifest, state = (
            history.read(fresh(self.store), app, STAGE, self.heads[app]),
            self.states[app, self.heads[app]],
        )
        clock_ms = read_clock_ms(manifest, self.store.clock_ms)
        assert clock_ms == state.seen(self.store.clock_ms)
        self.check_reads(manifest, clock_ms, state.shown(clock_ms))

    # Naming moments, and collecting.

    def pin_version(self, app: str, name: str, version: int) -> None:
        if (app, name) not in self.pins and (app, name) not in self.asked:
            store = fresh(self.store)
            pin_cut(store, resolve(store, f"{app}/{STAGE}@v{version}", now_ms=self.store.clock_ms), name)
            self.pins[app, name] = version

    def wait_until(self, clock_ms: int) -> None:
        self.store.clock_ms = max(self.store.clock_ms, clock_ms)
        for writer in (*self.writers.values(), *self.zombies):
            writer.sleep()

    def gc_of(self, app: str, retention: Retention) -> None:
        store = fresh(self.store)
        written = {info.key: info.modified_ms for info in store.list(keys.manifests(app, STAGE))}
        before = {
            version: (history.read(store, app, STAGE, version).time_ms, written[keys.manifest(app, STAGE, version)])
            for version in history.list_versions(store, app, STAGE)
        }
        limit = next((each for each in reversed(horizon.read_all(store, app)) if each.final), None)
        whole = limit.first.get(STAGE, 1) if limit else 1
        collect(store, app, retention, by="test")
        pinned = {version for (of, _), version in self.pins.items() if of == app}
        check_kept_versions(self.store, app, retention, before, whole, pinned)
        check_grace(self.store, app)

    # What must hold whatever was done.

    @invariant()
    def every_kept_version_shows_the_same_rows(self) -> None:
        stored = cache(self.store.get)
        for app, head in getattr(self, "heads", {}).items():
            manifests = self.manifests(app)
            versions = {manifest.version for manifest in manifests}
            assert manifests[-1].version == head
            assert {version for (of, _), version in self.pins.items() if of == app} <= versions
            for manifest in manifests:
                state = self.states[app, manifest.version]
                assert manifest.table is not None
                assert (manifest.clock_ms, manifest.table.ttl) == (state.clock_ms, state.lifetime)
                found = {sst.object: stored(sst.object) for sst in manifest.ssts}
                # Equal bytes have equal content, so most versions are checked again without another read.
                right = (state.shown(), found)
                if self.proven.get((manifest.ssts, manifest.table, manifest.clock_ms)) != right:
                    self.check_reads(manifest, manifest.clock_ms, state.shown())
                    self.proven[manifest.ssts, manifest.table, manifest.clock_ms] = right

    def manifests(self, app: str) -> list[Manifest]:
        """Return every existing version as stored; equal bytes are decoded once."""
        store, found = fresh(self.store), []
        for version in history.list_versions(store, app, STAGE):
            data = self.store.get(keys.manifest(app, STAGE, version))
            known = self.decoded.get((app, version))
            if known is None or known[0] != data:
                known = data, history.read(store, app, STAGE, version)
                self.decoded[app, version] = known
            found.append(known[1])
        return found

    def check_reads(self, manifest: Manifest, clock_ms: int, shown: Shown) -> None:
        written = self.written.values()
        check_reads(self.con, self.store, self.cache, manifest, clock_ms, self.hashes, written, shown)

    @invariant()
    def snapshots_exist_exactly_until_removed(self) -> None:
        for app in getattr(self, "heads", {}):
            found = {(app, each.name): each.stages[STAGE] for each in list_snapshots(fresh(self.store), app)}
            assert found == {place: version for place, version in self.pins.items() if place[0] == app}

    @invariant()
    def each_version_is_a_valid_successor(self) -> None:
        for app in getattr(self, "heads", {}):
            for earlier, later in pairwise(self.manifests(app)):
                if later.version == earlier.version + 1:
                    assert list(version_faults(earlier, later)) == []

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
