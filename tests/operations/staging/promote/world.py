"""Simulated runners, a promoter and Kafka whose steps are interleaved at random, with kills at any request."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, TypeVar
from uuid import uuid4

from slackwater.errors import CommitConflict, Refused
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.promote import PromotionResult, promote
from slackwater.pipeline.api.sink import Sink
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import StoreWrapper
from slackwater.store.versions import apps

from tests.crash.points import Killed, NumberedBroker, NumberedStore
from tests.operations.staging.promote.runners import Runner, program, started, until_idle
from tests.pipeline.publish.reader import committed

T = TypeVar("T")
TOPIC, OUT = "in", "out"


class Interrupted(StoreWrapper):
    """The promoter's store. Before and after each request, other steps may run, or the promoter may be killed."""

    def __init__(self, inner: ObjectStore, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._happens = happens

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        self._happens()
        answer = request()
        self._happens()
        return answer


class World:
    """Production `p`, its clone `s` and their topic, with random events."""

    def __init__(
        self,
        chance: Random,
        store: ObjectStore | None = None,
        files: dict[str, Path] | None = None,
        *,
        ahead: int = 0,
        timed: bool = False,
        out: str | Sink = OUT,
    ) -> None:
        self.chance, self.ahead, self.timed = chance, ahead, timed
        self.store: ObjectStore = store or MemoryStore()
        self.promoter = NumberedStore(self.store)
        self.out = out
        self.files = files or {}
        """Program file of each app, if it has one."""
        self.kafka = MemoryKafka.named(f"memory://{uuid4().hex}")
        self.kafka.create_topics({TOPIC: 2, OUT: 1})
        self.now_s = 0.0
        self.sent = 0
        self.runners: dict[str, Runner] = {}
        self.starting: dict[str, Iterator[None]] = {}
        self._lock = Lock()
        """Lock, because the promoter sends some requests in several threads."""
        self.send(3)
        self.start("p")
        until_idle(self.runners["p"])
        self.now_s = 30.0
        until_idle(self.runners["p"])
        clone(self.store, "p", "s", topics={}, channels=KafkaChannels(self.kafka), by="ada@host")

    def send(self, count: int) -> None:
        for _ in range(count):
            self.kafka.send(TOPIC, [Record(b"%d" % self.sent, self.sent % 2)], patience_s=180)
            self.sent += 1

    def runner(self, folder: str) -> Runner:
        called = next(name for name in (folder, f"{folder}~1") if apps.folder_of(self.store, name) == folder)
        declared = replace(program(folder, TOPIC, self.out), name=called, file=self.files.get(folder))
        return Runner(self.store, self.kafka, declared, self.chance, lambda: self.now_s, self.ahead, self.timed)

    def start(self, folder: str) -> None:
        self.end(folder)
        self.runners[folder] = started(self.runner(folder))

    def end(self, folder: str) -> None:
        """Kill a runner, as `kill -9` does."""
        self.starting.pop(folder, None)
        if (runner := self.runners.pop(folder, None)) is not None:
            runner.close()

    def stop(self, folder: str) -> None:
        """Stop a runner, as SIGTERM does."""
        self.runners.pop(folder).stop()

    def happens(self) -> None:
        """Run random steps during a request of the promoter, or kill the promoter."""
        with self._lock:
            if self.chance.random() < 0.4:
                self.step()
            if self.chance.random() < 0.01:
                raise Killed

    def pause(self) -> None:
        self.now_s += 0.1
        for _ in range(self.chance.randrange(6)):
            self.step()
        if self.chance.random() < 0.02:
            raise Killed

    def step(self) -> None:
        """Advance the clock, and let a random runner start, step or be killed, or send records."""
        self.now_s += self.chance.choice((0, 0.1, 0.3))
        folder, what = self.chance.choice("ps"), self.chance.random()
        if what < 0.1:
            self.send(1)
        elif what < 0.12:
            self.end(folder)
        elif what < 0.125:
            self.now_s += 20
        elif folder in self.runners:
            self.guarded(folder, self.runners[folder].step)
        elif what < 0.6:
            self.guarded(folder, lambda: self.go_on_starting(folder))

    def go_on_starting(self, folder: str) -> None:
        if folder not in self.starting:
            runner = self.runner(folder)
            self.starting[folder] = self.parts(folder, runner)
        next(self.starting[folder], None)

    def parts(self, folder: str, runner: Runner) -> Iterator[None]:
        yield from runner.start()
        self.starting.pop(folder)
        self.runners[folder] = runner

    def guarded(self, folder: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (CommitConflict, Refused):
            self.end(folder)

    def promote(self, name: str, staging: str, *, calm: bool = False) -> PromotionResult:
        store = self.promoter if calm else Interrupted(self.store, self.happens)
        return promote(
            store,
            NumberedBroker(KafkaChannels(self.kafka), self.promoter),  # type: ignore[arg-type]
            name,
            staging,
            by="ada@host",
            cache=None,
            timeout_s=300,
            pause=self.calmly if calm else self.pause,
            clock=lambda: self.now_s,
        )

    def calmly(self) -> None:
        """Run both apps without kills."""
        self.now_s += 0.1
        for folder in "ps":
            if folder not in self.runners:
                self.guarded(folder, lambda folder=folder: self.start(folder))
            else:
                self.guarded(folder, self.runners[folder].look)
                if folder in self.runners:
                    self.guarded(folder, lambda folder=folder: until_idle(self.runners[folder]))

    def published(self) -> list[tuple[str, int]]:
        each = (message.value() or b"" for message in committed(self.kafka, OUT))
        return [(folder, int(number)) for folder, _, number in (value.decode().partition(":") for value in each)]

    def close(self) -> None:
        for folder in list(self.runners):
            self.end(folder)


def tick(world: World, *runners: Runner) -> None:
    world.now_s += 0.1
    idle(*runners)


def idle(*runners: Runner) -> None:
    for runner in runners:
        until_idle(runner)


def promote_with(
    world: World, pause: Callable[[], None], timeout_s: float = 60, *, dry_run: bool = False, **more: Any
) -> PromotionResult:
    kafka = KafkaChannels(world.kafka)
    how: Any = {"by": "ada@host", "cache": None, "clock": lambda: world.now_s, "dry_run": dry_run}
    return promote(world.store, kafka, "p", "s", pause=pause, timeout_s=timeout_s, **how, **more)
