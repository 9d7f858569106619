"""The base install in its own environment, without Spark and pandas: all verbs that only read work."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distribution, distributions, metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from slackwater.cli.verbs import VERBS
from slackwater.store.objects.local import LocalStore

from tests.cli.verbs.calling import BAD, BROKEN, slackwater
from tests.cli.verbs.test_without_kafka import write_shop
from tests.serve.conftest import Ask, serving_apart
from tests.serve.test_acting import post
from tests.support.histories import FlightsApp, Kafka, flights
from tests.support.static import ROOT

MOST_BYTES = 400_000_000
LINE = "needs pyspark and pandas, which are not installed"
NOWHERE = ("--kafka", "127.0.0.1:1")
PROGRAM = "import slackwater as sw\napp = sw.App('flights')\n"
SETTINGS = """
[invariants.few]
app = "flights"
table = "carriers"
check = "min(flights) >= 0"
"""

READERS = """
    get flights/carriers C1
    query flights@~1 "SELECT carrier, flights FROM carriers ORDER BY 1"
    diff flights@~1 flights
    history flights/carriers C1
    log flights
"""
"""Verbs whose answers must equal those of a full install."""

OTHERS = f"""
    status flights --cost
    verify flights --deep
    bisect flights --where "{BAD}"
    snapshot take flights before --instant
    export flights/carriers out.csv
    clone app@~1 copy
    rejected flights
    reconcile flights/carriers --with flights/carriers
    why-not flights/carriers C1
    watch flights --once
    rewind flights@before --keep-offsets --dry-run
    edit flights/carriers --sql "UPDATE carriers SET delay = 0" --dry-run
    forget flights/carriers C2 --dry-run
    replicate flights --to copy --once
    compact flights
    gc flights
    archive flights
    rescale flights/carriers --partitions 3
    protect flights
    token list
    app rm copy --dry-run
"""

WITH_SPARK = """
    run flights.py
    migrate flights.py
    init flights/carriers old.csv --code flights.py
    attach checkpoint --app shop
    adopt checkpoint flights.py --stage carriers
    replay flights/carriers@v3 --code flights.py
    check flights.py
    learn-tests flights --code flights.py
    trial flights --code flights.py --from flights@~1
    why flights/carriers C1 --code flights.py
    impact flights flights[0]@1 --code flights.py
    repair flights --drop flights[0]@1 --code flights.py --dry-run
"""

ELSEWHERE = {"asof", "dev", "doctor", "mcp", "new", "promote", "recover", "reset", "retire", "serve", "tour"}
"""Verbs that need servers, a folder or a fault. Their imports do not need Spark."""

DRIVER = """
import json, sys
from typer.testing import CliRunner
from slackwater.cli.main import app
answers = [CliRunner().invoke(app, words) for words in json.load(sys.stdin)]
print(json.dumps([(answer.exit_code, answer.stdout, answer.stderr) for answer in answers]))
"""

IMPORTS = """
import importlib, pkgutil, slackwater
for folder in ("app", "cli", "client", "common", "serve", "settings", "snapshot", "state", "store", "testing"):
    module = importlib.import_module(f"slackwater.{folder}")
    for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        if ".agents" not in info.name and ".simulation" not in info.name:  # these need extras
            importlib.import_module(info.name)
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def words_of(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in text.strip().splitlines()]


class Install(NamedTuple):
    """An environment with slackwater as a user installs it, and a working folder."""

    folder: Path
    work: Path

    @property
    def environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
        return kept | {"SLACKWATER_STORE": str(self.work / "store"), "SLACKWATER_CACHE": str(self.work / "cache")}

    def link(self, packages: Iterable[Distribution]) -> None:
        """Link packages of this environment into the install.

        With pip, resolving and unpacking them takes twelve seconds of CPU time.
        """
        (site,) = self.folder.glob("lib/python*/site-packages")
        for package in packages:
            for entry in {file.parts[0] for file in package.files or ()} - {".."}:
                if not (site / entry).exists():
                    (site / entry).symlink_to(str(package.locate_file(entry)))

    def python(self, program: str, text: str = "") -> str:
        command = [str(self.folder / "bin" / "python"), "-c", program]
        how: Any = {"cwd": self.work, "env": self.environment, "capture_output": True, "text": True, "check": False}
        done = subprocess.run(command, input=text, **how)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def answers(self, verbs: Sequence[Sequence[str]]) -> list[Answer]:
        """Return the answers of verbs that run one after the other in one process."""
        return [Answer(*answer) for answer in json.loads(self.python(DRIVER, json.dumps(verbs)))]


def required(*extras: str) -> dict[str, Distribution]:
    """Return the packages, by name, that slackwater with these extras requires directly or indirectly."""
    packages: dict[str, Distribution] = {}
    waiting: list[tuple[str, Collection[str]]] = [("slackwater", extras)]
    while waiting:
        name, asked = waiting.pop()
        packages[name] = distribution(name)
        for requirement in map(Requirement, packages[name].requires or ()):
            needs = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *asked))
            if needs and requirement.name not in packages:
                waiting.append((requirement.name, requirement.extras))
    del packages["slackwater"]
    return packages


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Return an environment with the wheel of this checkout, links to its requirements, and a store with a history."""
    folder = tmp_path_factory.mktemp("base")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "bench", "docs", "examples", "tests")
    source = shutil.copytree(ROOT, folder / "source", ignore=ignored)
    venv.create(folder / "venv", symlinks=True)  # without pip: 25 MB
    made = Install(folder / "venv", folder / "work")
    python = str(made.folder / "bin" / "python")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")
    command = [sys.executable, "-m", "pip", "--python", python, "install", *quiet, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made.link(required().values())
    made.work.mkdir()
    (made.work / "flights.py").write_text(PROGRAM)
    (made.work / "slackwater.toml").write_text(SETTINGS)
    store = LocalStore(made.work / "store")
    write_shop(store)
    app = FlightsApp(store, Kafka())
    app.run(flights(20))
    app.send(BROKEN)
    app.step_all()
    return made


def test_the_base_install_is_small_and_has_no_spark(base: Install) -> None:
    linked = [Path(str(package.locate_file(file))) for package in required().values() for file in package.files or ()]
    assert sum(file.lstat().st_size for file in [*base.folder.rglob("*"), *linked] if file.exists()) <= MOST_BYTES
    (packages,) = base.folder.glob("lib/python*/site-packages")
    assert [name for name in ("pyspark", "py4j", "pandas", "mcp", "starlette") if (packages / name).exists()] == []


def test_reading_verbs_give_the_same_answers_as_with_spark(base: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base.work)
    for name, value in base.environment.items():
        monkeypatch.setenv(name, value)
    verbs = [[*words, "--json"] for words in words_of(READERS)]
    for words, answer in zip(verbs, base.answers(verbs), strict=True):
        expected = slackwater(*words)
        assert (answer.code, answer.err) == (expected.exit_code, expected.stderr), words
        assert json.loads(answer.out) == json.loads(expected.stdout), words


def test_other_verbs_need_no_spark(base: Install) -> None:
    verbs = words_of(OTHERS)
    for words, answer in zip(verbs, base.answers(verbs), strict=True):
        assert "pyspark" not in answer.err, words
        assert answer.code == 0, (words, answer)


def test_a_verb_that_needs_spark_names_the_extra_to_install(base: Install) -> None:
    verbs = [[*words, *(NOWHERE if words[0] != "attach" else ())] for words in words_of(WITH_SPARK)]
    for words, answer in zip(verbs, base.answers(verbs), strict=True):
        first, second = answer.err.strip().splitlines()
        assert (answer.code, answer.out) == (1, ""), words
        assert first.startswith("error: "), words
        assert LINE in first, words
        assert "'.[spark]'; on a managed Spark" in second, words


def test_a_verb_that_needs_another_extra_names_it(base: Install) -> None:
    extras = {
        "serve": "serve",
        "serve --mcp": "serve,agents",
        "mcp": "serve,agents",
        "export flights --iceberg lake": "iceberg",
    }
    for extra, answer in zip(extras.values(), base.answers([verb.split() for verb in extras]), strict=True):
        assert answer.code == 1
        assert "not installed" in answer.err
        assert f"'.[{extra}]'" in answer.err


def test_a_bisect_finds_the_commit_and_reports_why_it_names_no_record(base: Install) -> None:
    (answer,) = base.answers([["bisect", "flights", "--where", BAD, "--code", "flights.py", *NOWHERE]])
    assert answer.code == 0, answer.err
    assert f"the commit was found, but the replay failed: a replay {LINE}" in answer.err


def test_every_verb_is_tested() -> None:
    tried = {words[0] for text in (READERS, OTHERS, WITH_SPARK) for words in words_of(text)}
    assert tried | ELSEWHERE == set(VERBS)
    assert not tried & ELSEWHERE


PYTHON = """
import slackwater as sw
import slackwater.testing
app = sw.open().app("flights")
calls = (
    lambda: sw.processor,
    lambda: sw.decode("value", registry="http://nowhere"),
    lambda: sw.App("flights").run(),
    lambda: sw.testing.run(sw.App("flights"), {}),
    lambda: sw.testing.replayed("bundle.zip"),
    lambda: app.migrate("flights.py"),
    lambda: app.trial("flights.py", start="~1"),
    lambda: app.check("flights.py"),
)
for call in calls:
    try:
        call()
    except sw.errors.Refused as error:
        print(error)
"""


def test_python_errors_name_what_needs_spark(base: Install) -> None:
    purposes = [line.removesuffix(f" {LINE}") for line in base.python(PYTHON).splitlines()]
    assert purposes == [
        "slackwater.processor",
        "decode needs pyspark, pandas, datafusion, ptars and grpc_tools, which are not installed",
        *("running an app", "running an app", "a replay", "a migration", "a trial", "a replay"),
    ]


DF = """
import slackwater as sw
rows = sw.open().app("flights").query("SELECT count(*) AS n FROM carriers")
print(rows.arrow().read_all().to_pydict(), rows.filter("n > 0").fetchall(), len(rows))
for name in ("df", "to_df", "fetchdf"):
    try:
        getattr(rows, name)()
    except sw.errors.Refused as error:
        print(error.message, "-", error.hint)
"""


def test_without_pandas_rows_cannot_become_a_dataframe(base: Install) -> None:
    answer, *refusals = base.python(DF).splitlines()
    assert answer == "{'n': [3]} [(3,)] 1"
    assert set(refusals) == {
        "df() needs pandas, which is not installed - pip install 'pandas<3', or call .arrow() or .fetchall()"
    }
    assert len(refusals) == 3


def test_the_http_server_works_without_spark(base: Install) -> None:
    base.link(required("serve").values())
    base.python(IMPORTS)
    code = f"flights={base.work / 'flights.py'}"
    slackwater = base.folder / "bin" / "slackwater"
    with serving_apart(f"{base.work}/store", base.work / "cache", "--code", code, program=slackwater) as (url, _):
        ask = Ask(url)
        (row,) = ask("/apps/flights/at/now/tables/carriers", key="C2").json["rows"]
        assert row == {"carrier": "C2", "flights": 6, "delay": 30}
        sql = "SELECT count(*) AS n FROM carriers"
        assert ask("/apps/flights/at/now/query", sql=sql).json["rows"] == [{"n": 3}]
        assert "<html" in ask("/").body.decode()
        status, said = post(ask, "/apps/flights/replay", {"stage": "carriers", "version": 3})
        assert (status, LINE in said["message"]) == (409, True)


def test_the_packages_that_make_installs_support_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2. A package that needs a later version would break `make` there."""
    oldest = str(min(SpecifierSet(metadata("slackwater")["Requires-Python"]), key=str)).removeprefix(">=") + ".0"
    needs = {package.name: package.metadata["Requires-Python"] for package in distributions()}
    assert [name for name, python in needs.items() if python and not SpecifierSet(python).contains(oldest)] == []
