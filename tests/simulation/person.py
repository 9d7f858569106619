"""A simulated user who runs verbs at any moment, sometimes twice at once, and sometimes interrupts them."""

import tempfile
from collections import Counter
from collections.abc import Callable
from random import Random

from slackwater.client.app import StoredApp
from slackwater.client.client import Client
from slackwater.common import runtime
from slackwater.errors import SlackwaterError
from slackwater.snapshot.cut.stored import open_requests
from slackwater.testing.simulation import Simulation, World
from slackwater.testing.simulation.scheduler import SimulatedProcess

from tests.simulation.ledger import EDIT, SECRET, TOPIC
from tests.simulation.rare import Rare

Verb = Callable[[StoredApp, Random, World], object]


def _name(random: Random) -> str:
    return f"s{random.randrange(6)}"


def _moment(random: Random) -> str:
    return random.choice(("now", "-5s", "-20s", "~1", "~3", _name(random)))


def _clone(app: StoredApp, random: Random, _world: World) -> object:
    return app.clone(f"clone{random.randrange(2)}", at=_moment(random))


def _edit(app: StoredApp, random: Random, _world: World) -> object:
    table, key = random.choice((("accounts", "account"), ("sections", "section")))
    name = f"{key[0]}{random.randrange(3)}"
    sql = f"UPDATE {table} SET tokens = tokens + {EDIT} WHERE {key} = '{name}'"
    return app.edit(table, sql, timeout_s=random.choice((5, 60)), again=random.random() < 0.5)


def _remove_clone(app: StoredApp, random: Random, _world: World) -> object:
    return app._client.app(f"clone{random.randrange(2)}").remove_clone()


VERBS: dict[str, Verb] = {
    "snapshot": lambda app, random, _world: app.snapshot(_name(random), timeout_s=random.choice((5, 60))),
    "instant": lambda app, random, _world: app.snapshot(_name(random), instant=True),
    "remove": lambda app, random, _world: app.remove_snapshot(_name(random), force=random.random() < 0.2),
    "gc": lambda app, random, _world: app.gc(all_ms=random.choice((0, 10_000))),
    "compact": lambda app, random, _world: app.compact(full=random.random() < 0.5, threads=random.choice((1, 2))),
    "verify": lambda app, random, _world: app.at(_moment(random)).verify(),
    "log": lambda app, random, _world: app.log(),
    "status": lambda app, random, _world: app.status(),
    "query": lambda app, random, _world: app.at(_moment(random)).query("FROM accounts ORDER BY account").fetchall(),
    "get": lambda app, random, _world: app.at(_moment(random)).get("accounts", f"a{random.randrange(9)}"),
    "diff": lambda app, random, _world: app.at(_moment(random)).diff(app.at("now")),
    "history": lambda app, random, _world: app.history("sections", "s1"),
    "rescale": lambda app, random, _world: app.rescale(
        random.choice(("accounts", "sections")), random.choice((1, 2, 4, 8))
    ),
    "rewind": lambda app, random, _world: app.rewind(_moment(random), fence=random.random() < 0.8),
    "reset": lambda app, random, _world: app.reset(
        TOPIC, shift_by=-random.randrange(1, 4), fence=random.random() < 0.8
    ),
    "edit": _edit,
    "export": lambda app, random, _world: app.at(_moment(random)).export_tables(f"{tempfile.mkdtemp()}/export"),
    "forget": lambda app, _random, _world: app.forget("accounts", SECRET, fields=("accounts=$.account",)),
    "replicate": lambda app, _random, world: app.replicate(world.replica.url),
    "clone": _clone,
    "remove clone": _remove_clone,
}


class Person:
    """Runs verbs in separate simulated processes."""

    def __init__(self, simulation: Simulation, random: Random, verbs: tuple[str, ...], rare: Rare) -> None:
        self._simulation, self._random, self._verbs, self._rare = simulation, random, verbs, rare
        self.typed: list[str] = []
        self.has_forgotten = False
        """True once the person has asked for erasure, and so sends no more records."""
        self.results: Counter[str] = Counter()
        self.errors: list[tuple[str, BaseException]] = []
        """Exceptions other than `SlackwaterError`, which are bugs."""
        self._processes: list[SimulatedProcess] = []

    @property
    def is_idle(self) -> bool:
        """True if no verb is running."""
        return not any(process.is_alive for process in self._processes)

    def type_one(self) -> None:
        """Start one verb, or the same verb twice, and perhaps kill it later."""
        random, world = self._random, self._simulation.world
        verb, seed = random.choice(self._verbs), random.getrandbits(32)
        self.typed.append(verb)
        self.has_forgotten |= verb == "forget"

        def work(client: Client) -> None:
            try:
                with client:
                    VERBS[verb](client.app(self._simulation.app.name), Random(seed), world)
                self.results[f"{verb}: done"] += 1
            except SlackwaterError as error:
                self.results[f"{verb}: {type(error).__name__}"] += 1
            except Exception as error:
                self.errors.append((verb, error))

        times = 2 if random.random() < 0.15 else 1
        self._rare.add("the same verb is typed twice at once", times == 2)
        is_open = bool(open_requests(world.objects, self._simulation.app.name))
        self._rare.add("a person types while a snapshot is open", is_open)
        for _ in range(times):
            process = self._simulation.spawn(verb, work)
            self._processes.append(process)
            if random.random() < 0.15:
                delay_s = random.expovariate(1 / 2.0)

                def interrupt(process=process, delay_s=delay_s) -> None:  # type: ignore[no-untyped-def]
                    runtime.sleep(delay_s)
                    world.scheduler.kill(process)

                world.scheduler.spawn("interrupt", interrupt)
