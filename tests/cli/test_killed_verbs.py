"""Verbs that are killed between any two requests and repeated: they finish, and then print "done already".

Each verb is killed before some of its requests to the store and to Kafka, in `make test-all` before each, and after the
last one. After the repeat the app is as if nobody had been killed; nothing is left but what gc takes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from slackwater.cli import main
from slackwater.errors import Refused, Unavailable
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.kafka import channels
from slackwater.snapshot.cut.in_flight import InFlight, in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.versions import apps, history
from typer.testing import CliRunner, Result

from tests.models.profiles import crash_points
from tests.support.collecting import HOUR_MS, AgingStore, Killed, StoreClock, aging_app, keys_of
from tests.support.histories import STAGES, FlightsApp, Kafka, flights, rows_of

pytestmark = pytest.mark.usefixtures("isolated")


class KilledKafka(Kafka):
    """Kafka whose requests are counted together with the store's."""

    def __init__(self, store: AgingStore) -> None:
        super().__init__()
        self.store = store

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str) -> None:
        self.store.before("kafka", topic)
        super().check_topic(topic, offsets, topic_id)

    def create(self, topic: str, partitions: int = 2) -> None:
        self.store.before("kafka", topic)
        super().create(topic, partitions)

    def copy(
        self, in_flight: InFlight, topic: str, app: str, kept: object = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        found = super().copy(in_flight, topic, app, kept)
        # The messages are there, and nobody has heard where.
        self.store.before("kafka", topic)
        return found

    def commit_positions(self, app: str, stage: str, positions: Any) -> None:
        self.store.before("kafka", stage)
        super().commit_positions(app, stage, positions)


def app_of() -> FlightsApp:
    """Return an app with a snapshot, records in flight, and SSTs to merge."""
    store = AgingStore()
    app = aging_app(store=store)
    app.kafka.__class__ = KilledKafka
    app.kafka.store = store  # type: ignore[attr-defined]
    app.run(flights(30))
    app.send(*flights(6))
    app.step("legs")
    pin_cut(store, resolve(store, "flights", now_ms=app.clock.now_ms), "good", by="ada@host", reader=app.kafka)
    return app


def gone_on() -> FlightsApp:
    """Return the app with batches after its snapshot."""
    app = app_of()
    app.run(flights(20, delay=9))
    return app


def with_old_history() -> FlightsApp:
    """Return the app with a history that is old enough to be collected."""
    app = app_of()
    assert isinstance(app.clock, StoreClock)
    app.clock.wait(2 * HOUR_MS)
    app.run(flights(40))
    app.clock.wait(2 * HOUR_MS)
    return app


@contextmanager
def command_line(app: FlightsApp, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let verbs use the app's store and Kafka."""
    patch.setattr("slackwater.store.objects.open.open_store", lambda _root, **_settings: app.store)
    patch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    patch.setenv("SLACKWATER_STORE", "memory")
    patch.setenv("SLACKWATER_KAFKA", "memory:1")
    yield


def slackwater(*words: str) -> Result:
    result = CliRunner().invoke(main.app, words)
    assert "this is a bug" not in result.output, result.output
    return result


def running(app: FlightsApp) -> Callable[[str, str], None]:
    """Run the app's stages while a verb waits: at each poll for requests every stage makes a batch."""
    busy = False

    def before(verb: str, key: str) -> None:
        nonlocal busy
        if busy or verb != "list" or not key.endswith("/requests/") or not open_requests_of(app):
            return
        busy = True
        try:
            app.step_all()
        finally:
            busy = False

    return before


def open_requests_of(app: FlightsApp) -> bool:
    return bool(keys_of(app.store, "flights/requests/"))  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[[], FlightsApp], tuple[str, ...], str]] = {
    "clone": (app_of, ("clone", "flights", "staging"), "done already: staging in"),
    "clone of a snapshot": (app_of, ("clone", "flights@good", "staging"), "done already: staging in"),
    "instant": (app_of, ("snapshot", "take", "flights", "held", "--instant"), "done already: snapshot flights@held"),
    "rm": (app_of, ("snapshot", "rm", "flights", "good"), "done already: flights@good was removed"),
    "rescale": (app_of, ("rescale", "flights/carriers", "--partitions", "3"), "done already: flights/carriers has 3"),
    "compact": (
        app_of,
        ("compact", "flights", "--full", "--stage", "carriers"),
        "done already: nothing to merge in flights; merged carriers by v",
    ),
    "rewind": (gone_on, ("rewind", "flights@good"), "done already: flights has the state of flights@good"),
    "reset": (
        app_of,
        ("reset", "flights", "--topic", "flights", "--shift-by", "-2"),
        "done already: flights continues at these offsets",
    ),
    "edit": (
        app_of,
        ("edit", "flights/carriers", "--sql", "UPDATE carriers SET flights = flights + 1"),
        "done already: flights/carriers v",
    ),
    "protect": (app_of, ("protect", "flights"), "done already: flights is protected by "),
    "gc": (with_old_history, ("gc", "flights", "--versions", "1"), "collected nothing of flights"),
}


def described(app: FlightsApp) -> dict[str, Any]:
    """Return the content of the store without ids, times and offsets."""
    store = app.store
    found: dict[str, Any] = {}
    for name in apps.list_apps(store):
        stages = history.list_stages(store, name)
        heads = {stage: history.head(store, name, stage) for stage in stages}
        cut = resolve(store, name, now_ms=app.clock.now_ms)
        found[name] = {
            "versions": {stage: history.list_versions(store, name, stage) for stage in stages},
            "rows": {stage: rows_of(store, head) for stage, head in heads.items() if head is not None},
            "partitions": {s: head.table.partitions for s, head in heads.items() if head is not None and head.table},
            "in flight": [(f.channel, f.receiver, f.rows, f.counts) for f in in_flight(store, cut)],
            "snapshots": [(s.name, s.kind, s.stages, s.clone) for s in list_snapshots(store, name)],
            "requests": open_requests(store, name),
            "operations": sorted(
                {(done.verb, done.detail.replace(store.url, "")) for done in list_operations(store, name)}
            ),
        }
    found["groups"] = sorted(app.kafka.groups)
    return found


def check_whole(app: FlightsApp) -> None:
    for name in apps.list_apps(app.store):
        report = verify(app.store, name, now_ms=app.clock.now_ms, deep=True, reader=None)
        assert [difference.message for difference in report.differences] == []


def no_litter(app: FlightsApp) -> None:
    """Check that the next collection deletes all leftovers, and a second one nothing."""
    store = app.store
    assert isinstance(store, AgingStore)
    assert isinstance(app.clock, StoreClock)
    app.clock.wait(3 * HOUR_MS)
    for stage in STAGES:
        app.claim(stage)
    app.clock.wait(3 * HOUR_MS)
    for name in apps.list_apps(store):
        collect(store, name, Retention(), by="test")
    named = {key for name in apps.list_apps(store) for s in list_snapshots(store, name) for key in s.object_keys}
    kept = {key for key in keys_of(store) if "/snapshots/" in key and key.endswith(".parquet")}
    assert kept == named


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    # Killed anywhere, a collection is tested by itself, too (snapshot/gc/test_collect.py): it makes the most requests.
    "case",
    [pytest.param(case, marks=[pytest.mark.soak] if case == "gc" else []) for case in CASES],
)
def test_a_verb_that_is_killed_anywhere_finishes_when_it_is_typed_again(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, words, done_already = CASES[case]
    undisturbed = build()
    with command_line(undisturbed, monkeypatch), store_of(undisturbed).requests() as made:
        result = slackwater(*words)
    assert result.exit_code == 0, result.output
    assert "done already" not in result.output
    expected = described(undisturbed)
    assert len(made) > 3
    for point in crash_points(len(made)):
        app = build()
        where = f"killed before request {point}: {made[point] if point < len(made) else 'the end'}"
        with command_line(app, monkeypatch):
            with store_of(app).death_after(point):
                try:
                    first = slackwater(*words)
                    assert point == len(made), first.output
                except Killed:
                    pass
            again = slackwater(*words)
            assert again.exit_code == 0, f"{where}\n{again.output}"
            if point == len(made):
                assert done_already in again.stdout, where
            thrice = slackwater(*words)
            assert (thrice.exit_code, done_already in thrice.stdout) == (0, True), f"{where}\n{thrice.output}"
        found = described(app)
        if case in ("compact", "gc"):
            # Their log tells what each call did, and each was another one. How many merges that end together are one
            # version is a matter of time.
            for each in (found, expected):
                each["flights"].pop("operations", None)
                each["flights"].pop("versions", None)
        assert found == expected, where
        check_whole(app)
        no_litter(app)


def with_clone() -> FlightsApp:
    """Return an app that continued after it was cloned, as `staging`, long ago."""
    app = app_of()
    clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)
    app.run(flights(20, delay=9))
    app.step_all()
    assert isinstance(app.clock, StoreClock)
    app.clock.wait(2 * HOUR_MS)
    return app


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", ["refresh", "rm"])
@pytest.mark.parametrize("broken", [Killed(), Unavailable("S3 is away"), Refused("S3 answered 400")], ids=str)
def test_a_clone_goes_and_comes_back_by_the_same_command_after_any_request(
    verb: str, broken: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.operations.maintenance.removal.horizon.SETTLED_MS", 0)
    monkeypatch.setattr(KilledKafka, "kafka", SimpleNamespace(delete_groups=lambda _groups: None), raising=False)
    words, undisturbed = ("clone", verb, "staging"), with_clone()
    with command_line(undisturbed, monkeypatch), store_of(undisturbed).requests() as made:
        result = slackwater(*words)
    assert result.exit_code == 0, result.output
    expected = described(undisturbed)
    for point in crash_points(len(made)):
        app = with_clone()
        with command_line(app, monkeypatch):
            with store_of(app).death_after(point, broken), suppress(Killed):
                slackwater(*words)
            again = slackwater(*words)
            assert again.exit_code == 0, f"before request {point}: {made[point]}\n{again.output}"
        found = described(app)
        for each in (*found.values(), *expected.values()):
            if isinstance(each, dict):
                each.pop("operations", None)  # done twice where the first call ended, and nobody heard
        assert found == expected, f"before request {point}: {made[point]}"
        check_whole(app)


def store_of(app: FlightsApp) -> AgingStore:
    assert isinstance(app.store, AgingStore)
    return app.store


@pytest.mark.timeout(900)
def test_a_take_that_is_killed_while_the_app_answers_is_joined_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("snapshot", "take", "flights", "live", "--timeout", "20")
    undisturbed = app_of()
    work, made = running(undisturbed), 0

    def count(verb: str, key: str) -> None:
        nonlocal made
        made += 1
        work(verb, key)

    with command_line(undisturbed, monkeypatch):
        store_of(undisturbed).before = count
        assert slackwater(*words).exit_code == 0
    for point in crash_points(made, 1):
        app = app_of()
        store, left, work = store_of(app), point, running(app)

        def before(verb: str, key: str, work: Callable[[str, str], None] = work) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            work(verb, key)

        ended = True
        with command_line(app, monkeypatch):
            store.before = before
            try:
                result = slackwater(*words)
            except Killed:
                ended = False
            left, store.before = -1, running(app)
            if ended:
                assert result.exit_code == 0, result.output
            again = slackwater(*words)
            assert again.exit_code == 0, again.output
            assert not ended or "done already: snapshot flights@live is the one that you took" in again.stdout
            assert "done already" in slackwater(*words).stdout
            store.before = lambda verb, key: None
        assert [s.name for s in list_snapshots(store, "flights") if s.kind == "markers"] == ["live"]
        assert open_requests(store, "flights") == ()
        assert [done.verb for done in list_operations(store, "flights")] == ["snapshot take"]
        check_whole(app)
    assert ended


def test_a_misspelled_name_is_not_taken_for_one_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of()
    with command_line(app, monkeypatch):
        assert slackwater("snapshot", "rm", "flights", "good").exit_code == 0
        assert "done already" in slackwater("snapshot", "rm", "flights", "good").stdout
        wrong = slackwater("snapshot", "rm", "flights", "goood")
        assert wrong.exit_code == 1
        assert "no snapshot of app 'flights' named 'goood'" in wrong.stderr


def test_a_name_that_was_taken_long_ago_or_by_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of()
    with command_line(app, monkeypatch):
        taken = slackwater("snapshot", "take", "flights", "good", "--instant")
    assert "done already" in taken.stdout or "is pinned" in taken.stdout  # of the very same versions
    app.step("legs")
    with command_line(app, monkeypatch):
        others = slackwater("snapshot", "take", "flights", "good", "--instant")
    assert others.exit_code == 1
    assert "exists already" in others.stderr


def test_pins_of_clones_that_never_came_to_be_go_with_the_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call died after its pin, and the app continued: the next call pins another moment."""
    app = app_of()
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "clone-staging", "clone", clone="staging")
    app.step_all()
    with command_line(app, monkeypatch):
        assert slackwater("clone", "flights", "staging").exit_code == 0
    origin = apps.read_app(app.store, "staging").origin
    assert origin is not None
    assert [s.name for s in list_snapshots(app.store, "flights") if s.clone] == [origin.snapshot]
