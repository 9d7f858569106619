"""A whole app in a simulation: its topics, runners that crash and are restarted, and clients of its store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...common import runtime
from ...pipeline.api.app import App
from ...pipeline.kafka.channels import consumer_group
from ...pipeline.kafka.protocol import Record
from ...pipeline.listener import Listener
from ...pipeline.run.options import Options
from ...pipeline.run.runner import run
from ...pipeline.run.stopping import StopEvent
from ...settings import Settings
from ...snapshot.gc.reachable import Retention
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..table_sinks import collect_rows
from .engine import SimulatedEngine
from .scheduler import SimulatedProcess
from .world import Faults, World

if TYPE_CHECKING:
    from ...client.client import Client

_RESTART_S = 5.0
_HOUR_S = 3_600.0


class Simulation:
    """Simulation of an app, with one seed. Use it in `with simulation.running():`.

    Args:
        app: App whose functions take and return Arrow tables.
        seed: Number that determines everything random.
        faults: Probabilities of faults; None for a random half of all faults.
        topics: Partitions of each topic that the app reads or writes.
        retention: Rules by which runners collect garbage; None to collect nothing.
        hot: Roots of which each runner chooses one for the SSTs of batches; empty for the store itself.
        folder: Folder for temporary files; None for the system's.
    """

    def __init__(
        self,
        app: App,
        seed: int,
        faults: Faults | None = None,
        *,
        topics: Mapping[str, int],
        retention: Retention | None = None,
        hot: Sequence[str] = ("",),
        folder: Path | None = None,
    ) -> None:
        self.app, self.seed = app, seed
        self.world = World(seed, folder=folder)
        self.world.faults = faults or Faults.swarm(self.world.random)
        self._topics = topics
        self._retention = retention or Retention()
        self._hot = tuple(hot)
        self._folder = Path()
        self._number = 0
        self.runners: list[SimulatedProcess] = []
        self.ended: list[SimulatedProcess] = []
        """Runners that ended with an error."""

    @contextmanager
    def running(self) -> Iterator[Simulation]:
        with self.world.running() as self._folder:
            self.world.kafka.create_topics(self._topics)
            yield self

    def send(self, topic: str, values: Iterable[bytes]) -> None:
        self.world.kafka._append(topic, [Record(value, key=value) for value in values])

    def client(self, name: str = "") -> Client:
        """Return a client of the store, for a separate simulated process."""
        from ...client.client import Client

        cache = self._folder / f"cache-{name or self._next()}"
        return Client(Settings(store=self.world.objects.url, brokers=self.world.kafka.address, cache=str(cache)))

    def start_runner(self, app: App | None = None, **options: Any) -> SimulatedProcess:
        """Start a runner of the app, or of a different program or clone."""
        number, program = self._next(), app or self.app
        engine = SimulatedEngine(_Fate(self.world))
        # Without hot places, no choice is made, so that a seed gives the history that it gave.
        hot = self.world.random.choice(self._hot) if len(self._hot) > 1 else self._hot[0]

        def work() -> None:
            defaults: dict[str, Any] = {
                "store": self.world.objects.url,
                "kafka": self.world.kafka.properties,
                "cache_folder": self._folder / f"cache-{number}" / "sst",
                "hot": hot,
                "patience_s": 60,
                "retention": lambda _app: self._retention,
                "gc_every_ms": 60_000,
            }
            chosen = Options(**(defaults | options))
            # Tables are outside of the simulated world.
            run(collect_rows(program, {}), chosen, Listener(), stop=StopEvent(), engine=engine.opened)

        random = self.world.random
        skew_ms = random.randrange(-3_600_000, 3_600_000) if random.random() < self.world.faults.skew else 0
        process = self.world.scheduler.spawn(f"runner-{number}", work, skew_ms=skew_ms)
        self.runners.append(process)
        return process

    def spawn(self, name: str, work: Callable[[Client], object]) -> SimulatedProcess:
        """Run a function in a separate simulated process, for example a verb that a user types."""
        client = self.client()
        return self.world.scheduler.spawn(f"{name}-{self._next()}", lambda: work(client))

    def run_for(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let the app run.

        Runners that ended are restarted. Faults kill runners, and delay or lose answers of the servers.
        """
        world, deadline, fault_s = self.world, runtime.monotonic() + seconds, 0.0
        while runtime.monotonic() < deadline and not until():
            runtime.sleep(1.0)
            for process in [process for process in self.runners if not process.is_alive]:
                self.runners.remove(process)
                if process.ended is not None:
                    self.ended.append(process)
                    world.scheduler.note("ended", process.name, type(process.ended).__name__)
            if all(process.asleep_until > world.scheduler.now for process in self.runners):
                self.start_runner()
            if runtime.monotonic() >= fault_s:
                fault_s = runtime.monotonic() + 10.0
                self._disturb()

    def sleep_all(self, seconds: float) -> None:
        """Suspend all machines for some time, so that all timers fire late."""
        self.world.scheduler.note("all machines sleep", round(seconds))
        self.world.scheduler.now += seconds

    def _disturb(self) -> None:
        world = self.world
        scheduler = world.scheduler
        if world.random.random() < world.faults.kill:
            world.injected["kill"] = world.injected.get("kill", 0) + 1
            scheduler.kill(world.random.choice(self.runners))
        if world.random.random() < world.faults.zombie:
            world.injected["zombie"] = world.injected.get("zombie", 0) + 1
            scheduler.suspend(world.random.choice(self.runners), world.random.uniform(1, _HOUR_S))
            self.start_runner()
        if world.random.random() < world.faults.outage:
            world.injected["outage"] = world.injected.get("outage", 0) + 1
            server = world.random.choice(sorted(world.silent_until))
            world.silent_until[server] = runtime.monotonic() + world.random.uniform(1, 60)

    def heads(self, app: str = "") -> dict[str, Manifest]:
        store, name = self.world.objects, app or self.app.name
        stages = history.list_stages(store, name)
        return {stage: head for stage in stages if (head := history.head(store, name, stage)) is not None}

    def is_caught_up(self, app: str = "") -> bool:
        return not self.backlog(app)

    def backlog(self, app: str = "") -> tuple[str, ...]:
        """Return descriptions of input that stages have not committed, and of rows that sinks have not published."""
        name, kafka, late = app or self.app.name, self.world.kafka, list[str]()
        heads = self.heads(name)
        late += (f"no version of {stage}" for stage in self.app.stages if stage not in heads)
        for stage, head in heads.items():
            for channel, at in head.inputs.items():
                if not at.upstream:
                    ends = tuple(len(partition.log) for partition in kafka._topics[at.topic])
                    late += [f"{stage}: {channel} at {at.offsets} of {ends}"] if at.offsets != ends else ()
                    continue
                output = heads[at.upstream].outputs.get(channel) if at.upstream in heads else None
                if output is None or sum(output.sent) != sum(at.rows_passed):
                    late.append(f"{stage}: {channel} at {at.rows_passed} of {output and output.sent}")
            for sink in head.sinks.values():
                position = kafka.groups.get(consumer_group(name, stage), {}).get((sink.topic, 0))
                if sink.sent and (position is None or position[0] < sink.end):
                    late.append(f"sink of {stage}: at {position} of {sink.end}")
        return tuple(late)

    def _next(self) -> int:
        self._number += 1
        return self._number


class _Fate:
    def __init__(self, world: World) -> None:
        self._world = world

    def lost(self) -> bool:
        return self._world.is_hit("executor_lost")

    def ended_late(self) -> None:
        self._world.on_event("a second attempt ends after the batch")

    def twin_delay_s(self) -> float | None:
        return self._world.random.choice((0.0, 0.05, 1.0, 60.0)) if self._world.is_hit("twin") else None
