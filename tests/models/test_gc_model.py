"""A model test of garbage collection: an app is collected at any time, and compared with a dictionary."""

from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slackwater.errors import NotFound
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.change.stages import retire
from slackwater.snapshot.cut.in_flight import InFlight, in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import cut_of_snapshot, list_snapshots
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.versions import history, keys

from tests.crash.points import Killed
from tests.models.profiles import scaled
from tests.snapshot.gc.paging import change_pages, collect_with_and_without
from tests.support.collecting import HOUR_MS, AgingStore, StoreClock, aging_app, fresh, keys_of
from tests.support.histories import STAGES, FlightsApp, Totals, flights, rows_of

States = dict[str, dict[str, Totals]]

RULES = st.sampled_from(
    [
        Retention(),
        Retention(versions=1),
        Retention(versions=4),
        Retention(all_ms=HOUR_MS),
        Retention(all_ms=2 * HOUR_MS, hourly_ms=8 * HOUR_MS),
        Retention(all_ms=0, hourly_ms=4 * HOUR_MS, daily_ms=100 * HOUR_MS),
    ]
)


class Collection(RuleBasedStateMachine):
    """One app and its clones under every operation; a collection may be killed at any request."""

    @initialize()
    def start(self) -> None:
        self.store = AgingStore()
        app = aging_app(store=self.store)
        self.apps = {app.name: app}
        self.states: dict[tuple[str, str, int], dict[str, Totals]] = {}
        self.removed = False
        self.pinned: dict[tuple[str, str], tuple[States, tuple[InFlight, ...]]] = {}
        self.attempts = 0
        for stage in STAGES:
            self.remember(app, stage)

    def remember(self, app: FlightsApp, stage: str) -> None:
        self.states[app.name, stage, app.heads[stage].version] = dict(app.state[stage])

    def any_app(self, data: st.DataObject) -> FlightsApp:
        return self.apps[data.draw(st.sampled_from(sorted(self.apps)))]

    @rule(data=st.data(), count=st.integers(1, 12), steps=st.integers(1, 6))
    def commit(self, data: st.DataObject, count: int, steps: int) -> None:
        app = self.any_app(data)
        for _ in range(steps):
            app.send(*flights(count))
            stage = data.draw(st.sampled_from(STAGES))
            app.step(stage)
            self.remember(app, stage)

    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        app = self.any_app(data)
        for stage in STAGES:
            app.step(stage)
            self.remember(app, stage)

    @rule(data=st.data(), stage=st.sampled_from(["aircraft", "carriers"]))
    def compact(self, data: st.DataObject, stage: str) -> None:
        app = self.any_app(data)
        app.compact(stage)
        self.remember(app, stage)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        app = self.any_app(data)
        stage = data.draw(st.sampled_from(STAGES))
        app.claim(stage)
        self.remember(app, stage)

    @rule(data=st.data(), stages=st.integers(1, 3))
    def retire(self, data: st.DataObject, stages: int) -> None:
        """Retire the last stages, collect, and run the stages' program again."""
        app = self.any_app(data)
        gone = STAGES[::-1][:stages]
        for stage in gone:
            retire(self.store, app.name, stage, by="test", now_ms=app.clock.tick(stage))
            head = history.head(self.store, app.name, stage)
            assert head is not None
            self.states[app.name, stage, head.version] = dict(app.state[stage])
        collect(self.store, app.name, Retention(), by="test")
        with suppress(NotFound):  # all of them are retired
            assert resolve(self.store, app.name, now_ms=self.store.clock_ms).stages.keys().isdisjoint(gone)
        for stage in reversed(gone):
            last = resolve(self.store, f"{app.name}/{stage}", now_ms=self.store.clock_ms).stages[stage]
            assert rows_of(self.store, last) == app.state[stage]
            app.claim(stage)
            self.remember(app, stage)

    @rule(minutes=st.sampled_from([10, 70, 200]))
    def wait(self, minutes: int) -> None:
        clock = self.apps["flights"].clock
        assert isinstance(clock, StoreClock)
        clock.wait(minutes * 60_000)

    @rule(data=st.data())
    def fail_an_attempt(self, data: st.DataObject) -> None:
        app = self.any_app(data)
        self.attempts += 1
        self.store.put(keys.sst(app.name, "carriers", f"01FAILED{self.attempts}"), b"litter")

    @rule(data=st.data(), stage=st.sampled_from(STAGES), changes=st.integers(1, 3))
    def change_pages(self, data: st.DataObject, stage: str, changes: int) -> None:
        for _ in range(changes):
            change_pages(data, self.store, self.any_app(data).name, stage)

    @rule(data=st.data(), number=st.integers(0, 3), back=st.integers(0, 5))
    def snapshot(self, data: st.DataObject, number: int, back: int) -> None:
        app, name = self.any_app(data), f"s{number}"
        if (app.name, name) in self.pinned:
            return
        try:
            cut = resolve(self.store, f"{app.name}@-{back}h", now_ms=self.store.clock_ms)
            flying = in_flight(self.store, cut)
        except NotFound:
            return  # the history begins later
        pin_cut(self.store, cut, name)
        self.pinned[app.name, name] = ({s: rows_of(self.store, m) for s, m in cut.stages.items()}, flying)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        app, name = data.draw(st.sampled_from(sorted(self.pinned)))
        del self.pinned[app, name]
        self.removed = True
        delete_snapshot(self.store, app, name)

    @precondition(lambda self: len(self.apps) < 3)
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        source = self.any_app(data)
        name = f"clone{len(self.apps)}"
        clone(self.store, source.name, name, topics={}, channels=source.kafka, by="test", now_ms=0)
        made = FlightsApp(self.store, source.kafka, name, clock=source.clock)
        for stage in STAGES:
            assert made.state[stage] == source.state[stage]
            first = made.heads[stage].version - 1
            self.states[name, stage, first] = self.states[name, stage, first + 1] = dict(made.state[stage])
        self.apps[name] = made

    @rule(data=st.data(), retention=RULES, long_after=st.booleans())
    def gc(self, data: st.DataObject, retention: Retention, long_after: bool) -> None:
        app = self.any_app(data)
        if long_after:
            # All objects have exceeded the margin, and every stage has committed two batches since.
            for _ in range(2):
                self.wait(70)
                app.send(*flights(3))
                for stage in STAGES:
                    app.step(stage)
                    self.remember(app, stage)
            self.wait(70)
        before = {stage: history.list_versions(self.store, app.name, stage) for stage in STAGES}
        collect_with_and_without(self.store, app.name, retention)
        self.check_grace(app)
        after = {stage: history.list_versions(self.store, app.name, stage) for stage in STAGES}
        if retention.keeps_everything and not self.pinned:
            # Except versions that a removed snapshot kept; a killed collection may have proposed to keep more.
            assert self.removed or all(set(before[stage]) <= set(after[stage]) for stage in STAGES)

    @rule(data=st.data(), retention=RULES, requests=st.integers(1, 120))
    def kill_during_gc(self, data: st.DataObject, retention: Retention, requests: int) -> None:
        app = self.any_app(data)
        with suppress(Killed), self.store.death_after(requests):
            collect(self.store, app.name, retention, by="test")

    def check_grace(self, app: FlightsApp) -> None:
        """Check that a complete collection leaves no unreferenced object older than the margin."""
        for stage in STAGES:
            versions = history.list_versions(self.store, app.name, stage)
            listed = keys_of(self.store, keys.manifests(app.name, stage))
            assert listed == {keys.manifest(app.name, stage, version) for version in versions}
            named = {sst.object for version in versions for sst in app.version(stage, version).ssts}
            proofs = (v for v in reversed(versions) if app.version(stage, v).kind in ("batch", "claim"))
            last = next(proofs, 0)
            if not last:
                continue
            written = {info.key: info.modified_ms for info in self.store.list(keys.manifests(app.name, stage))}
            due_ms = written[keys.manifest(app.name, stage, last)] - HOUR_MS
            for info in self.store.list(keys.ssts(app.name, stage)):
                assert info.key in named or info.modified_ms > due_ms

    @invariant()
    def every_kept_version_has_the_same_content(self) -> None:
        for name, app in getattr(self, "apps", {}).items():
            store = fresh(self.store)
            for stage in STAGES:
                versions = history.list_versions(store, name, stage)
                assert versions[-1] == app.heads[stage].version
                for version in {*versions[:2], *versions[-2:], versions[len(versions) // 2]}:
                    manifest = history.read(store, name, stage, version)
                    assert rows_of(store, manifest) == self.states[name, stage, version]

    @invariant()
    def every_snapshot_has_the_same_content(self) -> None:
        if not hasattr(self, "apps"):
            return
        store = fresh(self.store)
        for app in self.apps:
            for snapshot in list_snapshots(store, app):
                cut: Any = cut_of_snapshot(store, snapshot)
                found = {stage: rows_of(store, manifest) for stage, manifest in cut.stages.items()}
                flying = in_flight(store, cut)
                assert self.pinned.get((app, snapshot.name), (found, flying)) == (found, flying)


TestCollection = Collection.TestCase
TestCollection.settings = scaled(17, 20, in_ci=150)
