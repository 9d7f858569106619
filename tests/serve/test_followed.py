"""A server polls only the apps whose rows are requested."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace
from slackwater.serve.service import Service
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.wrapper import StoreWrapper

from tests.serve.conftest import FAST, Ask, serving_client
from tests.snapshot.wide import client_over, first_version, many_apps, put_versions
from tests.support.running import eventually

T = TypeVar("T")


class ByApp(StoreWrapper):
    """Counts the store requests of each app."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.requests = Counter[str]()

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        self.requests[key.partition("/")[0]] += 1
        return request()


def test_an_app_is_polled_while_its_commits_are_streamed_and_not_for_being_listed(tmp_path: Path) -> None:
    store = ByApp(memory := MemoryStore())
    names = many_apps(memory, 20)
    with client_over(store, tmp_path / "cache") as client, serving_client(client) as url:
        ask = Ask(url)
        assert ask("/apps").json["apps"] == list(names)
        for name in names:
            assert ask(f"/apps/{name}/at/now/stages").json["versions"] == {"stage": 1}
            assert ask(f"/apps/{name}").json["versions"] == {"stage": 1}
        stream = ask._pool.request("GET", f"{url}/apps/{names[0]}/commits", preload_content=False)
        store.requests.clear()
        eventually(lambda: store.requests[names[0]] > 50, "the stream looks for commits")
        assert store.requests.keys() == {names[0]}
        stream.close()


def test_a_listed_app_is_shown_with_its_current_state(tmp_path: Path) -> None:
    store = MemoryStore()
    (name,) = many_apps(store, 1)
    with client_over(store, tmp_path / "cache") as client, serving_client(client) as url:
        ask, head = Ask(url), first_version(name)
        for version in (1, 2, 3):
            put_versions(store, [replace(head, version=version)])
            (stage,) = ask(f"/apps/{name}/at/now/stages").json["stages"]
            assert stage["version"] == version
            assert ask(f"/apps/{name}/at/now").json["versions"] == {"stage": version}


def test_a_polled_app_stays_polled_however_many_other_apps_are_requested(tmp_path: Path) -> None:
    memory = MemoryStore()
    names = many_apps(memory, 300)

    async def asked() -> None:
        service = Service(client, FAST)
        poller = await service.poller(names[0])
        await poller.newest_moment()
        for name in names[1:]:
            await service.cached_moment(name, "now", "", follow=False)
        assert await service.poller(names[0]) is poller
        assert poller.is_polling
        await service.stop()

    with client_over(memory, tmp_path / "cache") as client:
        asyncio.run(asked())


def test_concurrent_calls_share_one_poll(tmp_path: Path) -> None:
    store = ByApp(memory := MemoryStore())
    (name,) = many_apps(memory, 1)

    async def asked() -> None:
        service = Service(client, FAST)
        poller = await service.poller(name)
        await poller.newest_moment(follow=False)
        store.requests.clear()
        readings = await asyncio.gather(*(poller.newest_moment(follow=False) for _ in range(20)))
        assert len({*map(id, readings)}) == 1
        assert store.requests[name] <= 2
        await service.stop()

    with client_over(store, tmp_path / "cache") as client:
        asyncio.run(asked())
