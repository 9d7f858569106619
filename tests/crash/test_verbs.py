"""Verbs killed at any call to the store or to Kafka, and repeated: they finish, and then report "done already".

Each verb is killed at a sample of its crash points; `make crashpoints` tries all. After the repetition, the app is in
the same state as without a kill, except for garbage, which gc collects.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.versions import apps

from tests.cli.verbs.test_who_did_what import CHANGES, CHANGES_ELSEWHERE
from tests.crash.points import killed_at_each_call
from tests.crash.verbs import CASES, app_of, check_consistent, check_no_litter, command_line, described, slackwater
from tests.support.collecting import copied_world, keys_of, store_of
from tests.support.histories import FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")


def test_each_verb_that_changes_something_is_killed_in_some_test() -> None:
    texts = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")]
    elsewhere = {verb for text in texts for verb in re.findall(r'killed_at_each_call\(\s*"([a-z -]+)', text)}
    assert CHANGES.keys() | CHANGES_ELSEWHERE.keys() <= elsewhere | {verb.split(" -")[0] for verb in CASES} | _NAMED


_NAMED = {"replicate", "recover", "repair", "reset", "export"}
"""Verbs for which tests use several case names instead of the verb's name."""


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("verb", CASES)
def test_a_verb_that_is_killed_anywhere_finishes_when_it_is_repeated(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[verb]

    def again(app: FlightsApp) -> str:
        with command_line(app, monkeypatch):
            result = slackwater(*case.words)
        is_refused = result.exit_code == 1 and case.done_already.startswith("error")
        assert result.exit_code == 0 or (is_refused and case.done_already in result.output), result.output
        return result.output

    def first(app: FlightsApp) -> None:
        with command_line(app, monkeypatch):
            slackwater(*case.words)  # it may have been told that storage is away, and say so

    expected = None
    begin = cache(case.build)
    first(copied_world(begin()))  # objects that the first world reads are cached by this process in all later worlds
    for app, _ in killed_at_each_call(verb, lambda: copied_world(begin()), first, store_of):
        if expected is None:
            expected = described(app, case.varies)
        else:
            again(app)
        assert case.done_already in again(app)
        assert described(app, case.varies) == expected
        check_consistent(app)
        check_no_litter(app)


def running(app: FlightsApp) -> Callable[[str, str], None]:
    """Return a hook: whenever the waiting verb lists the requests, every stage commits a batch."""
    busy = False

    def before(verb: str, key: str) -> None:
        nonlocal busy
        if busy or verb != "list" or not key.endswith("/requests/") or not keys_of(store_of(app), "flights/requests/"):
            return
        busy, store = True, store_of(app)
        calls, store.calls = store.calls, None
        try:
            app.step_all()
        finally:
            busy, store.calls = False, calls

    return before


@pytest.mark.timeout(3_600)
def test_snapshot_take_that_is_killed_during_the_answers_is_joined_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("snapshot", "take", "flights", "live", "--timeout", "20")

    def take(app: FlightsApp) -> str:
        store_of(app).before = running(app)
        with command_line(app, monkeypatch):
            return slackwater(*words).output

    for app, _ in killed_at_each_call("snapshot take, live", app_of, take, store_of):
        take(app)
        assert "done already: snapshot flights@live is the one that you took" in take(app)
        store = store_of(app)
        store.before = lambda verb, key: None
        assert [s.name for s in list_snapshots(store, "flights") if s.kind == "markers"] == ["live"]
        assert open_requests(store, "flights") == ()
        assert [done.verb for done in list_operations(store, "flights")] == ["snapshot take"]
        check_consistent(app)


def test_a_misspelled_snapshot_name_is_not_taken_for_a_removed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of()
    with command_line(app, monkeypatch):
        assert slackwater("snapshot", "rm", "flights", "good").exit_code == 0
        assert "done already" in slackwater("snapshot", "rm", "flights", "good").stdout
        wrong = slackwater("snapshot", "rm", "flights", "goood")
        assert wrong.exit_code == 1
        assert "no snapshot of app 'flights' named 'goood'" in wrong.stderr


def test_the_name_of_an_older_snapshot_of_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of()
    with command_line(app, monkeypatch):
        taken = slackwater("snapshot", "take", "flights", "good", "--instant")
    assert "done already" in taken.stdout or "is pinned" in taken.stdout  # of the very same versions
    app.step("legs")
    with command_line(app, monkeypatch):
        others = slackwater("snapshot", "take", "flights", "good", "--instant")
    assert others.exit_code == 1
    assert "exists already" in others.stderr


def test_pins_of_failed_clone_calls_are_removed_by_the_successful_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call dies after its pin, and the app commits.

    The next call therefore pins another moment; it removes both pins.
    """
    app = app_of()
    pin_cut(app.store, resolve(app.store, "flights", now_ms=0), "clone-staging", "clone", clone="staging")
    app.step_all()
    with command_line(app, monkeypatch):
        assert slackwater("clone", "flights", "staging").exit_code == 0
    origin = apps.read_app(app.store, "staging").origin
    assert origin is not None
    assert [s.name for s in list_snapshots(app.store, "flights") if s.clone] == [origin.snapshot]
