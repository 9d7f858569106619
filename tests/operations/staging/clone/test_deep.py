"""Deep clones: they do not refer to their source, which may be deleted."""

from pathlib import Path

import pytest
from slackwater.errors import Corruption, Forbidden, Refused, Usage
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import ClonePlan, CloneTerms
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import StoreWrapper
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import AppInfo
from slackwater.store.versions.side_tables import all_ssts

from tests.crash.points import Killed, killed_at_each_call
from tests.support.collecting import AgingStore, keys_of, store_of
from tests.support.histories import STAGES, FlightsApp, Kafka, copied, flights, rows_of

DEEP = CloneTerms(deep=True, owner="ada@host")


def source_app(store: ObjectStore) -> FlightsApp:
    """Return an app with eight SSTs, of which three are merged, and rows in flight."""
    app = FlightsApp(store, Kafka())
    app.run(flights(30))
    app.compact("aircraft")
    app.send(*flights(6))
    app.step("legs")
    return app


def deep(app: FlightsApp, target: ObjectStore, **more: object) -> ClonePlan:
    if isinstance(app.store, MemoryStore):
        app.store._stores_by_root[target.url] = target  # else nobody finds it by its name
    arguments = {"terms": DEEP, "channels": app.kafka, "by": "ada@host", "now_ms": app.clock.now_ms}
    return clone(app.store, "flights", "copy", target_store=target, **arguments | more)  # type: ignore[arg-type]


def test_a_deep_clone_works_without_its_source_and_does_not_refer_to_it(tmp_path: Path) -> None:
    app = source_app(LocalStore(tmp_path / "production"))
    other = LocalStore(tmp_path / "elsewhere")
    plan = deep(app, other)
    assert plan.copies == {s: sum(sst.bytes for sst in app.heads[s].ssts) for s in ("aircraft", "carriers")}
    assert list_snapshots(app.store, "flights") == (), "nothing is pinned there"
    named = [info.key for info in other.list("") if app.store.url.encode() in other.get(info.key)]
    assert [key for key in named if "/log/" not in key] == [], "but who did it, and from where"
    undisturbed = copied(app, LocalStore(tmp_path / "undisturbed"))
    (tmp_path / "production").rename(tmp_path / "gone")
    other = LocalStore(tmp_path / "elsewhere")
    report = verify(other, "copy", now_ms=app.clock.now_ms, deep=True, reader=None)
    assert [difference.message for difference in report.differences] == []
    staging = FlightsApp(other, app.kafka, "copy", clock=app.clock)
    undisturbed.kafka = app.kafka
    for each in (undisturbed, staging):
        each.step_all()
    assert staging.state == undisturbed.state
    assert rows_of(other, staging.heads["carriers"]) == undisturbed.state["carriers"]


def test_a_repeated_deep_clone_reports_done_and_a_different_one_is_refused() -> None:
    app, other = source_app(MemoryStore()), MemoryStore()
    deep(app, other)
    assert deep(app, other).done
    with pytest.raises(Refused, match=r"exists already under .*, a clone of flights@…, a deep clone"):
        deep(app, other, terms=CloneTerms())


def test_a_killed_deep_clone_is_invisible_and_continues_with_the_copies_made() -> None:
    def build() -> tuple[FlightsApp, AgingStore]:
        return source_app(AgingStore()), AgingStore()

    def both(world: tuple[FlightsApp, AgingStore]) -> tuple[AgingStore, AgingStore]:
        return store_of(world[0]), world[1]

    copied_keys: set[str] = set()
    for (app, other), ended in killed_at_each_call("clone --deep", build, lambda world: deep(*world), both):
        before = {key: other.get(key) for key in keys_of(other) if "/sst/" in key}
        if ended:
            copied_keys = {*before}
        assert apps.list_apps(other) in ((), ("copy",))
        if apps.list_apps(other):
            assert {
                s: history.find(other, "copy", s, v) is not None for s, v in app_cut(other).items()
            } == dict.fromkeys(STAGES, True)
        with other.requests() as again:
            deep(app, other)
        assert not [key for key in before if f"put {key}" in again], (
            "what is there with the right checksum is passed over"
        )
        assert len([key for key in keys_of(other) if "/sst/" in key]) == len(copied_keys)
        assert list_snapshots(app.store, "flights") == ()
        assert apps.find_clone_journal(other, "copy") is None
        staging = FlightsApp(other, app.kafka, "copy", clock=app.clock)
        for each in (app, staging):
            each.step_all()
        assert staging.state == app.state


def app_cut(store: ObjectStore) -> dict[str, int]:
    origin = apps.read_app(store, "copy").origin
    assert origin is not None
    return origin.cut


def test_a_damaged_copy_is_rewritten_and_a_damaged_source_is_refused() -> None:
    app, other = source_app(AgingStore()), AgingStore()
    other.once("put_if_absent", "/channels.json", lambda: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        deep(app, other)
    key = min(key for key in keys_of(other) if "/sst/" in key)
    good = other.get(key)
    other.put(key, bytes(len(good)))
    deep(app, other)
    assert other.get(key) == good
    damaged, nowhere = source_app(AgingStore()), AgingStore()
    sst = damaged.heads["carriers"].ssts[0]
    damaged.store.put(sst.object, bytes(sst.bytes))
    with pytest.raises(Corruption, match="expected checksum"):
        deep(damaged, nowhere)
    assert apps.list_apps(nowhere) == ()


def test_an_app_with_the_sources_name_in_the_target_root_can_be_collected() -> None:
    """Copies are stored under the clone's name, so another app may have the source's name."""
    app, other = source_app(AgingStore()), AgingStore()
    namesake = FlightsApp(other, Kafka(), clock=app.clock)
    namesake.run(flights(10))
    deep(app, other)
    other.clock_ms += 10**8
    collect(other, "flights", Retention(versions=1), by="t")
    for stage, version in app_cut(other).items():
        for sst in all_ssts(history.read(other, "copy", stage, version)):
            assert sst.root == ""
            assert sst.object.startswith(f"copy/stages/{stage}/sst/")
            assert len(other.get(sst.object)) == sst.bytes


class ReadOnly(StoreWrapper):
    """A store that allows only reads."""

    def put(self, key: str, data: bytes) -> None:
        raise Forbidden(f"no right to put {key}")

    def put_if_absent(self, key: str, data: bytes) -> None:
        raise Forbidden(f"no right to put {key}")

    def delete(self, key: str) -> None:
        raise Forbidden(f"no right to delete {key}")


def test_without_write_access_to_the_source_a_deep_clone_is_suggested_and_works() -> None:
    app, other = source_app(MemoryStore()), MemoryStore()
    before = keys_of(app.store)  # type: ignore[arg-type]
    app.store = ReadOnly(app.store)
    with pytest.raises(Forbidden, match=r"the moment of flights cannot be pinned under .*no right to put") as refused:
        deep(app, other, terms=CloneTerms())
    assert "--deep --to ROOT" in refused.value.hint
    assert keys_of(other) == set()
    deep(app, other)
    assert keys_of(app.store._inner) == before  # type: ignore[arg-type]
    assert apps.list_apps(other) == ("copy",)


@pytest.mark.parametrize(
    ("source", "target", "error", "words"),
    [
        ("a", "a", Usage, "--deep copies everything into another store root"),
        ("a", "a/b", Refused, "a/b lies inside the store root .*/a"),
        ("a/b", "a", Refused, "a/b lies inside the store root .*/a"),
    ],
)
def test_a_root_inside_the_other_is_refused(
    tmp_path: Path, source: str, target: str, error: type[Exception], words: str
) -> None:
    app = source_app(LocalStore(tmp_path / source))
    with pytest.raises(error, match=words):
        deep(app, LocalStore(tmp_path / target))


def test_a_root_inside_an_app_of_a_third_root_is_refused(tmp_path: Path) -> None:
    archive = LocalStore(tmp_path / "archive")
    apps.create_app(archive, AppInfo("flights-2026", 1))
    app = source_app(LocalStore(tmp_path / "production"))
    for terms in (CloneTerms(deep=True), CloneTerms()):
        with pytest.raises(
            Refused, match="archive/flights-2026 lies inside the app 'flights-2026' of the root"
        ) as said:
            deep(app, LocalStore(tmp_path / "archive" / "flights-2026"), terms=terms)
        assert said.value.hint == "choose a root outside that app's folder"
    assert [info.key for info in archive.list("")] == ["flights-2026/app.json"]
