"""The log of operations: every change by a verb is recorded with user, time and reason."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.errors import Usage
from slackwater.operations.exchange.initialise import initialise
from slackwater.operations.maintenance.removal import remove_app
from slackwater.operations.staging.promote import promote
from slackwater.operations.staging.refresh import refresh
from slackwater.snapshot.change.migrate import find_plan, migrate
from slackwater.snapshot.query.row_source import RowSource
from slackwater.snapshot.take.audit_log import VERBS as RECORDED
from slackwater.snapshot.take.audit_log import Operation, list_operations, record_operation, whoami
from slackwater.store.objects.memory import MemoryStore

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.crash.verbs import command_line, gone_on
from tests.documents.test_help import VERBS
from tests.operations.exchange.init.test_initialise import FIRST
from tests.operations.repair.rejected.rejecting import reject
from tests.snapshot.change.test_migrate import changed
from tests.support.collecting import store_of
from tests.support.histories import STAGES, FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")

WHY = "the carriers of ticket 12 were wrong"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FlightsApp:
    """Return an app that continued to run after its snapshot `good`, and that has a rejected record."""
    app = gone_on()
    reject(app, "carriers", [3], tmp_path / "cache")
    with command_line(app, monkeypatch):
        return app


@dataclass(frozen=True)
class Change:
    """A call of a verb that changes something."""

    call: Callable[[FlightsApp], object]
    makes: tuple[str, ...] = ()
    """Stages for which the verb makes a version."""
    app: str = "flights"
    noted: str = ""
    """Name in the log, if it is not the verb's name."""
    claims: int = 0
    """Number of versions of each stage that come before the verb's own version."""


def typed(*words: str) -> Callable[[FlightsApp], object]:
    return lambda _app: done(*words, "--message", WHY)


def migrated(app: FlightsApp) -> None:
    """Do the part of `migrate` that does not need Spark."""
    with sw.because(WHY):
        found = find_plan(app.store, changed(app), {"delay": "minutes"})
        migrate(app.store, found, {}, by=whoami(), now_ms=app.clock.tick("legs"))


def began(app: FlightsApp) -> None:
    """Do the part of `init` that does not need Spark."""
    first = replace(FIRST, app="loaded", by=whoami())
    rows = RowSource(sql="SELECT 'C1' AS carrier, 1::BIGINT AS flights, 2.0::DOUBLE AS delay")
    with sw.because(WHY):
        initialise(app.store, first, rows)


def removed(app: FlightsApp, name: str = "flights") -> None:
    """Remove an app without waiting for the store's clock, which does not advance."""
    with sw.because(WHY):
        remove_app(app.store, name, by=whoami(), now_ms=app.clock.now_ms, fence=True, pause=store_of(app).pause)


def clone_removed(app: FlightsApp) -> None:
    done("clone", "flights@good", "staging")
    removed(app, "staging")


def clone_made_anew(app: FlightsApp) -> None:
    done("clone", "flights@good", "staging")
    how: Any = {"channels": app.kafka, "cache": None, "fence": True, "pause": store_of(app).pause}
    with sw.because(WHY):
        refresh(app.store, "staging", by=whoami(), now_ms=app.clock.now_ms, **how)


def promoted(app: FlightsApp) -> None:
    """Promote a clone that has run. Both apps have read everything, up to the same offsets."""
    done("clone", "flights", "staging")
    FlightsApp(app.store, app.kafka, "staging", clock=app.clock)  # its runner claims its stages
    # There are no sinks, so that nothing is asked of Kafka but where topics end.
    with sw.because(WHY):
        promote(app.store, cast(Any, app.kafka), "flights", "staging", by=whoami(), cache=None, timeout_s=30)


def token_removed(_app: FlightsApp) -> None:
    done("token", "add", "reports", "--app", "flights")
    done("token", "rm", "reports", "--message", WHY)


CHANGES = {
    "clone": Change(typed("clone", "flights@good", "staging"), STAGES, "staging"),
    "clone rm": Change(clone_removed, app="staging", noted="app rm"),
    "clone refresh": Change(clone_made_anew, app="staging"),
    "promote": Change(promoted, STAGES, claims=1),
    "rewind": Change(typed("rewind", "flights@good"), STAGES),
    "reset": Change(typed("reset", "flights", "--all-topics", "--to-earliest"), STAGES),
    "forget": Change(typed("forget", "flights", "--key", "carriers=C1"), ("carriers",)),
    "edit": Change(typed("edit", "flights/carriers", "--sql", "DELETE FROM carriers"), ("carriers",)),
    "rescale": Change(typed("rescale", "flights/carriers", "--partitions", "3"), ("carriers",)),
    "retire": Change(typed("retire", "flights/carriers"), ("carriers",)),
    "protect": Change(typed("protect", "flights")),
    "compact": Change(typed("compact", "flights", "--full", "--stage", "carriers"), ("carriers",)),
    "gc": Change(typed("gc", "flights", "--versions", "1")),
    "app rm": Change(removed),
    "init": Change(began, ("carriers",), "loaded"),
    "migrate": Change(migrated, STAGES),
    "rejected": Change(typed("rejected", "flights", "--retry")),
    "snapshot take": Change(typed("snapshot", "take", "flights", "held", "--instant")),
    "snapshot rm": Change(typed("snapshot", "rm", "flights", "good")),
    "token add": Change(typed("token", "add", "reports", "--app", "flights")),
    "token rm": Change(token_removed),
}
LOOKS = {
    "token list": (),
    "clone list": ("flights",),
    "status": ("flights",),
    "log": ("flights",),
    "snapshot list": ("flights",),
    "snapshot show": ("flights", "good"),
    "verify": ("flights@good", "--deep"),
    "query": ("flights", "FROM carriers"),
    "get": ("flights/carriers", "C1"),
    "diff": ("flights@good", "flights@good"),
    "history": ("flights/carriers", "C1"),
    "bisect": ("flights", "--where", "SELECT carrier FROM carriers WHERE delay > 100"),
}
CHANGES_ELSEWHERE = {
    "archive": "reads records: tests/operations/maintenance/test_fill.py",
    "repair": "replays with Spark: tests/operations/repair/records",
    "attach": "reads with Spark: tests/cli/verbs/test_attached.py",
    "adopt": "reads with Spark: tests/operations/from_spark/adopt/test_adoption.py",
    "export": "with --iceberg, which wants a store that others can read: tests/cli/verbs/test_export_iceberg.py",
    **dict.fromkeys(("replicate", "recover"), "want two such stores: tests/cli/verbs/test_failover.py"),
}
"""Verbs in the log of operations that other tests cover, with the reason."""
ELSEWHERE = {
    "asof": "only reads: tests/cli/verbs/test_asof.py",
    **dict.fromkeys(("reconcile", "why-not"), "only read: tests/cli/verbs/test_reconcile.py"),
    **dict.fromkeys(("serve", "mcp"), "only read: tests/serve"),
    "run": "each version says who made it",
    "watch": "its tag is a snapshot that says who moved it",
    "check": "runs in a Spark of its own, and writes nothing",
    "learn-tests": "writes a file on this machine: tests/testing/learn",
    "trial": "makes a clone that goes again, and looks at the app",
    **dict.fromkeys(("replay", "why", "impact"), "runs in a Spark of its own, and writes nothing"),
    "tour": "has an app of its own: tests/cli/test_tour.py",
    "new": "writes a project on this machine: tests/client/test_project.py",
    "doctor": "writes no more than one object, and deletes it: tests/operations/maintenance/test_doctor.py",
    **dict.fromkeys(("dev up", "dev down", "dev status"), "servers of this machine, no app"),
    **{
        f"bisect {each}": "answers lie in a file of this machine"
        for each in ("start", "good", "bad", "skip", "log", "replay", "explain", "reset")
    },
}
"""Verbs that are not in the log of operations, with the reason."""


def test_every_verb_is_classified_and_exactly_those_that_change_something_take_a_message() -> None:
    names = {words.removeprefix("slackwater "): command for words, command in VERBS.items()}
    changes = CHANGES.keys() | CHANGES_ELSEWHERE.keys()
    assert names.keys() == changes | LOOKS.keys() | ELSEWHERE.keys()
    takers = {name for name, command in names.items() if any("--message" in each.opts for each in command.params)}
    assert takers == changes


@pytest.mark.parametrize("verb", CHANGES)
def test_a_verb_that_changes_something_is_recorded_with_who_and_why(verb: str, late: FlightsApp) -> None:
    change = CHANGES[verb]
    before = {stage: late.heads[stage].version for stage in STAGES}
    change.call(late)
    noted = from_json("log", change.app, "--operations", "--verb", change.noted or verb, "--by", whoami())[0]
    assert (noted["verb"].split()[0], noted["message"]) == ((change.noted or verb).split()[0], WHY)
    assert noted["verb"] in RECORDED
    assert WHY in done("log", change.app, "--operations")
    assert set(noted["after"]) == set(change.makes)
    for stage in change.makes:
        assert noted["before"][stage] == (before[stage] + change.claims if change.app == "flights" else 0)
        assert noted["after"][stage] > noted["before"][stage]


@pytest.mark.parametrize("verb", LOOKS)
def test_a_verb_without_the_message_option_changes_nothing(verb: str, late: FlightsApp) -> None:
    def objects() -> dict[str, bytes]:
        return {info.key: MemoryStore.get(late.store, info.key) for info in late.store.list("")}  # type: ignore[arg-type]

    before = objects()
    done(*verb.split(), *LOOKS[verb])
    assert objects() == before


def test_the_log_is_filtered_by_person_verb_and_time(late: FlightsApp) -> None:
    noted = [
        record_operation(late.store, "flights", verb, f"number {number}", by)
        for number, (verb, by) in enumerate(
            [("snapshot take", "ada@laptop"), ("snapshot rm", "bob@laptop"), ("gc", "ada@cron")]
        )
    ]

    def found(*words: str) -> list[str]:
        return [each["detail"] for each in reversed(from_json("log", "flights", "--operations", *words))]

    assert found("--by", "ada") == ["number 0", "number 2"]
    assert found("--by", "ada@cron") == ["number 2"]
    assert found("--by", "ad") == []
    assert found("--verb", "snapshot") == ["number 0", "number 1"]
    assert found("--verb", "snapshot rm", "--by", "bob") == ["number 1"]
    assert found("--since", "-1h") == ["number 0", "number 1", "number 2"]
    assert found("--until", "-1h") == []
    assert found("--verb", "snapshot", "--limit", "1") == ["number 1"]
    assert [each.id for each in reversed(list_operations(late.store, "flights"))] == [each.id for each in noted]
    assert found("--verb", "promote") == []
    said = done("log", "flights", "--operations", "--by", "eve")
    assert said == "no matching operation on flights yet\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("log", "flights", "--by", "ada"), "--by, --verb, --since and --until need --operations"),
        (("log", "flights", "--operations", "--since", "good"), "good is not a time"),
        (
            ("log", "flights", "--operations", "--verb", "promot"),
            "'promot' is not a verb of the audit log; the nearest is 'promote'",
        ),
        (("rescale", "flights/carriers", "--partitions", "3", "--message", "x" * 5_000), "the message has 5,000"),
        (("gc", "flights", "--message", "\udcff"), "the message is not UTF-8"),
    ],
)
def test_invalid_input_is_refused_before_anything_is_recorded(
    words: tuple[str, ...], expected: str, late: FlightsApp
) -> None:
    refused = slackwater(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert expected in refused.stderr
    assert list_operations(late.store, "flights") == ()


def test_python_records_the_reason_given_by_a_context_manager(late: FlightsApp) -> None:
    app = sw.open("memory").app("flights")
    with sw.because(WHY):
        app.protect()
    app.unprotect(yes_really="flights")
    noted: tuple[Operation, ...] = app.operations().data
    assert [(each.verb, each.message) for each in noted] == [("protect --off", ""), ("protect", WHY)]
    with pytest.raises(Usage, match="not UTF-8"), sw.because("\udcff"):
        pass
