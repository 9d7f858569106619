"""A store with a controllable clock and interruptible requests, and an app on that clock."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar, cast

from slackwater.snapshot.gc.collect import Collected, collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectInfo, ObjectStore
from slackwater.store.versions import history

from tests.crash.points import Calls, Point, numbered
from tests.support.histories import STAGES, START_MS, Clock, FlightsApp, Kafka, flights, rows_of

T = TypeVar("T")
HOUR_MS = 3_600_000
FEW = Retention(versions=3)


class AgingStore(MemoryStore):
    """Objects in memory, and a clock that tests advance."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_ms = START_MS
        self.before: Callable[[str, str], None] = lambda verb, key: None
        """Called with verb and key before each request is done. It may make other requests, or raise."""
        self.calls: Calls | None = None
        self._written_ms: dict[str, int] = {}

    def pause(self, seconds: float) -> None:
        """Advance the clock, without waiting."""
        self.clock_ms += round(seconds * 1_000)

    def _write(self, key: str, data: bytes) -> None:
        super()._write(key, data)
        self._written_ms[key] = self.clock_ms

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        self.before(verb, key)
        return call() if self.calls is None else self.calls(verb, key, call)

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: MemoryStore.get(self, key))

    def put(self, key: str, data: bytes) -> None:
        self._call("put", key, lambda: MemoryStore.put(self, key, data))

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._call("put_if_absent", key, lambda: MemoryStore.put_if_absent(self, key, data))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: MemoryStore.delete(self, key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        listed = self._call("list", prefix, lambda: MemoryStore.list(self, prefix, start_after))
        return (info._replace(modified_ms=self._written_ms[info.key]) for info in listed)

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._call("list_folders", prefix, lambda: MemoryStore.list_folders(self, prefix))

    def copied(self) -> "AgingStore":
        """Return a store with the same clock, objects and URL. The URL is the same because objects may contain it."""
        other = AgingStore()
        other._url, other.clock_ms = self._url, self.clock_ms
        other._objects, other._keys, other._written_ms = dict(self._objects), list(self._keys), dict(self._written_ms)
        return other

    def once(self, verb: str, part: str, do: Callable[[], object]) -> None:
        """Call `do` before the next request of this verb whose key contains `part`."""

        def before(found: str, key: str) -> None:
            if found == verb and part in key:
                self.before = lambda verb, key: None
                do()

        self.before = before

    @contextmanager
    def requests(self) -> Iterator[Sequence[str]]:
        """Yield a list that gets each request within the block, as verb and key."""
        with numbered(self) as calls:
            yield calls.made

    @contextmanager
    def death_after(self, requests: int) -> Iterator[None]:
        """Let the process die within the block, at the request after this number of requests."""
        with numbered(self, point=Point(requests)):
            yield


class StoreClock(Clock):
    """The clock of an app and of its store. Each commit takes `step_ms`."""

    def __init__(self, store: AgingStore, step_ms: int) -> None:
        super().__init__(store.clock_ms)
        self.store, self.step_ms = store, step_ms

    def tick(self, stage: str, step_ms: int = 0) -> int:
        now_ms = super().tick(stage, step_ms or self.step_ms)
        self.store.clock_ms = self.now_ms
        return now_ms

    def wait(self, span_ms: int) -> None:
        """Advance the clock."""
        self.now_ms += span_ms
        self.store.clock_ms = self.now_ms


def aging_app(
    name: str = "flights", *, step_ms: int = 60_000, store: AgingStore | None = None, start: Iterable[str] = STAGES
) -> FlightsApp:
    """Return an app in an aging store, with one commit per minute."""
    store = store or AgingStore()
    return FlightsApp(store, Kafka(), name, clock=StoreClock(store, step_ms), start=start)


def copied_world(app: FlightsApp) -> FlightsApp:
    """Return a copy of an app in an aging store. The copy has its own clock, store and Kafka."""
    store = store_of(app).copied()
    return deepcopy(app, {id(app.store): store, id(attempts := app.kafka._attempts): count(next(attempts))})


def fresh(store: ObjectStore) -> ObjectStore:
    """Return the store as another process sees it, without cached manifests."""
    return CountingStore(store)


def keys_of(store: MemoryStore, prefix: str = "") -> set[str]:
    return {info.key for info in MemoryStore.list(store, prefix)}


def store_of(app: FlightsApp) -> AgingStore:
    """Return the store of an `aging_app`."""
    return cast("AgingStore", app.store)


def wait(app: FlightsApp, span_ms: int = 2 * HOUR_MS) -> None:
    """Advance the clock of an app and its store."""
    cast("StoreClock", app.clock).wait(span_ms)


def gc(app: FlightsApp, retention: Retention = FEW, **options: Any) -> Collected:
    """Collect an app's garbage."""
    return collect(app.store, app.name, retention, by="test", **options)


def old_app(batches: int = 8) -> FlightsApp:
    """Return an app whose history, except for the last minutes, is old enough to be collected."""
    app = aging_app()
    app.run(flights(batches * 10))
    app.compact("aircraft")
    app.compact("carriers")
    wait(app)
    app.run(flights(40))
    wait(app)
    return app


def at(hours: float) -> str:
    """Return the time this many hours after the first commit, as it is written in a ref."""
    return datetime.fromtimestamp((START_MS + hours * HOUR_MS) / 1000, UTC).isoformat(timespec="milliseconds")


def check_whole(app: FlightsApp) -> None:
    """Check that every version names only existing SSTs, and that its state can be read."""
    store = fresh(app.store)
    for stage in STAGES:
        for version in history.list_versions(store, app.name, stage):
            rows_of(store, history.read(store, app.name, stage, version))
        head = history.head(store, app.name, stage)
        assert head is not None
        assert rows_of(store, head) == app.state[stage]
