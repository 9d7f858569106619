"""One simulated history of the ledger: records and verbs under faults, then a quiet phase; checks all laws."""

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from unittest.mock import patch

from slackwater.operations import program_changes
from slackwater.snapshot.cut.stored import open_requests
from slackwater.snapshot.gc.reachable import Retention
from slackwater.testing.simulation import Faults, Simulation, Stuck

from tests.simulation.laws import Broken, Laws
from tests.simulation.ledger import COPIES, TOPIC, ledger, record, secret_record
from tests.simulation.person import VERBS, Person, declare
from tests.simulation.rare import Rare

_PATIENCE_S = 300.0
RETENTIONS = (
    Retention(),
    Retention(all_ms=10_000),
    Retention(versions=3, input_ms=60_000),
    Retention(input_ms=7_200_000),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions derived from a seed. A failure is shrunk to a smaller plan with the same seed."""

    seed: int
    faults: Faults
    verbs: tuple[str, ...]
    seconds: int
    retention: Retention
    sleeps: float
    """Probability, every few seconds, that all machines sleep for one or two hours, after which garbage is old."""
    options: dict[str, object]
    hot: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, seed: int) -> "Plan":
        random = Random(f"plan {seed}")
        verbs = tuple(verb for verb in VERBS if random.random() < 0.5)
        options: dict[str, object] = {}
        if random.random() < 0.5:
            options["max_records"] = random.choice((3, 20))
        if random.random() < 0.3:
            options["max_unflushed"] = random.choice((1, 3))
        return cls(
            seed,
            Faults.swarm(random),
            verbs,
            random.choice((15, 30, 60)),
            random.choice(RETENTIONS),
            random.choice((0.0, 0.05, 0.2)),
            options,
            Random(f"hot {seed}").choice((("",), ("/hot-a",), ("", "/hot-a", "/hot-b"))),
        )

    def only(self, faults: str | None, verbs: str | None, seconds: int | None) -> "Plan":
        """Return the plan with only these faults and verbs, separated by commas; None keeps them all."""
        kept = self.faults
        for name in self.faults.names:
            if faults is not None and name not in faults.split(","):
                kept = kept.without(name)
        chosen = self.verbs if verbs is None else tuple(verb for verb in self.verbs if verb in verbs.split(","))
        return replace(self, faults=kept, verbs=chosen, seconds=seconds or self.seconds)

    def smaller(self) -> Iterator["Plan"]:
        """Yield plans with one fault less, with one verb less, or with half the time."""
        if len(self.faults.names) > 3:
            for half in (self.faults.names[::2], self.faults.names[1::2]):
                yield self.only(",".join(half), None, None)
        for name in self.faults.names:
            yield replace(self, faults=self.faults.without(name))
        if len(self.verbs) > 3:
            for part in (self.verbs[::2], self.verbs[1::2]):
                yield replace(self, verbs=part)
        for verb in self.verbs:
            yield replace(self, verbs=tuple(other for other in self.verbs if other != verb))
        if self.seconds > 15:
            yield replace(self, seconds=self.seconds // 2)

    def command(self) -> str:
        """Return the command that runs this plan."""
        faults, verbs = ",".join(self.faults.names), ",".join(self.verbs)
        return f"python -m tests.simulation {self.seed} --faults '{faults}' --verbs '{verbs}' --seconds {self.seconds}"


@dataclass(slots=True)
class Outcome:
    """Result of a simulation."""

    plan: Plan
    failure: str = ""
    """Message of the broken law; empty if all laws held."""
    detail: str = ""
    trace_hash: str = ""
    steps: int = 0
    simulated_s: float = 0.0
    checked: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    """Number of times that each rare situation was reached."""


def simulate(plan: Plan, folder: Path | None = None) -> Outcome:
    """Run a plan. Never raises: a failure is part of the result."""
    random, outcome, rare = Random(f"scenario {plan.seed}"), Outcome(plan), Rare()
    simulation = Simulation(
        ledger(**plan.options),
        plan.seed,
        plan.faults,
        topics={TOPIC: 3, COPIES: 2},
        retention=plan.retention,
        hot=plan.hot,
        folder=folder,
    )
    scheduler = simulation.world.scheduler
    try:
        with simulation.running(), patch.object(program_changes, "declare_with_spark", declare):
            token = 0
            simulation.world.on_request, simulation.world.on_event = rare.on_request, rare.add
            scheduler.on_kill = rare.on_kill
            laws = Laws(simulation, rare)
            person = Person(simulation, random, plan.verbs, rare, ledger(is_next=True, **plan.options))
            plan_end_s = float(plan.seconds)
            while (before_s := scheduler.now) < plan_end_s:
                for _ in range(random.choice((0, 5, 20))):
                    is_secret = token % 5 == 4 and not person.has_forgotten
                    simulation.send(TOPIC, [secret_record(token) if is_secret else record(token)])
                    token += 1
                while plan.verbs and random.random() < 0.5:
                    person.type_one()
                simulation.run_for(random.uniform(0.5, 5))
                if random.random() < plan.sleeps:
                    simulation.sleep_all(random.uniform(1_800, 9_000))
                    plan_end_s += scheduler.now - before_s - 5
                laws.check()
                _check_person(person)
            simulation.world.heal()
            # A verb that is still running may rewind the app.
            simulation.run_for(_PATIENCE_S, lambda: person.is_idle)
            deadline = scheduler.now + _PATIENCE_S
            while not (caught_up := simulation.is_caught_up()) and scheduler.now < deadline:
                person.finish_migration()
                simulation.run_for(5.0, simulation.is_caught_up)
                laws.check()
            if not caught_up:
                raise Broken(f"not caught up {_PATIENCE_S:.0f} s after the last fault: {simulation.backlog()}")
            simulation.run_for(90.0, lambda: not open_requests(simulation.world.objects, simulation.app.name))
            simulation.run_for(2.0)
            _check_person(person)
            laws.check_end()
            if person.results["forget: done"]:
                laws.check_forgotten()
    except Broken as error:
        outcome.failure = str(error)
        outcome.detail = "".join(traceback.format_exception(error))[-6_000:] + "\n" + scheduler.tail
    except Stuck as error:
        outcome.failure, outcome.detail = f"stuck: {str(error).splitlines()[0]}", str(error) + "\n" + scheduler.tail
    except Exception as error:
        outcome.failure = f"{type(error).__name__}: {error}"
        outcome.detail = traceback.format_exc() + "\n" + scheduler.tail
    outcome.trace_hash, outcome.steps, outcome.simulated_s = scheduler.trace_hash, scheduler.steps, scheduler.now
    outcome.checked, outcome.injected = laws.checked, Counter(simulation.world.injected)
    outcome.results = person.results
    rare.on_end(person.results)
    outcome.reached = rare.reached
    return outcome


def _check_person(person: Person) -> None:
    for verb, error in person.errors:
        raise Broken(f"{verb} ended with {type(error).__name__}: {error}") from error
