"""Manual searches of `slackwater bisect`, and the saved session of every search."""

import json
import re
from pathlib import Path

import pytest
from slackwater.pipeline.kafka import channels
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import BAD, done, from_json, slackwater
from tests.support.histories import FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")


def answer_until_found(truth: int, *, skips: frozenset[str] = frozenset()) -> tuple[int, str]:
    """Answer for each moment by its version of `carriers`. Returns the last exit code and output."""
    result = slackwater("bisect", "start", "flights", "--json")
    while result.exit_code == 0 and (said := json.loads(result.stdout)).get("wanted"):
        assert said["wanted"].startswith("flights/")
        bad = said["cut"].get("carriers", 0) >= truth
        word = "skip" if said["wanted"] in skips else "bad" if bad else "good"
        result = slackwater("bisect", word, "flights", "--json")
    return result.exit_code, result.stdout


@pytest.mark.usefixtures("app")
def test_a_manual_search_finds_the_commit() -> None:
    code, text = answer_until_found(truth=6)
    verdict = json.loads(text)
    assert code == 0
    assert verdict["first_bad"]["ref"] == "flights/carriers@v6"
    assert verdict["predicate"] == "by hand"
    assert "carriers v6 is the first bad commit" in done("bisect", "explain", "flights")


@pytest.mark.usefixtures("app")
def test_skips_leave_candidates_and_exit_as_git_does() -> None:
    code, text = answer_until_found(truth=5, skips=frozenset({"flights/carriers@v5", "flights/aircraft@v5"}))
    assert code == 2
    left = {each["stage"]: (each["first"], each["last"]) for each in json.loads(text)["candidates"]}
    assert left["carriers"] == (5, 5)
    assert "aircraft" in left
    assert "# the first bad commit of flights is one of" in done("bisect", "log", "flights")


@pytest.mark.usefixtures("app")
def test_a_manual_search_prints_the_commands_to_inspect_a_moment() -> None:
    text = done("bisect", "start", "flights", "--good", "flights/carriers@v2", "--bad", "flights/carriers@v6")
    ref = text.split()[2].rstrip(",")
    assert text.startswith(f"look at {ref}")
    assert f"slackwater query {ref} 'FROM aircraft'" in text
    assert "slackwater bisect good flights (or bad, or skip)" in text
    assert "flights/carriers@v2" in done("bisect", "log", "flights")


@pytest.mark.usefixtures("app")
def test_the_log_of_every_search_can_be_replayed(tmp_path: Path) -> None:
    found = from_json("bisect", "flights", "--where", BAD)
    log = done("bisect", "log", "flights")
    assert log.splitlines()[1].startswith("slackwater bisect flights --where 'SELECT")
    assert log.count("slackwater bisect good flights") + log.count("slackwater bisect bad flights") == len(
        found["steps"]
    )
    (tmp_path / "search.log").write_text(log)
    again = from_json("bisect", "replay", "search.log")
    assert again["first_bad"] == found["first_bad"]
    assert again["evaluations"] == 0
    # The session is repaired by hand: missing answers are asked for again.
    (tmp_path / "search.log").write_text("\n".join(log.splitlines()[:2]))
    assert from_json("bisect", "replay", "search.log")["evaluations"] == found["evaluations"]


@pytest.mark.usefixtures("app")
def test_explain_shows_answer_and_duration_of_each_moment() -> None:
    done("bisect", "flights", "--where", BAD)
    lines = done("bisect", "explain", "flights").splitlines()
    assert lines[0].split() == ["moment", "answer", "took", "why"]
    assert re.search(r" \d\S* (ms|s)\b", lines[1])  # on a busy machine it may take seconds
    assert lines[-1] == "carriers v6 is the first bad commit of flights"
    assert from_json("bisect", "explain", "flights")["asked"]["where"] == BAD


@pytest.mark.usefixtures("app")
def test_an_open_manual_search_is_not_overwritten_by_another() -> None:
    done("bisect", "start", "flights")
    for words in (("flights", "--where", BAD), ("start", "flights")):
        refused = slackwater("bisect", *words)
        assert refused.exit_code == 1
        assert "a manual search of flights is open" in refused.stderr
    assert "removed" in done("bisect", "reset", "flights")
    assert "flights has no search" in done("bisect", "reset", "flights")
    assert slackwater("bisect", "log", "flights").exit_code == 1
    done("bisect", "flights", "--where", BAD)


@pytest.mark.usefixtures("app")
def test_answers_that_contradict_each_other_are_refused() -> None:
    done("bisect", "start", "flights", "--bad", "flights/carriers@v4")
    refused = slackwater("bisect", "good", "flights", "flights/carriers@v5")
    assert refused.exit_code == 1
    assert "flights/carriers@v5 is good and flights/carriers@v4 is bad, but" in refused.stderr


def test_an_app_named_like_a_subcommand_is_searched_if_an_option_comes_first(store: ObjectStore) -> None:
    app = FlightsApp(store, Kafka(), "start")
    app.run(flights(20))
    where = "FROM carriers WHERE flights > 4"
    found = from_json("bisect", "--where", where, "start")
    assert found["app"] == "start"
    assert "look at start/" in done("bisect", "start", "start")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("flights",), "missing --where, --check, --python or --run"),
        (("flights", "--where", BAD, "--check", "delay > 0"), "--where and --check exclude each other"),
        (("flights/carriers", "--where", BAD), "with a whole query, which names its own tables"),
        (("flights/carriers", "--run", "true"), "the table carriers needs a --where or --check condition"),
        (("flights", "--where", "delay > 1000"), "its columns are in aircraft and carriers"),
        (("flights/carriers", "--where", "delay"), "returns BIGINT; expected one BOOLEAN"),
        (("flights/carriers", "--where", "delay > 1; DROP TABLE carriers"), "Parser Error"),
        (("flights", "--where", BAD, "--first", "--last"), "give one of them"),
        (("flights", "more", "--where", BAD), "unexpected extra argument"),
        (("flights", "--python", "mine.py:ok"), "there is no file mine.py"),
    ],
)
def test_an_incomplete_search_is_a_usage_error(words: tuple[str, ...], expected: str) -> None:
    result = slackwater("bisect", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


@pytest.mark.usefixtures("app")
def test_a_check_a_function_and_a_command_find_the_same_commit(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def ok(con):\n"
        "    (worst,) = con.sql('SELECT max(delay) FROM carriers').fetchall()[0]\n"
        "    return not worst or worst <= 1000\n"
    )
    for words in (
        ("flights/carriers", "--check", "delay <= 1000"),
        ("flights", "--python", "mine.py:ok"),
        ("flights", "--run", "case $SLACKWATER_REF in *@v6|*@v7) exit 1;; *) exit 0;; esac"),
    ):
        found = from_json("bisect", *words)
        assert found["predicate"] == words[2]
        assert found["first_bad"]["version"] == 6
        assert done("bisect", "log", "flights").count(words[1]) == 1


def test_the_search_and_the_log_report_input_that_is_gone_from_kafka(
    app: FlightsApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    monkeypatch.setenv("SLACKWATER_KAFKA", "in-memory:9092")
    assert "Kafka has deleted input" not in slackwater("bisect", "flights", "--where", BAD).stderr
    app.kafka.earliest["flights"] = app.version("legs", 4).inputs["flights"].offsets
    said = slackwater("bisect", "flights", "--where", BAD).stderr.splitlines()
    assert said[0] == (
        "note: Kafka has deleted input of legs up to v4: a search can find these versions, but not replay them"
    )
    logged = {e["version"]: e["replayable"] for e in from_json("log", "flights", "--stage", "legs")}
    assert logged == {1: None, 2: False, 3: False, 4: False, 5: True, 6: True, 7: True}
    lines = done("log", "flights", "--stage", "legs").splitlines()
    assert ["restore, replay" in line for line in lines[1:]] == [True] * 3 + [False] * 4


def test_a_recreated_topic_is_not_the_topic_that_was_read(app: FlightsApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new topic has as many offsets as the old one, so only its id differs."""
    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    monkeypatch.setenv("SLACKWATER_KAFKA", "in-memory:9092")
    app.kafka.ids["flights"] = "made-again"
    said = slackwater("bisect", "flights", "--where", BAD).stderr.splitlines()
    assert said[0] == (
        "note: Kafka has deleted input of legs up to v7 (topic flights was recreated): "
        "a search can find these versions, but not replay them"
    )
    logged = {e["version"]: (e["replayable"], e["replaced"]) for e in from_json("log", "flights", "--stage", "legs")}
    assert logged == {1: (None, [])} | dict.fromkeys(range(2, 8), (False, ["flights"]))
    lines = done("log", "flights", "--stage", "legs").splitlines()
    assert all("restore; topic flights was recreated" in line for line in lines[1:-1])
    assert not any("replayed" in line for line in lines)
    assert all(e["replayable"] for e in from_json("log", "flights", "--stage", "carriers") if e["rows_in"])


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "words",
    [
        ("bisect", "flights", "--where", BAD, "--code", "nosuch.py"),
        ("bisect", "flights", "--where", BAD, "--code", "there.py", "--code", "nosuch.py"),
        ("bisect", "flights", "--where", BAD, "--code", "nosuch.py:rows"),
        ("replay", "flights/carriers@v3", "--code", "nosuch.py"),
        ("why", "flights/carriers", "C1", "--code", "nosuch.py"),
        ("impact", "flights", "flights[0]@1", "--code", "nosuch.py"),
        ("init", "flights/carriers", "rows.parquet", "--code", "nosuch.py"),
    ],
)
def test_a_missing_program_is_refused_before_the_search(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    refused = slackwater(*words)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: no Python file named 'nosuch.py")
    assert "nearest" in refused.stderr or "there are: there.py" in refused.stderr
    folder = slackwater("bisect", "flights", "--where", BAD, "--code", str(tmp_path))
    assert (folder.exit_code, "is a folder" in folder.stderr) == (2, True)


@pytest.mark.usefixtures("app")
def test_good_may_be_the_beginning_but_bad_may_not() -> None:
    plain, named = (from_json("bisect", "flights", "--where", BAD, *more) for more in ((), ("--good", "beginning")))
    assert (named["stage"], named["first_bad"]) == (plain["stage"], plain["first_bad"])
    refused = slackwater("bisect", "flights", "--where", BAD, "--bad", "beginning")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "error: --bad is the beginning, before the first commit" in refused.stderr
