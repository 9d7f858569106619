"""The status of many apps is read concurrently, with few requests for each; a damaged app does not hide the others."""

from slackwater.snapshot.status.overview import overview, overviews
from slackwater.snapshot.under_way.runners import HEARTBEATS
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import keys

from tests.snapshot.wide import Rounds, many_apps

APPS = 64


def unknown(_topic: object) -> None:
    return None


def test_many_apps_are_read_concurrently() -> None:
    memory, rounds = MemoryStore(), Rounds()
    many_apps(memory, APPS)
    store = CountingStore(memory, rounds)
    found, damaged = overviews(store, None, unknown)
    assert len(found) == APPS
    assert not damaged
    assert store.requests == 1 + 8 * APPS
    # 32 apps at a time make 17 rounds; a busy machine splits some of them.
    assert rounds.count < 2 * APPS


def test_an_app_that_does_not_run_costs_six_requests() -> None:
    memory = MemoryStore()
    for name in many_apps(memory, 2):
        for beat in HEARTBEATS.listed(memory, name):
            memory.delete(beat.key)
    store = CountingStore(memory)
    overviews(store, None, unknown)
    assert store.requests == 1 + 2 * 6


def test_each_app_is_shown_as_in_its_own_status_and_in_the_order_of_names() -> None:
    store = MemoryStore()
    names = many_apps(store, APPS)
    found, _ = overviews(store, None, lambda _input: (5,))
    assert found == tuple(overview(store, name, lambda _input: (5,)) for name in names)
    assert {stage.inputs[0].lag for each in found for stage in each.stages} == {2}


def test_damaged_apps_are_reported_among_the_others() -> None:
    store = MemoryStore()
    names = many_apps(store, APPS)
    store.put(keys.app_info(names[3]), b"{}")
    store.put(keys.manifest(names[40], "stage", 1), b"{}")
    store.put("Not-an-app/app.json", b"{}")
    found, damaged = overviews(store, None, unknown)
    assert [each.app for each in found] == [name for name in names if name != names[3]]
    assert [each.app for each in found if not each.stages] == [names[40]]
    assert [sentence.partition(":")[0] for sentence in damaged] == [names[3], f"{names[40]}/stage"]
