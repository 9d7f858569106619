"""An app is cloned while its snapshot is removed, or its keys are erased."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from slackwater.errors import NotFound, Refused, SlackwaterError
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import find_snapshot, list_snapshots
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps
from slackwater.store.versions.forgotten import ForgetJournal, begin_journal

from tests.operations.erasure.everything import tables_of_all_versions
from tests.snapshot.gc.test_census import ID
from tests.support.collecting import AgingStore, aging_app, fresh, store_of
from tests.support.crowd import Crowd
from tests.support.histories import FlightsApp, Kafka, flights


class Racing(AgingStore):
    """A store that interleaves two verbs. Each verb pauses once, before a chosen request for snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.crowd = Crowd()
        self.seen: Counter[str] = Counter()

    def race(
        self, verbs: dict[str, Callable[[], object]], waits: dict[str, tuple[int, float]]
    ) -> dict[str, SlackwaterError | None]:
        """Run the verbs concurrently, and return the error of each, or None."""
        ended: dict[str, SlackwaterError | None] = {}
        running = ""

        def job(name: str, verb: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                nonlocal running
                running = name
                try:
                    verb()
                    ended[name] = None
                except SlackwaterError as error:
                    ended[name] = error

            return run

        def before(verb: str, key: str) -> None:
            nonlocal running
            name = running
            if "/snapshots/" in key:
                self.seen[name] += 1
                number, seconds = waits[name]
                if self.seen[name] == number:
                    self.crowd.sleep(seconds)
                    running = name

        self.before = before
        try:
            self.crowd.run([job(name, verb) for name, verb in verbs.items()])
        finally:
            self.before = lambda verb, key: None
        return ended


def with_kept_records() -> tuple[FlightsApp, Racing]:
    """Return an app with a snapshot `good` that keeps records in flight."""
    store = Racing()
    app = FlightsApp(store, Kafka())
    app.run(flights(20))
    app.send(*flights(6))
    app.step("legs")
    kept = pin_cut(store, resolve(store, "flights", now_ms=0), "good", reader=app.kafka)
    assert kept.object_keys
    return app, store


def make(app: FlightsApp, source: str = "flights@good") -> None:
    clone(app.store, source, "staging", topics={}, channels=app.kafka, by="test", now_ms=app.clock.now_ms)


@pytest.mark.parametrize("number", range(1, 9))
def test_in_any_order_no_snapshot_refers_to_deleted_records(number: int) -> None:
    clones = removals = 0
    for other in range(1, 9):
        app, store = with_kept_records()
        verbs = {
            "clone": lambda app=app: make(app),
            "remove": lambda store=store: delete_snapshot(store, "flights", "good"),
        }
        ended = store.race(verbs, {"clone": (number, 1.0), "remove": (other, 2.0)})
        left = list_snapshots(store, "flights")
        for snapshot in left:
            for key in snapshot.object_keys:
                store.get(key)
        assert ended["remove"] is None
        if ended["clone"] is None:
            clones += 1
            (pinned,) = left
            assert pinned.object_keys, "it has what the snapshot had kept"
            assert apps.read_app(store, "staging").origin is not None
        else:
            removals += 1
            assert isinstance(ended["clone"], NotFound)
            assert left == ()
            with pytest.raises(NotFound):
                apps.read_app(store, "staging")
    assert clones + removals == 8


def test_a_pin_with_fewer_records_than_the_snapshot_is_not_reused() -> None:
    app, store = with_kept_records()
    # An earlier call for the same versions, without the snapshot's name, ended behind its pin.
    bare = pin_cut(store, resolve(store, "flights", now_ms=0), "clone-staging", "clone", clone="staging")
    assert bare.channels == ()
    make(app)
    good = find_snapshot(store, "flights", "good")
    assert good is not None
    origin = apps.read_app(store, "staging").origin
    assert origin is not None
    pinned = find_snapshot(store, "flights", origin.snapshot)
    assert pinned is not None
    assert (pinned.name, pinned.channels) == ("clone-staging-2", good.channels)


KEY = "N003"


def forget_elsewhere(app: FlightsApp, folder: Path) -> None:
    """Forget a key in another process, which has its own cache."""
    requested = RequestedKeys.parse([f"aircraft={KEY}"])
    forget(fresh(app.store), SstCache(folder, 1 << 30), "flights", requested, by="ada@host")


def check_forgotten(app: FlightsApp) -> None:
    assert verify(fresh(app.store), "staging", now_ms=app.clock.now_ms, deep=True).consistent
    for name in ("flights", "staging"):
        tables = tables_of_all_versions(fresh(app.store), name)
        assert not any(KEY in rows for rows in tables.values())
        assert any("N002" in rows for rows in tables.values())


@pytest.mark.parametrize("part", ["/snapshots/", "/_cloning/"])
def test_a_clone_of_an_app_whose_keys_are_forgotten_after_its_plan_has_no_damage(part: str, tmp_path: Path) -> None:
    app = aging_app()
    app.run(flights(20))
    store_of(app).once("put_if_absent", part, lambda: forget_elsewhere(app, tmp_path))
    make(app, "flights")
    check_forgotten(app)


def test_a_clone_that_meets_a_forget_is_refused_until_that_has_ended(tmp_path: Path) -> None:
    app, ended = aging_app(), list[object]()
    app.run(flights(20))

    def clone_meanwhile() -> None:
        with pytest.raises(Refused, match="forgetting keys of flights") as refused:
            make(app, "flights")
        ended.append(refused)

    store_of(app).once("put_if_absent", "forgotten/", clone_meanwhile)
    forget_elsewhere(app, tmp_path)
    assert ended
    assert [snapshot.name for snapshot in list_snapshots(app.store, "flights")] == []
    make(app, "flights")
    check_forgotten(app)


def test_a_forget_is_refused_if_the_app_was_cloned_while_it_began_and_includes_the_clone_when_repeated(
    tmp_path: Path,
) -> None:
    app = aging_app()
    app.run(flights(20))
    store_of(app).once("put_if_absent", "forgetting.json", lambda: make(app, "flights"))
    with pytest.raises(Refused, match="was cloned as staging"):
        forget_elsewhere(app, tmp_path)
    forget_elsewhere(app, tmp_path)
    check_forgotten(app)


def test_a_clone_whose_pin_meets_the_beginning_of_a_forget_tries_no_other_names(tmp_path: Path) -> None:
    app = aging_app()
    app.run(flights(20))
    journal = ForgetJournal(ID, "flights", "ada@host", 1, "00", "digest")
    store_of(app).once("put_if_absent", "/snapshots/", lambda: begin_journal(app.store, "flights", journal))
    with store_of(app).requests() as requests, pytest.raises(Refused, match="forgetting keys of flights"):
        make(app, "flights")
    assert sum("put_if_absent flights/snapshots/" in request for request in requests) == 1
