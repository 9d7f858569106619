"""Damaged objects on the command line: one sentence with the object and the next step; undamaged parts stay usable."""

from collections.abc import Callable
from pathlib import Path

import pytest
from slackwater.cli import main
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import keys
from typer.testing import CliRunner, Result

from tests.support.histories import Flight, FlightsApp, Kafka, copied, flights

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app with good flights, a snapshot, and a bad flight after it."""
    app = FlightsApp(open_store(str(tmp_path_factory.mktemp("whole") / "store")), Kafka())
    app.run(flights(30))
    pin_cut(app.store, resolve(app.store, "flights", now_ms=app.clock.now_ms), "good")
    app.run([Flight("N001", "C1", 5000)])
    return app


@pytest.fixture
def app(whole: FlightsApp, tmp_path: Path) -> FlightsApp:
    return copied(whole, open_store(str(tmp_path / "store")))


def slackwater(*words: str) -> Result:
    return CliRunner().invoke(main.app, words, catch_exceptions=False)


def check_refused(result: Result, key: str, *said: str) -> None:
    assert (result.exit_code, result.stdout) == (1, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert key in error
    assert all(word in result.stderr for word in said)


def flipped(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


SST_DAMAGE: dict[str, Callable[[ObjectStore, str, str], None]] = {
    "a byte that is another": lambda store, key, _: store.put(key, flipped(store.get(key))),
    "its end gone": lambda store, key, _: store.put(key, store.get(key)[:-10]),
    "nothing in it": lambda store, key, _: store.put(key, b""),
    "another SST's bytes": lambda store, key, other: store.put(key, store.get(other)),
    "no object": lambda store, key, _: store.delete(key),
}


@pytest.mark.parametrize("damage", SST_DAMAGE)
def test_a_damaged_sst_is_named_and_other_tables_are_read(app: FlightsApp, damage: str) -> None:
    key = app.heads["aircraft"].ssts[0].object
    SST_DAMAGE[damage](app.store, key, app.heads["carriers"].ssts[0].object)
    check_refused(slackwater("query", "flights", "SELECT tail FROM aircraft"), key, "restore the object")
    check_refused(slackwater("query", "flights", "FROM carriers JOIN aircraft USING (delay)"), key)

    assert "C1" in slackwater("query", "flights", "FROM carriers").stdout
    assert "C1" in slackwater("get", "flights/carriers", "C1").stdout
    assert slackwater("status", "flights").exit_code == 0
    assert slackwater("log", "flights").exit_code == 0
    found = slackwater("bisect", "flights", "--where", "SELECT carrier FROM carriers WHERE delay > 1000")
    assert "carriers v5 is the first bad commit" in found.stdout


@pytest.mark.parametrize("damage", SST_DAMAGE)
def test_verify_finds_a_damaged_sst_and_needs_deep_only_if_the_size_is_right(app: FlightsApp, damage: str) -> None:
    key = app.heads["aircraft"].ssts[0].object
    SST_DAMAGE[damage](app.store, key, app.heads["carriers"].ssts[0].object)
    deep = slackwater("verify", "flights", "--deep")
    assert deep.exit_code == 1
    assert key in deep.stdout
    quick = slackwater("verify", "flights")
    assert (quick.exit_code == 1) == (damage != "a byte that is another")
    assert slackwater("verify", "flights@good", "--deep").exit_code == 0


MANIFEST_DAMAGE: dict[str, tuple[Callable[[bytes, bytes, bytes], bytes], str]] = {
    "a byte that is another": (lambda data, _stage, _version: flipped(data), "was changed: it does not"),
    "its end gone": (lambda data, _stage, _version: data[:-10], "is not a readable"),
    "nothing in it": (lambda _data, _stage, _version: b"", "is not a readable"),
    "a newer format": (
        lambda data, _stage, _version: data.replace(b'"format":1', b'"format":2', 1),
        "has format 2; this slackwater reads formats up to 1",
    ),
    "another stage's": (lambda _data, stage, _version: stage, "holds the manifest of flights/legs"),
    "another version's": (lambda _data, _stage, version: version, "holds the manifest of flights/aircraft v3"),
}


@pytest.fixture(params=MANIFEST_DAMAGE)
def manifest_damage(request: pytest.FixtureRequest, app: FlightsApp) -> tuple[str, str]:
    """Damage the manifest of a middle stage; return its key and the expected message."""
    head = app.heads["aircraft"].version
    key = keys.manifest("flights", "aircraft", head)
    damage, said = MANIFEST_DAMAGE[request.param]
    others = (keys.manifest("flights", "legs", head), keys.manifest("flights", "aircraft", 3))
    app.store.put(key, damage(app.store.get(key), *map(app.store.get, others)))
    return key, said


def test_a_damaged_manifest_is_named_and_other_stages_are_read(manifest_damage: tuple[str, str]) -> None:
    key, said = manifest_damage
    by_itself = "can be read one by one, as flights/STAGE"
    check_refused(slackwater("query", "flights", "FROM aircraft"), key, said, by_itself)
    check_refused(slackwater("get", "flights/aircraft", "N001"), key, said)
    check_refused(slackwater("query", "flights/aircraft", "FROM aircraft"), key, said)

    alone = slackwater("query", "flights/carriers", "SELECT carrier, delay FROM carriers WHERE delay > 1000")
    assert alone.exit_code == 0
    assert "C1" in alone.stdout
    assert "note: stages are damaged, so only carriers is shown: " in alone.stderr
    assert key in alone.stderr
    for ref in ("flights/carriers", "flights/carriers@v4", "flights/carriers@~1", "flights/carriers@now"):
        one = slackwater("get", ref, "C1")
        assert one.exit_code == 0
        assert key in one.stderr
    before = slackwater("query", "flights@good", "FROM aircraft")
    assert (before.exit_code, before.stderr) == (0, "")


def test_status_shows_the_readable_stages_and_names_the_damaged_ones(manifest_damage: tuple[str, str]) -> None:
    key, said = manifest_damage
    for words in (["status", "flights"], ["status"]):
        found = slackwater(*words)
        assert found.exit_code == 1
        assert all(stage in found.stdout for stage in ("legs", "carriers"))
        assert key in found.stderr
        assert said in found.stderr


def test_verify_names_the_damaged_manifest(manifest_damage: tuple[str, str]) -> None:
    key, _ = manifest_damage
    for deep in ((), ("--deep",)):
        found = slackwater("verify", "flights", *deep)
        assert found.exit_code == 1
        assert key in found.stdout


def test_an_app_with_a_damaged_identity_does_not_hide_other_apps(app: FlightsApp) -> None:
    FlightsApp(app.store, app.kafka, "other")
    app.store.put(keys.app_info("flights"), b"{")
    found = slackwater("status")
    assert found.exit_code == 1
    assert "other" in found.stdout
    assert keys.app_info("flights") in found.stderr
    check_refused(slackwater("status", "flights"), keys.app_info("flights"), "restore the object")
