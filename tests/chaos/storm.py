"""Random kills and verbs, drawn from a seed, with real programs: runners, broker, S3 server, proxy, `serve`."""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen
from uuid import uuid4

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from slackwater.errors import SlackwaterError
from slackwater.pipeline.dev.jvm_server import HOST, EmbeddedServer, choose_port
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.dev.s3 import EmbeddedS3
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps

from tests.chaos.flights import ALERTS, FLIGHTS, Flights
from tests.chaos.programs import Driver, Program, Verb, kill_one, marked, verb
from tests.end_to_end.under_fire.spark_cluster import words_of
from tests.programs.spark_classes import SHORT_LIVED
from tests.support.running import SLACKWATER

KILLS = {
    "driver": 3,
    "jvm": 2,
    "executor": 8,
    "worker": 8,
    "publisher": 4,
    "broker": 2,
    "proxy": 3,
    "s3": 2,
    "server": 3,
}
"""Kinds of kills with their relative frequency. Verbs are killed in addition."""
_VERBS = {"take": 2, "instant": 2, "clone": 3, "promotion": 4, "compact": 1, "gc": 2, "rm": 1}
"""Kinds of verbs with their relative frequency."""
_NEEDED = ("broker", "s3", "proxy")
"""Programs that every commit needs."""
_ENDING = ("driver", "jvm", "publisher")
"""Kills that end a runner. It starts for up to a minute, in which there is no other process of Spark to kill."""
_OF_SPARK = ("executor", "worker", *_ENDING)
_COMMITS_BEFORE_END = 6
"""Number of commits that a runner makes before such a kill; a few kills come earlier."""
_MASTER = "local-cluster[2,1,1024]"
_MEAN_PAUSE_S = 1.0
_RATE = 0.02
"""Share of the requests to S3 that fail."""
_MOST_VERBS = 3
_START_S = 900
_STOP_S = 180
_END_S = 90
"""Seconds within which a JVM must exit after its driver was killed. Shutdown hooks alone take thirty."""


@dataclass
class Storm:
    """All programs of a run, and a record of all actions on them."""

    folder: Path
    seed: int
    flights: Flights
    broker: EmbeddedKafka
    bucket: EmbeddedS3
    proxy: Program
    server: Program
    environment: dict[str, str]
    port: int
    chance: random.Random
    drivers: list[Driver] = field(default_factory=list)
    ended: list[Driver] = field(default_factory=list)
    verbs: list[Verb] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    chosen: Counter[str] = field(default_factory=Counter)
    """Number of verbs started, by their kinds in `_VERBS`."""
    done: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    answers: dict[str, object] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Refs of all snapshots taken."""
    clones: list[str] = field(default_factory=list)
    rate: float = _RATE
    number: int = 0
    commits: int = 0
    """Number of commits at the last kill of a program in `_NEEDED`."""
    promoting: str = ""
    """Name of the clone that is being promoted; empty if there is none."""

    def driver(self, folder: str) -> Driver:
        """Return the runner of an app's folder.

        Each start uses the name that the app in the folder has at that time.
        """
        words = ("--master", _MASTER, "--max-records", str(self.chance.choice((1_000, 3_000, 8_000))))

        def command() -> tuple[str, ...] | None:
            store, name = open_store(self.flights.store), self.flights.app
            if folder in apps.list_apps(store):
                owned = (name for name in (self.flights.app, folder) if apps.folder_of(store, name) == folder)
                if (name := next(owned, "")) == "":
                    return None  # another app was promoted over it
            return (str(SLACKWATER), "run", str(FLIGHTS), "--app", name, "--json", *words)

        started = Driver(f"driver-{folder}", command, self.folder, self.environment, app_folder=folder)
        self.drivers.append(started)
        return started

    def keep_up(self) -> None:
        """Restart programs that have exited, as service managers do, and advance running verbs."""
        for server in (self.broker, self.bucket):
            server.launch()
        for program in (self.proxy, self.server):
            program.keep_up()
        for driver in list(self.drivers):
            if not driver.keep_up():
                self.drivers.remove(driver)
                self.ended.append(driver)
        for under_way in list(self.verbs):
            self._go_on(under_way)

    def _go_on(self, under_way: Verb) -> None:
        if under_way.kill_if_due():
            self.kills["promoter" if under_way.name == "promote" else "verb"] += 1
        if under_way.program.is_running:
            return
        self.verbs.remove(under_way)
        under_way.program.note_end()
        self.problems += under_way.program.problems
        code = under_way.program.exits[-1]
        self.done[f"{under_way.name}: {code}"] += 1
        if code == 0:
            self._note_success(under_way.words)
        elif code != 2 and under_way.tries < 20:
            self.start_verb(*under_way.words, tries=under_way.tries + 1)
        else:
            said = under_way.program.said()[-600:].decode(errors="replace")
            self.log(f"{' '.join(under_way.words)}: {code}: {said}")
            if under_way.words[0] == "clone" and under_way.words[2] == self.promoting:
                self.promoting = ""

    def _note_success(self, words: tuple[str, ...]) -> None:
        if words[:2] == ("snapshot", "take"):
            self.names.append(f"{words[2]}@{words[3]}")
        elif words[0] == "clone":
            self.clones.append(words[2])
            if words[2] == self.promoting:
                self.driver(self.promoting)
        elif words[0] == "promote":
            self.promoting = ""
            self.names.clear()  # which are another app's now

    def start_verb(self, *words: str, tries: int = 1) -> None:
        """Start a verb. Half of all verbs, and the first run of each promotion, are killed after a moment."""
        is_doomed = self.chance.random() < 0.5 or (words[0] == "promote" and tries == 1)
        kill_at_s = self.chance.uniform(0.5, 2) if is_doomed else None
        started = verb(words, self.folder, self.environment, kill_at_s)
        started.tries = tries
        self.verbs.append(started)

    def act(self) -> None:
        """Kill a random process or start a random verb."""
        if len(self.verbs) < _MOST_VERBS and self.chance.random() < 0.4:
            self.start_verb(*self.choose_verb())
            return
        kind = self._choose(KILLS, self.kills)
        if self.kill(kind):
            self.kills[kind] += 1
            self.log(f"killed {kind}")

    def _choose(self, kinds: Mapping[str, int], counts: Counter[str]) -> str:
        """Choose a kind. One that seldom succeeded is tried more often: not every kind is possible at each moment."""
        return self.chance.choices([*kinds], [weight / (1 + counts[kind]) for kind, weight in kinds.items()])[0]

    def choose_verb(self) -> tuple[str, ...]:
        """Choose the next verb. A clone is promoted as soon as it has committed."""
        app = self.flights.app
        self.number += 1
        if self._is_promotable():
            return self._promotion()
        copies = [name for name in self.clones if name.startswith("copy-")]
        impossible = {"clone": not self.names, "rm": len(copies) < 3}
        impossible["promotion"] = bool(self.promoting) or len(self.drivers) > 1
        # Only a running app takes part in a snapshot. Several that wait would leave no place for other verbs.
        impossible["take"] = any(one.name == "snapshot take" for one in self.verbs)
        possible = {kind: weight for kind, weight in _VERBS.items() if not impossible.get(kind)}
        kind = self._choose(possible, self.chosen)
        self.chosen[kind] += 1
        if kind == "promotion":
            self.promoting = f"{app}-{self.number}"
            return ("clone", app, self.promoting)
        if kind == "clone":
            return ("clone", self.chance.choice(self.names), f"copy-{self.number}")
        if kind == "rm":
            self.clones.remove(copies[0])
            return ("clone", "rm", copies[0], "--yes-really", copies[0])
        if kind == "compact":
            return ("compact", app)
        if kind == "gc":
            return ("gc", app, "--versions", "20")
        more = ("--instant",) if kind == "instant" else ("--timeout", "180")
        return ("snapshot", "take", app, f"s{self.number}", *more)

    def kill(self, kind: str) -> bool:
        """Kill a process of this kind. Returns False if none runs, or if nothing was committed since the last kill."""
        if kind in _OF_SPARK:
            return bool(self.drivers) and self._kill_of_spark(self.chance.choice(self.drivers), kind)
        if kind in _NEEDED:
            commits = sum(driver.commits() for driver in self.drivers)
            if commits == self.commits and self.chance.random() > 0.02:
                return False
            self.commits = commits
        if kind in ("broker", "s3"):
            server: EmbeddedServer = self.broker if kind == "broker" else self.bucket
            if not server.is_answering():
                return False
            server.kill()
            return True
        return (self.proxy if kind == "proxy" else self.server).kill()

    def _kill_of_spark(self, driver: Driver, kind: str) -> bool:
        commits = driver.commits() if driver.is_running else 0
        # Most kills let it go on in between, so that there are versions to disturb; some come amid a start. Spark
        # repeats a task whose executor or worker was killed, so these may come again before the next commit.
        again = 0.3 if kind in ("executor", "worker") else 0.02
        needed = _COMMITS_BEFORE_END if kind in _ENDING else 1
        if (commits <= driver.struck_at or commits < needed) and self.chance.random() > again:
            return False
        if kind == "publisher" and not self._is_publishing():
            return False
        victims = driver.victims("driver" if kind == "publisher" else kind)
        if not kill_one(victims, driver, self.chance):
            return False
        driver.struck_at = 0 if kind in _ENDING else commits
        return True

    def _is_publishing(self) -> bool:
        """Wait up to ten seconds for an open transaction of the sink. Returns False if there is none."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        places = {TopicPartition(ALERTS, partition): OffsetSpec.latest() for partition in range(2)}

        def ends(level: IsolationLevel) -> list[int]:
            asked = admin.list_offsets(places, isolation_level=level, request_timeout=2)
            return [answer.result().offset for answer in asked.values()]

        deadline = time.monotonic() + 10
        with suppress(KafkaException):
            while time.monotonic() < deadline:
                if ends(IsolationLevel.READ_COMMITTED) < ends(IsolationLevel.READ_UNCOMMITTED):
                    return True
        return False

    def look(self) -> None:
        """Query a snapshot's totals from the server. The answer must always be the same, or an error."""
        if not self.names:
            return
        ref = self.chance.choice(self.names)
        app, _, name = ref.partition("@")
        sql = "SELECT count(*) n, sum(flights) f, sum(delay) d, sum(inherited) i FROM carriers"
        url = f"http://{HOST}:{self.port}/apps/{app}/at/{name}/query?sql={quote(sql)}"
        try:
            with urlopen(url, timeout=5) as answer:
                rows = json.load(answer)["rows"]
        except HTTPError as error:
            self.done[f"answer: {error.code}"] += 1
            return
        except (OSError, HTTPException):
            self.done["answer: none"] += 1
            return
        self.done["answer: rows"] += 1
        if self.answers.setdefault(ref, rows) != rows:
            self.problems.append(f"{ref} was {self.answers[ref]} and is {rows}")

    def log(self, line: str) -> None:
        with (self.folder / "storm.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def blow(self, seconds: float) -> None:
        """Wait for the first commit, then kill processes and start verbs for some time."""
        deadline = time.monotonic() + _START_S
        while not any(driver.commits() for driver in self.drivers):
            assert time.monotonic() < deadline, f"no commit: {self.folder}"
            self.keep_up()
            time.sleep(0.1)
        end, due, look_due = time.monotonic() + seconds, 0.0, 0.0
        while (now := time.monotonic()) < end:
            self.keep_up()
            if now > due:
                self.act()
                due = now + self.chance.expovariate(1 / _MEAN_PAUSE_S)
            if now > look_due:
                self.look()
                look_due = now + 2
            time.sleep(0.1)

    def calm(self, patience_s: float) -> None:
        """Let all verbs and the app finish without further kills. The app must commit at least every `patience_s`."""
        self.rate = 0.0
        self.proxy.kill()
        for under_way in self.verbs:
            under_way.kill_at_s = None
        deadline, commits = time.monotonic() + patience_s, 0
        while self.verbs or self.promoting or not self.has_caught_up():
            assert time.monotonic() < deadline, f"no commit for {patience_s:.0f} s: {self.folder}"
            self.keep_up()
            if (now := sum(driver.commits() for driver in self.drivers)) != commits:
                deadline, commits = time.monotonic() + patience_s, now
            for under_way in self.verbs:
                under_way.kill_at_s = None
            if self._is_promotable():
                self.start_verb(*self._promotion())
            time.sleep(0.5)

    def _is_promotable(self) -> bool:
        """Return True if the clone to be promoted has committed, and no verb promotes it."""
        committed = any(driver.app_folder == self.promoting and driver.commits() for driver in self.drivers)
        return committed and all(one.name != "promote" for one in self.verbs)

    def _promotion(self) -> tuple[str, ...]:
        app = self.flights.app
        return ("promote", self.promoting, "--over", app, "--timeout", "120", "--yes-really", app)

    def has_caught_up(self) -> bool:
        """Return True if every stage has read all its input; False if the app does not exist."""
        try:
            return self.flights.has_caught_up()
        except SlackwaterError:
            return False

    def stop(self) -> None:
        """Stop all programs in order, and record those that do not exit."""
        for program in (*self.drivers, self.server):
            if not program.stop(_STOP_S):
                self.problems.append(f"{program.name} does not end by SIGTERM")
        for program in (*self.drivers, *self.ended, self.server, self.proxy):
            self.problems += program.problems
        self.proxy.kill()


@contextmanager
def storm(folder: Path, seed: int) -> Iterator[Storm]:
    """Start broker, S3 server, proxy, server and the first driver; stop every process at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    mark, chance = uuid4().hex, random.Random(seed)
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        bucket = stack.enter_context(EmbeddedS3(folder / "s3"))
        proxy_port, port = choose_port(), choose_port()
        environment = {
            "JDK_JAVA_OPTIONS": SHORT_LIVED,
            "PYTHONFAULTHANDLER": "1",
            "SLACKWATER_STORE": bucket.store_root,
            "SLACKWATER_KAFKA": broker.bootstrap,
            "SLACKWATER_CACHE": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))),
        }
        before = dict(os.environ)
        stack.callback(os.environ.update, before)
        stack.callback(os.environ.clear)
        os.environ.update(bucket.environment | environment)
        flights = Flights(broker.bootstrap, folder, bucket.store_root)
        near = {"SLACKWATER_CHAOS": mark, "AWS_ENDPOINT_URL_S3": f"http://{HOST}:{proxy_port}"}
        serve = (str(SLACKWATER), "serve", "--port", str(port))
        proxy = Program("proxy", lambda: (), folder)
        server = Program("server", lambda: serve, folder, near)
        blowing = Storm(folder, seed, flights, broker, bucket, proxy, server, near, port, chance)
        proxying = (sys.executable, "-m", "tests.support.s3_proxy", bucket.endpoint, str(proxy_port))
        proxy.words = lambda: (*proxying, str(chance.randrange(1 << 30)), str(blowing.rate))
        stack.callback(lambda: [process.kill() for process in marked(mark)])
        blowing.driver(flights.app)
        yield blowing
        blowing.stop()
        deadline = time.monotonic() + _END_S
        while (left := [" ".join(words_of(process)[:6]) for process in marked(mark)]) and time.monotonic() < deadline:
            time.sleep(0.5)
        blowing.problems += [f"still runs: {words}" for words in left]
