"""`slackwater forget` and `slackwater verify --forgotten` on the command line."""

from pathlib import Path

import pytest
from slackwater.store.versions import keys

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.cli.verbs.test_who_did_what import promoted
from tests.crash.verbs import command_line, gone_on
from tests.support.histories import Flight, FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")
KEY = ("--key", "aircraft=N003")


@pytest.fixture
def app(isolated: None, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    made = gone_on()
    with command_line(made, monkeypatch):
        return made


def test_a_dry_run_lists_the_objects_with_the_key_and_those_out_of_reach(app: FlightsApp) -> None:
    before = {info.key for info in app.store.list("")}
    said = done("forget", "flights", *KEY, "--dry-run")
    lines = said.splitlines()
    assert lines[0].startswith("would forget 1 key in flights: ")
    assert any("records in flight" in line and "/channels/" in line for line in lines)
    assert "other tables: carriers." in said
    assert any(
        line.split()[:2] == ["flights", "yours"] and line.endswith("7 d after they were written, with their segment")
        for line in lines
    )
    assert lines[-1] == "nothing was changed (--dry-run)"
    assert {info.key for info in app.store.list("")} == before
    assert from_json("forget", "flights", *KEY, "--dry-run")["dry_run"]


def test_forget_removes_the_key_verify_checks_it_and_the_snapshot_notes_it(app: FlightsApp, tmp_path: Path) -> None:
    assert slackwater("verify", "flights", "--forgotten", *KEY).exit_code == 1
    said = done("forget", "flights", *KEY, "--message", "request 118")
    assert said.startswith("forgot 1 key in flights: ")
    assert "snapshot flights@good was edited" in said
    assert "flights/aircraft v" in said
    assert done("verify", "flights", "--forgotten", *KEY, "--deep").startswith(
        "no object of flights holds any of 1 key\n"
    )
    assert rows_of("flights@good", "SELECT * FROM aircraft WHERE tail = 'N003'") == []
    assert "markers, edited" in done("snapshot", "list", "flights") or "instant, edited" in done(
        "snapshot", "list", "flights"
    )
    assert "keys were forgotten" in done("snapshot", "show", "flights", "good")
    assert " forget " in done("log", "flights", "--limit", "1")
    (operation,) = from_json("log", "flights", "--operations", "--verb", "forget")
    assert (operation["detail"], operation["message"]) == ("1 of aircraft", "request 118")
    result = slackwater("forget", "flights", *KEY)
    assert result.exit_code == 1
    assert "no object of flights under" in result.stderr
    file = tmp_path / "gone.txt"
    file.write_text("aircraft=N001\n\naircraft=N002\n")
    assert done("forget", "flights", "--keys", str(file)).startswith("forgot 2 keys in flights: ")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("forget", "flights"), 2, "no key to forget was given"),
        (("forget", "flights", "--key", "N003"), 2, "a key to forget lacks its table"),
        (("forget", "flights", "--key", "planes=N003"), 1, "planes"),
        (("forget", "flights", "--key", "aircraft=N999"), 1, "no object of flights under"),
        (("forget", "flights", "--give-up"), 1, "there is nothing to give up"),
        (("forget", "flights", "--give-up", *KEY), 2, "--give-up takes no keys"),
        (("forget", "flights/aircraft", "N003", *KEY), 2, "keys are given twice"),
        (("forget", "flights/planes", "N003"), 1, "planes"),
        (("forget", "flights/aircraft@-1h", "N003"), 2, "this covers all versions of an app"),
        (("forget", "flights/aircraft", "N003", "N004"), 2, "the key of table 'aircraft' is tail (string); found 2"),
        (("forget", "flights/aircraft", "N003", "--give-up"), 2, "--give-up takes no keys"),
        (("verify", "flights", "--forgotten"), 2, "--forgotten needs a key"),
        (("verify", "flights", *KEY), 2, "--forgotten needs a key"),
        (("verify", "flights@good", "--forgotten", *KEY), 2, "this covers all versions of an app"),
    ],
)
def test_an_impossible_forget_is_explained_in_one_sentence(
    app: FlightsApp, words: tuple[str, ...], code: int, expected: str
) -> None:
    before = {info.key for info in app.store.list("")}
    result = slackwater(*words)
    assert (result.exit_code, expected in result.stderr) == (code, True), result.output
    # Runners were notified that there may be requests, and this notification stays.
    assert {info.key for info in app.store.list("")} - {keys.request_signal("flights")} == before


def test_forgetting_in_a_protected_app_requires_its_name(app: FlightsApp) -> None:
    done("protect", "flights", "--message", "production")
    assert "flights' is protected" in slackwater("forget", "flights", *KEY).stderr
    assert done("forget", "flights", *KEY, "--yes-really", "flights").startswith("forgot 1 key")


def test_after_a_promotion_messages_use_the_names_that_users_type(app: FlightsApp) -> None:
    promoted(app)
    refused = slackwater("forget", "flights", *KEY)
    assert (refused.exit_code, "hint: forget it in flights~1: that includes its clones" in refused.stderr) == (1, True)
    said = done("forget", "flights~1", *KEY)
    assert said.startswith("forgot 1 key in flights~1: ")
    assert "snapshot flights~1@good was edited" in said
    assert "to verify: slackwater verify flights~1 --forgotten" in said
    looked = done("verify", "flights~1", "--forgotten", *KEY, "--deep")
    assert looked.startswith("no object of flights~1, staging holds any of 1 key\n")


def test_fields_unknown_to_the_store_and_further_values_are_given_as_options(app: FlightsApp) -> None:
    said = done("forget", "flights", *KEY, "--dry-run")
    assert "by-aircraft" in said
    rows = [line.split("  ") for line in said.splitlines() if "records in flight" in line]
    assert next(each[0] for each in rows) == "by-aircraft"
    also = done("forget", "flights", *KEY, "--also", "N001", "--field", "aircraft=by-carrier:tail", "--dry-run")
    counts = [from_json("forget", "flights", *more, "--dry-run")["gone"] for more in (KEY, (*KEY, "--also", "N001"))]
    assert sum(each["rows"] for each in counts[1]) > sum(each["rows"] for each in counts[0])
    assert also.startswith("would forget 1 key in flights: ")
    for words, code, text in (
        (("--field", "aircraft"), 2, "is not TABLE=FIELD"),
        (("--field", "aircraft=$.a["), 2, "is not a field of a record"),
        (("--field", "aircraft=nowhere:tail"), 1, "nowhere"),
    ):
        for verb in (("forget", "flights"), ("verify", "flights", "--forgotten")):
            result = slackwater(*verb, *KEY, *words)
            assert (result.exit_code, text in result.stderr) == (code, True), result.output


def test_a_message_that_contains_the_key_is_refused_since_it_would_stay_in_the_log(app: FlightsApp) -> None:
    refused = slackwater("forget", "flights", *KEY, "--message", "request of N003")
    assert refused.exit_code == 2
    assert "the message contains a key to be forgotten" in refused.stderr
    assert "request of N003" not in done("log", "flights", "--operations")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_file_of_keys_is_read_literally(app: FlightsApp, tmp_path: Path, ending: str) -> None:
    """Windows line ends are line ends; any other separator is part of the key."""
    app.run([Flight(tail, "C0", 5) for tail in ('a"b', "ä\u2028ö\x0c", " n ")])
    file = tmp_path / "gone.txt"
    lines = ('aircraft=a"b', "aircraft=ä\u2028ö\x0c", "", "aircraft= n ")
    file.write_bytes(b"\xef\xbb\xbf" + ending.join(lines).encode())
    said = done("forget", "flights", "--keys", str(file))
    assert said.startswith("forgot 3 keys in flights: 3 stored rows")


@pytest.mark.usefixtures("app")
def test_forget_accepts_a_key_as_get_does() -> None:
    """Check that `APP/TABLE KEY` and `--key TABLE=KEY` name the same key: the second form reports "done already"."""
    assert from_json("forget", "flights/aircraft", "N003", "--dry-run") == from_json(
        "forget", "flights", *KEY, "--dry-run"
    )
    assert done("forget", "flights/aircraft", "N003").startswith("forgot 1 key in flights: ")
    assert slackwater("get", "flights/aircraft", "N003").exit_code == 1
    assert done("verify", "flights/aircraft", "N003", "--forgotten") == done("verify", "flights", "--forgotten", *KEY)
