"""A replica has every version of its app up to a named cut, and nothing that the app has deleted."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import ObjectNotFound, Refused, Usage
from slackwater.operations.disaster_recovery.replicate import Replicator, RoundResult
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.change.edit import edit
from slackwater.snapshot.cut import replicas
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.take.audit_log import because, record_operation
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, codec, history, keys
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.forgotten import empty_index
from slackwater.store.versions.manifest import AppInfo

from tests.operations.erasure.everything import occurrences
from tests.operations.failover import FailoverKafka, failover_app, failover_kafka
from tests.support.collecting import HOUR_MS, AgingStore, fresh, gc, keys_of, store_of, wait
from tests.support.histories import FlightsApp, flights, rows_of

LATER_MS = 2_000_000_000_000


def replicator(app: FlightsApp, target: ObjectStore) -> Replicator:
    return Replicator(app.store, target, app.name, "ada@host", failover_kafka(app))


def copy(app: FlightsApp, target: ObjectStore) -> RoundResult:
    return replicator(app, target).run_round()


def running() -> FlightsApp:
    app = failover_app()
    app.run(flights(30))
    app.send(*flights(6))
    app.step("legs")
    return app


def check_whole(app: FlightsApp, target: ObjectStore) -> None:
    """Check that the replica equals the app up to its cut, and that `verify` reports it as complete."""
    found = replicas.REPLICA_CUTS.newest(target, app.name)
    assert found is not None
    for stage, version in found.stages.items():
        assert rows_of(target, history.read(target, app.name, stage, version)) == rows_of(
            app.store, history.read(app.store, app.name, stage, version)
        )
    for ref in (app.name, f"{app.name}@{found.snapshot}"):
        report = verify(fresh(target), ref, now_ms=LATER_MS, deep=True)
        assert report.consistent, report.differences


def test_a_replica_has_every_version_and_verifies_with_its_in_flight_records() -> None:
    app, target = running(), AgingStore()
    done = copy(app, target)
    assert done.cut.stages == {stage: head.version for stage, head in app.heads.items()}
    assert not done.cut.lacks
    check_whole(app, target)
    kept = next(each for each in list_snapshots(target, app.name) if each.name == done.cut.snapshot)
    assert sum(each.rows for each in kept.channels) == 6
    for stage, head in app.heads.items():
        assert history.list_versions(target, app.name, stage) == tuple(range(1, head.version + 1))


def test_verifying_an_app_lists_its_replica_as_not_checked() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    clone(app.store, app.name, "copy", channels=failover_kafka(app), by="ada@host", now_ms=LATER_MS)
    left_out = verify(app.store, app.name, now_ms=LATER_MS, deep=True).not_looked_at
    assert left_out == (
        "objects that only other versions and snapshots use",
        f"the replica in {target.url}: slackwater verify {app.name} --store {target.url}",
    )
    assert verify(app.store, "copy", now_ms=LATER_MS).not_looked_at == (
        "contents of objects, versions before the last step, in-flight records in Kafka (--deep)",
        "objects that only other versions and snapshots use",
        f"the input archive of {app.name}, which replays of this clone read",
    )


def test_later_rounds_copy_only_new_objects() -> None:
    app, target = running(), AgingStore()
    counting = CountingStore(target)
    copies = Replicator(app.store, counting, app.name, "ada@host", failover_kafka(app))
    copies.run_round()
    before = {info.key: info.size_bytes for info in app.store.list(f"{app.name}/")}
    app.run(flights(20))
    new = {info.key: info.size_bytes for info in app.store.list(f"{app.name}/") if info.key not in before}
    counting.reset()
    done = copies.run_round()
    copied = {key: size for key, size in new.items() if "/stages/" in key}
    assert done.bytes == sum(copied.values())
    check_whole(app, target)
    again = copies.run_round()
    assert (again.objects, again.removed) == (0, 0)
    assert again.cut.stages == done.cut.stages


def test_a_replica_can_be_read_by_ref_and_follows_its_apps_collections() -> None:
    app, target = running(), AgingStore()
    copies = replicator(app, target)
    copies.run_round()
    pinned = pin_cut(
        app.store, resolve(app.store, app.name, now_ms=LATER_MS), "friday", by="ada@host", reader=app.kafka
    )
    app.run(flights(20))
    copies.run_round()
    assert resolve(target, f"{app.name}@friday", now_ms=LATER_MS).versions == pinned.stages
    wait(app, 3 * HOUR_MS)
    app.run(flights(10))
    gc(app, Retention(versions=2))
    done = copies.run_round()
    assert done.removed
    check_whole(app, target)
    for stage in app.heads:
        assert history.list_versions(fresh(target), app.name, stage) == history.list_versions(
            fresh(app.store), app.name, stage
        )
        prefix = keys.ssts(app.name, stage)
        assert keys_of(target, prefix) <= keys_of(store_of(app), prefix)
    assert resolve(target, f"{app.name}@friday", now_ms=LATER_MS).versions == pinned.stages


def test_a_replica_that_has_missed_a_collection_is_refused_and_unchanged() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    before = keys_of(target, "")
    app.run(flights(40))
    wait(app, 3 * HOUR_MS)
    app.run(flights(10))
    gc(app, Retention(versions=2))
    with pytest.raises(Refused, match=r"versions in between") as raised:
        copy(app, target)
    assert "another root" in raised.value.hint
    assert keys_of(target, "") == before


def test_a_target_that_is_no_replica_of_this_app_is_refused_and_unchanged() -> None:
    app, target = running(), AgingStore()
    apps.create_app(target, AppInfo("flights", 7))
    with pytest.raises(Refused, match="already exists and is not a replica"):
        copy(app, target)
    with pytest.raises(Usage, match="its own store root"):
        copy(app, app.store)
    target, other = AgingStore(), running()
    copy(app, target)
    store_of(other)
    with pytest.raises(Refused, match="is a replica of"):
        copy(other, target)
    info = apps.read_app(other.store, other.name)
    other.store.put(keys.app_info(other.name), codec.encode(replace(info, created_ms=7)))
    with pytest.raises(Refused, match=f"is a replica of another app 'flights': the one in {app.store.url}, created"):
        copy(other, target)


def test_a_replica_with_foreign_writes_is_detected_and_left_alone() -> None:
    app, target = running(), AgingStore()
    copy(app, target)
    amend(target, (app.name, "carriers"), Amendment("rescale"), by="eve@host", now_ms=LATER_MS)
    before = keys_of(target, "")
    with pytest.raises(Refused, match="something else wrote to the replica"):
        copy(app, target)
    app.run(flights(10))
    with pytest.raises(Refused, match="something else wrote to the replica"):
        copy(app, target)
    assert keys_of(target, "") == before


def test_a_root_inside_the_other_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "primary")
    app = FlightsApp(store, FailoverKafka())
    app.run(flights(5))
    with pytest.raises(Refused, match="lies inside the store root"):
        copy(app, LocalStore(tmp_path / "primary" / "replica"))
    target = LocalStore(tmp_path / "replica")
    copy(app, target)
    check_whole(app, target)


def test_archives_and_protection_are_replicated_and_removed_with_the_apps() -> None:
    app, target = running(), AgingStore()
    kept = {f"{app.name}/input/flights/01.parquet": b"records", f"{app.name}/input/flights/index/1.json": b"{}"}
    protected = keys.protected(app.name)
    for key, data in (*kept.items(), (protected, b"{}")):
        app.store.put(key, data)
    with target.requests() as made:
        copy(app, target)
    put = [each.split()[1] for each in made if each.startswith("put ") and "/input/" in each]
    assert put == list(kept)
    assert {key: target.get(key) for key in kept} == kept
    assert target.get(protected) == b"{}"
    first, second = kept
    app.store.delete(first)
    app.store.put(protected, b'{"by":"ada"}')
    copy(app, target)
    assert target.get(protected) == b'{"by":"ada"}'
    app.store.delete(protected)
    app.store.put(f"{app.name}/input/flights/index/2.json", b"{}")
    app.store.delete(second)
    copy(app, target)
    assert keys_of(target, f"{app.name}/input/") == {f"{app.name}/input/flights/index/2.json"}
    assert keys_of(target, protected) == set()


def test_rewritten_objects_of_a_forget_are_copied_before_the_old_ones_are_deleted() -> None:
    app, target = running(), AgingStore()
    copies = replicator(app, target)
    copies.run_round()
    old = app.heads["carriers"].ssts[0].object
    new = old.replace(".parquet", "-rest.parquet")
    app.store.put(new, b"the rest")
    index = f"{app.name}/forgotten/{1:020}.json"
    said = codec.encode(replace(empty_index(app.name), number=1))
    app.store.put(index, said)
    app.store.delete(old)
    with target.requests() as made:
        copies.run_round()
    put = [each.split()[1] for each in made if each.startswith(("put ", "put_if_absent ", "delete "))]
    assert put.index(new) < put.index(index) < put.index(old)
    assert target.get(new) == b"the rest"
    with pytest.raises(ObjectNotFound):
        target.get(old)
    other = AgingStore()
    copy(app, other)  # objects that were deleted do not hold up a new replica
    assert other.get(index) == said


@pytest.mark.parametrize(("verb", "part"), [("get", "/sst/"), ("list", "/sst/"), ("get", "/manifest")])
def test_a_forget_during_a_round_does_not_damage_the_replica(verb: str, part: str, tmp_path: Path) -> None:
    app, target = running(), AgingStore()
    asked = RequestedKeys.parse(("aircraft=N003",))
    cache = SstCache(tmp_path, 1 << 30)
    store_of(app).once(verb, part, lambda: forget(app.store, cache, app.name, asked, by="ada@host"))
    copies = replicator(app, target)
    copies.run_round()
    assert verify(fresh(target), app.name, now_ms=LATER_MS, deep=True).consistent
    copies.run_round()
    assert [name for name, _ in occurrences(target, "N003") if "/sst/" in name] == []
    assert verify(fresh(target), app.name, now_ms=LATER_MS, deep=True).consistent


def test_a_continuous_replica_deletes_what_a_forget_replaced_whenever_its_rounds_run(tmp_path: Path) -> None:
    """Sixty rounds in one process, ten minutes apart, with four forgets, each during a round."""
    app, target = failover_app(), AgingStore()
    cache, copies = SstCache(tmp_path, 1 << 30), replicator(app, target)
    others = [flight for flight in flights(8) if flight.tail != "N003"]
    orphan = keys.sst(app.name, "aircraft", "01JD0000000000000000000000")
    meanwhile = iter((("put_if", "/forgotten/"), ("delete", "/snapshots/"), ("list", "/log/"), ("delete", "/sst/")))

    def in_between() -> None:
        # An object of a running batch: no version names it, and gc deletes it within the hour.
        old = next(key for key, _ in occurrences(target, "N003") if "/aircraft/sst/" in key)
        app.store.put(orphan, target.get(old))
        copies.run_round()

    for number in range(60):
        app.run(others if number % 12 else flights(8))
        if number == 3:
            app.send(*flights(8))
            app.step("legs")
            pin_cut(app.store, resolve(app.store, app.name, now_ms=LATER_MS), "kept", reader=app.kafka)
            app.step_all()
        if number % 12 == 6 and number < 48:
            assert occurrences(target, "N003")
            store_of(app).once(*next(meanwhile), in_between)
            forget(app.store, cache, app.name, RequestedKeys.parse(("aircraft=N003",)), by="ada@host")
            for stage in app.heads:
                app.claim(stage)
        if number % 12 == 11:
            gc(app, Retention(versions=10_000))
        copies.run_round()
        wait(app, 10 * 60_000)
        if number % 12 == 11 and number < 48:
            assert occurrences(app.store, "N003") == occurrences(target, "N003") == []
    check_whole(app, target)


def test_masked_texts_of_edits_replace_those_of_a_replica_whatever_their_length(tmp_path: Path) -> None:
    app, target = running(), AgingStore()
    cache, who = SstCache(tmp_path, 1 << 30), "ada@host"
    for length in (10, 11, 12):  # the replacement text has the length of one of them
        record_operation(app.store, app.name, "edit", "N003".ljust(length, "!"), who)
        sql = f"UPDATE aircraft SET flights = flights + {length} WHERE tail = 'N003'"
        with because("N003".ljust(length, "!")):
            edit(app.store, cache, app.name, "aircraft", "N003".ljust(length, "?"), sql=sql, by=who)
    copies = replicator(app, target)
    copies.run_round()
    asked = RequestedKeys.parse(("aircraft=N003",))
    forget(app.store, cache, app.name, asked, by=who)
    copies.run_round()
    copies.run_round()
    assert occurrences(app.store, "N003") == []
    assert [
        name for name, _ in occurrences(target, "N003") if "/snapshots/" not in name
    ] == []  # what is in flight stays
    assert verify(fresh(target), app.name, now_ms=LATER_MS, deep=True).consistent


def test_a_clones_replica_also_loses_forgotten_keys_in_shared_objects(tmp_path: Path) -> None:
    app, target = failover_app(), AgingStore()
    app.run(flights(30))
    clone(app.store, app.name, "copy", channels=failover_kafka(app), by="ada@host", now_ms=LATER_MS)
    copies = Replicator(app.store, target, "copy", "ada@host", failover_kafka(app))
    copies.run_round()
    asked = RequestedKeys.parse(("aircraft=N003",))
    forget(app.store, SstCache(tmp_path, 1 << 30), app.name, asked, by="ada@host")
    copies.run_round()
    assert occurrences(target, "N003") == []
    assert verify(fresh(target), "copy", now_ms=LATER_MS, deep=True).consistent
    copy(app, target)  # the clone's SSTs are there, but its source is not there yet
    check_whole(app, target)


def test_a_name_that_belongs_to_another_app_in_the_target_is_kept() -> None:
    target, asked = AgingStore(), {}
    for folder in ("one", "two", "shop"):
        app = FlightsApp(AgingStore(), FailoverKafka(), folder)
        app.run(flights(5))
        asked[folder] = Replicator(app.store, target, folder, "ada@host", failover_kafka(app))
        if folder != "shop":
            apps.PROMOTION_OUTCOMES.put(app.store, apps.PromotionOutcome("shop", 1, folder, "shop", "ada@host", 1))
    asked["shop"].run_round()
    with pytest.raises(Refused, match="another app of that name"):
        asked["one"].run_round()  # it would be called as that one is
    target.delete(keys.app_info("shop"))
    asked["one"].run_round()
    with pytest.raises(Refused, match=r"cannot replicate two: it took part in promotions of the name 'shop', and"):
        asked["two"].run_round()
    assert apps.folder_of(target, "shop") == "one"
    asked["one"].run_round()
