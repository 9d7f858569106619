"""Store and Kafka of a simulation, with faults that the seed chooses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ...common import runtime
from ...errors import Unavailable
from ...pipeline.batch import task
from ...pipeline.kafka.memory import MemoryKafka, MemoryTransactionalProducer
from ...pipeline.kafka.open import simulated_clusters
from ...pipeline.kafka.protocol import Headers, Offsets, Record, SendFailed, TransactionFailed, TransactionSettings
from ...pipeline.spark import worker_resources
from ...state.records import Range, TopicState
from ...store.objects.memory import MemoryStore
from ...store.objects.open import simulated_stores
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.objects.retry import Retry, TransientError
from ...store.objects.wrapper import StoreWrapper
from ...store.read import footers, visible_rows
from .engine import ExecutorLost
from .scheduler import Scheduler, SimulatedProcess

T = TypeVar("T")
_REQUEST_S = 0.002
_TIMEOUT_S = 5.0
_LATE_S = 40.0


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of faults: per request to the store or to Kafka, per task, or per minute."""

    refused: float = 0.0
    """A request to the store fails and has no effect."""
    lost: float = 0.0
    """A request to the store takes effect, but its answer is lost."""
    late: float = 0.0
    """A write to the store times out, and takes effect up to `_LATE_S` seconds later."""
    slow: float = 0.0
    """A request takes seconds."""
    rotten: float = 0.0
    """A read returns a wrong byte."""
    kafka_refused: float = 0.0
    kafka_lost: float = 0.0
    kafka_late: float = 0.0
    kafka_slow: float = 0.0
    executor_lost: float = 0.0
    """The executor of a task is lost, at a request of the task or at the task's end."""
    twin: float = 0.0
    """A task has a second attempt beside the first, which may end long after the batch."""
    skew: float = 0.0
    """The clock of a process is wrong by up to an hour."""
    outage: float = 0.0
    """The store or Kafka does not answer for up to a minute. The probability is per minute."""
    kill: float = 0.0
    """The runner is killed. The probability is per ten seconds."""
    zombie: float = 0.0
    """A runner is suspended for up to an hour while a second one starts. The probability is per ten seconds."""

    @classmethod
    def swarm(cls, random: Random) -> Faults:
        """Turn a random half of the faults on (A. Groce et al., Swarm Testing, ISSTA 2012)."""
        return cls(**{
            field.name: random.choice(_RATES[field.name]) if random.random() < 0.5 else 0.0 for field in fields(cls)
        })  # fmt: skip

    def without(self, name: str) -> Faults:
        return replace(self, **{name: 0.0})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in fields(self) if getattr(self, field.name))


_RARE, _OFTEN = (0.002, 0.01, 0.03), (0.05, 0.2)
_RATES = {field.name: _RARE for field in fields(Faults)} | dict.fromkeys(
    ("executor_lost", "twin", "outage", "kill", "zombie"), _OFTEN
) | {"skew": (0.5, 1.0), "rotten": (0.0005, 0.002)}  # fmt: skip


class World:
    """Scheduler, store and Kafka of one simulation.

    Within `running`, the process uses them instead of the real ones.
    """

    def __init__(self, seed: int, faults: Faults | None = None, *, folder: Path | None = None) -> None:
        self.scheduler = Scheduler(seed)
        self.random = Random(f"faults {seed}")
        self.faults = faults or Faults()
        self.injected: dict[str, int] = {}
        """Number of faults that were injected, by name."""
        self.silent_until = {"store": 0.0, "kafka": 0.0}
        self._folder = folder
        self.on_request: Callable[[SimulatedProcess, str, str, str], None] = lambda *_: None
        """Called before each request with the process, `store` or `kafka`, the method, and the key or topic."""
        self.on_event: Callable[[str], None] = lambda _name: None
        """Called with the name of a rare event."""
        self.objects, self.replica = MemoryStore("memory:1"), MemoryStore("memory:2")
        """Store of the app, and a second store for replicas."""
        self.places: dict[str, MemoryStore] = {}
        """Stores at other roots, which are created when they are used."""
        self.kafka = SimulatedKafka(self, "simulated://kafka")

    @contextmanager
    def running(self) -> Iterator[Path]:
        """Run the block as the first thread of the simulation. Yields a temporary folder for its files."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sim-", dir=self._folder)))
            previous, tempfile.tempdir = tempfile.gettempdir(), str(folder)
            stack.callback(setattr, tempfile, "tempdir", previous)
            for cache in (footers._footers, footers._indexes, footers._chunks, visible_rows._cached, task._limits):
                cache.clear()  # objects of another run of this seed have the same names
            stack.callback(worker_resources.forget_connections)
            stack.enter_context(runtime.use(self.scheduler))
            # Created again, because its locks must be locks of the simulation.
            self.objects, self.replica = MemoryStore("memory:1"), MemoryStore("memory:2")
            self.places = {}
            self.kafka = SimulatedKafka(self, self.kafka.address)
            for objects in (self.objects, self.replica):
                simulated_stores[objects.url] = partial(SimulatedStore, self, objects)
                stack.callback(simulated_stores.pop, objects.url)
            simulated_clusters[self.kafka.address] = self.kafka
            stack.callback(simulated_clusters.pop, self.kafka.address)
            stack.callback(self.scheduler.finish)
            yield folder

    @property
    def stored(self) -> tuple[Mapping[str, tuple[bytes, int]], ...]:
        """Objects of the app's store and of its other roots, by key."""
        return tuple(store._objects for store in (self.objects, *self.places.values()))

    def heal(self) -> None:
        self.faults = Faults()
        self.silent_until = dict.fromkeys(self.silent_until, 0.0)

    def is_hit(self, fault: str) -> bool:
        """Return True if this fault is injected now."""
        rate: float = getattr(self.faults, fault)
        if not rate or self.random.random() >= rate or self.scheduler.process is self.scheduler.machine:
            return False
        self.injected[fault] = self.injected.get(fault, 0) + 1
        self.scheduler.note("fault", fault)
        return True

    def request(self, server: str, *words: str, slow: str = "slow") -> None:
        """Before a request, let the other threads run for as long as the request takes."""
        scheduler = self.scheduler
        if scheduler.process is scheduler.machine:
            return
        scheduler.note(server, *words)
        self.on_request(scheduler.process, server, words[0], words[-1])
        name = scheduler._current.name
        if name in ("task", "twin") and self.is_hit("executor_lost"):
            raise ExecutorLost(name)
        if self.is_hit(slow):
            runtime.sleep(self.random.expovariate(1 / 3.0))
        elif self.random.random() < 0.3:
            runtime.sleep(self.random.expovariate(1 / _REQUEST_S))
        else:
            scheduler.pause()

    def is_silent(self, server: str) -> bool:
        return self.scheduler.now < self.silent_until[server] and self.scheduler.process is not self.scheduler.machine

    def later(self, work: Callable[[], object]) -> None:
        """Call `work` later, even if the process that requested the call is killed meanwhile."""
        delay_s, writer = self.random.uniform(0, _LATE_S), self.scheduler.process

        def run() -> None:
            runtime.sleep(delay_s)
            if not writer.is_alive:
                self.on_event("a late write arrives after its writer has died")
            work()

        self.scheduler.spawn("late request", run)


class SimulatedStore(StoreWrapper):
    """Client of the simulated store for one process."""

    def __init__(self, world: World, objects: MemoryStore) -> None:
        super().__init__(objects)
        self._world = world
        self._retry = Retry(objects.url, 30.0)

    def _wrap_other(self, root: str) -> ObjectStore:
        if root not in simulated_stores:
            return SimulatedStore(self._world, self._world.places.setdefault(root, MemoryStore(root)))
        return simulated_stores[root]()

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        return self._retry.call(lambda: self._attempt(method, key, request))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return iter(self._forward("list", prefix, lambda: [*self._inner.list(prefix, start_after)]))

    def list_folders(self, prefix: str) -> Iterator[str]:
        return iter(self._forward("list_folders", prefix, lambda: [*self._inner.list_folders(prefix)]))

    def _attempt(self, method: str, key: str, request: Callable[[], T]) -> T:
        world = self._world
        world.request("store", method, key)
        if world.is_silent("store"):
            runtime.sleep(_TIMEOUT_S)
            raise TransientError("no answer")
        if world.is_hit("refused"):
            raise TransientError("503")
        if method in ("put", "put_if_absent", "delete") and world.is_hit("late"):
            world.later(request)
            runtime.sleep(_TIMEOUT_S)
            raise TransientError("timeout")
        result = request()
        if world.is_hit("lost"):
            raise TransientError("the connection was reset")
        if method in ("get", "get_range") and isinstance(result, bytes) and result and world.is_hit("rotten"):
            place = world.random.randrange(len(result))
            return result[:place] + bytes([result[place] ^ 0x41]) + result[place + 1 :]  # type: ignore[return-value]
        return result


class SimulatedKafka(MemoryKafka):
    """Client of the simulated Kafka whose requests can fail. Clusters with distinct names share no data."""

    def __init__(self, world: World, address: str) -> None:
        super().__init__(address)
        self._world = world

    def _request(self, method: str, topic: str = "") -> None:
        self._world.request("kafka", method, topic, slow="kafka_slow")
        if self._world.is_silent("kafka"):
            runtime.sleep(2.0)
            raise Unavailable(f"{self.name} did not answer")
        if self._world.is_hit("kafka_refused"):
            raise Unavailable(f"{self.name} did not answer")

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        self._request("partition_counts")
        return super().partition_counts()

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        self._request("topic_state", topic)
        return super().topic_state(topic)

    def offsets_for_times(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        self._request("offsets_for_times", topic)
        return super().offsets_for_times(topic, times_ms)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        self._request("topic_ids")
        return super().topic_ids(topics)

    def create_topics(self, partitions: Mapping[str, int], **options: Any) -> None:
        self._request("create_topics", " ".join(partitions))
        super().create_topics(partitions, **options)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        self._world.request("kafka", "delete_records", topic)
        super().delete_records(topic, offset, partition)

    def read_ranges(self, topic: str, parts: Sequence[Range], **options: Any) -> Iterator[list[Sequence[Any]]]:
        self._request("read", topic)
        return super().read_ranges(topic, parts, **options)

    def send(self, topic: str, records: Iterable[Record], *, patience_s: float) -> dict[int, int]:
        sent = list(records)
        self._request("send", topic)
        if self._world.is_hit("kafka_late"):
            self._world.later(
                lambda: topic in self._topics and super(SimulatedKafka, self).send(topic, sent, patience_s=0)
            )
            raise SendFailed(self.name, topic, "timed out", retriable=True)
        ends = super().send(topic, sent, patience_s=patience_s)
        if self._world.is_hit("kafka_lost"):
            raise SendFailed(self.name, topic, "the answer was lost", retriable=True)
        return ends

    def transactional_producer(self, settings: TransactionSettings) -> MemoryTransactionalProducer:
        return _Producer(self, settings)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        self._world.request("kafka", "commit_offsets", group)
        super().commit_offsets(group, positions, wait=wait)


class _Producer(MemoryTransactionalProducer):
    """Transactional producer whose requests can fail."""

    _kafka: SimulatedKafka

    def open(self) -> tuple[int, str] | None:
        self._fail("kafka_refused", "open")
        position = super().open()
        self._fail("kafka_lost")
        return position

    def write(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Headers] | None = None
    ) -> None:
        self._fail("kafka_refused", "write")
        super().write(keys, values, headers)

    def commit(self, offset: int, text: str) -> None:
        self._fail("kafka_refused", "commit")
        super().commit(offset, text)
        self._fail("kafka_lost")

    def _fail(self, fault: str, method: str = "") -> None:
        world = self._kafka._world
        if method:
            world.request("kafka", method, self._topic, slow="kafka_slow")
        if world.is_hit(fault) or (method and world.is_silent("kafka")):
            raise TransactionFailed("the broker did not answer")
