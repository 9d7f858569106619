"""Commands of the documentation, run on test apps: each must succeed.

The commands of one section are a session on a fresh copy of an app, since a reader may begin at any heading.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from slackwater.cli import main
from slackwater.client.project.write import write_project
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.store.objects.local import LocalStore
from typer.testing import CliRunner

from tests.documents.pages.blocks import blocks, commands, program
from tests.support.histories import FlightsApp, Kafka, flights

README = "README.md"
SHOP, FLIGHTS = "shop", "flights"
APPS = {
    README: SHOP,
    "docs/changing-a-program.md": SHOP,
    "docs/cli.md": FLIGHTS,
    "docs/cost.md": SHOP,
    "docs/disaster-recovery.md": SHOP,
    "docs/erasure.md": FLIGHTS,
    "docs/leaving-iceberg.md": FLIGHTS,
    "docs/leaving.md": FLIGHTS,
    "docs/operating.md": FLIGHTS,
    "docs/serving.md": FLIGHTS,
    "docs/agents.md": FLIGHTS,
    "docs/snapshots.md": SHOP,
    "docs/staging.md": SHOP,
}
"""Pages whose commands are typed, and their apps."""
NOT_TYPED_PAGES = {
    "SECURITY.md": "needs a release",
    "CONTRIBUTING.md": "the gate itself, and what takes hours",
    "docs/archive.md": "needs an archive of days; tests/store/archive has it",
    "docs/benchmarks.md": "takes an hour",
    "docs/cluster.md": "needs systemd, a container engine or Kubernetes; test_deploy.py reads their files",
    "docs/coming-from-kafka-streams.md": "needs a Kafka Streams app; tests/operations/from_kafka has one",
    "docs/coming-from-spark-adopt.md": "needs the checkpoint of a query; tests/operations/from_spark has one",
    "docs/coming-from-spark.md": "needs a running query; tests/operations/from_spark has one",
    "docs/debugging.md": "needs the app of the demo, which types the same",
    "docs/first-app.md": "typed by test_first_app.py, on a broker",
    "docs/on-call.md": "needs collectors of traces and lineage; tests/pipeline/telemetry has them",
    "docs/page.md": "serves until Ctrl-C; tests/serve/page does it",
    "docs/reconcile.md": "needs rows of a warehouse; tests/operations/debugging/reconcile has them",
    "docs/testing.md": "takes hours",
}
"""Pages without typed commands, and the reasons."""
NOT_TYPED = {
    r"(make|pip|eval|export|docker|curl|python|spark-submit) .*": "another program, or what installs or starts servers",
    r"slackwater new .*": "writes another program than that of its page; tests/client/test_project.py has it",
    r"slackwater serve.*": "serves until Ctrl-C; tests/serve does it",
    r"slackwater attach s3:.*": "needs a running query; tests/operations/from_spark has one",
    r"slackwater .* (totals|FROM totals).*": "about that query",
    r"slackwater bisect shop .*\bcustomer\b.*": "about that query",
    r"slackwater run .*--(conf|master) .*": "needs a JVM or a cluster of its own; tests/pipeline/spark has them",
    r"slackwater verify shop@before-release --deep": "of another app than its page is about",
    r"slackwater export .*--register .*": "needs a catalog; tests/cli/verbs/test_export_iceberg.py has one",
    r"slackwater clone .*--mask .*": "of an app with names of people; tests/operations/staging has one",
}
"""Patterns of commands that are not typed, and the reasons."""
INSTEAD = {
    "shop@-5m": "shop@~2",
    "flights@-1d": "flights@~2",
    "shop@year-end": "shop@~1",
    "shop@monday": "shop@~1",
    "s3://elsewhere/slackwater": "elsewhere",
    "/data/elsewhere": "elsewhere",
    "s3://archive/slackwater": "archive",
    "/srv/lake/flights": "lake",
}
"""Moments that a young app lacks, and places that do not exist in a test, with their replacements."""
ENDING = {"run": "--until-caught-up", "replicate": "--once", "snapshot take": "--instant", "check": "--versions=1"}
"""Verbs that run until Ctrl-C, wait for a running app or replay many versions, with options that make them end."""
FIRST = {
    ("docs/changing-a-program.md", "Go back"): ["slackwater migrate shop.py --rename largest=largest_cents"],
    ("docs/disaster-recovery.md", "Watch it"): ["slackwater replicate shop --to /data/elsewhere"],
    ("docs/disaster-recovery.md", "Drill"): ["slackwater replicate shop --to /data/elsewhere"],
    ("docs/disaster-recovery.md", "Fail over"): ["slackwater replicate shop --to /data/elsewhere"],
}
"""Commands of earlier sections that a section depends on."""
MAY_FAIL = ("slackwater query flight ", "slackwater diff ", "slackwater check ")
"""Beginnings of commands that show an error, or that exit with 1 because of a difference."""


def changed(text: str) -> str:
    """Return the first app's program with the change from the page about changing programs."""
    (block,) = blocks("diff")
    hunk = re.compile(r"(?P<before>(?:^ .*\n)?)(?P<old>(?:^-.*\n)*)(?P<new>(?:^\+.*\n)*)", re.MULTILINE)
    for match in hunk.finditer(block.code):
        before, old, new = (re.sub(r"^.", "", match[part], flags=re.MULTILINE) for part in ("before", "old", "new"))
        if old or new:
            before = "" if "…" in before else before
            assert before + old in text
            text = text.replace(before + old, before + new, 1)
    return text


PROGRAMS: dict[tuple[str, str], Callable[[str], str]] = {
    ("docs/changing-a-program.md", "A change, from edit to verified"): changed,
    ("docs/changing-a-program.md", "Go back"): changed,
    ("docs/changing-a-program.md", "A stage under another name"): lambda text: text.replace("countries", "markets"),
}
"""Sections with other programs, and functions that derive them from the first app's."""


def why_not(page: str, words: str) -> str:
    """Return the reason why a command is not run; empty if it is."""
    if page in NOT_TYPED_PAGES:
        return NOT_TYPED_PAGES[page]
    return next((why for pattern, why in NOT_TYPED.items() if re.fullmatch(pattern, words)), "")


def sessions() -> dict[tuple[str, str], list[str]]:
    """Return the typed commands of each section."""
    found: dict[tuple[str, str], list[str]] = {}
    for block in blocks("console"):
        for command in commands(block):
            if not why_not(block.page, command.words):
                found.setdefault((block.page, block.heading), []).append(command.words)
    return found


SESSIONS = sessions()


def session_id(value: str | tuple[str, str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def of_app(app: str) -> list[tuple[str, str]]:
    return [session for session in SESSIONS if APPS[session[0]] == app]


def test_every_page_with_commands_is_run_or_listed_with_a_reason() -> None:
    pages = {block.page for block in blocks("console")}
    assert {*APPS, *NOT_TYPED_PAGES} == pages
    assert not APPS.keys() & NOT_TYPED_PAGES.keys()
    every = [command.words for block in blocks("console") for command in commands(block) if block.page in APPS]
    assert [pattern for pattern in NOT_TYPED if not any(re.fullmatch(pattern, words) for words in every)] == []
    assert FIRST.keys() | PROGRAMS.keys() <= SESSIONS.keys()


def typed(words: str) -> None:
    """Run a slackwater command in the current folder."""
    for name, instead in INSTEAD.items():
        words = words.replace(name, instead)
    if "before-migration-1-" in words:
        (name,) = re.findall(r"before-migration-1-[\d-]*\d", invoked("snapshot", "list", "shop"))
        words = re.sub(r"before-migration-1-[\d-]*\d", name, words)
    _, *arguments = shlex.split(words, comments=True)
    for verb, option in ENDING.items():
        if words.startswith(f"slackwater {verb} ") and option not in arguments:
            arguments.append(option)
    invoked(*arguments, may_fail=words.startswith(MAY_FAIL))


def invoked(*arguments: str, may_fail: bool = False) -> str:
    done = CliRunner().invoke(main.app, arguments)
    assert done.exit_code in (0, may_fail), f"slackwater {shlex.join(arguments)}\n{done.output}"
    return done.stdout


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("session", of_app(FLIGHTS), ids=session_id)
def test_commands_on_the_flights_app_succeed(session: tuple[str, str], tmp_path: Path) -> None:
    FlightsApp(LocalStore(tmp_path / "store"), Kafka()).run(flights(120))
    invoked("snapshot", "take", "flights", "before-deploy", "--instant")
    for words in SESSIONS[session]:
        typed(words)


@pytest.fixture(scope="module")
def shops(one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], tuple[Path, str]]:
    """Return a function that gives a folder with a program and its app, and the address of the app's Kafka.

    The program is that of the README, or that of a new project. The app has read orders, of which the last ones are
    faulty.
    """

    @cache
    def build(of_readme: bool) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("shop")
        if of_readme:
            (folder / "shop.py").write_text(program(README))
        else:
            write_project("shop", folder)
        kafka = MemoryKafka.named(f"memory://{folder.name}")
        kafka.create_topics({"orders": 3})
        with pytest.MonkeyPatch.context() as patch:
            go_to(folder, kafka.address, patch)
            for factor in (1, 1, 1, 10_000):
                orders = ({"number": n, "country": "DE", "cents": 500 * factor, "customer": "c1"} for n in range(30))
                kafka.send("orders", [Record(json.dumps(order).encode()) for order in orders], patience_s=0)
            invoked("run", "shop.py", "--until-caught-up", "--max-records", "30")
            invoked("snapshot", "take", "shop", "before-release", "--instant")
        return folder, kafka.address

    return build


def go_to(folder: Path, kafka: str, patch: pytest.MonkeyPatch) -> None:
    """Change the working folder, also of running Spark workers."""
    patch.chdir(folder)
    patch.setenv("SLACKWATER_KAFKA", kafka)
    for name in ("store", "cache"):
        patch.setenv(f"SLACKWATER_{name.upper()}", str(folder / name))


@pytest.mark.spark
@pytest.mark.parametrize("session", of_app(SHOP), ids=session_id)
def test_commands_on_the_shop_app_succeed(
    session: tuple[str, str],
    shops: Callable[[bool], tuple[Path, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop, kafka = shops(session[0] == README)
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    go_to(tmp_path, kafka, monkeypatch)
    text = (tmp_path / "shop.py").read_text()
    (tmp_path / "before.py").write_text(text)
    (tmp_path / "recent.py").write_text(text.replace("is not null", "is not null and now() > timestamp '2026-01-01'"))
    (tmp_path / "shop.py").write_text(PROGRAMS.get(session, str)(text))
    for words in (*FIRST.get(session, ()), *SESSIONS[session]):
        typed(words)
