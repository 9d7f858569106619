"""A simulated user who runs verbs at any moment, sometimes twice at once, and who sometimes interrupts them."""

import tempfile
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import cast

from msgspec.structs import replace
from slackwater.client.app import StoredApp
from slackwater.client.client import Client
from slackwater.common import runtime
from slackwater.errors import SlackwaterError
from slackwater.operations.program_changes import declared, migrate_app
from slackwater.pipeline.api.app import App
from slackwater.pipeline.run.options import Options
from slackwater.snapshot.cut.stored import open_requests
from slackwater.state.fits import Declared
from slackwater.testing.simulation import Simulation
from slackwater.testing.simulation.engine import SimulatedEngine, TaskFate
from slackwater.testing.simulation.scheduler import SimulatedProcess

from tests.simulation.ledger import EDIT, SECRET, TOPIC
from tests.simulation.rare import Rare

Verb = Callable[[StoredApp, Random, "Person"], object]


def _name(random: Random) -> str:
    return f"s{random.randrange(6)}"


def _moment(random: Random) -> str:
    return random.choice(("now", "-5s", "-20s", "~1", "~3", _name(random)))


def _clone(app: StoredApp, random: Random, _person: "Person") -> object:
    return app.clone(f"clone{random.randrange(2)}", at=_moment(random))


def _edit(app: StoredApp, random: Random, _person: "Person") -> object:
    table, key = random.choice((("accounts", "account"), ("sections", "section")))
    name = f"{key[0]}{random.randrange(3)}"
    sql = f"UPDATE {table} SET tokens = tokens + {EDIT} WHERE {key} = '{name}'"
    return app.edit(table, sql, timeout_s=random.choice((5, 60)), again=random.random() < 0.5)


def _remove_clone(app: StoredApp, random: Random, _person: "Person") -> object:
    return app._client.app(f"clone{random.randrange(2)}").remove_clone()


def _drill(app: StoredApp, _random: Random, person: "Person") -> object:
    with Client(replace(app._client.settings, store=person.simulation.world.replica.url)) as client:
        result = client.app(app.name).drill()
        # Without an answer of Kafka, a round copies no records in flight, and a drill says so.
        assert not result.failed or result.data["plan"]["cut"]["lacks"], str(result)
        return result


def _migrate(app: StoredApp, _random: Random, person: "Person") -> object:
    simulation, store = person.simulation, app._client.store
    options = Options(store=store.url, kafka=simulation.world.kafka.properties)
    done = migrate_app(person.next_program, store, options, renames={})
    simulation.app = person.next_program
    return done


def declare(program: App, *_: object) -> Declared:
    """Takes the place of `declare_with_spark`: the simulation's engine applies the program's functions."""
    no_tasks = cast("TaskFate", None)
    return declared(program, SimulatedEngine(no_tasks).derive_schemas(program))


VERBS: dict[str, Verb] = {
    "snapshot": lambda app, random, _person: app.snapshot(_name(random), timeout_s=random.choice((5, 60))),
    "instant": lambda app, random, _person: app.snapshot(_name(random), instant=True),
    "remove": lambda app, random, _person: app.remove_snapshot(_name(random), force=random.random() < 0.2),
    "gc": lambda app, random, _person: app.gc(all_ms=random.choice((0, 10_000))),
    "compact": lambda app, random, _person: app.compact(full=random.random() < 0.5, threads=random.choice((1, 2))),
    "verify": lambda app, random, _person: app.at(_moment(random)).verify(),
    "log": lambda app, random, _person: app.log(),
    "status": lambda app, random, _person: app.status(),
    "query": lambda app, random, _person: app.at(_moment(random)).query("FROM accounts ORDER BY account").fetchall(),
    "get": lambda app, random, _person: app.at(_moment(random)).get("accounts", f"a{random.randrange(9)}"),
    "diff": lambda app, random, _person: app.at(_moment(random)).diff(app.at("now")),
    "history": lambda app, random, _person: app.history("sections", "s1"),
    "rescale": lambda app, random, _person: app.rescale(
        random.choice(("accounts", "sections")), random.choice((1, 2, 4, 8))
    ),
    "rewind": lambda app, random, _person: app.rewind(_moment(random), fence=random.random() < 0.8),
    "reset": lambda app, random, _person: app.reset(
        TOPIC, shift_by=-random.randrange(1, 4), fence=random.random() < 0.8
    ),
    "edit": _edit,
    "export": lambda app, random, _person: app.at(_moment(random)).export_tables(f"{tempfile.mkdtemp()}/export"),
    "forget": lambda app, _random, _person: app.forget("accounts", SECRET, fields=("accounts=$.account",)),
    "replicate": lambda app, _random, person: app.replicate(person.simulation.world.replica.url),
    "drill": _drill,
    "clone": _clone,
    "remove clone": _remove_clone,
    "migrate": _migrate,
}


class Person:
    """Runs verbs in separate simulated processes."""

    def __init__(
        self, simulation: Simulation, random: Random, verbs: tuple[str, ...], rare: Rare, next_program: App
    ) -> None:
        self.simulation, self.next_program = simulation, next_program
        self._random, self._verbs, self._rare = random, verbs, rare
        self.typed: list[str] = []
        self.has_forgotten = False
        """True once the person has asked for erasure, after which the person sends no more records."""
        self.results: Counter[str] = Counter()
        self.errors: list[tuple[str, BaseException]] = []
        """Exceptions other than `SlackwaterError`. All of them are bugs."""
        self._processes: list[SimulatedProcess] = []

    @property
    def is_idle(self) -> bool:
        """True if no verb is running."""
        return not any(process.is_alive for process in self._processes)

    def type_one(self) -> None:
        """Start one verb, or the same verb twice, and perhaps kill it later."""
        self._type(self._random.choice(self._verbs))

    def finish_migration(self) -> None:
        """Repeat a migration that may have been interrupted, or undone by a rewind."""
        if "migrate" in self.typed and self.is_idle:
            self._type("migrate")

    def _type(self, verb: str) -> None:
        random, world = self._random, self.simulation.world
        seed = random.getrandbits(32)
        self.typed.append(verb)
        self.has_forgotten |= verb == "forget"

        def work(client: Client) -> None:
            try:
                with client:
                    VERBS[verb](client.app(self.simulation.app.name), Random(seed), self)
                self.results[f"{verb}: done"] += 1
            except SlackwaterError as error:
                self.results[f"{verb}: {type(error).__name__}"] += 1
            except Exception as error:
                self.errors.append((verb, error))

        times = 2 if random.random() < 0.15 else 1
        self._rare.add("the same verb is typed twice at once", times == 2)
        is_open = bool(open_requests(world.objects, self.simulation.app.name))
        self._rare.add("a person types while a snapshot is open", is_open)
        for _ in range(times):
            process = self.simulation.spawn(verb, work)
            self._processes.append(process)
            if random.random() < 0.15:
                delay_s = random.expovariate(1 / 2.0)

                def interrupt(process=process, delay_s=delay_s) -> None:  # type: ignore[no-untyped-def]
                    runtime.sleep(delay_s)
                    world.scheduler.kill(process)

                world.scheduler.spawn("interrupt", interrupt)
